// SPDX-License-Identifier: MIT
// What the routes answer, over a loopback connection to a shipped fixture.
#include <gtest/gtest.h>

#include "served.h"

namespace server {
namespace {

json object_schema() {
  return json::parse(R"({"type": "object", "properties": {
      "name": {"type": "string", "maxLength": 8},
      "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 2}},
      "required": ["name", "tags"], "additionalProperties": false})");
}

json weather_tool() {
  return json::parse(R"([{"type": "function", "function": {"name": "weather", "parameters": {
      "type": "object", "properties": {"city": {"type": "string", "maxLength": 6}},
      "required": ["city"], "additionalProperties": false}}}])");
}

class Routes : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { served_ = new Served; }
  static void TearDownTestSuite() {
    delete served_;
    served_ = nullptr;
  }
  static void refused(const std::string& path, const json& body, const std::string& sentence,
                      int status = 400) {
    const Answered answer = served_->post(path, body);
    EXPECT_EQ(answer.status, status);
    EXPECT_EQ(answer.body["error"]["message"], sentence) << answer.body.dump();
  }
  static json asked(json more) {
    json body = {{"messages", json::array({{{"role", "user"}, {"content", "hi"}}})},
                 {"max_tokens", 2}};
    body.update(more);
    return body;
  }
  static Served* served_;
};
Served* Routes::served_ = nullptr;

TEST_F(Routes, HealthModelsPlanAndPage) {
  EXPECT_EQ(served_->get("/health").body, json({{"status", "ok"}}));
  const json models = served_->get("/v1/models").body;
  EXPECT_EQ(models["data"][0]["id"], "tiny-qwen3-q8_0");
  EXPECT_EQ(served_->get("/v1/models/tiny-qwen3-q8_0").body, models["data"][0]);
  EXPECT_EQ(served_->get("/v1/models/other").status, 404);
  const json plan = served_->get("/v1/sharpi/plan").body;
  EXPECT_EQ(plan["settings"]["context"]["value"], 512);
  EXPECT_EQ(plan["settings"]["context"]["source"], "flag");
  EXPECT_EQ(plan["plan"]["n_ctx"], 512);
  EXPECT_GT(plan["plan"]["rows"].size(), 3u);
  EXPECT_EQ(plan["model"]["name"], "tiny-qwen3-q8_0");
  const auto page = served_->client().Get("/");
  ASSERT_TRUE(page);
  EXPECT_EQ(page->status, 200);
  EXPECT_EQ(page->get_header_value("Content-Type"), "text/html; charset=utf-8");
  for (const char* path : {"/../CMakeLists.txt", "/%2e%2e/CMakeLists.txt", "/page/index.html",
                           "//etc/passwd", "/..%2fCMakeLists.txt"}) {
    EXPECT_EQ(served_->get(path).status, 404) << path;
  }
}

TEST_F(Routes, AStreamSaysWhatTheWholeAnswerSays) {
  const json whole = served_->chat("where is the code?", {{"logprobs", true}, {"top_logprobs", 2}});
  const json body = {
      {"messages", json::array({{{"role", "user"}, {"content", "where is the code?"}}})},
      {"temperature", 0},
      {"max_tokens", 12},
      {"stream_options", {{"include_usage", true}}}};
  const std::vector<std::string> events = served_->stream("/v1/chat/completions", body);
  ASSERT_GT(events.size(), 4u);
  EXPECT_EQ(events.back(), "[DONE]");
  std::string content;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const json chunk = json::parse(events[i]);
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
    EXPECT_TRUE(chunk["sharpi_session"].is_string());
    if (chunk["choices"].empty()) continue;
    content += chunk["choices"][0]["delta"].value("content", "");
  }
  EXPECT_EQ(content, Served::content(whole));
  EXPECT_FALSE(content.empty());
  const json last = json::parse(events[events.size() - 2]);
  EXPECT_TRUE(last["choices"].empty());
  EXPECT_EQ(last["usage"]["completion_tokens"], whole["usage"]["completion_tokens"]);
  const json& logprobs = whole["choices"][0]["logprobs"]["content"];
  EXPECT_EQ(logprobs.size(), 12u);
  EXPECT_EQ(logprobs[0]["top_logprobs"].size(), 2u);
  EXPECT_LE(logprobs[0]["logprob"].get<double>(), 0.0);
  EXPECT_EQ(logprobs[0]["token"], logprobs[0]["top_logprobs"][0]["token"]) << "greedy";
}

