// SPDX-License-Identifier: MIT
// SentencePiece's unigram model (tokenizer.ggml.model "t5"; arXiv 1804.10959): of all ways to cut a
// text into tokens, the one whose scores sum to the most (Viterbi). XLM-R, bge-m3, e5.
// Thread rule: immutable; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/charsmap.h"
#include "text/fragment_encoder.h"
#include "text/vocabulary.h"

namespace sharpi {

class Unigram final : public FragmentEncoder {
 public:
  /// `vocabulary` outlives it. kFormat: a map that is malformed, no unknown token.
  static Result<std::unique_ptr<FragmentEncoder>> create(const GgufFile& file,
                                                         const Vocabulary& vocabulary);
  Status encode(std::string_view text, std::vector<int32_t>* out) const override;

 private:
  explicit Unigram(const Vocabulary& vocabulary) : vocabulary_(vocabulary) {}
  /// Where a path to the end of a character comes from.
  struct Step {
    float score = 0;
    int32_t id = -1;  // -1: nothing ends here yet
    uint32_t from = 0;
  };
  void encode_piece(std::string_view piece, std::vector<Step>* steps,
                    std::vector<int32_t>* out) const;

  const Vocabulary& vocabulary_;
  CharsMap map_;
  bool space_prefix_ = true, squeeze_ = true;
  int32_t unknown_ = -1;
  float unknown_score_ = 0;
};

}  // namespace sharpi
