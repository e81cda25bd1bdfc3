// SPDX-License-Identifier: MIT
// Cuts a Jinja template into tokens, with trim_blocks and lstrip_blocks as HF transformers sets
// them: the newline after a block tag goes, and so do blanks between a line's start and a block
// tag. Thread rule: pure function.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace sharpi::jinja {

enum class TokenType : uint8_t {
  kData,           // text between tags, as it is output
  kVariableBegin,  // {{
  kVariableEnd,
  kBlockBegin,  // {%
  kBlockEnd,
  kName,
  kString,   // `text` is its value, escapes resolved
  kInteger,  // `text` has its digits
  kFloat,
  kOperator,  // `text` is it
  kEnd,
};

struct Token {
  TokenType type = TokenType::kEnd;
  uint32_t at = 0;  // byte in the normalised source
  std::string text;
};

/// The source as tokens refer to it: newlines as \n, without its last newline.
std::string normalize_newlines(std::string_view source);

/// kFormat with line and column.
Result<std::vector<Token>> tokenize_template(std::string_view normalized);

/// "line L, column C" of a byte, both from 1; columns count characters.
std::string position_text(std::string_view normalized, size_t at);

}  // namespace sharpi::jinja
