// SPDX-License-Identifier: MIT
// Answers that have to match something, over a loopback connection to a shipped fixture.
#include <gtest/gtest.h>

#include "answer_format.h"
#include "constraint.h"
#include "served.h"

namespace server {
namespace {

class GrammarRoutes : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { served_ = new Served; }
  static void TearDownTestSuite() {
    delete served_;
    served_ = nullptr;
  }
  static json asked(json more) {
    json body = {{"messages", json::array({{{"role", "user"}, {"content", "hi"}}})},
                 {"max_tokens", 2}};
    body.update(more);
    return body;
  }
  static Served* served_;
};
Served* GrammarRoutes::served_ = nullptr;

json integer_tool(const json& strict) {
  json function = {{"name", "add"},
                   {"parameters",
                    {{"type", "object"},
                     {"properties", {{"a", {{"type", "integer"}, {"minimum", 3}}}}},
                     {"required", {"a"}}}}};
  if (!strict.is_null()) function["strict"] = strict;
  return json::array({{{"type", "function"}, {"function", function}}});
}

TEST_F(GrammarRoutes, MembersThatASchemaDoesNotNameAreNotWritten) {
  json request = asked({{"max_tokens", 100}, {"tool_choice", "required"}});
  request["tools"] = integer_tool(nullptr);
  request["parallel_tool_calls"] = false;
  const Answered called = served_->post("/v1/chat/completions", request);
  ASSERT_EQ(called.status, 200) << called.body;
  const json& choice = called.body["choices"][0];
  ASSERT_EQ(choice["finish_reason"], "tool_calls") << called.body;
  const json arguments =
      json::parse(choice["message"]["tool_calls"][0]["function"]["arguments"].get<std::string>());
  EXPECT_EQ(arguments.size(), 1u);
  EXPECT_GE(arguments["a"].get<int>(), 3);
}

TEST_F(GrammarRoutes, TextKeepsToAnExpressionOrAGrammar) {
  const auto content = [&](const json& format) {
    const Answered whole = served_->post("/v1/chat/completions",
                                         asked({{"response_format", format}, {"max_tokens", 60}}));
    EXPECT_EQ(whole.status, 200) << whole.body;
    return whole.body["choices"][0]["message"]["content"].get<std::string>();
  };
  const std::string number = content({{"type", "regex"}, {"regex", "[0-9]{3}-[0-9]{2}"}});
  EXPECT_EQ(number.size(), 6u) << number;
  EXPECT_EQ(number[3], '-') << number;
  EXPECT_EQ(content({{"type", "grammar"}, {"grammar", "root ::= \"a\" \"b\"{2}"}}), "abb");
}

// One schema of many alternatives used to take the server's thread for half a minute.
TEST_F(GrammarRoutes, ManyAlternativesHoldNobodyUp) {
  json choices = json::array();
  for (int i = 1; i <= 8000; ++i) choices.push_back({{"type", "string"}, {"maxLength", i}});
  json request = asked({{"max_tokens", 4}});
  request["response_format"] = {
      {"type", "json_schema"},
      {"json_schema", {{"name", "x"}, {"schema", {{"anyOf", std::move(choices)}}}}}};
  EXPECT_EQ(served_->post("/v1/chat/completions", request).status, 200);
}

// A text, and whether this one may follow it.
bool may_follow(const Engine& engine, Constraint* constraint, const std::string& text,
                const std::string& next) {
  for (const int32_t token : engine.tokenize(text, 0)) {
    constraint->mask();
    constraint->accept(token, engine.token_bytes(token));
  }
  const auto token = static_cast<uint32_t>(engine.tokenize(next, 0).at(0));
  const std::vector<uint32_t>* mask = constraint->mask();
  return mask == nullptr || ((*mask)[token / 32] >> (token % 32) & 1) != 0;
}

// What says "strict": true is held once a call begins, and what cannot be held is refused, also
// where no call has to come.
TEST_F(GrammarRoutes, StrictFunctionsAreHeldWhereNoCallHasToCome) {
  const std::string call = "Well.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": ";
  const auto constraint = [&](const json& strict) {
    json request = asked(json::object());
    request["tools"] = integer_tool(strict);
    return read_chat(request, served_->engine(), Settings()).generations.front().constraint;
  };
  EXPECT_TRUE(may_follow(served_->engine(), constraint(true).get(), "Well", "."));
  EXPECT_TRUE(may_follow(served_->engine(), constraint(true).get(), call, "7"));
  EXPECT_FALSE(may_follow(served_->engine(), constraint(true).get(), call, "-"));
  EXPECT_FALSE(may_follow(served_->engine(), constraint(true).get(), call, "\""));
  for (const json& strict : {json(true), json(false), json(nullptr)}) {
    EXPECT_EQ(constraint(strict) != nullptr, strict == json(true)) << strict;
    json request = asked({{"max_tokens", 4}});
    request["tools"] = integer_tool(strict);
    EXPECT_EQ(served_->post("/v1/chat/completions", request).status, 200) << strict;
    request["tools"][0]["function"]["parameters"]["if"] = json::object();
    const Answered other = served_->post("/v1/chat/completions", request);
    EXPECT_EQ(other.status, strict == json(true) ? 400 : 200) << other.body;
  }
}

TEST_F(GrammarRoutes, WhatALenientSchemaDoesNotEnforceIsListed) {
  json request = asked({{"max_tokens", 40}});
  json schema = {{"type", "object"}, {"properties", {{"a\r\nb", {{"const", 1}, {"nice", true}}}}}};
  request["response_format"] = {
      {"type", "json_schema"},
      {"json_schema", {{"name", "x"}, {"strict", false}, {"schema", std::move(schema)}}}};
  const Answered lenient = served_->post("/v1/chat/completions", request);
  ASSERT_EQ(lenient.status, 200) << lenient.body;
  const auto header = lenient.headers.find("Sharpi-Ignored");
  ASSERT_NE(header, lenient.headers.end());
  EXPECT_EQ(header->second, "response_format.json_schema.schema.properties.a??b.nice");
  request["response_format"]["json_schema"]["strict"] = true;
  EXPECT_EQ(served_->post("/v1/chat/completions", request).status, 400);
}

// A mask of too many ways to go on ends by itself, before the request takes a place.
TEST_F(GrammarRoutes, WhatTakesTooMuchWorkIsRefused) {
  std::string expression;  // each way counts for itself how far it has come
  for (int i = 0; i < 400; ++i) {
    const std::string begin(1, static_cast<char>('a' + i % 26));
    expression += (i == 0 ? "(.*" : "|(.*") + begin + ".{" + std::to_string(i) + "}x.*)";
  }
  json request = asked({{"max_tokens", 40}});
  request["response_format"] = {{"type", "regex"}, {"regex", expression}};
  const Answered refused = served_->post("/v1/chat/completions", request);
  EXPECT_EQ(refused.status, 400) << refused.body;
  const std::string sentence = refused.body["error"]["message"];
  EXPECT_NE(sentence.find("too much work"), std::string::npos) << sentence;
  EXPECT_EQ(served_->post("/v1/chat/completions", asked(json::object())).status, 200);
}

}  // namespace
}  // namespace server