TEST_F(Routes, EqualSeedsGiveEqualAnswersAndStopStringsEndThem) {
  const json hot = {{"temperature", 1.5}, {"seed", 11}, {"top_k", 0}, {"max_tokens", 24}};
  const std::string one = Served::content(served_->chat("tell me", hot));
  EXPECT_EQ(one, Served::content(served_->chat("tell me", hot)));
  json other = hot;
  other["seed"] = 12;
  EXPECT_NE(one, Served::content(served_->chat("tell me", other)));
  const std::string greedy = Served::content(served_->chat("tell me"));
  const std::string stop = greedy.substr(greedy.size() / 2, 3);
  const json stopped = served_->chat("tell me", {{"stop", stop}});
  EXPECT_EQ(stopped["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(Served::content(stopped),
            greedy.substr(0, greedy.find_last_not_of(' ', greedy.find(stop) - 1) + 1));
}

TEST_F(Routes, ABiasForbidsAToken) {
  const json first = served_->chat("tell me", {{"max_tokens", 1}, {"logprobs", true}});
  const json second = served_->chat("tell me", {{"max_tokens", 1}, {"logprobs", true}});
  EXPECT_EQ(first["choices"], second["choices"]);
  json all = json::object();
  for (int token = 0; token < 1000; ++token) all[std::to_string(token)] = -100;
  const json biased = served_->chat("tell me", {{"max_tokens", 6}, {"logit_bias", all}});
  EXPECT_NE(Served::content(biased),
            Served::content(served_->chat("tell me", {{"max_tokens", 6}})));
}

TEST_F(Routes, SchemasAndToolsAreKeptTo) {
  for (int seed = 0; seed < 6; ++seed) {
    const json how = {{"temperature", 1.5}, {"top_k", 0}, {"seed", seed}, {"max_tokens", 400}};
    json schema = how;
    schema["response_format"] = {{"type", "json_schema"},
                                 {"json_schema", {{"name", "x"}, {"schema", object_schema()}}}};
    const json answer = served_->chat("hi", schema);
    ASSERT_EQ(answer["choices"][0]["finish_reason"], "stop");
    const json value = json::parse(Served::content(answer));
    EXPECT_TRUE(value["name"].is_string());
    EXPECT_GE(value["tags"].size(), 1u);
    EXPECT_EQ(value.begin().key(), "name");
    json tools = how;
    tools["tools"] = weather_tool();
    tools["tool_choice"] =
        seed % 2 == 0 ? json("required")
                      : json::parse(R"({"type": "function", "function": {"name": "weather"}})");
    tools["parallel_tool_calls"] = false;
    const json called = served_->chat("hi", tools);
    ASSERT_EQ(called["choices"][0]["finish_reason"], "tool_calls") << called.dump();
    const json& call = called["choices"][0]["message"]["tool_calls"][0]["function"];
    EXPECT_EQ(call["name"], "weather");
    EXPECT_TRUE(json::parse(call["arguments"].get<std::string>())["city"].is_string());
  }
  const json object =
      served_->chat("hi", {{"max_tokens", 60}, {"response_format", {{"type", "json_object"}}}});
  EXPECT_EQ(Served::content(object)[0], '{');
}

TEST_F(Routes, ConversationsWithToolsAreRead) {
  json messages = json::parse(R"([{"role": "developer", "content": "be brief"},
      {"role": "user", "content": [{"type": "text", "text": "weather?"}]},
      {"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [
        {"id": "call_1", "type": "function",
         "function": {"name": "weather", "arguments": "{\"city\": \"Rome\"}"}}]},
      {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}])");
  const Answered answer = served_->post(
      "/v1/chat/completions",
      {{"messages", messages}, {"tools", weather_tool()}, {"max_tokens", 3}, {"user", "ignored"}});
  EXPECT_EQ(answer.status, 200) << answer.body.dump();
}

