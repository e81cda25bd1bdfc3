// SPDX-License-Identifier: MIT
#include "text/grammar/schema_check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "compiled.h"
#include "text/chat_parse.h"

namespace sharpi::grammar {
namespace {

std::string checked(std::string_view schema, std::string_view json) {
  const Status status = check_against_schema(schema, json);
  return status.is_ok() ? "valid" : status.text();
}

TEST(SchemaCheck, WhatNoGrammarHolds) {
  struct Case {
    const char *schema, *json, *said;
  };
  const std::vector<Case> cases = {
      {R"({"items": {"type": "object"}, "uniqueItems": true})", R"([{"a": 1, "b": 2}, {"b": 2}])",
       "valid"},
      {R"({"items": {"type": "object"}, "uniqueItems": true})",
       R"([{"a": 1, "b": 2}, {"b": 2.0, "a": 1}])", "$[1] is equal to another item (uniqueItems)"},
      {R"({"properties": {"a": {"not": {"type": "string"}}}})", R"({"a": 1})", "valid"},
      {R"({"properties": {"a": {"not": {"type": "string"}}}})", R"({"a": "x"})",
       "$.a is what it must not be (not)"},
      {R"({"if": {"properties": {"k": {"const": 1}}}, "then": {"required": ["x"]}})", R"({"k": 2})",
       "valid"},
      {R"({"if": {"properties": {"k": {"const": 1}}}, "then": {"required": ["x"]}})", R"({"k": 1})",
       "$ has no x (required)"},
      {R"({"contains": {"type": "string"}, "maxContains": 1})", R"([1])",
       "$ has no such item (contains)"},
      {R"({"contains": {"type": "string"}, "maxContains": 1})", R"(["a", "b"])",
       "$ has too many (maxContains)"},
      {R"({"contains": {"type": "string"}, "minContains": 0})", R"([1])", "valid"},
      {R"({"dependentRequired": {"a": ["b"]}})", R"({"a": 1})", "$ has no b (dependentRequired)"},
      {R"({"multipleOf": 0.3})", "0.9", "valid"},
      {R"({"multipleOf": 0.3})", "1e0", "$ is no multiple (multipleOf)"},
      {R"({"oneOf": [{"type": "integer"}, {"minimum": 2}]})", "3",
       "$ fits more than one of the alternatives (oneOf)"},
      {R"({"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": false})", R"({"a": 1})",
       "valid"},
      {R"({"anyOf": [{"properties": {"a": {"const": 1}}}, true], "unevaluatedProperties": false})",
       R"({"a": 2})", "$.a may not be there (false)"},
      {R"({"pattern": "^a+$", "maxLength": 2})", R"("aa")", "valid"},
      {R"({"pattern": "^a+$"})", R"("xaa")", "$ does not match (pattern)"},
      {R"({"format": "date"})", R"("2026-02-30")", "valid"},
      {R"({"$ref": "#/$defs/n", "$defs": {"n": {"items": {"$ref": "#/$defs/n"}, "maxItems": 1}}})",
       "[[[1, 2]]]", "$[0][0] has too many (maxItems)"},
      {R"({"$ref": "#"})", "1", "the schema is nested too deeply, or refers to itself"},
      {R"({"$ref": "other.json"})", "1", "a $ref of the schema leads to nothing in it"},
      {"{}", "{", "the text is not JSON at byte 1: a key is expected"},
      {"3", "1", "the schema is no object and no boolean"},
  };
  for (const Case& c : cases) EXPECT_EQ(checked(c.schema, c.json), c.said) << c.schema << c.json;
}

TEST(SchemaCheck, WorkAndStackAreBounded) {
  std::string deep = "{}", many = "[0";
  for (int i = 0; i < 25; ++i) deep = "{\"not\": {\"items\": " + deep + "}}";
  for (int i = 1; i < 9000; ++i) many += "," + std::to_string(i);
  on_a_small_stack([&] {
    EXPECT_EQ(check_against_schema(deep, "[1]").code(), Code::kOk);
    EXPECT_EQ(check_against_schema(R"({"uniqueItems": true})", many + "]").code(), Code::kOk);
    EXPECT_EQ(check_against_schema(R"({"items": {"enum": )" + many + "]}}", many + "]").code(),
              Code::kOk);
    EXPECT_EQ(check_against_schema(R"({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]})", "1").code(),
              Code::kDoesNotFit);
  });
}

// A text that a grammar allows, drawn token by token; empty: it did not end. @param closing what
// ends a string, which chance alone seldom does.
std::string written(const Grammar& grammar, Matcher* matcher, std::string_view closing,
                    std::mt19937* chance) {
  const TokenTree& tree = *grammar.vocabulary().tree;
  std::string out;
  for (int i = 0; i < 250 && matcher->progress() != Progress::kComplete; ++i) {
    if ((*chance)() % 6 == 0 && matcher->accept_text(closing).is_ok()) {
      out += closing;
      continue;
    }
    std::vector<uint32_t> bits(tree.n_words());
    EXPECT_TRUE(matcher->mask(bits.data()).is_ok());
    std::vector<int32_t> allowed, shorter;
    for (int32_t t = 0; t < static_cast<int32_t>(tree.n_vocab()); ++t) {
      if ((bits[static_cast<size_t>(t) / 32] >> (t % 32) & 1) == 0) continue;
      std::string text;
      if (tree.is_end(t) || !test_tokenizer().decode(t, true, &text).is_ok()) continue;
      allowed.push_back(t);
      // Strings end, and so do lists.
      if (text.find_first_of("<\"}])e>|") != text.npos) shorter.push_back(t);
    }
    if (allowed.empty()) return {};
    const auto& from = i > 20 && !shorter.empty() && (*chance)() % 4 != 0 ? shorter : allowed;
    const int32_t token = from[(*chance)() % from.size()];
    EXPECT_TRUE(test_tokenizer().decode(token, true, &out).is_ok());
    EXPECT_TRUE(matcher->accept(token).is_ok());
  }
  return matcher->progress() == Progress::kComplete ? out : std::string();
}

// Takes a call apart while it comes in random pieces, and whole. Empty: it is not one call.
std::string read_call(const std::string& text, std::string_view tools, std::mt19937* chance) {
  ParseRequest parse;
  parse.tools = tools;
  ParsedChat whole, so_far;
  EXPECT_TRUE(parse_chat(parse, text, &whole).is_ok());
  EXPECT_EQ(whole.n_tool_calls, 1u) << ::testing::PrintToString(text);
  EXPECT_EQ(whole.content + whole.reasoning, "") << text;
  parse.partial = true;
  for (size_t at = 0; at < text.size();) {
    at = std::min(text.size(), at + 1 + (*chance)() % 12);
    EXPECT_TRUE(parse_chat(parse, text.substr(0, at), &so_far).is_ok());
    EXPECT_EQ(so_far.content + so_far.reasoning, "") << text.substr(0, at);
    EXPECT_TRUE(so_far.n_tool_calls == 0 || so_far.tool_calls == whole.tool_calls) << text;
  }
  EXPECT_EQ(so_far.tool_calls, whole.tool_calls) << text;
  return whole.tool_calls;
}

TEST(SchemaCheck, CallsThatAreWrittenForASchemaAreReadAndValid) {
  const std::string shared = R"("$defs": {"n": {"anyOf": [
      {"type": "integer", "minimum": 7, "maximum": 8},
      {"type": "array", "items": {"type": "string"}}]}})";
  const std::string schema =
      R"({"type": "object", "properties": {
        "s": {"type": "string"}, "n": {"type": ["integer", "null"], "minimum": -3, "maximum": 12},
        "c": {"type": "string", "minLength": 1, "maxLength": 4},
        "p": {"type": "string", "pattern": "^[<a|>]{1,3}$"},
        "e": {"enum": ["a b", 1, null, true, "3"]}, "b": {"type": "boolean"},
        "l": {"type": "array", "maxItems": 3,
              "items": {"anyOf": [{"type": "number"}, {"type": "string"}]}},
        "o": {"type": "object", "properties": {"x y": {"const":
                {"k": [1, "</parameter><parameter=s>", "</arg_value></tool_call>"]}}},
              "additionalProperties": {"type": "integer"}, "maxProperties": 3},
        "$k": {"type": ["string", "null"], "maxLength": 6},
        "w": {"enum": ["1", " null", "[2]", 1, 2.5, [2], [3], null]},
        "u": {"$ref": "#/$defs/n"}, "m": {"minimum": 3, "maximum": 5}, "any": {}},
        "required": ["s", "c"], "additionalProperties": false, )" +
      shared + "}";
  const std::string tools =
      R"([{"type": "function", "function": {"name": "f", "parameters": )" + schema + "}}]";
  size_t n_all = 0;
  struct Spelling {
    const char *chat_template, *begin, *closing;
  };
  for (const Spelling& spelling : std::initializer_list<Spelling>{
           {"<|tool_call>", "<|tool_call>call:f{", "<|\"|>"},
           {"<start_function_call>", "<start_function_call>call:f{", "<escape>"},
           {"<|tool_call_start|>", "<|tool_call_start|>[f(", "\""},
           {"<tool_call>\n<function=f>\n<parameter=", "<tool_call>\n<function=f>\n<parameter=s>",
            "\n</parameter>\n"},
           {"<tool_call>f\n<arg_key>", "<tool_call>f", "</arg_value>"},
           {"<tool_call>", "<tool_call>\n{\"name\": \"f\"", "\""}}) {
    GrammarRequest request;
    request.tools = tools;
    request.must_call = request.single_call = true;
    request.chat_template = spelling.chat_template;
    const auto made = Grammar::compile(test_vocabulary(), request);
    ASSERT_TRUE(made.is_ok()) << made.status().text();
    std::mt19937 chance(7);
    size_t n_read = 0;
    for (int i = 0; i < 15; ++i) {
      const auto matcher = matcher_of(made);
      const std::string text = written(*made.value(), matcher.get(), spelling.closing, &chance);
      if (text.empty()) continue;
      EXPECT_TRUE(text.starts_with(spelling.begin)) << text;
      const std::string calls = read_call(text, tools, &chance);
      const std::string whole =
          "{" + shared +
          R"(, "prefixItems": [{"properties": {"function": {"properties": {"arguments": )" +
          schema + "}}}}]}";
      EXPECT_EQ(checked(whole, calls), "valid") << text << "\n" << calls;
      ++n_read;
    }
    n_all += n_read;
    EXPECT_GT(n_read, 0u) << spelling.chat_template;
  }
  EXPECT_GT(n_all, 15u);
}

}  // namespace
}  // namespace sharpi::grammar
