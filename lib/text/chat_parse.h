// SPDX-License-Identifier: MIT
// Generated text taken apart: reasoning, answer, and calls of tools, in the marks that published
// templates teach their models. The marks are told apart by their spelling, so no model is needed.
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace sharpi {

/// What may occur in a text. The numbers are those of SHARPI_PARSE_*.
struct ParseRequest {
  std::string_view prompt = {};  // what the model read; a block that its end opens goes on
  std::string_view tools = {};   // JSON array; null: none are known
  bool partial = false;          // more is to come
  bool reasoning = true, calls = true;
  bool constrained = false;  // a grammar constrains the content: nothing in it is a mark
};

/// The part in which a text ends. The numbers are those of SHARPI_PART_*.
/// kHeader: the head of a message of gpt-oss, or the place between two; what follows is not known.
enum class ChatPart : uint32_t { kContent = 0, kReasoning = 1, kToolCall = 2, kHeader = 3 };

struct ParsedChat {
  std::string reasoning, content;  // without blanks at their ends
  std::string tool_calls;          // JSON array as templates take it; empty without calls
  uint32_t n_tool_calls = 0;
  ChatPart open = ChatPart::kContent;
};

/// A thought begins where the prompt opened it or where nothing of the content has come; behind
/// that such a mark is content. A thought without an end ends where a call begins. With `partial`
/// what may be the beginning of a mark, and blanks that may be the end of a part, are held back, so
/// that longer texts only ever add to each part. A call that is malformed stays in the content as
/// it was written. kInvalidArgument: tools; kDoesNotFit: too much of it.
Status parse_chat(const ParseRequest& request, std::string_view text, ParsedChat* out);

}  // namespace sharpi
