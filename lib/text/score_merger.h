// SPDX-License-Identifier: MIT
// SentencePiece's BPE over a vocabulary with scores: joins the adjacent pair whose text is the
// token of best score, leftmost first, until no pair is a token. O(n log n) in the characters.
// Thread rule: one owner.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/vocabulary.h"

namespace sharpi {

class ScoreMerger {
 public:
  /// A part of the text that stayed whole: its token, or kNone for a character that is none.
  struct Piece {
    std::string_view text;
    uint32_t id;
  };
  /// Splits `text` into tokens; what is returned stands until the next call.
  const std::vector<Piece>& split(const Vocabulary& vocabulary, std::string_view text);

 private:
  static constexpr uint32_t kEnd = UINT32_MAX;
  struct Symbol {
    uint32_t at, bytes;  // of the text; bytes == 0: joined to its left
    uint32_t previous, next;
  };
  struct Pair {
    float score;
    uint32_t left, bytes;  // stale unless the two symbols still have so many bytes together
  };
  void add_characters(std::string_view text);
  void queue(const Vocabulary& vocabulary, std::string_view text, uint32_t left);
  std::vector<Symbol> symbols_;
  std::vector<Pair> heap_;  // best on top
  std::vector<Piece> pieces_;
};

}  // namespace sharpi
