// SPDX-License-Identifier: MIT
// Tools, calls and answers of tools as plain text, for templates that have no place for them.
// Thread rule: one owner; it owns the texts that its messages point to.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/chat.h"

namespace sharpi {

class DescribedTools {
 public:
  /// Where a description of the tools goes.
  enum class Place : uint8_t { kNowhere, kSystem, kFirstMessage };

  /// The same conversation without fields for tools. @param calls also calls become text of their
  /// messages and answers of tools messages of the user, one for all that follow each other.
  /// kInvalidArgument: JSON that is malformed.
  static Status make(const ChatRequest& request, Place place, bool calls, DescribedTools* out);

  const std::vector<ChatMessage>& messages() const { return messages_; }

 private:
  std::string_view keep(std::string text) { return texts_.emplace_back(std::move(text)); }
  void add_description(std::string text, Place place);
  Status add_message(const ChatMessage& m, bool calls, bool* follows_answer);

  std::deque<std::string> texts_;
  std::vector<ChatMessage> messages_;
};

}  // namespace sharpi
