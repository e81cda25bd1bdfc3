// SPDX-License-Identifier: MIT
// What a block of attention_f32.cu takes of shared memory. Plain C++. Thread rule: pure functions.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/kernels/attention/attention_shapes.h"

namespace sharpi::cuda {

/// Splits of a block, at most.
constexpr uint32_t kMostSplits = 256;
/// Floats that the merge of splits takes.
constexpr uint32_t kMergeFloats = 2 * kSplitVectors * (kMostSplits + 1);

/// Queries and a tile of keys or values as f32, scores and what a vector's softmax keeps; or the
/// merge, which comes later in the same place.
constexpr uint32_t attention_f32_bytes(uint32_t dim) {
  const uint32_t rows = dim <= 256 ? 32 : 16;  // of queries, and of keys
  return std::max(2 * rows * (dim + 4) + rows * rows + 3 * rows, kMergeFloats) * 4;
}

}  // namespace sharpi::cuda
