// SPDX-License-Identifier: MIT
// WordPiece (tokenizer.ggml.model "bert"): text is cleaned, folded and cut into words and
// punctuation; each word is taken apart from its front, the longest token first (arXiv 1810.04805).
// Tokens that begin a word are stored with U+2581 before them, those that go on without.
// Thread rule: immutable; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/fragment_encoder.h"
#include "text/vocabulary.h"

namespace sharpi {

class WordPiece final : public FragmentEncoder {
 public:
  /// `vocabulary` outlives it. kFormat: the vocabulary has no unknown token.
  static Result<std::unique_ptr<FragmentEncoder>> create(const GgufFile& file,
                                                         const Vocabulary& vocabulary);
  Status encode(std::string_view text, std::vector<int32_t>* out) const override;

 private:
  explicit WordPiece(const Vocabulary& vocabulary) : vocabulary_(vocabulary) {}
  std::string normalize(std::string_view text) const;
  void encode_word(std::string_view word, std::vector<int32_t>* out) const;

  const Vocabulary& vocabulary_;
  bool lower_case_ = true, strip_accents_ = true;
  int32_t unknown_ = -1;
  size_t longest_ = 0;  // token, in bytes
};

}  // namespace sharpi
