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

/// The part in which a text ends. The numbers are those of SHARPI_PART_*.
enum class ChatPart : uint32_t { kContent = 0, kReasoning = 1, kToolCall = 2 };

struct ParsedChat {
  std::string reasoning, content;  // without blanks at their ends
  std::string tool_calls;          // JSON array as templates take it; empty without calls
  uint32_t n_tool_calls = 0;
  ChatPart open = ChatPart::kContent;
};

/// `prompt`: what the model read; a reasoning block that its end has opened goes on in `text`.
/// `partial`: more is to come. Then what may be the beginning of a mark, and blanks that may be the
/// end of a part, are held back, so that longer texts only ever add to each part. A call that is
/// malformed stays in the content as it was written. kDoesNotFit: too much of it.
Status parse_chat(std::string_view prompt, std::string_view text, bool partial, ParsedChat* out);

}  // namespace sharpi