TEST_F(Routes, CompletionsGoOn) {
  const Answered whole = served_->post(
      "/v1/completions",
      {{"prompt", "The code of"}, {"max_tokens", 6}, {"temperature", 0}, {"logprobs", 1}});
  ASSERT_EQ(whole.status, 200) << whole.body.dump();
  EXPECT_EQ(whole.body["object"], "text_completion");
  EXPECT_EQ(whole.body["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(whole.body["choices"][0]["logprobs"]["tokens"].size(), 6u);
  std::string text;
  for (const std::string& event : served_->stream(
           "/v1/completions",
           {{"prompt", json::array({"The code of"})}, {"max_tokens", 6}, {"temperature", 0}})) {
    if (event != "[DONE]") text += json::parse(event)["choices"][0]["text"].get<std::string>();
  }
  EXPECT_EQ(text, whole.body["choices"][0]["text"]);
  EXPECT_EQ(served_->post("/v1/completions", {{"prompt", {1, 2, 3}}, {"max_tokens", 1}}).status,
            200);
  refused("/v1/completions", {{"prompt", {1, 99999999}}},
          "prompt has something that is no token of the model");
}

TEST_F(Routes, OffsetsOfTokensAreInCharactersOfAllTheirText) {
  const Engine& engine = served_->engine();
  const auto find = [&](auto fits) {
    for (uint32_t id = 0; id < engine.info().n_vocab; ++id) {
      const auto token = static_cast<int32_t>(id);
      if (!engine.ends(token) && fits(engine.token_bytes(token))) return token;
    }
    return -1;
  };
  const auto offsets = [&](int32_t token, const json& more) {
    json body = {{"prompt", "The code of"},
                 {"max_tokens", 4},
                 {"temperature", 0},
                 {"logprobs", 0},
                 {"logit_bias", {{std::to_string(token), 100}}}};
    body.update(more);
    const json whole = served_->post("/v1/completions", body).body["choices"][0];
    json parts = json::array();
    for (const std::string& event : served_->stream("/v1/completions", body)) {
      const json lists = event == "[DONE]" ? json() : json::parse(event)["choices"][0]["logprobs"];
      if (lists.is_null()) continue;
      for (const json& offset : lists["text_offset"]) parts.push_back(offset);
    }
    EXPECT_EQ(parts, whole["logprobs"]["text_offset"]);
    return whole["logprobs"]["text_offset"];
  };
  const int32_t half = find([](const std::string& bytes) { return bytes == "\xC3"; });
  ASSERT_GE(half, 0);
  EXPECT_EQ(offsets(half, json::object()), json({0, 0, 1, 2}))
      << "each is known to be half a character, which is shown as one of three bytes, by the next";
  const int32_t word = find([](const std::string& bytes) { return bytes == "code"; });
  ASSERT_GE(word, 0);
  EXPECT_EQ(offsets(word, json::object()), json({0, 4, 8, 12}));
  EXPECT_EQ(offsets(word, {{"stop", "codecodecodecodecodeX"}}), json({0, 4, 8, 12}))
      << "all of it is held back";
  EXPECT_EQ(offsets(word, {{"stop", "decodecod"}}), json({0, 4, 8})) << "the text ends before";
}

TEST_F(Routes, ResponsesComeWholeInEventsAndAreReadAgain) {
  const json ask = {{"input", "where is the code?"},
                    {"instructions", "be brief"},
                    {"temperature", 0},
                    {"max_output_tokens", 8}};
  const Answered whole = served_->post("/v1/responses", ask);
  ASSERT_EQ(whole.status, 200) << whole.body.dump();
  EXPECT_EQ(whole.body["status"], "incomplete");
  const json& item = whole.body["output"][0];
  std::string text;
  uint64_t sequence = 0;
  std::string last;
  for (const std::string& data : served_->stream("/v1/responses", ask)) {
    const json event = json::parse(data);
    EXPECT_EQ(event["sequence_number"], sequence++);
    last = event["type"].get<std::string>();
    if (last == "response.output_text.delta") text += event["delta"].get<std::string>();
  }
  EXPECT_EQ(last, "response.incomplete");
  EXPECT_EQ(text, item["content"][0]["text"]);
  const json again = json::array(
      {{{"role", "user"}, {"content", "where is the code?"}},
       item,
       {{"type", "function_call"}, {"call_id", "c1"}, {"name", "weather"}, {"arguments", "{}"}},
       {{"type", "function_call_output"}, {"call_id", "c1"}, {"output", "sunny"}}});
  const Answered next =
      served_->post("/v1/responses", {{"input", again}, {"max_output_tokens", 3}});
  EXPECT_EQ(next.status, 200) << next.body.dump();
  // An answer that is a call and nothing else has no text, and neither has one that only thought.
  const json call = again[2], output = again[3];
  const json thought = {
      {"type", "reasoning"},
      {"summary", json::array()},
      {"content", json::array({{{"type", "reasoning_text"}, {"text", "sun or rain?"}}})}};
  for (const json& said : {json::array({call, output}), json::array({thought, call, output}),
                           json::array({thought, {{"role", "user"}, {"content", "and?"}}})}) {
    json input = json::array({again[0]});
    input.insert(input.end(), said.begin(), said.end());
    const Answered bare =
        served_->post("/v1/responses", {{"input", input}, {"max_output_tokens", 3}});
    EXPECT_EQ(bare.status, 200) << bare.body.dump();
  }
  refused("/v1/responses", {{"input", "x"}, {"previous_response_id", "resp_1"}},
          "previous_response_id is not supported, except as null: responses are not kept; send "
          "their items again");
}

TEST_F(Routes, TheFormatOfAResponseIsItsText) {
  const json format = {{"type", "json_schema"}, {"name", "x"}, {"schema", object_schema()}};
  for (int seed = 0; seed < 4; ++seed) {
    const Answered whole = served_->post("/v1/responses", {{"input", "hi"},
                                                           {"temperature", 1.5},
                                                           {"top_k", 0},
                                                           {"seed", seed},
                                                           {"max_output_tokens", 400},
                                                           {"text", {{"format", format}}}});
    ASSERT_EQ(whole.status, 200) << whole.body.dump();
    EXPECT_EQ(whole.body["status"], "completed");
    EXPECT_EQ(whole.body["text"]["format"], format);
    const json value =
        json::parse(whole.body["output"][0]["content"][0]["text"].get<std::string>());
    EXPECT_TRUE(value["name"].is_string());
    EXPECT_GE(value["tags"].size(), 1u);
    EXPECT_EQ(value.begin().key(), "name");
  }
  refused("/v1/responses", {{"input", "x"}, {"text", {{"format", {{"type", "yaml"}}}}}},
          "text.format.type is not text, json_object, json_schema, regex or grammar");
}

TEST_F(Routes, WhatIsNotSupportedIsRefusedByName) {
  const std::string path = "/v1/chat/completions";
  refused(path, asked({{"n", 0}}), "n is not a whole number from 1 to 4");
  refused(path, asked({{"frequency_penalty", 0.5}}),
          "frequency_penalty is not supported, except as 0: use repeat_penalty");
  refused(path, asked({{"colour", "red"}}), "colour is not known here");
  refused(path, asked({{"temperature", -1}}), "temperature is not a number from 0.0 to 100.0");
  refused(path, asked({{"max_tokens", 0}}),
          "max_tokens is not a whole number from 1 to 2147483647");
  refused(path, asked({{"stop", json::array({""})}}),
          "stop has a text that is not of 1 to 128 bytes without a zero byte");
  refused(path, asked({{"logit_bias", {{"abc", 1}}}}),
          "logit_bias names \"abc\", which is no token of the model");
  refused(path, asked({{"top_logprobs", 3}}), "top_logprobs needs logprobs to be true");
  refused(path, asked({{"tool_choice", "required"}}),
          "tool_choice asks for a function that tools does not have");
  refused(path, asked({{"model", "gpt"}}),
          "the model \"gpt\" is not served here; \"tiny-qwen3-q8_0\" is", 404);
  refused(path, json::object(), "messages is missing");
  refused(path, {{"messages", json::array()}}, "messages is not a list with at least one message");
  refused(path, json::parse(R"({"messages": [{"role": "user", "content": [
      {"type": "image_url", "image_url": {"url": "x"}}]}]})"),
          "messages[0].content[0].type \"image_url\" is not supported: only text is read");
  refused(
      path,
      asked({{"response_format",
              {{"type", "json_schema"},
               {"json_schema",
                {{"name", "x"}, {"schema", {{"type", "string"}, {"not", {{"const", "a"}}}}}}}}}}),
      "response_format.json_schema.schema.not cannot be enforced while a text is written");
  refused(path, asked({{"response_format", {{"type", "regex"}, {"regex", "(a"}}}}),
          "the expression has a ( without a ) at byte 2");
  refused(
      path,
      asked({{"tool_choice", "required"},
             {"tools",
              json::array({{{"type", "function"},
                            {"function",
                             {{"name", "f"},
                              {"strict", true},
                              {"parameters", {{"type", "object"}, {"if", json::object()}}}}}}})}}),
      "tools[0].parameters.if cannot be enforced while a text is written");
}

