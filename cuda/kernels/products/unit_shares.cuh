// SPDX-License-Identifier: MIT
// What the warps of chain.cu and moe_step.cu have in common (split-K within a block): each warp
// multiplies a share of the units of a block's panels, which it streams through a ring buffer of
// its own, and leaves its partial sums of each panel in shared memory, where they are added up once
// all warps have arrived.
// Thread rule: device code.
#pragma once

#include "cuda/kernels/products/fixed_product.cuh"
#include "cuda/kernels/products/unit_shares.h"
#include "cuda/kernels/ptx.cuh"

namespace sharpi::cuda {

/// A warp's share of `all` units: [first, first + count).
struct Share {
  uint32_t first, count;
};
__device__ __forceinline__ Share share_of(uint32_t all, uint32_t warp) {
  const uint32_t each = all / kShareWarps, more = all % kShareWarps;
  return {warp * each + min(warp, more), each + (warp < more ? 1 : 0)};
}

/// The warps that compute meet; those that copy or choose experts go on.
__device__ __forceinline__ void meet() {
  asm volatile("bar.sync 1, %0;" ::"n"(kShareThreads) : "memory");
}

/// The slot of a ring that a warp uses next, and the parity of its barriers.
struct PipelineState {
  uint32_t slot = 0, parity = 0;
  __device__ __forceinline__ void next() {
    slot = (slot + 1) % kSlots;
    parity ^= slot == 0 ? 1u : 0u;
  }
};

/// Where the warps leave their pieces of a block's groups (panels of 16 rows): [group + warp][row]
/// sums. Group and warp only ever grow along the units, and never stay both: their sum is a place
/// of its own for every piece. The w-th warp's piece of a group is w * kPanelRows behind the
/// group's.
__device__ __forceinline__ float* piece_at(uint8_t* parts, uint32_t group_and_warp) {
  return reinterpret_cast<float*>(parts) + group_and_warp * kPanelRows;
}
/// By one lane of a warp that leaves a piece: that it begins (first) or ends (last) the group.
__device__ __forceinline__ void mark_piece(uint8_t* ranges, uint32_t group, uint32_t warp,
                                           bool first, bool last) {
  auto* range = reinterpret_cast<uint32_t*>(ranges) + 2 * group;
  if (first) range[0] = warp;
  if (last) range[1] = warp;
}
/// The first and the last warp that have pieces of a group.
__device__ __forceinline__ uint2 warps_of(const uint8_t* ranges, uint32_t group) {
  return reinterpret_cast<const uint2*>(ranges)[group];
}
/// A row's sum over the four lanes that have parts of it (FixedSums), in each of them.
__device__ __forceinline__ float row_sum(float part) {
  float sum = part + __shfl_xor_sync(~0u, part, 1);
  sum += __shfl_xor_sync(~0u, sum, 2);
  return sum;
}

__device__ __forceinline__ void scale_by(LaneInputs& in, const LaneInputs& weight) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float4& v = in.v[i];
    const float4 w = weight.v[i];
    v = {v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w};
  }
}

}  // namespace sharpi::cuda
