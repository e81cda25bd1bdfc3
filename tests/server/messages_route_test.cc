// SPDX-License-Identifier: MIT
// Anthropic's route and those of tokens, over a loopback connection to a shipped fixture.
#include <gtest/gtest.h>

#include "served.h"

namespace server {
namespace {

const char kPath[] = "/v1/messages";

json weather() {
  return json::parse(R"([{"name": "weather", "description": "Weather of a city.", "input_schema": {
      "type": "object", "properties": {"city": {"enum": ["Bern", "Oslo"]}}, "required": ["city"],
      "additionalProperties": false}}])");
}

class Messages : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { served_ = new Served; }
  static void TearDownTestSuite() {
    delete served_;
    served_ = nullptr;
  }
  static json asked(const json& more) {
    json body = {{"messages", json::array({{{"role", "user"}, {"content", "tell me"}}})},
                 {"temperature", 0},
                 {"max_tokens", 12}};
    body.update(more);
    return body;
  }
  static json answered(const json& more) {
    const Answered answer = served_->post(kPath, asked(more));
    EXPECT_EQ(answer.status, 200) << answer.body.dump();
    return answer.body;
  }
  static void refused(const json& more, const std::string& sentence) {
    const Answered answer = served_->post(kPath, asked(more));
    EXPECT_EQ(answer.status, 400);
    EXPECT_EQ(answer.body["type"], "error");
    EXPECT_EQ(answer.body["error"]["type"], "invalid_request_error");
    EXPECT_EQ(answer.body["error"]["message"], sentence);
  }
  static size_t counted(json more) {
    json body = asked(more);
    for (const char* name : {"max_tokens", "temperature"}) body.erase(name);
    return served_->post("/v1/messages/count_tokens", body).body["input_tokens"].get<size_t>();
  }
  // The message that the events of a stream make.
  static json put_together(const json& more) {
    json message, input;
    std::vector<std::string> types;
    for (const std::string& text : served_->stream(kPath, asked(more))) {
      const json event = json::parse(text);
      const std::string type = event["type"];
      types.push_back(type);
      if (type == "message_start") message = event["message"];
      if (type == "content_block_start") {
        EXPECT_EQ(event["index"], message["content"].size());
        message["content"].push_back(event["content_block"]);
        input = "";
      }
      if (type == "content_block_delta") {
        json& block = message["content"][event["index"].get<size_t>()];
        for (const char* member : {"text", "thinking", "signature"}) {
          if (!event["delta"].contains(member)) continue;
          block[member] =
              block[member].get<std::string>() + event["delta"][member].get<std::string>();
        }
        if (event["delta"].contains("partial_json")) {
          input = input.get<std::string>() + event["delta"]["partial_json"].get<std::string>();
        }
      }
      if (type == "content_block_stop" && message["content"].back()["type"] == "tool_use") {
        message["content"].back()["input"] = json::parse(input.get<std::string>());
      }
      if (type == "message_delta") {
        message.update(event["delta"]);
        message["usage"] = event["usage"];
        if (event.contains("sharpi_schema")) message["sharpi_schema"] = event["sharpi_schema"];
      }
    }
    EXPECT_EQ(types.front(), "message_start");
    EXPECT_EQ(types.back(), "message_stop");
    return message;
  }
  static Served* served_;
};
Served* Messages::served_ = nullptr;

TEST_F(Messages, AStreamMakesWhatIsSaidWhole) {
  for (const json& more :
       {json::object(), json{{"thinking", {{"type", "enabled"}, {"budget_tokens", 1024}}}},
        json{{"tools", weather()}, {"tool_choice", {{"type", "any"}}}, {"max_tokens", 200}}}) {
    json whole = answered(more), streamed = put_together(more);
    EXPECT_EQ(whole["type"], "message");
    EXPECT_FALSE(whole["content"].empty());
    for (json* message : {&whole, &streamed}) {
      for (const char* name : {"id", "sharpi_session", "usage"}) message->erase(name);
      for (json& block : (*message)["content"]) block.erase("id");
    }
    EXPECT_EQ(whole, streamed);
  }
}

TEST_F(Messages, SayWhyTheyStop) {
  const json cut = answered({{"max_tokens", 2}});
  EXPECT_EQ(cut["stop_reason"], "max_tokens");
  EXPECT_EQ(cut["usage"]["output_tokens"], 2);
  const std::string text = answered(json::object())["content"][0]["text"];
  const std::string stop = text.substr(text.size() / 2, 3);
  const json stopped = answered({{"stop_sequences", json::array({"never there", stop})}});
  EXPECT_EQ(stopped["stop_reason"], "stop_sequence");
  EXPECT_EQ(stopped["stop_sequence"], stop);
  const json call =
      answered({{"tools", weather()},
                {"tool_choice",
                 {{"type", "tool"}, {"name", "weather"}, {"disable_parallel_tool_use", true}}},
                {"max_tokens", 200}});
  EXPECT_EQ(call["stop_reason"], "tool_use");
  EXPECT_EQ(call["content"].back()["type"], "tool_use");
  const std::string city = call["content"].back()["input"]["city"];
  EXPECT_TRUE(city == "Bern" || city == "Oslo");
  const json ended = answered({{"max_tokens", 400}});
  EXPECT_TRUE(ended["stop_reason"] == "end_turn" || ended["stop_reason"] == "max_tokens");
}

