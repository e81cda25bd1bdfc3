// SPDX-License-Identifier: MIT
// Tools and calls that a template has no place for: refused, or described as text.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "text/chat.h"
#include "text/chat_parse.h"

namespace sharpi::described {
namespace {

using Messages = std::vector<ChatMessage>;

constexpr const char* kPlain =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}";
constexpr const char* kTools =
    R"([{"type": "function", "function": {"name": "zebras", "parameters": {"type": "object"}}}])";
constexpr const char* kCall =
    R"([{"type": "function", "function": {"name": "zebras", "arguments": {"park": "north"}}}])";

Result<std::string> render(const char* source, const Messages& messages, bool describe,
                           const char* tools = kTools) {
  ChatRequest request;
  request.messages = messages;
  if (tools != nullptr) request.tools = tools;
  request.describe_tools = describe;
  auto text = ChatTemplate::from_source(source, "", "")->render(request);
  if (!text.is_ok()) return text.take_status();
  return text.value().take();
}

const Messages kHistory = {{"user", "How many?"},
                           {.role = "assistant", .content = "I look.", .tool_calls = kCall},
                           {.role = "tool", .content = "7", .tool_call_id = "a"},
                           {.role = "tool", .content = "8", .tool_call_id = "b"}};

TEST(DescribedTools, WhatATemplateLeavesOutIsRefused) {
  const auto tools = render(kPlain, {{"user", "q"}}, false);
  EXPECT_EQ(tools.status().code(), Code::kUnsupported);
  EXPECT_NE(tools.status().text().find("the template leaves tools out"), std::string::npos);
  const auto calls = render(kPlain, kHistory, false, nullptr);
  EXPECT_EQ(calls.status().code(), Code::kUnsupported);
  EXPECT_NE(calls.status().text().find("leaves calls of tools out"), std::string::npos);
  EXPECT_TRUE(render(kPlain, {{"user", "q"}}, false, "[]").is_ok()) << "none is left out";
}

TEST(DescribedTools, ATemplateThatShowsThemIsLeftAlone) {
  const std::string shows = std::string("{{ tools|tojson }}") + kPlain;
  const Messages one = {{"user", "q"}};
  auto text = render(shows.c_str(), one, true);
  ASSERT_TRUE(text.is_ok()) << text.status().text();
  EXPECT_EQ(text.value(), std::string(kTools) + "<user>q</>");
}

TEST(DescribedTools, TheyStandInTheSystemMessage) {
  for (const bool has_system : {false, true}) {
    Messages messages = {{"user", "q"}};
    if (has_system) messages.insert(messages.begin(), {"system", "Be brief."});
    auto text = render(kPlain, messages, true);
    ASSERT_TRUE(text.is_ok()) << text.status().text();
    const std::string& s = text.value();
    EXPECT_TRUE(s.starts_with(has_system ? "<system>Be brief.\n\n" : "<system>You may")) << s;
    EXPECT_NE(s.find(R"({"name": "zebras", "parameters": {"type": "object"}})"), std::string::npos);
    EXPECT_TRUE(s.ends_with("</><user>q</>")) << s;
  }
}

TEST(DescribedTools, ATemplateWithoutSystemMessagesHasThemInFrontOfTheFirst) {
  const std::string refuses =
      std::string("{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}") +
      kPlain;
  auto text = render(refuses.c_str(), {{"user", "q"}}, true);
  ASSERT_TRUE(text.is_ok()) << text.status().text();
  EXPECT_TRUE(text.value().starts_with("<user>You may call")) << text.value();
  EXPECT_TRUE(text.value().ends_with("\n\nq</>")) << text.value();
}

TEST(DescribedTools, CallsAndTheirAnswersBecomeText) {
  auto text = render(kPlain, kHistory, true, nullptr);
  ASSERT_TRUE(text.is_ok()) << text.status().text();
  const std::string call =
      "<tool_call>\n{\"name\": \"zebras\", \"arguments\": {\"park\": "
      "\"north\"}}\n</tool_call>";
  EXPECT_EQ(text.value(), "<user>How many?</><assistant>I look.\n" + call +
                              "</><user><tool_response>\n7\n</tool_response>\n<tool_response>\n8\n"
                              "</tool_response></>");
  ParsedChat parsed;  // in the form that answers are read in
  ASSERT_TRUE(parse_chat({}, call, &parsed).is_ok());
  EXPECT_EQ(parsed.n_tool_calls, 1u);
  // Roles that have to take turns do then.
  const std::string turns =
      std::string(
          "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
          "{{ raise_exception('turns') }}{% endif %}{% endfor %}") +
      kPlain;
  auto strict = render(turns.c_str(), kHistory, true, kTools);
  ASSERT_TRUE(strict.is_ok()) << strict.status().text();
  EXPECT_TRUE(strict.value().starts_with("<user>You may call")) << strict.value();
}

// Whoever forgets the beginning of a conversation may leave an answer without its call.
TEST(DescribedTools, AnAnswerWhoseCallIsNotThereIsText) {
  const char* strict =
      "{% for m in messages %}{% if m.role not in ['user', 'assistant'] %}"
      "{{ raise_exception('no such role') }}{% endif %}<{{ m.role }}>{{ m.content }}</>{% endfor "
      "%}";
  const Messages orphan = {{"user", "q"}, {.role = "tool", .content = "7", .tool_call_id = "a"}};
  EXPECT_FALSE(render(strict, orphan, false, nullptr).is_ok());
  const auto text = render(strict, orphan, true, nullptr);
  ASSERT_TRUE(text.is_ok()) << text.status().text();
  EXPECT_NE(text.value().find("7"), std::string::npos) << text.value();
  EXPECT_EQ(text.value().find("<tool>"), std::string::npos) << text.value();
}

TEST(DescribedTools, WhatATemplateRefusesForAnotherReasonKeepsItsWords) {
  const char* refuses = "{{ raise_exception('never') }}";
  const auto text = render(refuses, {{"user", "q"}}, true);
  EXPECT_EQ(text.status().code(), Code::kInvalidArgument);
  EXPECT_NE(text.status().text().find("never"), std::string::npos);
  EXPECT_EQ(render(kPlain, {{"user", "q"}}, true, "[{").status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace sharpi::described
