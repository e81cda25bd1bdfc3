// SPDX-License-Identifier: MIT
// Shapes of the launches of latent attention (latent_attention.cu): how many keys a tile has, and
// among how many blocks the keys of few rows are shared out. Plain C++. Thread rule: pure
// functions.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/host_device.h"

namespace sharpi::cuda {

constexpr uint32_t kLatentThreads = 256, kLatentVectors = 8;  // query heads of a block, a warp each
constexpr uint32_t kMostLatentDim = 1024, kMostLatentKeys = 16, kMostLatentSplits = 32;
/// Calls of more rows fill a device without shares of their keys.
constexpr uint32_t kLatentSplitRows = 16;
/// What a block may take without asking for it, less a little.
constexpr uint32_t kLatentBytes = 47 * 1024;

/// Keys of a tile: decoded rows beside the block's queries, scores and factors.
SHARPI_HOST_DEVICE constexpr uint32_t latent_keys(uint32_t dim) {
  const uint32_t floats = kLatentBytes / 4 - kLatentVectors * (dim + kMostLatentKeys + 2);
  const uint32_t keys = floats / dim;
  return keys < kMostLatentKeys ? keys : kMostLatentKeys;
}
constexpr uint32_t latent_bytes(uint32_t dim) {
  return (kLatentVectors * (dim + kMostLatentKeys + 2) + latent_keys(dim) * dim) * 4;
}
static_assert(latent_keys(kMostLatentDim) >= 3 && latent_bytes(576) <= kLatentBytes);

constexpr uint32_t latent_head_blocks(uint32_t n_heads) {
  return (n_heads + kLatentVectors - 1) / kLatentVectors;
}
/// Shares of the keys of each row.
constexpr uint32_t latent_splits(uint32_t n_sm, uint32_t n_rows, uint32_t n_heads, bool one) {
  if (one || n_rows > kLatentSplitRows) return 1;
  const uint32_t splits = 2 * n_sm / (n_rows * latent_head_blocks(n_heads));
  return std::clamp(splits, 1u, kMostLatentSplits);
}
/// Floats of the sums of a head's share: sums, the greatest score, the sum of weights.
SHARPI_HOST_DEVICE constexpr uint64_t latent_part(uint32_t dim) {
  return dim + 4;
}
/// Bytes that the shares of any call of a layer take.
constexpr uint64_t latent_part_bytes(uint32_t n_sm, uint32_t n_heads, uint32_t dim) {
  uint64_t units = 0;
  for (uint32_t rows = 1; rows <= kLatentSplitRows; ++rows)
    units = std::max<uint64_t>(units, uint64_t{rows} * latent_splits(n_sm, rows, n_heads, false));
  return units * n_heads * latent_part(dim) * 4;
}

/// Rows of the output projection that value norms (kv_score.cu) dequantise at a time. Where heads
/// have a map of values these are fewer, and lie there beside what they become and a head's map.
constexpr uint32_t kSlabRows = 256, kMappedRows = kSlabRows / 2;
constexpr bool takes_value_map(uint32_t n_heads, uint32_t dim, uint32_t n_value, uint32_t rank) {
  const uint64_t rows = uint64_t{kMappedRows} * n_heads * (uint64_t{dim} + n_value);
  return rows + uint64_t{n_value} * rank <= uint64_t{kSlabRows} * n_heads * dim;
}

}  // namespace sharpi::cuda
