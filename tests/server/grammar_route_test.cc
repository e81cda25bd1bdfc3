// SPDX-License-Identifier: MIT
// Answers that have to match something, over a loopback connection to a shipped fixture.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <string>
#include <utility>

#include "answer_format.h"
#include "constraint.h"
#include "grammar_cache.h"
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

// A fixture's file with a chat template that shows this mark. Files are read from aligned places,
// so the key is as long as a number of those.
std::string with_template(const std::string& mark) {
  std::string text =
      "{%- if tools %}<|im_start|>system\n{{ tools | tojson }} Call as in " + mark +
      "<|im_end|>\n{% endif %}{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
      "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}{#";
  const auto number = [](uint64_t value, size_t n_bytes) {
    return std::string(reinterpret_cast<const char*>(&value), n_bytes);
  };
  const std::string name = "tokenizer.chat_template";
  const size_t besides = 8 + name.size() + 4 + 8 + 2;
  text.append(32 - (text.size() + besides) % 32, ' ');
  text += "#}";
  const std::string key =
      number(name.size(), 8) + name + number(8, 4) + number(text.size(), 8) + text;
  std::ifstream in(fixture_path("tiny-qwen3-q8_0.gguf"), std::ios::binary);
  std::string file((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  file.replace(file.find(name), name.size(), "tokenizer.chat_templat_");  // its own
  constexpr size_t kCount = 16, kFirstKey = 24;
  uint64_t n_keys = 0;
  std::memcpy(&n_keys, file.data() + kCount, sizeof n_keys);
  file.replace(kCount, sizeof n_keys, number(n_keys + 1, 8));
  file.insert(kFirstKey, key);
  const std::string path = ::testing::TempDir() + "with_template_" + std::to_string(getpid());
  std::ofstream(path, std::ios::binary) << file;
  return path;
}

// Models whose calls are no JSON write them their own way where one has to come, too.
TEST(GrammarRoutesOfOwnSpellings, ArgumentsKeepToTheirSchema) {
  for (const auto& [shown, begin] : std::initializer_list<std::pair<const char*, const char*>>{
           {"<|tool_call>call:", "<|tool_call>call:find{"},
           {"<start_function_call>", "<start_function_call>call:find{"},
           {"<|tool_call_start|>[", "<|tool_call_start|>[find(city="},
           {"<tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>",
            "<tool_call>\n<function=find>\n<parameter=city>\n"},
           {"<tool_call>NAME\n<arg_key>KEY</arg_key>", "<tool_call>find"}}) {
    const std::string path = with_template(shown);
    Served served([&](Settings& settings) { settings.model = path; });
    json body = json::parse(R"({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 200,
        "temperature": 0, "logprobs": true, "parallel_tool_calls": false, "tools": [
            {"type": "function", "function": {"name": "find", "strict": true, "parameters": {
                "type": "object", "properties": {"city": {"enum": ["Bern", "St. \"G\""]},
                "days": {"type": "integer", "minimum": 7, "maximum": 8}},
                "required": ["city", "days"], "additionalProperties": false}}}]})");
    EXPECT_EQ(served.post("/v1/chat/completions", body).status, 200) << "auto";
    for (const json& choice :
         {json("required"), json{{"type", "function"}, {"function", {{"name", "find"}}}}}) {
      body["tool_choice"] = choice;
      const json whole = served.post("/v1/chat/completions", body).body["choices"][0];
      ASSERT_EQ(whole["finish_reason"], "tool_calls") << whole.dump();
      std::string text;
      for (const json& entry : whole["logprobs"]["content"]) {
        text += entry["token"].get<std::string>();
      }
      EXPECT_TRUE(text.starts_with(begin)) << text;
      EXPECT_EQ(text.find("\"arguments\""), text.npos) << text;
      const std::string arguments = whole["message"]["tool_calls"][0]["function"]["arguments"];
      const json read = json::parse(arguments);
      EXPECT_TRUE(read["city"] == "Bern" || read["city"] == "St. \"G\"") << arguments;
      EXPECT_TRUE(read["days"] == 7 || read["days"] == 8) << arguments;
      std::string streamed;
      for (const std::string& event : served.stream("/v1/chat/completions", body)) {
        const json chunk = json::parse(event, nullptr, false);
        if (chunk.is_discarded() || chunk["choices"].empty()) continue;
        const json& delta = chunk["choices"][0]["delta"];
        if (delta.contains("tool_calls"))
          streamed += delta["tool_calls"][0]["function"]["arguments"];
      }
      EXPECT_EQ(streamed, arguments);
    }
    std::remove(path.c_str());
  }
}

TEST_F(GrammarRoutes, AGrammarInAnotherNotationIsRefusedByName) {
  const auto refusal = [&](const json& format) {
    const Answered answer =
        served_->post("/v1/chat/completions", asked({{"response_format", format}}));
    EXPECT_EQ(answer.status, 400) << answer.body;
    return answer.body["error"]["message"].get<std::string>();
  };
  EXPECT_EQ(refusal({{"type", "grammar"}, {"grammar", "start: \"a\""}}),
            "response_format.grammar has no rule as GBNF writes it (root ::= ...): only GBNF is "
            "taken, not Lark");
  EXPECT_EQ(refusal({{"type", "grammar"}, {"syntax", "lark"}, {"grammar", "start: \"a\""}}),
            "response_format.syntax \"lark\" is not supported: only GBNF is");
}

// What no mask can hold is held against the whole answer, where the request takes less.
TEST_F(GrammarRoutes, WhatCannotBeEnforcedIsCheckedAtTheEnd) {
  const auto format = [](bool strict, const json& schema) {
    return json{{"type", "json_schema"},
                {"json_schema", {{"name", "x"}, {"strict", strict}, {"schema", schema}}}};
  };
  const json schema = json::parse(R"({"type": "object", "properties": {"a": {"enum": [1, 2]}},
      "required": ["a"], "additionalProperties": false,
      "not": {"properties": {"a": {"const": 9}}}})");
  json other = schema;
  other["not"] = json::parse(R"({"required": ["a"]})");
  json request = asked({{"response_format", format(false, schema)}, {"max_tokens", 60}});
  const Answered good = served_->post("/v1/chat/completions", request);
  ASSERT_EQ(good.status, 200) << good.body;
  EXPECT_EQ(good.body["choices"][0]["sharpi_schema"], json({{"valid", true}, {"error", nullptr}}));
  EXPECT_EQ(good.headers.find("Sharpi-Ignored")->second, "response_format.json_schema.schema.not");
  request["response_format"] = format(false, other);
  const json bad = served_->post("/v1/chat/completions", request).body["choices"][0];
  const json said = {{"valid", false}, {"error", "$ is what it must not be (not)"}};
  EXPECT_EQ(bad["sharpi_schema"], said);
  json last;
  for (const std::string& event : served_->stream("/v1/chat/completions", request)) {
    const json chunk = json::parse(event, nullptr, false);
    if (chunk.is_discarded() || chunk["choices"].empty()) continue;
    if (chunk["choices"][0].contains("sharpi_schema")) last = chunk["choices"][0];
  }
  EXPECT_EQ(last["sharpi_schema"], said);
  EXPECT_EQ(last["finish_reason"], "stop");
  request["response_format"] = format(true, schema);
  EXPECT_EQ(served_->post("/v1/chat/completions", request).status, 400);
  const json response = served_
                            ->post("/v1/responses", {{"input", "hi"},
                                                     {"max_output_tokens", 60},
                                                     {"text",
                                                      {{"format",
                                                        {{"type", "json_schema"},
                                                         {"name", "x"},
                                                         {"strict", false},
                                                         {"schema", other}}}}}})
                            .body;
  EXPECT_EQ(response["sharpi_schema"], said) << response;
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

// In the messages of gpt-oss the answer has a header of its own, and thoughts and calls theirs.
TEST_F(GrammarRoutes, AnAnswerAmongMessagesIsHeldBehindItsHeader) {
  GrammarRequest request;
  request.kind = SHARPI_GRAMMAR_REGEX;
  request.text = "[0-9]+";
  const Engine& engine = served_->engine();
  const auto grammar = engine.grammars().find(engine.model(), request);
  const auto constraint = [&](const char* prompt, bool is_answer) {
    return std::make_unique<Constraint>(grammar->handle.get(), prompt, is_answer);
  };
  const std::string thought = "<|channel|>analysis<|message|>hm<|end|>";
  const std::string header = "<|start|>assistant<|channel|>final<|message|>";
  const char* const prompt = "<|end|><|start|>assistant";
  for (const std::string& before :
       {std::string(), std::string("<|channel|>"), std::string("<|channel|>final"),
        std::string("<|channel|>analysis<|message|>hm"), thought, thought + "<|start|>assistant",
        std::string(" to=functions.f<|channel|>commentary<|message|>{"),
        std::string("<|channel|>commentary to=functions.f<|message|>{}")}) {
    EXPECT_TRUE(may_follow(engine, constraint(prompt, true).get(), before, "x")) << before;
  }
  for (const std::string& before : {thought + header, std::string("<|channel|>final<|message|>")}) {
    const auto held = constraint(prompt, true);
    EXPECT_FALSE(may_follow(engine, held.get(), before, "x")) << before;
    EXPECT_TRUE(may_follow(engine, held.get(), "12", "7")) << before;
    EXPECT_FALSE(may_follow(engine, held.get(), "", "x")) << before;
  }
  // What says how calls look, and what answers without messages, holds from the first token on.
  EXPECT_FALSE(may_follow(engine, constraint(prompt, false).get(), "", "x"));
  EXPECT_FALSE(may_follow(engine, constraint("<|im_start|>assistant\n", true).get(), "", "x"));
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
