// SPDX-License-Identifier: MIT
// Looks for a text in another one, in time that is linear in both whatever they are: templates may
// look for long texts of their own making.
// Thread rule: one owner.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace sharpi::jinja {

class TextSearch {
 public:
  enum class From : uint8_t { kFront, kBack };

  /// Both texts outlive it.
  TextSearch(std::string_view text, std::string_view needle, From from = From::kFront)
      : text_(text), needle_(needle), from_(from) {}
  /// Charges the work of going through the whole text once. pre of next().
  Status prepare(Heap* heap);
  /// From the front the first place at or behind `at`, from the back the last one that ends at or
  /// before it; npos if there is none.
  size_t next(size_t at) const { return from_ == From::kFront ? forward(at) : backward(at); }

 private:
  size_t forward(size_t at) const;
  size_t backward(size_t at) const;
  /// The needle's bytes in the order in which they are met.
  char byte(size_t i) const { return needle_[from_ == From::kFront ? i : needle_.size() - 1 - i]; }
  /// Bytes that match once one more was read, of which `matched` did before.
  size_t matched_with(size_t matched, char c) const {
    while (matched > 0 && byte(matched) != c) matched = borders_[matched - 1];
    return byte(matched) == c ? matched + 1 : 0;
  }

  std::string_view text_, needle_;
  From from_;
  /// Of each beginning of the needle, the longest shorter one that it ends with (Knuth, Morris and
  /// Pratt): what still matches where the next byte does not.
  std::vector<uint32_t> borders_;
};

}  // namespace sharpi::jinja
