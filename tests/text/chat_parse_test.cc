// SPDX-License-Identifier: MIT
#include "text/chat_parse.h"

#include <gtest/gtest.h>

namespace sharpi {
namespace {

struct ParseCase {
  const char* prompt;
  const char* text;
  const char* reasoning;
  const char* content;
  const char* tool_calls;
};

#define SHARPI_CALL(arguments) \
  "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": " arguments "}}]"

constexpr ParseCase kCases[] = {
    {"", "Hello.\n", "", "Hello.", ""},
    {"", "", "", "", ""},
    {"", "<think>\nhm\n</think>\n\nYes.", "hm", "Yes.", ""},
    {"<|im_start|>assistant\n<think>\n", "hm\n</think>\n\nYes.", "hm", "Yes.", ""},
    {"<think>\n\n</think>\n\n", "Yes.", "", "Yes.", ""},
    {"", "<think>never ends", "never ends", "", ""},
    {"", "<|channel>thought\nhm<channel|>Yes.", "hm", "Yes.", ""},
    {"", "[THINK]hm[/THINK]Yes.", "hm", "Yes.", ""},
    {"", "1 < 2 <b>x</b> <thin", "", "1 < 2 <b>x</b> <thin", ""},
    {"", "I look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": [1]}}\n</tool_call>", "",
     "I look.", SHARPI_CALL("{\"x\": [1]}")},
    {"", "<tool_call>{\"name\": \"f\", \"parameters\": {}}</tool_call>", "", "", SHARPI_CALL("{}")},
    {"", "<tool_call>{\"name\": \"f\"}", "", "", SHARPI_CALL("{}")},
    {"",
     "<tool_call>\n<function=f>\n<parameter=a>\nx\ny\n</parameter>\n<parameter=b>\n7\n</"
     "parameter>\n"
     "</function>\n</tool_call>",
     "", "", SHARPI_CALL("{\"a\": \"x\\ny\", \"b\": 7}")},
    {"",
     "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>x</arg_value>\n<arg_key>b</arg_key>\n"
     "<arg_value>[1, true]</arg_value>\n</tool_call>",
     "", "", SHARPI_CALL("{\"a\": \"x\", \"b\": [1, true]}")},
    {"", "<tool_call>{broken</tool_call> then", "", "<tool_call>{broken</tool_call>\nthen", ""},
    {"", "<think>a</think><tool_call>{\"name\": \"f\"}</tool_call>b", "a", "b", SHARPI_CALL("{}")},
};

TEST(ChatParse, TextComesApartIntoItsParts) {
  for (const ParseCase& c : kCases) {
    ParsedChat p;
    ASSERT_TRUE(parse_chat(c.prompt, c.text, false, &p).is_ok());
    EXPECT_EQ(p.reasoning, c.reasoning) << c.text;
    EXPECT_EQ(p.content, c.content) << c.text;
    EXPECT_EQ(p.tool_calls, c.tool_calls) << c.text;
    EXPECT_EQ(p.n_tool_calls, p.tool_calls.empty() ? 0u : 1u) << c.text;
  }
}

TEST(ChatParse, WhileTextComesPartsOnlyGrow) {
  for (const ParseCase& c : kCases) {
    const std::string text = c.text;
    ParsedChat before, whole;
    ASSERT_TRUE(parse_chat(c.prompt, text, false, &whole).is_ok());
    for (size_t n = 0; n <= text.size(); ++n) {
      ParsedChat p;
      ASSERT_TRUE(parse_chat(c.prompt, text.substr(0, n), true, &p).is_ok());
      EXPECT_TRUE(p.reasoning.starts_with(before.reasoning)) << text.substr(0, n);
      EXPECT_TRUE(p.content.starts_with(before.content)) << text.substr(0, n);
      EXPECT_GE(p.n_tool_calls, before.n_tool_calls) << text.substr(0, n);
      before = p;
    }
    EXPECT_TRUE(whole.reasoning.starts_with(before.reasoning)) << text;
    EXPECT_TRUE(whole.content.starts_with(before.content)) << text;
  }
}

TEST(ChatParse, ThePartInWhichTextEndsIsTold) {
  const std::pair<const char*, ChatPart> cases[] = {
      {"a", ChatPart::kContent},
      {"<think>a", ChatPart::kReasoning},
      {"<think>a</think>", ChatPart::kContent},
      {"a<tool_call>{", ChatPart::kToolCall},
  };
  for (const auto& [text, part] : cases) {
    ParsedChat p;
    ASSERT_TRUE(parse_chat("", text, true, &p).is_ok());
    EXPECT_EQ(p.open, part) << text;
  }
}

}  // namespace
}  // namespace sharpi
