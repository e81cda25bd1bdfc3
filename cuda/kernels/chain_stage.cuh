// SPDX-License-Identifier: MIT
// What chain.cu is told and keeps in shared memory, and what happens between two of its products:
// the blocks meet, the next input is staged.
// Thread rule: device code.
#pragma once

#include "cuda/kernels/chain.h"
#include "cuda/kernels/fixed_product.cuh"

namespace sharpi::cuda {

constexpr uint32_t kSlots = 8;           // units in flight per warp
constexpr uint32_t kBranchUnits = 2;     // units of a branch that a warp has in registers
constexpr uint32_t kMaxColumns = 32768;  // of a product
constexpr uint32_t kMaxPanels = 512;     // of a block, over all products
constexpr uint32_t kChainWarps = 16;     // of a block that compute

struct ChainTask {
  const uint8_t* data;
  float* y;
  uint32_t panel_bytes, unit_bytes;
  uint32_t first_group;
  GgmlType type;
};

struct ChainProduct {
  const float* x;
  const float* norm_weight;
  const float* row_scale;
  const float* branch;  // nullptr: none
  const float* branch_weight;
  float* x_out;
  float norm_eps, branch_eps, branch_scale;
  uint32_t n_in, units;
  uint32_t n_tasks;
  Epilogue epilogue;
  ChainTask tasks[kMaxMatmulTasks];
};

/// A block's panels (or pairs) of a product: `groups`, one more for `more` blocks from `first` on.
struct ChainSplit {
  uint32_t groups, more, first, members;  // members: 2 of pairs, 1
};

struct ChainLaunch {
  unsigned long long* arrivals;
  uint32_t n_products;
  uint32_t ring_bytes;                                                // of a warp
  uint32_t image, part, range, panels, sums, works, freed, barriers;  // offsets in shared memory
  uint32_t ahead;  // bytes under way, of all warps, beyond which each has only one unit under way
  ChainSplit splits[kMaxChainSteps];
  ChainProduct products[kMaxChainSteps];
};

struct alignas(16) ChainPanel {
  const uint8_t* data;
  float* y;
  uint32_t unit_bytes;
  GgmlType type;
  uint32_t reserved[2];
};

/// A block's part of a product: panels [base, base + n_panels) of its table, all gates then all
/// ups.
struct alignas(16) Work {
  uint32_t base, n_groups, n_panels, reserved;
};

/// A warp's part of a block's part: units [first, first + count), panel after panel.
struct Share {
  uint32_t first, count;
};
template <uint32_t kWarps>
__device__ __forceinline__ Share share_of(uint32_t n_panels, uint32_t units, uint32_t warp) {
  const uint32_t all = n_panels * units, each = all / kWarps, more = all % kWarps;
  return {warp * each + min(warp, more), each + (warp < more ? 1 : 0)};
}

/// The warps that compute meet; the one that copies goes on.
template <uint32_t kWarps>
__device__ __forceinline__ void meet() {
  asm volatile("bar.sync 1, %0;" ::"n"(kWarps * 32) : "memory");
}

struct ChainView {
  uint8_t* shared;
  uint32_t warp, lane;
  uint32_t barriers;  // the warp's, shared address
};

__device__ __forceinline__ const ChainPanel* panel_table(const ChainLaunch& p, const uint8_t* s) {
  return reinterpret_cast<const ChainPanel*>(s + p.panels);
}
__device__ __forceinline__ const Work& work_of(const ChainLaunch& p, const uint8_t* s, uint32_t k) {
  return reinterpret_cast<const Work*>(s + p.works)[k];
}

/// What a warp has given back of its ring: bytes and units since the start.
__device__ __forceinline__ void store_freed(uint32_t to, uint2 v) {
  asm volatile("fence.acq_rel.cta;\n\tst.volatile.shared.v2.u32 [%0], {%1, %2};" ::"r"(to),
               "r"(v.x), "r"(v.y)
               : "memory");
}
__device__ __forceinline__ uint2 load_freed(uint32_t from) {
  uint2 v;
  asm volatile("ld.volatile.shared.v2.u32 {%0, %1}, [%2];\n\tfence.acq_rel.cta;"
               : "=r"(v.x), "=r"(v.y)
               : "r"(from)
               : "memory");
  return v;
}
__device__ __forceinline__ bool mbarrier_done(uint32_t bar, uint32_t parity) {
  uint32_t done = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n"
      "}\n"
      : "=r"(done)
      : "r"(bar), "r"(parity)
      : "memory");
#endif
  return done != 0;
}

/// How many had arrived before. Every launch adds whole multiples of its blocks, and no block
/// arrives twice before all have once: the count before the first meeting says where it began.
__device__ __forceinline__ unsigned long long arrive_at(unsigned long long* counter) {
  unsigned long long before = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("atom.release.gpu.global.add.u64 %0, [%1], 1;"
               : "=l"(before)
               : "l"(counter)
               : "memory");
#endif
  return before;
}
__device__ __forceinline__ unsigned long long arrivals_at(const unsigned long long* counter) {
  unsigned long long n = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(n) : "l"(counter) : "memory");
#endif
  return n;
}