TEST_F(Routes, PromptsWithoutRoomForAnAnswerAreRefusedByTheirField) {
  for (const int n : {600, 600000}) {  // by their tokens, and by their bytes
    const std::string text = words("code", n);
    const struct {
      const char* path;
      json body;
      const char* param;
    } cases[] = {{"/v1/chat/completions",
                  {{"messages", json::array({{{"role", "user"}, {"content", text}}})}},
                  "messages"},
                 {"/v1/completions", {{"prompt", text}}, "prompt"},
                 {"/v1/responses", {{"input", text}}, "input"}};
    for (const auto& one : cases) {
      const Answered late = served_->post(one.path, one.body);
      EXPECT_EQ(late.status, 400) << one.path;
      EXPECT_EQ(late.body["error"]["code"], "context_length_exceeded") << one.path;
      EXPECT_EQ(late.body["error"]["param"], one.param) << one.path;
    }
  }
}

TEST_F(Routes, BodiesThatAreNoJsonAreRefusedWithTheirPlace) {
  httplib::Client client = served_->client();
  const auto post = [&](const std::string& body, const char* type = "application/json") {
    const auto result = client.Post("/v1/chat/completions", body, type);
    return result ? std::to_string(result->status) + " " + result->body : "no answer";
  };
  EXPECT_NE(post("{\n \"a\": }").find("at byte 9, line 2, column 7"), std::string::npos);
  EXPECT_EQ(post("[]").substr(0, 3), "400");
  EXPECT_EQ(post("").substr(0, 3), "400");
  EXPECT_NE(post(std::string(200, '[')).find("nested more than 100 levels"), std::string::npos);
  EXPECT_EQ(post("{}", "text/plain").substr(0, 3), "415");
  std::string wide = "{\"a0\": 1";
  for (int i = 1; i < 2000; ++i) wide += ", \"a" + std::to_string(i) + "\": 1";
  EXPECT_NE(post(wide + "}").find("more than 1024 members"), std::string::npos);
  const std::string long_text(10u << 20, 'x');
  EXPECT_EQ(post("{\"messages\": \"" + long_text + "\"}").substr(0, 3), "400");
  EXPECT_EQ(post("{\"messages\": \"" + long_text + long_text + "\"}").substr(0, 3), "413");
  EXPECT_EQ(served_->get("/health").status, 200);
}

