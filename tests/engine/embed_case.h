// SPDX-License-Identifier: MIT
// What the tests of embedders share: goldens of the small encoders, and an embedder whose verbs
// fail the test with the library's own sentence. Thread rule: as sharpi.h.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine_case.h"

namespace sharpi::testing {

using Vector = std::vector<float>;
using Ids = std::vector<int32_t>;

/// A text, or a pair of texts, with what the reference made of it.
struct EncodedText {
  std::string query, text;
  Ids tokens;
  uint32_t n_first = 0;
  Vector vector, last_row;  // pooled and projected, not normed; the last token's row
  double score = 0;
};
/// Of a file of tests/fixtures: cases, or pairs of a reranker. Fails the test where it is absent.
std::vector<EncodedText> encoded_texts(const std::string& name);
std::string encoder_path(const std::string& name);

struct DestroyEmbedder {
  void operator()(sharpi_embedder* e) const { sharpi_embedder_destroy(e); }
};

class Embedding {
 public:
  explicit Embedding(const sharpi_model* model, uint32_t n_parallel = 1);
  sharpi_embedder* get() const { return embedder_.get(); }
  /// One vector after the other; empty where the call failed, with why in error().
  std::vector<Vector> embed(const std::vector<Ids>& texts, const sharpi_embed_params& params);
  std::vector<Vector> embed(const std::vector<Ids>& texts,
                            sharpi_pooling pooling = SHARPI_POOLING_AUTO);
  Vector scores(const std::vector<EncodedText>& pairs, bool normalize);
  const sharpi_error& error() const { return error_; }

 private:
  std::unique_ptr<sharpi_embedder, DestroyEmbedder> embedder_;
  sharpi_error error_ = SHARPI_ERROR_INIT;
};

sharpi_embed_params embed_params();
Vector normed(Vector v);
double cosine(const Vector& a, const Vector& b);
double largest_difference(const Vector& a, const Vector& b);
Ids tokenized(const sharpi_model* model, const std::string& text);

}  // namespace sharpi::testing
