// SPDX-License-Identifier: MIT
// An answer taken apart while it comes, against the same text parsed whole after every piece.
#include "reply.h"

#include <gtest/gtest.h>

#include <iterator>
#include <random>

namespace server {
namespace {

// Texts of every form of marks, of what nearly is one, and blanks at every end.
const char* const kTexts[] = {
    "Hello, world.  How are\n\nyou?  \n",
    "  \n leading blanks, and a < b, a << b, x[0], <thin, <think",
    "<think>\nIt is 2 < 3, so [no]. \n</think>\n\nThe answer:\n  42 \t ",
    "<think>never closed, with <marks> and blanks at the end  \n",
    "before <tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1]}}\n</tool_call> after",
    "<tool_call>{\"name\": \"f\"}</tool_call>\n<tool_call>{\"name\": \"g\"}</tool_call>",
    "<tool_call>this is no call</tool_call> and more text",
    "{\"name\": \"f\", \"parameters\": {\"x\": 1}}",
    "{\"name\": 1, and so no call at all",
    "{{ braces } and [TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}]",
    "[THINK]so[/THINK]said [TOOL_CALLS no",
    ("<|channel|>analysis<|message|>I "
     "think.<|end|><|start|>assistant<|channel|>final<|message|>Yes. "),
    "<|channel|>thought\nhm<channel|>said",
    "hm <tool_call>\n<function=f>\n<parameter=a>\n[1]</parameter> x\n</parameter>\n</function>\n"
    "</tool_call> and <think> more",
    "<|tool_call>call:f{a:[1,<|\"|>}<|\"|>]}<tool_call|><|tool_call>call:g{}<tool_call|>",
    "{\"a\": \"<think>x</think> <tool_call>{} [1]\"} ",
    "text <|python_tag|>{\"name\": \"f\", \"parameters\": {}}",
    "\xC3\xA9t\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80 end\r\n\r\n",
};
const char* const kPrompts[] = {"", "<|im_start|>assistant\n<think>\n", "<|start|>assistant"};

const char* const kTools =
    R"([{"name": "f", "parameters": {"properties": {"a": {"type": "array"}}}}, {"name": "g"}])";
const Expected kExpected[] = {{}, {kTools, false}, {"", true}, {kTools, true}};

struct Parts {
  std::string reasoning, content;
  size_t n_calls = 0;
};

Parts parsed(const std::string& prompt, const Expected& expected, const std::string& text,
             uint32_t flags) {
  sharpi_parse_params params;
  sharpi_parse_params_init(&params, sizeof params);
  params.flags = flags | SHARPI_PARSE_REASONING;
  if (!expected.tools.empty()) params.flags |= SHARPI_PARSE_CALLS;
  if (expected.constrained) params.flags |= SHARPI_PARSE_CONSTRAINED;
  params.prompt = prompt.data();
  params.prompt_len = prompt.size();
  if (!expected.tools.empty()) params.tools = expected.tools.data();
  params.tools_len = expected.tools.size();
  sharpi_chat_parts parts{};
  parts.struct_size = sizeof parts;
  const std::string out =
      sized<std::string, size_t>([&](char* to, size_t cap, size_t* len, sharpi_error* err) {
        return sharpi_chat_parse(&params, text.data(), text.size(), &parts, to, cap, len, err);
      });
  return {out.substr(0, parts.reasoning_len), out.substr(parts.reasoning_len, parts.content_len),
          parts.n_tool_calls};
}

TEST(ReplyTest, PiecesOfAnyLengthAddUpToTheWholeAtEveryMoment) {
  std::mt19937 random(1);
  for (const char* prompt : kPrompts) {
    for (const std::string text : kTexts) {
      for (int round = 0; round < 20; ++round) {
        SCOPED_TRACE(text);
        const size_t longest = 1 + random() % 12;
        const Expected expected = kExpected[static_cast<size_t>(round) % std::size(kExpected)];
        Reply reply(std::string(prompt), expected);
        std::string reasoning, content, so_far;
        size_t n_calls = 0;
        const auto add = [&](const Delta& delta) {
          reasoning += delta.reasoning;
          content += delta.content;
          n_calls += delta.calls.size();
        };
        for (size_t at = 0; at < text.size();) {
          const size_t n = std::min(text.size() - at, 1 + random() % longest);
          add(reply.push(text.substr(at, n)));
          at += n;
          so_far = text.substr(0, at);
          const Parts whole = parsed(prompt, expected, so_far, SHARPI_PARSE_PARTIAL);
          ASSERT_EQ(reasoning, whole.reasoning) << "after: " << so_far;
          ASSERT_EQ(content, whole.content) << "after: " << so_far;
          ASSERT_EQ(n_calls, whole.n_calls) << "after: " << so_far;
        }
        add(reply.finish());
        const Parts whole = parsed(prompt, expected, text, 0);
        ASSERT_EQ(reasoning, whole.reasoning);
        ASSERT_EQ(content, whole.content);
        ASSERT_EQ(n_calls, whole.n_calls);
        ASSERT_EQ(reply.content(), content);
      }
    }
  }
}

TEST(ReplyTest, ArgumentsThatNoDoubleHoldsAreNotLost) {
  Reply reply("", {kTools, false});
  const std::string arguments = R"({"a": [1e400, "]\"}, "], "b": {}})";
  reply.push("<tool_call>{\"name\": \"f\", \"arguments\": " + arguments + "}</tool_call>");
  reply.push("<tool_call>{\"name\": \"g\", \"arguments\": {\"a\": 1.50}}</tool_call>");
  reply.finish();
  ASSERT_EQ(reply.calls().size(), 2u);
  EXPECT_EQ(reply.calls()[0].name, "f");
  EXPECT_EQ(reply.calls()[0].arguments, arguments);
  EXPECT_EQ(reply.calls()[1].name, "g");
  EXPECT_EQ(reply.calls()[1].arguments, R"({"a":1.5})");
}

TEST(ReplyTest, PlainTextIsNotParsedAgainForEveryPiece) {
  Reply reply(std::string("<think>\n"), {});
  for (int i = 0; i < 500; ++i) reply.push(" thought");
  for (int i = 0; i < 500; ++i) reply.push(".\n");
  reply.push("</think>");
  for (int i = 0; i < 1000; ++i) reply.push(" said");
  reply.finish();
  EXPECT_EQ(reply.content().size(), 1000 * 5 - 1);
  EXPECT_LT(reply.n_parses(), 10u);
}

}  // namespace
}  // namespace server