/// Eight inputs of a lane, past the first-level cache: other blocks wrote them.
__device__ __forceinline__ LaneInputs load_fresh(const float* x, uint32_t column, uint32_t n_in) {
  LaneInputs r;
#pragma unroll
  for (uint32_t k = 0; k < 2; ++k) {
    const uint32_t c = column + 128 * k;
    r.v[k] = c < n_in ? __ldcg(reinterpret_cast<const float4*>(x + c)) : float4{};
  }
  return r;
}
__device__ __forceinline__ void store_lane(float* x, uint32_t column, uint32_t n_in,
                                           const LaneInputs& in) {
#pragma unroll
  for (uint32_t k = 0; k < 2; ++k) {
    const uint32_t c = column + 128 * k;
    if (c < n_in) *reinterpret_cast<float4*>(x + c) = in.v[k];
  }
}
__device__ __forceinline__ float squares_of(const float4& v) {
  return v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
}
__device__ __forceinline__ float lanes_sum(float v) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(~0u, v, d);
  return v;
}

/// Brings the weights of a step's norms near before the meeting.
template <uint32_t kWarps>
__device__ __forceinline__ void prefetch_norms(const ChainProduct& q) {
  for (uint32_t at = threadIdx.x * 32; at < q.n_in; at += kWarps * 32 * 32) {
    if (q.norm_weight != nullptr)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(q.norm_weight + at));
    if (q.branch_weight != nullptr)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(q.branch_weight + at));
  }
}
__device__ __forceinline__ void scale_by(LaneInputs& in, const LaneInputs& weight) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float4& v = in.v[i];
    const float4 w = weight.v[i];
    v = {v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w};
  }
}
/// For the norm's factor, which the product's sums are multiplied by.
__device__ __forceinline__ void keep_squares(uint8_t* image, const FixedMap& map, uint32_t u,
                                             const LaneInputs& in, uint32_t lane) {
  const float sum = lanes_sum(squares_of(in.v[0]) + squares_of(in.v[1]));
  if (lane == 0) *reinterpret_cast<float*>(image + map.squares + u * 4) = sum;
}

/// One of a warp's units of the input: past the last, zeros.
__device__ __forceinline__ LaneInputs unit_of(const float* x, const ChainProduct& q, uint32_t u,
                                              uint32_t lane) {
  if (u >= q.units) return {};
  return load_fresh(x, u * kUnitColumns + lane * 4, q.n_in);
}
__device__ __forceinline__ LaneInputs weights_of(const float* w, const ChainProduct& q, uint32_t u,
                                                 uint32_t lane) {
  if (w == nullptr || u >= q.units) return {};
  return load_inputs(w, u * kUnitColumns + lane * 4, q.n_in);
}

/// A warp's units of the input, warp, warp + kWarps, ..., three under way at once.
template <uint32_t kWarps>
__device__ __forceinline__ void stage_row(const ChainLaunch& p, const ChainProduct& q,
                                          const ChainView& view) {
  const FixedMap map = fixed_map(q.units);
  uint8_t* image = view.shared + p.image;
  const bool norm = q.norm_weight != nullptr;
  uint32_t u = view.warp;
  LaneInputs x = unit_of(q.x, q, u, view.lane), w = weights_of(q.norm_weight, q, u, view.lane);
  LaneInputs second = unit_of(q.x, q, u + kWarps, view.lane);
  LaneInputs third = unit_of(q.x, q, u + 2 * kWarps, view.lane);
#pragma unroll 1
  for (; u < q.units; u += kWarps) {
    if (norm) {
      keep_squares(image, map, u, x, view.lane);
      scale_by(x, w);
      w = weights_of(q.norm_weight, q, u + kWarps, view.lane);
    }
    stage_fixed(image, map, u, x, view.lane);
    x = second;
    second = third;
    third = unit_of(q.x, q, u + 3 * kWarps, view.lane);
  }
}

/// The input with the branch of an earlier product added; every block computes all of it, and
/// stores every n-th unit.
template <uint32_t kWarps>
__device__ __forceinline__ void stage_branch(const ChainLaunch& p, const ChainProduct& q,
                                             const ChainView& view) {
  const FixedMap map = fixed_map(q.units);
  uint8_t* image = view.shared + p.image;
  LaneInputs y = unit_of(q.branch, q, view.warp, view.lane);
  LaneInputs x = unit_of(q.x, q, view.warp, view.lane);
  const LaneInputs more = unit_of(q.branch, q, view.warp + kWarps, view.lane);
  float factor = 1.0f;
  if (q.branch_weight != nullptr) {
    auto* sums = reinterpret_cast<float*>(view.shared + p.sums);
    const float squares = lanes_sum(squares_of(y.v[0]) + squares_of(y.v[1]) +
                                    squares_of(more.v[0]) + squares_of(more.v[1]));
    if (view.lane == 0) sums[view.warp] = squares;
    meet<kWarps>();
    const float sum = lanes_sum(view.lane < kWarps ? sums[view.lane] : 0.0f);
    factor = rsqrtf(sum / static_cast<float>(q.n_in) + q.branch_eps);
  }
#pragma unroll 1
  for (uint32_t u = view.warp; u < q.units; u += kWarps) {
    if (q.branch_weight != nullptr) scale_by(y, weights_of(q.branch_weight, q, u, view.lane));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float4 a = x.v[i], b = y.v[i];
      const float s = q.branch_scale;
      x.v[i] = {fmaf(b.x, factor, a.x) * s, fmaf(b.y, factor, a.y) * s, fmaf(b.z, factor, a.z) * s,
                fmaf(b.w, factor, a.w) * s};
    }
    if (u % gridDim.x == blockIdx.x)
      store_lane(q.x_out, u * kUnitColumns + view.lane * 4, q.n_in, x);
    if (q.norm_weight != nullptr) {
      keep_squares(image, map, u, x, view.lane);
      scale_by(x, weights_of(q.norm_weight, q, u, view.lane));
    }
    stage_fixed(image, map, u, x, view.lane);
    x = unit_of(q.x, q, u + kWarps, view.lane);
    y = more;
  }
}

}  // namespace sharpi::cuda
