// SPDX-License-Identifier: MIT
// Several answers to one request, and what a stream says while a prompt is read.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "served.h"

namespace server {
namespace {

class Choices : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { served_ = new Served; }
  static void TearDownTestSuite() {
    delete served_;
    served_ = nullptr;
  }
  static json posted(const std::string& path, const json& body) {
    const Answered answer = served_->post(path, body);
    EXPECT_EQ(answer.status, 200) << answer.body.dump();
    return answer.body;
  }
  static std::string refusal(const std::string& path, const json& body) {
    const Answered answer = served_->post(path, body);
    EXPECT_EQ(answer.status, 400) << answer.body.dump();
    return answer.body["error"]["message"];
  }
  static Served* served_;
};
Served* Choices::served_ = nullptr;

json hot_chat(int seed) {
  return {{"messages", json::array({{{"role", "user"}, {"content", words("tell me more", 40)}}})},
          {"temperature", 1.5},
          {"top_k", 0},
          {"seed", seed},
          {"max_tokens", 12}};
}

TEST_F(Choices, HaveSeedsThatFollowEachOtherAndOnePrompt) {
  std::vector<std::string> alone;
  for (const int seed : {5, 6, 7}) {
    alone.push_back(Served::content(posted("/v1/chat/completions", hot_chat(seed))));
  }
  json body = hot_chat(5);
  const size_t prompt = posted("/v1/chat/completions", body)["usage"]["prompt_tokens"];
  body["n"] = 3;
  const double read = served_->metric("sharpi_prompt_tokens_total");
  const json together = posted("/v1/chat/completions", body);
  ASSERT_EQ(together["choices"].size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(together["choices"][i]["index"], i);
    EXPECT_EQ(together["choices"][i]["message"]["content"], alone[i]);
  }
  EXPECT_EQ(together["usage"]["prompt_tokens"], prompt);
  EXPECT_EQ(together["usage"]["completion_tokens"], 36);
  EXPECT_LT(served_->metric("sharpi_prompt_tokens_total") - read, prompt)
      << "the prompt is read once, and forked";
  std::vector<std::string> streamed(3);
  for (const std::string& event : served_->stream("/v1/chat/completions", body)) {
    if (event == "[DONE]") continue;
    const json chunk = json::parse(event);
    for (const json& choice : chunk["choices"]) {
      streamed[choice["index"].get<size_t>()] += choice["delta"].value("content", "");
    }
  }
  EXPECT_EQ(streamed, alone);
}

TEST_F(Choices, EachKeepToTheirSchema) {
  json body = hot_chat(3);
  body["n"] = 2;
  body["max_tokens"] = 60;
  body["response_format"] = json::parse(R"({"type": "json_schema", "json_schema": {"name": "x",
      "schema": {"type": "object", "properties": {"a": {"enum": [1, 2, 3, 4, 5, 6, 7, 8]}},
                 "required": ["a"], "additionalProperties": false}}})");
  const json all = posted("/v1/chat/completions", body);
  for (const json& choice : all["choices"]) {
    const json value = json::parse(choice["message"]["content"].get<std::string>());
    EXPECT_TRUE(value["a"].is_number());
  }
}

TEST_F(Choices, AreAsManyAsAnswersAreWrittenAtOnce) {
  json body = hot_chat(1);
  body["n"] = 5;
  EXPECT_EQ(refusal("/v1/chat/completions", body), "n is not a whole number from 1 to 4");
  EXPECT_EQ(refusal("/v1/completions", {{"prompt", "x"}, {"n", 2}, {"best_of", 3}}),
            "best_of is not supported, except as 2: all answers are returned");
}

