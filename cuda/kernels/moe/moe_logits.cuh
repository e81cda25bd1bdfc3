// SPDX-License-Identifier: MIT
// A block's part of the router's logits in moe_step.cu: its columns of x, for all rows of the
// router.
// Thread rule: device code.
#pragma once

#include "cuda/kernels/moe/moe_step.cuh"
#include "cuda/kernels/ptx.cuh"

namespace sharpi::cuda::step {

__device__ __forceinline__ float dot(float4 a, float4 b) {
  return fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, a.w * b.w)));
}
__device__ __forceinline__ float dot(const LaneInputs& a, const LaneInputs& b) {
  return dot(a.v[0], b.v[0]) + dot(a.v[1], b.v[1]);
}

/// The value of column o of the warp's row of x, times the norm's weight, to the block.
template <uint32_t kRows>
__device__ __forceinline__ void leave_own(const StepArgs& p, const View<kRows>& v, bool own,
                                          uint32_t r, uint32_t o, float value) {
  if (p.keeps) mbarrier_wait(shared_address(&v.slots->kept), 0);
  cp_async_wait<0>();  // of the router's columns, which the meeting behind this shows to all
  if (!own) return;
  float w = 1.0f;
  if (p.norm_weight != nullptr)
    w = p.keeps ? reinterpret_cast<const float*>(v.shared + p.rows)[o] : p.norm_weight[o];
  v.misc->own[v.warp][r] = value * w;
}

/// Four columns of a router row that the block's panel k of x multiplies: thread i of the block has
/// columns 4 (i % 4) of row i / 4.
__device__ __forceinline__ const float* router_columns(const StepArgs& p, uint32_t k, uint32_t i) {
  const uint32_t row = i / 4;
  return (row < p.n_experts ? p.router + uint64_t{row} * p.n_embd : p.shared_gate) +
         (blockIdx.x + k * gridDim.x) * kPanelRows + i % 4 * 4;
}
template <uint32_t kRows>
__device__ __forceinline__ float4* kept_router(const StepArgs& p, const View<kRows>& v) {
  return reinterpret_cast<float4*>(v.shared + p.router_at);
}
/// The warps that compute: begin to bring those columns of all rows into shared memory, or into L2.
template <bool kSmall, uint32_t kRows>
__device__ __forceinline__ void keep_router(const StepArgs& p, const View<kRows>& v) {
  const uint32_t panels = groups_of(p.out_panels), all = p.router_rows * 4;
  if (p.keeps) {
#pragma unroll 1
    for (uint32_t k = 0; k < panels; ++k) {
#pragma unroll 1
      for (uint32_t i = threadIdx.x; i < all; i += kShareThreads)
        cp_async_16(shared_address(kept_router(p, v) + k * all + i), router_columns(p, k, i));
    }
  }
  if constexpr (kSmall) {
#pragma unroll 1
    for (uint32_t k = 0; k < panels && !p.keeps; ++k) {
#pragma unroll 1
      for (uint32_t row = threadIdx.x; row < p.router_rows; row += kShareThreads)
        prefetch_l2(router_columns(p, k, row * 4));
    }
  }
  cp_async_commit();
}
/// What the block's columns of the warp's row of x add to its logits, before the norm's factor,
/// which changes no order: to everybody.
template <uint32_t kRows>
__device__ __forceinline__ void add_to_logits(const StepArgs& p, const View<kRows>& v,
                                              uint32_t number) {
  const uint32_t panels = groups_of(p.out_panels), all = p.router_rows * 4;
  if (panels == 0) return;
#pragma unroll 1
  for (uint32_t first = v.part() * 32; first < all; first += kShareThreads / kRows) {
    const uint32_t i = first + v.lane;
    float sum = 0.0f;
#pragma unroll 1
    for (uint32_t k = 0; k < panels && i < all; ++k) {
      const float4 w = p.keeps ? kept_router(p, v)[k * all + i]
                               : *reinterpret_cast<const float4*>(router_columns(p, k, i));
      sum += dot(w, reinterpret_cast<const float4*>(v.misc->own[k * kRows + v.row()])[v.lane % 4]);
    }
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (v.lane % 4 == 0 && i < all) add_part(logit_of(p, v, i / 4, number), sum, p.part_limit);
  }
}

}  // namespace sharpi::cuda::step
