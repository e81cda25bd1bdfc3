// SPDX-License-Identifier: MIT
// Random answers with calls in every spelling, parsed while they come in random pieces and parsed
// whole. SHARPI_FUZZ_CASES: how many.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <random>
#include <string>

#include "text/chat_parse.h"

namespace sharpi::fuzz {
namespace {

constexpr const char* kTools = R"([
  {"type": "function", "function": {"name": "f", "parameters": {"type": "object",
    "properties": {"s": {"type": "string"}, "i": {"type": "integer"}, "b": {"type": "boolean"},
      "o": {"type": "object"}, "l": {"type": "array"}, "r": {"type": ["integer", "null"]},
      "m": {"anyOf": [{"type": "string"}, {"type": "null"}]},
      "e": {"enum": ["a", "3", 3, null, [1, 2], true]},
      "any": {}}}}},
  {"name": "flat", "parameters": {"properties": {"i": {"type": "number"}}}}])";

/// Calls in every spelling, marks whole and cut, words and blanks, one behind the other.
class RandomTexts {
 public:
  explicit RandomTexts(uint32_t seed) : rng_(seed) {}
  size_t draw(size_t below) { return std::uniform_int_distribution<size_t>(0, below - 1)(rng_); }

  std::string value() {
    static const char* const kValues[] = {
        "x",
        "3",
        "true",
        "null",
        "{\"a\": [1]}",
        "[1, 2]",
        "</parameter>",
        "</tool_call>",
        "<think>",
        "a\nb\n",
        " y </parameter> z",
        "\"q\"",
        "</arg_value>",
        "<tool_call|>",
        "<|\"",
        "\u00e9",
        "</function>\n</tool_call",
        "1e999",
        "True",
        "[\"</parameter>\", \"<parameter=s>",
        "[\"</parameter><parameter=s>\", \"</arg_value></tool_call>\"]",
        ""};
    return kValues[draw(std::size(kValues))];
  }
  std::string key() {
    static const char* const kKeys[] = {"s", "i", "b", "o", "l", "r", "m", "e", "any", "none"};
    return kKeys[draw(std::size(kKeys))];
  }
  std::string call() {
    const std::string k = key(), v = value();
    std::string quoted;
    for (const char c : v) quoted += c == '"' ? "\\\"" : c == '\n' ? "\\n" : std::string(1, c);
    const std::string json =
        "{\"name\": \"f\", \"arguments\": {\"" + k + "\": \"" + quoted + "\"}}";
    switch (draw(13)) {
      case 0:
        return "<tool_call>\n" + json + "\n</tool_call>";
      case 1:
        return "<tool_call>\n<function=f>\n<parameter=" + k + ">\n" + v +
               "\n</parameter>\n</function>\n</tool_call>";
      case 2:
        return "<tool_call>f\n<arg_key>" + k + "</arg_key>\n<arg_value>" + v +
               "</arg_value>\n</tool_call>";
      case 3:
        return "<|tool_call>call:f{" + k + ":<|\"|>" + v + "<|\"|>,n:[1,{x:true}]}<tool_call|>";
      case 4:
        return "[TOOL_CALLS]f[ARGS]{\"" + k + "\": \"" + quoted + "\"}";
      case 5:
        return "<|tool_call_begin|>f<|tool_sep|>{}";  // no mark that is known
      case 6:
        return "<start_function_call>call:f{" + k + ":<escape>" + v +
               "<escape>}<end_function_call>";
      case 7:
        return "<|tool_call_start|>[f(" + k + "=\"" + quoted +
               "\", n=[1, {'x': True}]), flat(i=" + v + ")]<|tool_call_end|>";
      case 8:
        return "<|tool_call_start|>[" + json + "]<|tool_call_end|>";
      case 9:
        return "[TOOL_CALLS][" + json + ", " + json + "]";
      case 10:
        return "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"" +
               k + "\": \"" + quoted + "\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
      case 11:
        return "<|python_tag|>{\"name\": \"f\", \"parameters\": {\"" + k + "\": \"" + quoted +
               "\"}}";
      default:
        return json;
    }
  }
  std::string text() {
    static const char* const kParts[] = {"<think>",
                                         "</think>",
                                         " ",
                                         "\n",
                                         "word",
                                         "{",
                                         "[",
                                         "<tool_",
                                         "<tool_call>",
                                         "</tool_call>",
                                         "<|channel>thought\n",
                                         "<channel|>",
                                         "[TOOL_CALLS]",
                                         "<function=f>",
                                         "<|tool_call_start|>",
                                         "<|tool_call_start|>[f(s=",
                                         "<|tool_call_end|>",
                                         "<|tool_call>call:f{",
                                         "<|start|>assistant<|channel|>final<|message|>",
                                         "<|end|>",
                                         "<|python_tag|>",
                                         "[THINK]",
                                         "[/THINK]",
                                         "}"};
    std::string out;
    for (size_t n = draw(8); n > 0; --n) {
      out += draw(3) == 0 ? call() : draw(4) == 0 ? value() : kParts[draw(std::size(kParts))];
    }
    if (draw(3) == 0 && !out.empty()) out.resize(draw(out.size()));
    return out;
  }

 private:
  std::mt19937 rng_;
};

void expect_growth(const ParsedChat& before, const ParsedChat& after, const std::string& text) {
  EXPECT_TRUE(after.reasoning.starts_with(before.reasoning))
      << text << "\n[" << before.reasoning << "]\n[" << after.reasoning << "]";
  EXPECT_TRUE(after.content.starts_with(before.content))
      << text << "\n[" << before.content << "]\n[" << after.content << "]";
  const std::string& calls = before.tool_calls;
  EXPECT_TRUE(calls.empty() || after.tool_calls.starts_with(calls.substr(0, calls.size() - 1)))
      << text << "\n"
      << calls << "\n"
      << after.tool_calls;
}

TEST(ChatFuzz, RandomTextsWithToolsComeApartTheSameInAnyPieces) {
  const char* given = std::getenv("SHARPI_FUZZ_CASES");
  const size_t n_cases = given != nullptr ? std::strtoul(given, nullptr, 10) : 3000;
  RandomTexts random(20);
  const char* prompts[] = {"", "<think>\n", "<|start|>assistant"};
  for (size_t i = 0; i < n_cases && !::testing::Test::HasFailure(); ++i) {
    const std::string text = random.text();
    ParseRequest request{.prompt = prompts[random.draw(3)]};
    if (random.draw(3) != 0) request.tools = kTools;
    request.calls = random.draw(5) != 0;
    request.reasoning = random.draw(5) != 0;
    request.constrained = random.draw(5) == 0;
    ParsedChat before, after;
    request.partial = true;
    for (size_t at = 0; at < text.size();) {
      at = std::min(text.size(), at + 1 + random.draw(6));
      ASSERT_TRUE(parse_chat(request, text.substr(0, at), &after).is_ok());
      expect_growth(before, after, text.substr(0, at));
      before = after;
    }
    request.partial = false;
    ASSERT_TRUE(parse_chat(request, text, &after).is_ok());
    expect_growth(before, after, text);
  }
}

}  // namespace
}  // namespace sharpi::fuzz