TEST_F(Choices, PromptsOfAListAreAnsweredInTheirOrder) {
  json prompts = json::array(), alone = json::array();
  for (const char* code : {"12345", "88752", "31415", "97697", "11111", "65536"}) {
    const std::string said = "The code of olive is " + std::string(code) + ".\n";
    prompts.push_back(said + "The code of olive is");
    alone.push_back(posted("/v1/completions",
                           {{"prompt", prompts.back()}, {"temperature", 0}, {"max_tokens", 6}}));
  }
  const json body = {{"prompt", prompts}, {"temperature", 0}, {"max_tokens", 6}, {"echo", true}};
  const json all = posted("/v1/completions", body);
  ASSERT_EQ(all["choices"].size(), prompts.size()) << "more than are answered at once";
  std::vector<std::string> streamed(prompts.size());
  for (const std::string& event : served_->stream("/v1/completions", body)) {
    if (event == "[DONE]") continue;
    const json chunk = json::parse(event);
    for (const json& choice : chunk["choices"]) {
      streamed[choice["index"].get<size_t>()] += choice["text"].get<std::string>();
    }
  }
  size_t n_prompt = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const std::string text = all["choices"][i]["text"];
    EXPECT_EQ(all["choices"][i]["index"], i);
    EXPECT_EQ(text,
              prompts[i].get<std::string>() + alone[i]["choices"][0]["text"].get<std::string>());
    EXPECT_EQ(streamed[i], text);
    n_prompt += alone[i]["usage"]["prompt_tokens"].get<size_t>();
  }
  EXPECT_EQ(all["usage"]["prompt_tokens"], n_prompt);
  const json ids = posted("/v1/tokenize", {{"prompt", prompts[0]}})["tokens"];
  const json of_ids = posted("/v1/completions", {{"prompt", json::array({ids, prompts[1]})},
                                                 {"n", 2},
                                                 {"temperature", 0},
                                                 {"max_tokens", 6},
                                                 {"echo", true}});
  ASSERT_EQ(of_ids["choices"].size(), 4u);
  EXPECT_EQ(of_ids["choices"][1]["text"], all["choices"][0]["text"]);
  EXPECT_EQ(of_ids["choices"][2]["text"], all["choices"][1]["text"]);
  EXPECT_EQ(refusal("/v1/completions", {{"prompt", json::array({"x", 7})}}),
            "prompt[1] is not a text or a list of token ids");
  EXPECT_EQ(refusal("/v1/completions", {{"prompt", json(300, "x")}}),
            "prompt has more than 256 prompts");
}

