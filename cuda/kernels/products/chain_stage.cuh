// SPDX-License-Identifier: MIT
// What chain.cu keeps in shared memory, and what happens between two of its products: a row is read
// from the memory in which the blocks of the previous product leave their outputs, and converted to
// the form that products take (staged).
// Thread rule: device code.
#pragma once

#include "cuda/kernels/products/chain_launch.h"
#include "cuda/kernels/products/unit_shares.cuh"
#include "cuda/kernels/ptx.cuh"

namespace sharpi::cuda {

struct ChainView {
  uint8_t* shared;
  uint32_t warp, lane;
};

__device__ __forceinline__ const ChainPanel* panel_table(const ChainLaunch& p, const uint8_t* s) {
  return reinterpret_cast<const ChainPanel*>(s + p.panels);
}
__device__ __forceinline__ const Work& work_of(const ChainLaunch& p, const uint8_t* s, uint32_t k) {
  return reinterpret_cast<const Work*>(s + p.works)[k];
}
__device__ __forceinline__ ChainSlots& slots_of(const ChainLaunch& p, const ChainView& view) {
  return *reinterpret_cast<ChainSlots*>(view.shared + p.slots);
}
__device__ __forceinline__ ChainProgress& progress_of(const ChainLaunch& p, const ChainView& view) {
  return *reinterpret_cast<ChainProgress*>(view.shared + p.works +
                                           kMaxChainProducts * sizeof(Work));
}
/// What the block does, for its warps that copy: thread 0 tells.
__device__ __forceinline__ void tell_multiplies(const ChainLaunch& p, const ChainView& view,
                                                uint32_t now) {
  if (threadIdx.x != 0) return;
  asm volatile(
      "st.relaxed.cta.shared.u32 [%0], %1;" ::"r"(shared_address(&progress_of(p, view).multiplies)),
      "r"(now)
      : "memory");
}
__device__ __forceinline__ uint32_t hear_multiplies(uint32_t progress) {
  uint32_t now;
  asm volatile("ld.relaxed.cta.shared.u32 %0, [%1];" : "=r"(now) : "r"(progress) : "memory");
  return now;
}
/// What the block remembered, as thread 0 read it.
__device__ __forceinline__ ChainState& state_of(const ChainLaunch& p, const ChainView& view) {
  return progress_of(p, view).state;
}
__device__ __forceinline__ float* handed_set(const ChainLaunch& p, const ChainView& view) {
  return p.handed + (state_of(p, view).launches & 1) * kHandedFloats;
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

/// The rows that one product of a chain hands to the next lie in global memory, in two sets:
/// launches use one and the other alternately, and each clears the set that the next launch will
/// write. A reader knows that a value has been written because it is not +0; a value that is +0 is
/// therefore written as -0. Each value shows this by itself, so neither a fence nor a counter is
/// needed.
__device__ __forceinline__ float as_handed(float v) {
  return __float_as_uint(v) == 0 ? -0.0f : v;
}
__device__ __forceinline__ bool is_missing(float v) {
  return __float_as_uint(v) == 0;
}
__device__ __forceinline__ bool is_missing(const float4& v) {
  return is_missing(v.x) || is_missing(v.y) || is_missing(v.z) || is_missing(v.w);
}
__device__ __forceinline__ void hand_on(float* to, float v) {
  asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(to), "f"(as_handed(v)) : "memory");
}
__device__ __forceinline__ void hand_on(float* to, const float4& v) {
  asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to),
               "f"(as_handed(v.x)), "f"(as_handed(v.y)), "f"(as_handed(v.z)), "f"(as_handed(v.w))
               : "memory");
}
__device__ __forceinline__ float load_fresh(const float* from) {
  float v;
  asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(v) : "l"(from) : "memory");
  return v;
}
__device__ __forceinline__ float4 load_fresh_4(const float* from) {
  float4 v;
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(from)
               : "memory");
  return v;
}
__device__ __forceinline__ uint32_t load_fresh(const uint32_t* from) {
  uint32_t v;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
  return v;
}

/// Where a link reads a row.
struct RowView {
  const float* data;
  bool handed;  // may still be on its way
};
__device__ __forceinline__ RowView row_view(const ChainLaunch& p, const ChainView& view,
                                            const ChainRow& row) {
  if (row.handed == kNotHanded) return {row.plain, false};
  return {handed_set(p, view) + row.handed, true};
}

/// Loads the lane's inputs of `kUnits` units from `first` on, every kShareWarps-th; zeros past the
/// last unit. Values that the previous product has not written yet are loaded again until all are
/// there.
template <uint32_t kUnits>
__device__ __forceinline__ void fetch(const RowView& row, uint32_t first, uint32_t units,
                                      uint32_t lane, LaneInputs (&in)[kUnits]) {
  const float* from = row.data + first * kUnitColumns + lane * 4;
#pragma unroll
  for (uint32_t i = 0; i < kUnits; ++i) in[i] = {};
  bool again;
  do {
#pragma unroll
    for (uint32_t i = 0; i < kUnits; ++i) {
#pragma unroll
      for (uint32_t h = 0; h < 2; ++h) {
        if (first + i * kShareWarps < units && is_missing(in[i].v[h]))
          in[i].v[h] = load_fresh_4(from + i * kShareWarps * kUnitColumns + h * 128);
      }
    }
    again = false;
#pragma unroll
    for (uint32_t i = 0; i < kUnits; ++i) {
      if (first + i * kShareWarps < units)
        again = again || is_missing(in[i].v[0]) || is_missing(in[i].v[1]);
    }
  } while (__any_sync(~0u, row.handed && again));
}

