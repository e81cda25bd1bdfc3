// SPDX-License-Identifier: MIT
#include "text/chat.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "support/golden.h"
#include "text/tokenizer.h"

namespace sharpi {
namespace {

using Messages = std::vector<ChatMessage>;

// The conversations of make_chat_cases.py, by index.
const std::vector<Messages>& conversations() {
  static const std::vector<Messages> all = {
      {{"user", "Hello"}},
      {{"system", " Be brief.\n"}, {"user", "\tWhat is 2+2? \u00a0"}},
      {{"user", "a"}, {"assistant", "<think>\nearly\n</think>\n\nb"}, {"user", "c\n"}},
      {{"system", "s"}, {"user", "a"}, {"assistant", "<think>\n\nlate \n</think>\n\n\nb\n"}},
      {{"user", "a"},
       {"assistant", "<|channel>thought\nhm<channel|> b "},
       {"user", "<tool_response>\n1\n</tool_response>"},
       {"assistant", ""}},
  };
  return all;
}

struct ChatCase {
  size_t conversation;
  bool add_generation_prompt, thinking;
  const char* expected;
};

struct ChatTemplate {
  const char* name;  // of a fixture if `jinja` is empty
  const char* jinja;
  std::vector<ChatCase> cases;
};

const std::vector<ChatTemplate>& chat_templates() {
  static const std::vector<ChatTemplate> all = {
#include "chat_cases.inc"
  };
  return all;
}

std::string template_of(const ChatTemplate& t) {
  if (*t.jinja != '\0') return t.jinja;
  const auto fixture = testing::find_fixture(t.name);
  EXPECT_TRUE(fixture.has_value()) << t.name;
  if (!fixture) return {};
  auto file = GgufFile::open(fixture->gguf_path);
  EXPECT_TRUE(file.is_ok()) << file.status().text();
  auto tokenizer = Tokenizer::create(file.take());
  EXPECT_TRUE(tokenizer.is_ok()) << tokenizer.status().text();
  return std::string(tokenizer.value()->chat_template());
}

Result<std::string> render(std::string_view jinja, const Messages& messages,
                           const ChatOptions& options = {}) {
  return render_chat(detect_chat_format(jinja), jinja, messages, options);
}

TEST(Chat, EveryConversationEqualsWhatTheJinjaEngineRenders) {
  for (const ChatTemplate& t : chat_templates()) {
    const std::string jinja = template_of(t);
    for (const ChatCase& c : t.cases) {
      ChatOptions options;
      options.add_generation_prompt = c.add_generation_prompt;
      options.thinking = c.thinking;
      auto text = render(jinja, conversations().at(c.conversation), options);
      ASSERT_TRUE(text.is_ok()) << t.name << ": " << text.status().text();
      EXPECT_EQ(text.value(), c.expected) << t.name << " conversation " << c.conversation;
    }
  }
}

TEST(Chat, FormatsAreRecognisedByTheirMarkers) {
  for (const ChatTemplate& t : chat_templates()) {
    const std::string_view name = t.name;
    const ChatFormat expected = name.find("gemma") != name.npos ? ChatFormat::kGemma
                                : name == "olmoe"               ? ChatFormat::kOlmoe
                                                                : ChatFormat::kChatMl;
    EXPECT_EQ(detect_chat_format(template_of(t)), expected) << name;
  }
}

TEST(Chat, OtherTemplatesWithTheSameRoleMarksAreUnknown) {
  for (const char* jinja : {
           "",
           "{{ messages[0].content }}",
           "[INST] {{ m }} [/INST]",
           "{{ '<|user|>\\n' + m.content + eos_token }}{{ '<|assistant|>\\n' }}",
           "{{ '<|user|>\\n' + m.content + '<|end|>\\n' }}{{ '<|assistant|>\\n' }}",
           "<|start_header_id|>user<|end_header_id|>",
       }) {
    EXPECT_EQ(detect_chat_format(jinja), ChatFormat::kUnknown) << jinja;
    auto text = render(jinja, {{"user", "x"}});
    ASSERT_FALSE(text.is_ok());
    EXPECT_EQ(text.status().code(), Code::kUnsupported);
  }
}

TEST(Chat, UnknownRolesAreRefusedByName) {
  auto text = render("<|im_start|><|im_end|>", {{"user", "x"}, {"robot", "y"}});
  ASSERT_FALSE(text.is_ok());
  EXPECT_EQ(text.status().code(), Code::kInvalidArgument);
  EXPECT_NE(text.status().text().find("message 1"), std::string::npos);
  EXPECT_NE(text.status().text().find("robot"), std::string::npos);
}

TEST(Chat, RoleOrdersThatTheTemplateRefusesAreRefused) {
  const std::string gemma3 = "first_user_prefix <start_of_turn> <end_of_turn>";
  const std::string gemma2 = "<start_of_turn> <end_of_turn>";
  const std::string qwen35 = "<|im_start|><|im_end|>render_content(c)|trim 'No user query found'";
  const std::pair<std::string, Messages> refused[] = {
      {gemma3, {{"user", "a"}, {"user", "b"}}},
      {gemma3, {{"assistant", "a"}}},
      {gemma3, {{"user", "a"}, {"system", "b"}}},
      {gemma2, {{"system", "a"}, {"user", "b"}}},
      {qwen35, {{"user", "a"}, {"system", "b"}}},
      {qwen35, {{"system", "a"}}},
      {qwen35, {{"user", "<tool_response>x</tool_response>"}}},
  };
  for (const auto& [jinja, messages] : refused) {
    auto text = render(jinja, messages);
    ASSERT_FALSE(text.is_ok()) << jinja << text.value();
    EXPECT_EQ(text.status().code(), Code::kInvalidArgument);
  }
}

TEST(Chat, TemplatesThatAlwaysThinkOpenTheBlockWhateverIsAsked) {
  const char* jinja =
      "<|im_end|>{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}";
  for (const bool thinking : {false, true}) {
    ChatOptions options;
    options.thinking = thinking;
    auto text = render(jinja, {{"user", "x"}}, options);
    ASSERT_TRUE(text.is_ok());
    EXPECT_EQ(text.value(), "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n<think>\n");
  }
}

TEST(Chat, TextsOfBosAndEosCanBeGiven) {
  ChatOptions options;
  options.bos_text = "[B]";
  options.eos_text = "[E]";
  const Messages messages = {{"user", "u"}, {"assistant", "a"}, {"user", "v"}};
  const char* olmoe =
      "{{ bos_token }}{{ '<|user|>\\n' + m.content + '\\n' }}{% if not loop.last %}"
      "{{ '<|assistant|>\\n' + m.content + eos_token + '\\n' }}";
  auto text = render(olmoe, messages, options);
  ASSERT_TRUE(text.is_ok());
  EXPECT_EQ(text.value(), "[B]<|user|>\nu\n<|assistant|>\na[E]\n<|user|>\nv\n<|assistant|>\n");
  auto gemma = render("{{ bos_token }}<|turn><turn|>", {{"user", "u"}}, options);
  ASSERT_TRUE(gemma.is_ok());
  EXPECT_EQ(gemma.value(), "[B]<|turn>user\nu<turn|>\n<|turn>model\n");
}

TEST(Chat, ARenderedGemmaTurnHasOneBosAfterTokenisation) {
  const auto fixture = testing::find_fixture("tiny-gemma4kv");
  ASSERT_TRUE(fixture.has_value());
  auto file = GgufFile::open(fixture->gguf_path);
  ASSERT_TRUE(file.is_ok());
  auto tokenizer = Tokenizer::create(file.take());
  ASSERT_TRUE(tokenizer.is_ok());
  const Tokenizer& t = *tokenizer.value();
  auto text = render(t.chat_template(), {{"user", "hi"}});
  ASSERT_TRUE(text.is_ok());
  std::vector<int32_t> with, without;
  ASSERT_TRUE(t.encode(text.value(), true, true, &with).is_ok());
  ASSERT_TRUE(t.encode(text.value(), false, true, &without).is_ok());
  EXPECT_EQ(with, without);
  EXPECT_EQ(std::count(with.begin(), with.end(), t.bos()), 1);
}

TEST(Chat, FormatNamesAreDistinct) {
  EXPECT_STREQ(chat_format_name(ChatFormat::kChatMl), "chatml");
  EXPECT_STREQ(chat_format_name(ChatFormat::kGemma), "gemma");
  EXPECT_STREQ(chat_format_name(ChatFormat::kOlmoe), "olmoe");
  EXPECT_STREQ(chat_format_name(ChatFormat::kUnknown), "unknown");
}

}  // namespace
}  // namespace sharpi