// What was thought of a token while it was written is thought of it in a prompt, too.
TEST_F(Choices, LogprobsOfAPromptAreThoseOfItsTokens) {
  const json prompt = "The code of olive is 77777.\nThe code of olive is";
  const json written = posted(
      "/v1/completions",
      {{"prompt", prompt}, {"temperature", 0}, {"max_tokens", 6}, {"logprobs", 3}})["choices"][0];
  const std::string text = prompt.get<std::string>() + written["text"].get<std::string>();
  const size_t n_before = posted("/v1/tokenize", {{"prompt", prompt}})["tokens"].size();
  ASSERT_EQ(posted("/v1/tokenize", {{"prompt", text}})["tokens"].size(), n_before + 6);
  const json body = {{"prompt", text}, {"temperature", 0}, {"max_tokens", 2},
                     {"logprobs", 3},  {"echo", true},     {"n", 2}};
  const json whole = posted("/v1/completions", body);
  std::array<json, 2> streamed;
  for (const std::string& event : served_->stream("/v1/completions", body)) {
    if (event == "[DONE]") continue;
    const json chunk = json::parse(event);
    for (const json& choice : chunk["choices"]) {
      if (choice["logprobs"].is_null()) continue;
      for (const auto& [key, list] : choice["logprobs"].items()) {
        json& all = streamed.at(choice["index"].get<size_t>())[key];
        for (const json& entry : list) all.push_back(entry);
      }
    }
  }
  for (size_t c = 0; c < 2; ++c) {
    const json lists = whole["choices"][c]["logprobs"];
    EXPECT_EQ(streamed[c], lists);
    ASSERT_EQ(lists["tokens"].size(), n_before + 6 + 2);
    EXPECT_TRUE(lists["token_logprobs"][0].is_null());
    EXPECT_TRUE(lists["top_logprobs"][0].is_null());
    std::string spelled;
    for (const json& token : lists["tokens"]) spelled += token.get<std::string>();
    EXPECT_EQ(spelled, whole["choices"][c]["text"]);
    for (size_t i = 0; i < 6; ++i) {
      const json& old = written["logprobs"];
      EXPECT_EQ(lists["tokens"][n_before + i], old["tokens"][i]);
      EXPECT_EQ(lists["text_offset"][n_before + i],
                old["text_offset"][i].get<size_t>() + prompt.get<std::string>().size());
      EXPECT_NEAR(lists["token_logprobs"][n_before + i].get<double>(),
                  old["token_logprobs"][i].get<double>(), 2e-2);
      EXPECT_EQ(lists["top_logprobs"][n_before + i].size(), 3u);
    }
  }
  EXPECT_EQ(whole["usage"]["prompt_tokens"], n_before + 6);
  EXPECT_EQ(whole["usage"]["completion_tokens"], 4);
  EXPECT_EQ(whole["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
}

TEST_F(Choices, OnlyAllowedToolsAreShownAndCalled) {
  const auto tool = [](const char* name) {
    return json{{"type", "function"}, {"function", {{"name", name}}}};
  };
  json body = hot_chat(1);
  body["max_tokens"] = 1;
  const auto shown = [&](json tools, json choice) {
    body["tools"] = std::move(tools);
    body["tool_choice"] = std::move(choice);
    return posted("/v1/chat/completions", body)["usage"]["prompt_tokens"].get<size_t>();
  };
  const json allowed = {
      {"type", "allowed_tools"},
      {"allowed_tools", {{"mode", "auto"}, {"tools", json::array({tool("second")})}}}};
  EXPECT_EQ(shown(json::array({tool("first"), tool("second")}), allowed),
            shown(json::array({tool("second")}), "auto"));
  json required = allowed;
  required["allowed_tools"]["mode"] = "required";
  body["max_tokens"] = 100;
  body["tools"] = json::array({tool("first"), tool("second")});
  body["tool_choice"] = required;
  for (int seed = 0; seed < 3; ++seed) {
    body["seed"] = seed;
    const std::string text = posted("/v1/chat/completions", body).dump();
    EXPECT_EQ(text.find("\"name\":\"first\""), std::string::npos) << text;
  }
  const json flat = {{"type", "allowed_tools"},
                     {"mode", "required"},
                     {"tools", json::array({{{"type", "function"}, {"name", "third"}}})}};
  EXPECT_EQ(
      refusal("/v1/responses", {{"input", "x"},
                                {"tools", json::array({{{"type", "function"}, {"name", "first"}}})},
                                {"tool_choice", flat}}),
      "tool_choice asks for a function that tools does not have");
}

// The thread that computes is held until the client has heard that the server is still there.
TEST(Waiting, AStreamSaysHowFarThePromptIs) {
  Served served([](Settings& settings) {
    settings.context = 8192;
    settings.chunk = settings.prefill_chunk = 16;  // many places to hold it at
  });
  for (const char* path : {"/v1/chat/completions", "/v1/messages"}) {
    json body = hot_chat(1);
    body["messages"][0]["content"] = path + words(" wait for it", 1000);
    body["stream"] = true;
    std::atomic<bool> heard = false, begun = false;
    std::string text;
    std::thread client([&] {
      httplib::Request request;
      request.method = "POST";
      request.path = path;
      request.headers = {{"Content-Type", "application/json"}};
      request.body = body.dump();
      request.content_receiver = [&](const char* data, size_t size, uint64_t, uint64_t) {
        text.append(data, size);
        begun = true;
        if (text.find("\n: keep-alive, ") != std::string::npos) heard = true;
        return true;
      };
      served.client().send(request);
    });
    EXPECT_TRUE(served.becomes([&] { return begun.load(); }));
    served.between_steps(
        [&](SessionCache&) { EXPECT_TRUE(served.becomes([&] { return heard.load(); })); });
    client.join();
    const size_t at = text.find(": keep-alive, ");
    unsigned read = 0, of = 0;
    ASSERT_EQ(std::sscanf(text.c_str() + at, ": keep-alive, %u of %u tokens read", &read, &of), 2);
    EXPECT_LT(read, of);
    EXPECT_GT(of, 2000u);
  }
}

}  // namespace
}  // namespace server
