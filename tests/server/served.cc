// SPDX-License-Identifier: MIT
#include "served.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>

namespace server {

std::string source_path(const std::string& path) {
  const char* told = std::getenv("SHARPI_TEST_SOURCE");  // where the programs were carried to
  return std::string(told != nullptr ? told : SHARPI_TEST_SOURCE) + "/" + path;
}

std::string fixture_path(const std::string& name) {
  return source_path("tests/fixtures/" + name);
}

Served::Served(const std::function<void(Settings&)>& change, const std::string& fixture) {
  settings_ = read_settings({"--model", fixture_path(fixture), "--port", "0", "--context", "512",
                             "--threads", "1", "--deterministic", "--ignore-env"},
                            {});
  if (change) change(settings_);
  engine_ = std::make_unique<Engine>(settings_);
  http_ = std::make_unique<HttpServer>(*engine_, settings_);
  port_ = http_->bind();
  thread_ = std::thread([this] { http_->listen(); });
  EXPECT_TRUE(becomes([&] { return bool{client().Get("/health")}; }));
}

Served::~Served() {
  http_->stop();
  thread_.join();
}

httplib::Client Served::client() const {
  httplib::Client out("127.0.0.1", port_);
  out.set_read_timeout(120);
  if (!settings_.api_key.empty()) {
    out.set_default_headers({{"Authorization", "Bearer " + settings_.api_key}});
  }
  return out;
}

Answered Served::post(const std::string& path, const json& body) const {
  const auto result = client().Post(path, body.dump(), "application/json");
  if (!result) return {};
  return {result->status, json::parse(result->body, nullptr, false), result->headers};
}

Answered Served::get(const std::string& path) const {
  const auto result = client().Get(path);
  if (!result) return {};
  return {result->status, json::parse(result->body, nullptr, false), result->headers};
}

std::vector<std::string> Served::stream(const std::string& path, json body) const {
  body["stream"] = true;
  const auto result = client().Post(path, body.dump(), "application/json");
  std::vector<std::string> out;
  if (!result) return out;
  EXPECT_EQ(result->status, 200) << result->body;
  size_t at = 0;
  while ((at = result->body.find("data: ", at)) != std::string::npos) {
    const size_t end = result->body.find("\n\n", at);
    out.push_back(result->body.substr(at + 6, end - at - 6));
    at = end;
  }
  return out;
}

json Served::chat(const std::string& question, json more) const {
  json body = {{"messages", json::array({{{"role", "user"}, {"content", question}}})},
               {"temperature", 0},
               {"max_tokens", 12}};
  body.update(more);
  const Answered answer = post("/v1/chat/completions", body);
  EXPECT_EQ(answer.status, 200) << answer.body.dump();
  return answer.body;
}

std::string Served::content(const json& completion) {
  const json& content = completion["choices"][0]["message"]["content"];
  return content.is_string() ? content.get<std::string>() : "";
}

double Served::metric(const std::string& name) const {
  const auto result = client().Get("/metrics");
  if (!result) return -1;
  const size_t at = result->body.find("\n" + name + " ");
  return at == std::string::npos ? -1 : std::stod(result->body.substr(at + name.size() + 2));
}

void Served::between_steps(const std::function<void(SessionCache&)>& work) {
  http_->scheduler().run(work);
}

bool Served::becomes(const std::function<bool()>& condition) const {
  for (int i = 0; i < 3000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

std::string words(const std::string& word, int n) {
  std::string out;
  for (int i = 0; i < n; ++i) out += word + " ";
  return out;
}

json endless(const Served& served, bool stream) {
  json bias = json::object();
  for (int32_t i = 0; i < static_cast<int32_t>(served.engine().info().n_vocab); ++i) {
    if (served.engine().ends(i)) bias[std::to_string(i)] = -100;
  }
  return {{"messages", json::array({{{"role", "user"}, {"content", "go on"}}})},
          {"stream", stream},
          {"logit_bias", bias},
          {"max_tokens", 1000000}};
}

}  // namespace server