TEST_F(Messages, AConversationIsThatOfAChat) {
  const json turns = json::parse(R"([
      {"role": "user", "content": [{"type": "text", "text": "Which weather?",
                                    "cache_control": {"type": "ephemeral"}}]},
      {"role": "assistant", "content": [
          {"type": "thinking", "thinking": "I ask.", "signature": ""},
          {"type": "text", "text": "A moment."},
          {"type": "tool_use", "id": "c", "name": "weather", "input": {"city": "Bern"}}]},
      {"role": "user", "content": [
          {"type": "tool_result", "tool_use_id": "c",
           "content": [{"type": "text", "text": "rain"}]},
          {"type": "text", "text": "And Oslo?"}]}])");
  const json chat = json::parse(R"([
      {"role": "system", "content": "Short.\nPlain."},
      {"role": "user", "content": "Which weather?"},
      {"role": "assistant", "content": "A moment.", "reasoning_content": "I ask.", "tool_calls": [
          {"id": "c", "type": "function",
           "function": {"name": "weather", "arguments": "{\"city\": \"Bern\"}"}}]},
      {"role": "tool", "tool_call_id": "c", "content": "rain"},
      {"role": "user", "content": "And Oslo?"}])");
  const json system =
      json::parse(R"([{"type": "text", "text": "Short."}, {"type": "text", "text": "Plain."}])");
  const json of_chat =
      served_->post("/v1/tokenize", {{"messages", chat}, {"reasoning_effort", "none"}}).body;
  EXPECT_EQ(counted({{"system", system}, {"messages", turns}}), of_chat["count"]);
  const json answer = answered({{"system", system}, {"messages", turns}});
  const json& usage = answer["usage"];
  EXPECT_EQ(usage["input_tokens"].get<size_t>() + usage["cache_read_input_tokens"].get<size_t>(),
            of_chat["count"]);
  json failed = turns;
  failed[2]["content"][0]["is_error"] = true;
  EXPECT_GT(counted({{"system", system}, {"messages", failed}}), of_chat["count"]);
}

TEST_F(Messages, AnAnswerGoesOnFromALastTurnOfTheAssistants) {
  const json turns = json::parse(R"([
      {"role": "user", "content": "The code of ember is 97697. What is the code of ember?"},
      {"role": "assistant", "content": "The code of ember"}])");
  json asking = turns;
  asking.erase(1);
  EXPECT_GT(counted({{"messages", turns}}), counted({{"messages", asking}}));
  const json as_trained = {{"type", "adaptive"}};
  const auto text_of = [&](const json& messages) {
    return answered({{"messages", messages},
                     {"max_tokens", 20},
                     {"thinking", as_trained}})["content"][0]["text"]
        .get<std::string>();
  };
  EXPECT_EQ(text_of(turns), "is 97697.");
  EXPECT_EQ(text_of(asking), "The code of ember is 97697.");
}

TEST_F(Messages, WhatIsNotReadIsRefusedByName) {
  const auto with_block = [](const char* block) {
    return json{{"messages", json::array({{{"role", "user"},
                                           {"content", json::array({json::parse(block)})}}})}};
  };
  refused(with_block(R"({"type": "image", "source": {"type": "base64", "data": "x"}})"),
          "messages[0].content[0].type \"image\" is not supported: only text is read");
  refused(with_block(R"({"type": "document", "source": {}})"),
          "messages[0].content[0].type \"document\" is not supported: only text is read");
  refused({{"stop", 1}}, "stop is not a text or a list of texts");
  refused({{"thinking", {{"type", "much"}}}},
          "thinking.type is not one of enabled, disabled, adaptive, between_tools");
  refused({{"tool_choice", {{"type", "any"}}}},
          "tool_choice asks for a function that tools does not have");
  refused({{"mcp_servers", json::array({json::object()})}},
          "mcp_servers is not supported, except as []: no server is asked from here");
  refused({{"more", 1}}, "more is not known here");
  json tools = weather();
  tools[0].erase("name");
  refused({{"tools", tools}}, "tools[0].name is missing");
  tools = json::array({{{"type", "web_search_20250305"}, {"name", "web_search"}},
                       {{"name", "f"}, {"input_schema", "x"}}});
  refused({{"tools", tools}}, "tools[1].input_schema is not a schema");
  EXPECT_EQ(served_->post(kPath, asked({{"model", "other"}})).body["error"]["type"],
            "not_found_error");
}

