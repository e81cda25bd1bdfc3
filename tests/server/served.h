// SPDX-License-Identifier: MIT
// A server of a shipped fixture on a port of its own, in this process, and a client with verbs.
// Thread rule: verbs from any thread.
#pragma once

#include <httplib.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "fields.h"
#include "http_server.h"

namespace server {

struct Answered {
  int status = 0;
  json body;
  httplib::Headers headers;
};

class Served {
 public:
  explicit Served(const std::function<void(Settings&)>& change = {},
                  const std::string& fixture = "tiny-qwen3-q8_0.gguf");
  ~Served();

  httplib::Client client() const;
  Answered post(const std::string& path, const json& body) const;
  Answered get(const std::string& path) const;
  /// The events of a stream: what stands behind "data: ".
  std::vector<std::string> stream(const std::string& path, json body) const;
  /// A chat completion, greedy unless `more` says otherwise.
  json chat(const std::string& question, json more = json::object()) const;
  static std::string content(const json& completion);
  /// A counter or gauge of /metrics.
  double metric(const std::string& name) const;
  /// The counters that /metrics shows, also while the thread that computes is held.
  const Metrics& metrics() const { return http_->metrics(); }
  /// Asks again until it holds; false after many times.
  bool becomes(const std::function<bool()>& condition) const;
  /// Runs it on the thread that computes, between two steps, and waits for it. Routes that tell of
  /// sessions wait for that thread, too, so it may not ask them.
  void between_steps(const std::function<void(SessionCache&)>& work);
  int port() const { return port_; }
  const Engine& engine() const { return *engine_; }

 private:
  Settings settings_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<HttpServer> http_;
  int port_ = 0;
  std::thread thread_;
};

/// A path of the source tree.
std::string source_path(const std::string& path);
/// The path of a fixture that lies in the source tree.
std::string fixture_path(const std::string& name);
/// A word n times.
std::string words(const std::string& word, int n);
/// A chat whose answer only an end of the context ends: no token that ends may be drawn.
json endless(const Served& served, bool stream);

}  // namespace server