TEST_F(Routes, PagesOfOtherSitesAreNotServed) {
  httplib::Client client = served_->client();
  const std::string own = "http://127.0.0.1:" + std::to_string(served_->port());
  auto own_page = client.Get("/v1/models", {{"Origin", own}});
  ASSERT_TRUE(own_page);
  EXPECT_EQ(own_page->status, 200);
  auto other = client.Get("/v1/models", {{"Origin", "http://example.com"}});
  ASSERT_TRUE(other);
  EXPECT_EQ(other->status, 403);
}

TEST(Keys, AreAskedForAndCompared) {
  const Served served([](Settings& s) { s.api_key = "secret"; });
  EXPECT_EQ(served.get("/v1/models").status, 200);
  httplib::Client stranger("127.0.0.1", served.port());
  for (const char* key : {"", "Bearer", "Bearer ", "Bearer secre", "Bearer secret2", "secret"}) {
    const auto answer = stranger.Get("/v1/models", {{"Authorization", key}});
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->status, 401) << key;
    EXPECT_EQ(answer->body.find("secret\""), std::string::npos);
  }
  EXPECT_EQ(stranger.Get("/health")->status, 200);
  EXPECT_EQ(stranger.Get("/metrics")->status, 401);
  EXPECT_EQ(stranger.Get("/")->status, 200);
}

