// SPDX-License-Identifier: MIT
// Chat formats: which one a file's Jinja template is, and rendering messages in it. The template is
// recognised by its markers, never executed; its variations (thinking blocks, trimming, BOS) are
// read from it in the same way, so that the text equals what a Jinja engine renders.
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace sharpi {

enum class ChatFormat : uint32_t { kUnknown = 0, kChatMl = 1, kGemma = 2, kOlmoe = 3 };

struct ChatMessage {
  std::string_view role;  // "system", "user", "assistant"
  std::string_view content;
};

struct ChatOptions {
  bool add_generation_prompt = true;
  /// What templates call enable_thinking. ChatML with <think>: opens the block (if the template
  /// does) or closes it empty; Gemma 4: announces thinking in the system turn, or skips it.
  bool thinking = false;
  /// Texts of the file's BOS and EOS tokens, for templates that print them. Empty: those of the
  /// published models of the format.
  std::string_view bos_text = {};
  std::string_view eos_text = {};
};

ChatFormat detect_chat_format(std::string_view jinja_template);
const char* chat_format_name(ChatFormat format);
/// Renders text to be tokenised with special tokens parsed. It begins with BOS where the template
/// prints one; Tokenizer::encode() does not double it. kUnsupported for kUnknown;
/// kInvalidArgument for an unknown role, or a role order the format cannot express.
Result<std::string> render_chat(ChatFormat format, std::string_view jinja_template,
                                std::span<const ChatMessage> messages, const ChatOptions& options);

}  // namespace sharpi
