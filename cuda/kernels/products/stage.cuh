// SPDX-License-Identifier: MIT
// The staged input of matvec.cu: rows as f16 in the order of the fragments, every 256 columns
// scaled by a power of two of their own, with the sums that offsets and minima need. It is made in
// shared memory (one row) or in global memory by a kernel of its own (several rows) and then copied
// as it is. Thread rule: device code.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/kernels/products/matvec_plan.h"
#include "cuda/kernels/products/stream.cuh"

namespace sharpi::cuda {

constexpr float kSumUnit = 0x1p6f;  // staged sums are sum * 2^-6: 32 inputs below 2^15 stay in f16

/// Eight inputs of a lane: columns 4 l .. + 3 and 128 + 4 l .. + 3 of a unit.
struct LaneInputs {
  float4 v[2];
};
__device__ __forceinline__ LaneInputs load_inputs(const float* x, uint32_t column, uint32_t n_in) {
  LaneInputs r;
#pragma unroll
  for (uint32_t k = 0; k < 2; ++k) {
    const uint32_t c = column + 128 * k;
    r.v[k] = c < n_in ? *reinterpret_cast<const float4*>(x + c) : float4{};
  }
  return r;
}
/// What they are multiplied by before anything else.
__device__ __forceinline__ LaneInputs load_input_weights(const StreamParams& p, uint32_t segment,
                                                         uint32_t column) {
  if (p.norm_weight != nullptr) return load_inputs(p.norm_weight, column, p.n_in);
  const float w = segment_weight(p, segment);
  return {{{w, w, w, w}, {w, w, w, w}}};
}

__device__ __forceinline__ float lanes_sum(float v) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(~0u, v, d);
  return v;
}
__device__ __forceinline__ float squares_of(const float4& v) {
  return v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
}

/// The power of two that brings `amax` to [2^14, 2^15), and what undoes it and the unit of the
/// codes.
__device__ __forceinline__ float2 input_scale(float amax) {
  const uint32_t e = min(max(__float_as_uint(amax) >> 23, 15u), 244u);
  return {__uint_as_float((268u - e) << 23), __uint_as_float((e + 10u) << 23)};
}

__device__ __forceinline__ uint32_t pack_halves(float a, float b) {
  const __half2 h = __floats2half2_rn(a, b);
  return reinterpret_cast<const uint32_t&>(h);
}

/// Writes unit u of a part of one row. `part`: where the part begins, with `before` units of others
/// in front of it. All 32 lanes of a warp.
__device__ __forceinline__ void stage_unit(float* squares_of_all, uint8_t* part,
                                           const ImageMap& map, uint32_t n_rows, uint32_t before,
                                           uint32_t u, uint32_t row, LaneInputs in,
                                           const LaneInputs& weight, uint32_t lane) {
  float squares = 0.0f, amax = 0.0f;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    float4& v = in.v[k];
    const float4 w = weight.v[k];
    squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    v = {v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w};
    amax = fmaxf(amax, fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))));
  }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    squares += __shfl_xor_sync(~0u, squares, d);
    amax = fmaxf(amax, __shfl_xor_sync(~0u, amax, d));
  }
  const float2 scale = input_scale(amax);
  const uint32_t at = u * n_rows + row;
  if (lane == 0) {
    *reinterpret_cast<float*>(part + map.inverse + (u * map.columns + row) * 4) = scale.y;
    squares_of_all[before * n_rows + at] = squares;
  }
  const uint32_t q = lane % 8;  // columns 16 (q / 4) + 4 (q % 4) of a block
  uint8_t* x =
      part + row * map.row_bytes + u * kUnitColumns * 2 + lane / 8 * 64 + q % 4 * 16 + q / 4 * 8;
#pragma unroll
  for (uint32_t k = 0; k < 2; ++k) {
    const float4 v = in.v[k];
    const uint32_t lo = pack_halves(v.x * scale.x, v.y * scale.x);
    const __half2 hi = __floats2half2_rn(v.z * scale.x, v.w * scale.x);
    const __half2 upper =
        __hmul2(hi, __float2half2_rn(0.0625f));  // its codes are sixteen times theirs
    *reinterpret_cast<uint2*>(x + k * 256) = {lo, reinterpret_cast<const uint32_t&>(upper)};
    const float2 a = __half22float2(reinterpret_cast<const __half2&>(lo)), b = __half22float2(hi);
    float s16 = ((a.x + a.y) + (b.x + b.y)) * (1.0f / kSumUnit);
    s16 += __shfl_xor_sync(~0u, s16, 1);
    s16 += __shfl_xor_sync(~0u, s16, 2);
    const float s32 = s16 + __shfl_xor_sync(~0u, s16, 4);
    // As B fragments: t holds blocks 2 t, 2 t + 1 (and 8 more), high parts then rests.
    const uint32_t block = 4 * k + lane / 8;
    if (q % 4 == 0) {
      const uint32_t j = 2 * block + q / 4;
      auto* to = reinterpret_cast<__half*>(part + map.sums16 + at * 64) + j % 8 / 2 * 8 +
                 j / 8 * 2 + j % 2;
      const __half high = __float2half_rn(s16);
      to[0] = high;
      to[4] = __float2half_rn(s16 - __half2float(high));
    }
    if (q == 0) {
      auto* to = reinterpret_cast<__half*>(part + map.sums32 + at * 32) + block / 2 * 4 + block % 2;
      const __half high = __float2half_rn(s32);
      to[0] = high;
      to[2] = __float2half_rn(s32 - __half2float(high));
    }
  }
}

}  // namespace sharpi::cuda
