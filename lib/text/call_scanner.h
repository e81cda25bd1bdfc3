// SPDX-License-Identifier: MIT
// Reads the text of a call piece by piece, where the text may end anywhere: what is missing may
// still come.
// Thread rule: one owner.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "text/chat_calls.h"

namespace sharpi {

class CallScanner {
 public:
  /// Names and keys are no longer.
  static constexpr size_t kMaxName = 256;

  explicit CallScanner(std::string_view text) : text_(text) {}

  size_t at() const { return at_; }
  bool at_end() const { return at_ == text_.size(); }
  char here() const { return text_[at_]; }  // pre: !at_end()
  std::string_view rest() const { return text_.substr(at_); }
  void skip(size_t n) { at_ += n; }
  void blanks() { at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size()); }

  /// Goes behind `word` if it stands here (kComplete). kIncomplete: it may come.
  CallState word(std::string_view word) {
    if (rest().starts_with(word)) {
      at_ += word.size();
      return CallState::kComplete;
    }
    return word.starts_with(rest()) ? CallState::kIncomplete : CallState::kBroken;
  }

  /// Goes behind the next `word`, which has to come within a name's length; *out: what stands
  /// before it.
  CallState until(std::string_view word, std::string_view* out) {
    const std::string_view near = rest().substr(0, kMaxName + word.size());
    const size_t found = near.find(word);
    if (found == near.npos) {
      return near.size() < kMaxName + word.size() ? CallState::kIncomplete : CallState::kBroken;
    }
    *out = near.substr(0, found);
    at_ += found + word.size();
    return CallState::kComplete;
  }

 private:
  std::string_view text_;
  size_t at_ = 0;
};

/// What the calls of one text are read with.
struct CallContext {
  jinja::Heap* heap;
  const ToolSchemas* tools;
  bool whole;      // no more text comes
  uint64_t* left;  // bytes that may be looked through in search of ends of values
};

/// Leaves the function unless the state is kComplete.
#define SHARPI_TRY_CALL(expression)                                            \
  do {                                                                         \
    if (const CallState tried = (expression); tried != CallState::kComplete) { \
      return tried;                                                            \
    }                                                                          \
  } while (false)

/// The end of a call: its mark, or the end of the whole text.
inline CallState read_close(std::string_view close, const CallContext& context,
                            CallScanner* scanner) {
  scanner->blanks();
  if (context.whole && scanner->at_end()) return CallState::kComplete;
  return scanner->word(close);
}

// Calls written as text. Each goes behind the call's closing mark.
/// <function=NAME><parameter=KEY>VALUE</parameter>...</function>, as Qwen3-Coder writes them.
CallState read_xml_call(std::string_view close, const CallContext& context, CallScanner* scanner,
                        ToolCall* out);
/// <arg_key>KEY</arg_key><arg_value>VALUE</arg_value>..., as GLM does behind the name.
CallState read_key_call(std::string_view close, const CallContext& context, CallScanner* scanner,
                        ToolCall* out);
/// call:NAME{KEY:VALUE,...}, as Gemma 4 and FunctionGemma do.
CallState read_gemma_call(std::string_view close, const CallContext& context, CallScanner* scanner,
                          ToolCall* out);

/// NAME(KEY=VALUE, ...), ... up to a closing bracket, as Python and LFM2 do. Not their mark.
CallState read_python_calls(const CallContext& context, CallScanner* scanner,
                            std::vector<ToolCall>* out);

}  // namespace sharpi
