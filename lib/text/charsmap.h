// SPDX-License-Identifier: MIT
// The normalisation that SentencePiece puts into a model file ("precompiled_charsmap"): a trie of
// what is replaced, as darts-clone lays it out, and the replacements. At each place of a text the
// longest entry counts. The map comes from a file: nothing in it is trusted.
// Thread rule: immutable; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace sharpi {

class CharsMap {
 public:
  /// An empty map replaces nothing. kFormat: sizes that do not agree.
  static Result<CharsMap> create(std::string bytes);
  /// The text with everything replaced; bytes that are no UTF-8 become U+FFFD.
  std::string apply(std::string_view text) const;

 private:
  /// The replacement of the longest entry that `text` begins with, and its length; 0 = none.
  std::string_view find(std::string_view text, size_t* length) const;
  std::vector<uint32_t> units_;
  std::string replacements_;  // each ended by a zero byte
};

}  // namespace sharpi
