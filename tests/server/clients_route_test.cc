// SPDX-License-Identifier: MIT
// What published clients send besides what is needed: taken where it changes nothing, and listed.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include "served.h"

namespace server {
namespace {

class Clients : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    served_ = new Served([](Settings& settings) { settings.context = 2048; });
  }
  static void TearDownTestSuite() {
    delete served_;
    served_ = nullptr;
  }
  static Answered posted(const std::string& path, const json& body) {
    Answered answer = served_->post(path, body);
    EXPECT_EQ(answer.status, 200) << answer.body.dump();
    return answer;
  }
  static std::string left_out(const Answered& answer) {
    const auto header = answer.headers.find("Sharpi-Ignored");
    return header == answer.headers.end() ? "" : header->second;
  }
  static std::string refusal(const std::string& path, const json& body) {
    const Answered answer = served_->post(path, body);
    EXPECT_EQ(answer.status, 400) << answer.body.dump();
    return answer.body["error"]["message"];
  }
  static Served* served_;
};
Served* Clients::served_ = nullptr;

// The shape of a request of Codex.
json codex() {
  return json::parse(R"({
      "instructions": "You are an agent.", "max_output_tokens": 8, "temperature": 0,
      "input": [{"type": "message", "role": "user",
                 "content": [{"type": "input_text", "text": "list files"}]}],
      "tools": [
          {"type": "function", "name": "shell", "strict": false, "parameters": {"type": "object",
           "properties": {"command": {"type": "string", "maxLength": 4}},
           "required": ["command"], "additionalProperties": false}},
          {"type": "custom", "name": "apply_patch", "description": "Edits files.",
           "format": {"type": "grammar", "syntax": "lark", "definition": "start: /x/"}},
          {"type": "web_search", "external_web_access": false},
          {"type": "namespace", "name": "mcp", "tools": [
              {"type": "function", "name": "look", "parameters": {"type": "object",
               "properties": {"at": {"enum": ["a", "b"]}}, "required": ["at"],
               "additionalProperties": false}}]}],
      "tool_choice": "auto", "parallel_tool_calls": false, "store": false,
      "reasoning": {"effort": "medium", "summary": "auto"},
      "include": ["reasoning.encrypted_content"], "text": {"verbosity": "low"},
      "prompt_cache_key": "k", "client_metadata": {"x": "y"}})");
}

TEST_F(Clients, CodexIsServedAndToldWhatIsLeftOut) {
  EXPECT_EQ(left_out(posted("/v1/responses", codex())),
            "store, prompt_cache_key, reasoning.summary, tools[1].format, tools[2] (web_search), "
            "text.verbosity, include[0], client_metadata");
  json body = codex();
  body["include"] = json::array({"what.else"});
  EXPECT_EQ(refusal("/v1/responses", body), "include[0] is not known here");
  body = codex();
  body["tool_choice"] = {{"type", "web_search"}};
  EXPECT_EQ(refusal("/v1/responses", body),
            "tool_choice.type is not supported, except as \"function\": only functions are called");
}

TEST_F(Clients, ToolsOfOtherKindsAreCalledAsTheirOwn) {
  const auto called = [](const json& choice) {
    json body = codex();
    body["tool_choice"] = choice;
    body["max_output_tokens"] = 200;
    const json output = posted("/v1/responses", body).body["output"];
    std::vector<json> done;
    for (const std::string& text : served_->stream("/v1/responses", body)) {
      const json event = json::parse(text);
      if (event["type"] == "response.output_item.done") done.push_back(event["item"]);
    }
    json last = output.back(), streamed = done.back();
    for (json* item : {&last, &streamed}) {
      item->erase("id");
      item->erase("call_id");
    }
    EXPECT_EQ(last, streamed);
    return last;
  };
  const json look = called({{"type", "function"}, {"namespace", "mcp"}, {"name", "look"}});
  EXPECT_EQ(look["type"], "function_call");
  EXPECT_EQ(look["namespace"], "mcp");
  EXPECT_EQ(look["name"], "look");
  const std::string at = json::parse(look["arguments"].get<std::string>())["at"];
  EXPECT_TRUE(at == "a" || at == "b");
  json body = codex();  // the function that a text's tool is for the model, in the conversation
  const json history = json::parse(R"([
      {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": "p"},
      {"type": "custom_tool_call_output", "call_id": "c", "output": "done"},
      {"type": "function_call", "call_id": "d", "namespace": "mcp", "name": "look",
       "arguments": "{\"at\": \"a\"}"},
      {"type": "function_call_output", "call_id": "d",
       "output": [{"type": "input_text", "text": "seen"}]},
      {"type": "message", "role": "assistant", "phase": "commentary",
       "content": [{"type": "output_text", "text": "ok"}]}])");
  const size_t before = posted("/v1/responses", body).body["usage"]["input_tokens"];
  for (const json& item : history) {
    body["input"].push_back(item);
    EXPECT_GT(posted("/v1/responses", body).body["usage"]["input_tokens"], before);
  }
}

