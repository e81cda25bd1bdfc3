// SPDX-License-Identifier: MIT
// What a file says of what comes behind the rows of a text: pooling, projections, a score head.
// Thread rule: plain values; load_pooled() as SpecBuilder.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "model/tensor_ref.h"

namespace sharpi {

class SpecBuilder;
struct ModelSpec;

/// What a file says about the rows of a text, SHARPI_POOLING_*; kUnsaid: nothing.
enum class Pooling : uint8_t { kUnsaid, kNone, kMean, kCls, kLast, kRank };

/// What comes behind the pooling of a text's rows.
struct PooledSpec {
  Pooling pooling = Pooling::kUnsaid;
  std::vector<TensorRef> projections;  // one after the other, without biases (EmbeddingGemma)
  /// A score head: out * tanh(dense * row + dense_bias) + out_bias; without `dense` the row itself.
  /// One label, or one for yes and one for no. Biases are f32 and optional.
  TensorRef dense, dense_bias, out, out_bias;
  uint32_t width(uint32_t n_embd) const {
    return projections.empty() ? n_embd : static_cast<uint32_t>(projections.back().n_out);
  }
};

/// Fills spec->pooled, of any architecture. Pre: n_embd is set.
Status load_pooled(SpecBuilder& b, ModelSpec* spec);

}  // namespace sharpi
