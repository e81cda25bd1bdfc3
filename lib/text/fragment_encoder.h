// SPDX-License-Identifier: MIT
// How the tokenizers of encoders (WordPiece, Unigram) turn text between special tokens into ids.
// Thread rule: immutable; any thread.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace sharpi {

class FragmentEncoder {
 public:
  virtual ~FragmentEncoder() = default;
  /// Appends the ids of `text`, which has no special tokens in it.
  virtual Status encode(std::string_view text, std::vector<int32_t>* out) const = 0;
};

}  // namespace sharpi
