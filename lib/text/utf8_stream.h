// SPDX-License-Identifier: MIT
// Holds back the incomplete tail of a byte stream so that text is handed on in whole UTF-8
// characters. Bytes that can never become a character are passed through as they are.
// Thread rule: one owner.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sharpi {

class Utf8Stream {
 public:
  /// Appends to *out every character that is complete after `bytes` arrived; keeps at most 3 bytes.
  void push(std::string_view bytes, std::string* out);
  /// Appends whatever is held back (an incomplete character), and forgets it.
  void flush(std::string* out);
  uint32_t held() const { return n_; }

 private:
  char tail_[4] = {};
  uint32_t n_ = 0;
};

}  // namespace sharpi