// What cannot fit is refused by its length, before it is taken apart into tokens.
TEST_F(Routes, LongPromptsAreRefusedByTheirBytes) {
  const std::string text(3 << 20, 'x');
  const auto sentence = [](const Answered& answer) {
    EXPECT_EQ(answer.status, 400);
    EXPECT_EQ(answer.body["error"]["code"], "context_length_exceeded");
    return answer.body["error"]["message"].get<std::string>();
  };
  const std::string begin = "the prompt has at least ";
  EXPECT_TRUE(sentence(served_->post("/v1/completions", {{"prompt", text}})).starts_with(begin));
  const json message = {{"role", "user"}, {"content", text}};
  EXPECT_TRUE(
      sentence(served_->post("/v1/chat/completions", {{"messages", json::array({message})}}))
          .starts_with(begin));
  EXPECT_TRUE(sentence(served_->post("/v1/responses", {{"input", text}})).starts_with(begin));
  // What only the tokens show is counted.
  std::string words;
  for (int i = 0; i < 600; ++i) words += " 7";
  const std::string counted = sentence(served_->post("/v1/completions", {{"prompt", words}}));
  const size_t n = served_->engine()
                       .tokenize(words, SHARPI_TOKENIZE_ADD_SPECIAL | SHARPI_TOKENIZE_PARSE_SPECIAL)
                       .size();
  EXPECT_TRUE(counted.starts_with("the prompt has " + std::to_string(n) + " tokens")) << counted;
}

TEST_F(Routes, NoTextHasFewerTokensThanItsBytesSay) {
  const Engine& engine = served_->engine();
  std::string longest;
  for (int32_t i = 0; static_cast<uint32_t>(i) < engine.info().n_vocab; ++i) {
    std::string bytes = engine.token_bytes(i);
    if (bytes.size() > longest.size()) longest = std::move(bytes);
  }
  // The last ones are two decomposed characters, which composed have a third of the bytes.
  for (const std::string& part :
       {longest, std::string(" "), std::string("\n"), std::string("code"),
        std::string("\u1112\u1161\u11ab"), std::string("\u03b9\u0308\u0301")}) {
    std::string text;
    while (text.size() < 6000) text += part;
    EXPECT_GE(engine.tokenize(text, SHARPI_TOKENIZE_PARSE_SPECIAL).size(),
              engine.fewest_tokens(text.size()))
        << part;
  }
  EXPECT_GT(engine.fewest_tokens(1 << 20), 512u);
}

}  // namespace
}  // namespace server