TEST_F(Clients, ATextOfACustomToolIsItsInput) {
  json body = codex();
  body["tools"][1]["format"] = {{"type", "text"}};
  body["tool_choice"] = {{"type", "custom"}, {"name", "apply_patch"}};
  body["max_output_tokens"] = 400;
  json bias = json::object();  // no token but those that JSON needs, so that the text ends
  for (uint32_t id = 0; id < served_->engine().info().n_vocab; ++id) {
    const std::string bytes = served_->engine().token_bytes(static_cast<int32_t>(id));
    if (bytes.find('"') != std::string::npos) bias[std::to_string(id)] = 100;
  }
  body["logit_bias"] = bias;
  const json item = posted("/v1/responses", body).body["output"].back();
  EXPECT_EQ(item["type"], "custom_tool_call") << item.dump();
  EXPECT_EQ(item["name"], "apply_patch");
  EXPECT_TRUE(item["input"].is_string());
  EXPECT_FALSE(item.contains("arguments"));
}

TEST_F(Clients, ResponsesTellLogProbabilitiesWhereTheirTextStands) {
  json body = {{"input", "tell me"}, {"temperature", 0}, {"max_output_tokens", 8}};
  const json plain = posted("/v1/responses", body).body["output"].back()["content"][0];
  EXPECT_TRUE(plain["logprobs"].empty());
  body["include"] = json::array({"message.output_text.logprobs"});
  body["top_logprobs"] = 2;
  const json part = posted("/v1/responses", body).body["output"].back()["content"][0];
  EXPECT_EQ(part["text"], plain["text"]);
  std::string text;
  for (const json& entry : part["logprobs"]) {
    text += entry["token"].get<std::string>();
    EXPECT_EQ(entry["top_logprobs"].size(), 2u);
  }
  EXPECT_TRUE(text.starts_with(part["text"].get<std::string>())) << text;
  json streamed = json::array();
  for (const std::string& event_text : served_->stream("/v1/responses", body)) {
    const json event = json::parse(event_text);
    if (event["type"] != "response.output_text.delta") continue;
    for (const json& entry : event["logprobs"]) streamed.push_back(entry);
  }
  EXPECT_EQ(streamed, part["logprobs"]);
}

json without_chance(json body) {
  for (const char* key : {"max_tokens", "max_output_tokens"}) {
    if (body.contains(key)) body[key] = 24;
  }
  body["temperature"] = 0;
  return body;
}

// What a stream says in all, and what ended it: of any route.
std::pair<std::string, std::string> told(const std::vector<std::string>& events) {
  std::pair<std::string, std::string> out;
  for (const std::string& text : events) {
    const json event = json::parse(text, nullptr, false);
    if (event.is_discarded()) continue;  // [DONE]
    EXPECT_FALSE(event.contains("error") && !event["error"].is_null()) << text;
    if (event.contains("type")) {
      if (event["type"] == "response.output_text.delta") out.first += event["delta"];
      if (event.contains("response")) out.second = event["response"]["status"];
      continue;
    }
    if (event["choices"].empty()) continue;
    const json& choice = event["choices"][0];
    if (choice.contains("text")) out.first += choice["text"];
    if (choice.contains("delta")) out.first += choice["delta"].value("content", "");
    if (choice["finish_reason"].is_string()) out.second = choice["finish_reason"];
  }
  return out;
}

std::pair<std::string, std::string> told(const json& body) {
  if (body.contains("output")) {
    std::string text;
    for (const json& item : body["output"]) {
      if (item["type"] == "message") text += item["content"][0]["text"];
    }
    return {text, body["status"]};
  }
  const json& choice = body["choices"][0];
  if (choice.contains("text")) return {choice["text"], choice["finish_reason"]};
  const json& content = choice["message"]["content"];
  return {content.is_null() ? "" : content.get<std::string>(), choice["finish_reason"]};
}