TEST_F(Messages, WhatChangesNothingIsTakenAndListed) {
  json tools = weather();
  tools.push_back({{"type", "web_search_20250305"}, {"name", "web_search"}});
  const Answered answer =
      served_->post(kPath, asked({{"tools", tools},
                                  {"metadata", {{"user_id", "me"}}},
                                  {"thinking", {{"type", "enabled"}, {"budget_tokens", 9}}}}));
  EXPECT_EQ(answer.status, 200) << answer.body.dump();
  EXPECT_EQ(answer.headers.find("Sharpi-Ignored")->second,
            "metadata, thinking.budget_tokens, tools[1] (web_search_20250305)");
  EXPECT_FALSE(served_->post(kPath, asked(json::object())).headers.contains("Sharpi-Ignored"));
}

// What no mask can hold is held against the whole answer, where the request takes less.
TEST_F(Messages, WhatCannotBeEnforcedIsCheckedAtTheEnd) {
  const auto format = [](bool strict, const char* what) {
    return json{{"type", "json_schema"},
                {"strict", strict},
                {"schema",
                 {{"type", "object"},
                  {"properties", {{"a", {{"enum", {1, 2}}}}}},
                  {"required", {"a"}},
                  {"additionalProperties", false},
                  {"not", json::parse(what)}}}};
  };
  const json good = format(false, R"({"properties": {"a": {"const": 9}}})");
  json more = {{"output_config", {{"format", good}}}, {"max_tokens", 60}};
  const Answered answer = served_->post(kPath, asked(more));
  EXPECT_EQ(answer.body["sharpi_schema"], json({{"valid", true}, {"error", nullptr}}));
  EXPECT_EQ(answer.headers.find("Sharpi-Ignored")->second, "output_config.format.schema.not");
  more = {{"output_format", format(false, R"({"required": ["a"]})")}, {"max_tokens", 60}};
  const json said = {{"valid", false}, {"error", "$ is what it must not be (not)"}};
  EXPECT_EQ(answered(more)["sharpi_schema"], said);
  EXPECT_EQ(put_together(more)["sharpi_schema"], said);
  EXPECT_FALSE(answered(json::object()).contains("sharpi_schema"));
  refused({{"output_format", format(true, R"({"required": ["a"]})")}},
          "output_format.schema.not cannot be enforced while a text is written");
}

TEST(MessagesKey, MayStandInAHeaderOfItsOwn) {
  const Served served([](Settings& settings) { settings.api_key = "secret"; });
  httplib::Client client("127.0.0.1", served.port());
  EXPECT_EQ(client.Get("/v1/models", {{"x-api-key", "secret"}})->status, 200);
  const auto wrong = client.Get("/v1/models", {{"x-api-key", "secreT"}});
  EXPECT_EQ(wrong->status, 401);
  const auto refused = client.Post("/v1/messages", "{}", "application/json");
  EXPECT_EQ(json::parse(refused->body)["error"]["type"], "authentication_error");
}

TEST_F(Messages, TextAndTokensAreEachOther) {
  const std::string text = "The code of ember is <|im_end|> é \xF0\x9F\x92\xA1";
  const json plain = served_->post("/v1/tokenize", {{"content", text}}).body;
  EXPECT_EQ(plain["count"], plain["tokens"].size());
  EXPECT_EQ(plain["max_model_len"], 512);
  const json back = served_->post("/v1/detokenize", {{"tokens", plain["tokens"]}}).body;
  EXPECT_EQ(back["content"], text);
  const json spelled =
      served_->post("/v1/tokenize", {{"content", text}, {"parse_special", false}}).body;
  EXPECT_GT(spelled["count"], plain["count"]);
  const json pieces =
      served_
          ->post("/v1/tokenize",
                 {{"prompt", text}, {"with_pieces", true}, {"return_token_strs", true}})
          .body;
  std::string bytes;
  for (const json& token : pieces["tokens"]) {
    const json& piece = token["piece"];
    if (piece.is_string()) bytes += piece.get<std::string>();
    for (const json& byte : piece.is_array() ? piece : json::array()) {
      bytes += static_cast<char>(byte.get<int>());
    }
  }
  EXPECT_EQ(bytes, text);
  EXPECT_EQ(pieces["token_strs"].size(), pieces["count"]);
  EXPECT_EQ(served_->post("/v1/tokenize", json::object()).body["error"]["message"],
            "one of content, prompt and messages is needed");
  EXPECT_EQ(served_->post("/v1/detokenize", {{"tokens", {1, 99999}}}).body["error"]["message"],
            "tokens has something that is no token of the model");
}

}  // namespace
}  // namespace server
