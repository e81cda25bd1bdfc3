// SPDX-License-Identifier: MIT
// What attention by Hopper's warpgroups shares: where elements of tiles lie, which are blocks of 64
// dims with the 128-byte swizzle, and weights as operands.
// Thread rule: device code.
#pragma once

#include "cuda/kernels/attention/attention_flash.cuh"
#include "cuda/kernels/wgmma.cuh"

namespace sharpi::cuda::flash {

constexpr uint32_t kBlockRowBytes = 128;  // of a row of a block of 64 dims

/// Bytes to element d of row r, of `rows`.
__device__ __forceinline__ uint32_t swizzled(uint32_t rows, uint32_t r, uint32_t d) {
  return d / 64 * rows * kBlockRowBytes + r * kBlockRowBytes + ((d % 64 * 2) ^ (r % 8 * 16));
}
/// In units of 16 bytes: dims 16k of rows that lie as blocks of 64 dims of `rows` rows.
__device__ __forceinline__ constexpr uint64_t dims_at(int k, int rows) {
  return static_cast<uint64_t>(k / 4 * rows * 8 + k % 4 * 2);
}

template <class S>
using Weights = uint32_t[S::kKeys / 16][4];

template <class S>
__device__ __forceinline__ void pack_weights(const Scores<S>& s, Weights<S>& p) {
#pragma unroll
  for (int k = 0; k < S::kKeys / 16; ++k) {
    p[k][0] = pack_f16(s[2 * k][0], s[2 * k][1]);
    p[k][1] = pack_f16(s[2 * k][2], s[2 * k][3]);
    p[k][2] = pack_f16(s[2 * k + 1][0], s[2 * k + 1][1]);
    p[k][3] = pack_f16(s[2 * k + 1][2], s[2 * k + 1][3]);
  }
}

}  // namespace sharpi::cuda::flash