// Requests in the form that the sources of each client say; the files name these.
TEST_F(Clients, AskAsTheirPublishedSourcesSay) {
  size_t n_clients = 0;
  const std::string folder = source_path("tests/server/requests");
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    std::ifstream in(file.path());
    const json client = json::parse(in);
    ++n_clients;
    size_t n = 0;
    for (const json& request : client["requests"]) {
      const std::string path = request["path"];
      SCOPED_TRACE(client["client"].get<std::string>() + " " + std::to_string(n++));
      json body = without_chance(request["body"]);
      const auto streamed = told(served_->stream(path, body));
      httplib::Headers headers;
      for (const auto& [name, value] : request["headers"].items()) headers.emplace(name, value);
      body["stream"] = false;
      body.erase("stream_options");
      const auto whole = served_->client().Post(path, headers, body.dump(), "application/json");
      ASSERT_TRUE(whole);
      ASSERT_EQ(whole->status, 200) << whole->body;
      EXPECT_EQ(told(json::parse(whole->body)), streamed);
      EXPECT_NE(streamed.second, "");
      EXPECT_EQ(whole->get_header_value("Sharpi-Ignored"), request["ignored"]);
    }
  }
  EXPECT_EQ(n_clients, 6u);
}

// What several clients of chat completions send, and send back of an answer.
TEST_F(Clients, OfChatsAreServedAndToldWhatIsLeftOut) {
  const json body = json::parse(R"({
      "messages": [
          {"role": "user", "content": [{"type": "text", "text": "hi",
                                        "cache_control": {"type": "ephemeral"}}]},
          {"role": "assistant", "content": null, "reasoning": "I think.", "refusal": null,
           "function_call": null, "parsed": null, "provider_specific_fields": {"refusal": null},
           "tool_calls": [{"index": 0, "id": "c", "type": "function",
                           "function": {"name": "f", "arguments": "{}",
                                        "parsed_arguments": {}}}]},
          {"role": "tool", "tool_call_id": "c", "name": "f", "content": "7"}],
      "max_tokens": 2, "stream_options": {"include_usage": true}, "verbosity": "low",
      "prediction": {"type": "content", "content": "x"}, "user": "me", "keep_alive": "5m",
      "repetition_penalty": 1.1, "frequency_penalty": 0, "presence_penalty": 0,
      "functions": [], "tools": [], "reasoning": {"enabled": false}})");
  EXPECT_EQ(left_out(posted("/v1/chat/completions", body)),
            "user, keep_alive, stream_options, verbosity, prediction");
  const auto refused = [&](const char* name, const json& value) {
    json other = body;
    other[name] = value;
    return refusal("/v1/chat/completions", other);
  };
  EXPECT_EQ(refused("web_search_options", json::object()),
            "web_search_options is not supported, except as null: nothing is searched from here");
  EXPECT_EQ(refused("ignore_eos", true),
            "ignore_eos is not supported, except as false: an answer ends where the model ends it");
  EXPECT_EQ(refused("num_ctx", 4096), "num_ctx is not known here");
  EXPECT_EQ(refused("enable_thinking", true),
            "the fields of the request differ in whether to think");
  EXPECT_EQ(refused("reasoning", {{"effort", "much"}}),
            "reasoning.effort is not one of none, minimal, low, medium, high, xhigh");
}

TEST_F(Clients, WhoNamesAFunctionGetsOneCall) {
  json body =
      json::parse(R"({"messages": [{"role": "user", "content": "tell me"}], "temperature": 0,
      "max_tokens": 400, "tool_choice": {"type": "function", "function": {"name": "weather"}},
      "tools": [{"type": "function", "function": {"name": "weather", "parameters": {
          "type": "object", "properties": {"city": {"enum": ["Bern", "Oslo"]}},
          "required": ["city"], "additionalProperties": false}}}]})");
  const json choice = posted("/v1/chat/completions", body).body["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["tool_calls"].size(), 1u);
  body["parallel_tool_calls"] = true;
  const json several = posted("/v1/chat/completions", body).body["choices"][0];
  EXPECT_GT(several["message"]["tool_calls"].size(), 1u);
}

TEST_F(Clients, ThinkingIsAskedForInSeveralWords) {
  const auto count = [](const json& more) {
    json body = {{"messages", json::array({{{"role", "user"}, {"content", "hi"}}})},
                 {"max_tokens", 1}};
    body.update(more);
    return posted("/v1/chat/completions", body).body["usage"]["prompt_tokens"].get<size_t>();
  };
  const size_t without = count({{"reasoning_effort", "none"}});
  EXPECT_NE(without, count({{"reasoning_effort", "high"}}));
  EXPECT_EQ(without, count({{"enable_thinking", false}}));
  EXPECT_EQ(without, count({{"thinking", {{"type", "disabled"}}}}));
  EXPECT_EQ(without, count({{"reasoning", {{"enabled", false}}}}));
  EXPECT_EQ(without, count({{"reasoning", {{"effort", "none"}}}}));
}

}  // namespace
}  // namespace server