/// Brings the weights of a link's norms near while the one before it runs.
__device__ __forceinline__ void prefetch_norms(const ChainProduct& q) {
  for (uint32_t at = threadIdx.x * 32; at < q.n_in; at += kShareThreads * 32) {
    if (q.norm_weight != nullptr)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(q.norm_weight + at));
    if (q.branch_weight != nullptr)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(q.branch_weight + at));
  }
}
/// For the norm's factor, which the product's sums are multiplied by.
__device__ __forceinline__ void keep_squares(uint8_t* image, const FixedMap& map, uint32_t u,
                                             const LaneInputs& in, uint32_t lane) {
  const float sum = lanes_sum(squares_of(in.v[0]) + squares_of(in.v[1]));
  if (lane == 0) *reinterpret_cast<float*>(image + map.squares + u * 4) = sum;
}

__device__ __forceinline__ LaneInputs weights_of(const float* w, const ChainProduct& q, uint32_t u,
                                                 uint32_t lane) {
  if (w == nullptr || u >= q.units) return {};
  return load_inputs(w, u * kUnitColumns + lane * 4, q.n_in);
}

/// A warp's units of the input, warp, warp + kShareWarps, ..., kStagedUnits under way at once.
__device__ __forceinline__ void stage_row(const ChainLaunch& p, const ChainProduct& q,
                                          const ChainView& view) {
  const FixedMap map = fixed_map(q.units);
  uint8_t* image = view.shared + p.image;
  const bool norm = q.norm_weight != nullptr;
  const RowView row = row_view(p, view, q.x);
#pragma unroll 1
  for (uint32_t first = view.warp; first < q.units; first += kStagedUnits * kShareWarps) {
    LaneInputs w = weights_of(q.norm_weight, q, first, view.lane), x[kStagedUnits];
    fetch<kStagedUnits>(row, first, q.units, view.lane, x);
    const uint32_t end = min(q.units, first + kStagedUnits * kShareWarps);
#pragma unroll 1
    for (uint32_t u = first; u < end; u += kShareWarps) {
      if (norm) {
        keep_squares(image, map, u, x[0], view.lane);
        scale_by(x[0], w);
        w = weights_of(q.norm_weight, q, u + kShareWarps, view.lane);
      }
      stage_fixed(image, map, u, x[0], view.lane);
#pragma unroll
      for (uint32_t i = 0; i + 1 < kStagedUnits; ++i) x[i] = x[i + 1];
    }
  }
}

/// Leaves the sum of a branch for what comes after the launch, and for its later links.
__device__ __forceinline__ void store_sum(const ChainLaunch& p, const ChainProduct& q,
                                          const ChainView& view, uint32_t u, const LaneInputs& x) {
  const uint32_t column = u * kUnitColumns + view.lane * 4;
#pragma unroll
  for (uint32_t h = 0; h < 2; ++h) {
    if (q.x_out_hand != kNotHanded)
      hand_on(handed_set(p, view) + q.x_out_hand + column + h * 128, x.v[h]);
    if (q.x_out != nullptr) *reinterpret_cast<float4*>(q.x_out + column + h * 128) = x.v[h];
  }
}

/// The input with the branch of an earlier product added; every block computes all of it, and
/// stores every n-th unit.
__device__ __forceinline__ void stage_branch(const ChainLaunch& p, const ChainProduct& q,
                                             const ChainView& view) {
  const FixedMap map = fixed_map(q.units);
  uint8_t* image = view.shared + p.image;
  LaneInputs x[kBranchUnits], y[kBranchUnits];
  fetch<kBranchUnits>(row_view(p, view, q.x), view.warp, q.units, view.lane, x);
  fetch<kBranchUnits>(row_view(p, view, q.branch), view.warp, q.units, view.lane, y);
  float factor = 1.0f;
  if (q.branch_weight != nullptr) {
    auto* sums = reinterpret_cast<float*>(view.shared + p.sums);
    float squares = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < kBranchUnits; ++i)
      squares += squares_of(y[i].v[0]) + squares_of(y[i].v[1]);
    squares = lanes_sum(squares);
    if (view.lane == 0) sums[view.warp] = squares;
    meet();
    const float sum = lanes_sum(view.lane < kShareWarps ? sums[view.lane] : 0.0f);
    factor = rsqrtf(sum / static_cast<float>(q.n_in) + q.branch_eps);
  }
#pragma unroll 1
  for (uint32_t u = view.warp; u < q.units; u += kShareWarps) {
    if (q.branch_weight != nullptr) scale_by(y[0], weights_of(q.branch_weight, q, u, view.lane));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float4 a = x[0].v[i], b = y[0].v[i];
      const float s = q.branch_scale;
      x[0].v[i] = {fmaf(b.x, factor, a.x) * s, fmaf(b.y, factor, a.y) * s,
                   fmaf(b.z, factor, a.z) * s, fmaf(b.w, factor, a.w) * s};
    }
    if (u % gridDim.x == blockIdx.x) store_sum(p, q, view, u, x[0]);
    if (q.norm_weight != nullptr) {
      keep_squares(image, map, u, x[0], view.lane);
      scale_by(x[0], weights_of(q.norm_weight, q, u, view.lane));
    }
    stage_fixed(image, map, u, x[0], view.lane);
#pragma unroll
    for (uint32_t i = 0; i + 1 < kBranchUnits; ++i) {
      x[i] = x[i + 1];
      y[i] = y[i + 1];
    }
  }
}

}  // namespace sharpi::cuda
