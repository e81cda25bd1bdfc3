// SPDX-License-Identifier: MIT
// Holds back the incomplete tail of a byte stream so that text is handed on in whole UTF-8
// characters. Bytes that can never become one are replaced by U+FFFD, one for each longest
// beginning of a character (The Unicode Standard, section 3.9, U+FFFD substitution).
// Thread rule: one owner.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sharpi {

/// Length of the longest prefix of `text` that consists of whole characters.
size_t utf8_valid_prefix(std::string_view text);

class Utf8Stream {
 public:
  /// Appends to *out every character that is complete after `bytes` arrived; keeps at most 3 bytes.
  void push(std::string_view bytes, std::string* out);
  /// Appends U+FFFD for an incomplete character that is held back, and forgets it.
  void flush(std::string* out);
  /// What waits.
  std::string_view held() const { return {tail_, n_}; }

 private:
  char tail_[4] = {};
  uint32_t n_ = 0;
};

}  // namespace sharpi
