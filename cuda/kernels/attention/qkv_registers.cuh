// SPDX-License-Identifier: MIT
// A head of a projected row in the registers of a warp: how it is read, rotated and stored. Heads
// of 64 and 96 have element lane + 32 i in a lane, those of 128 and more four elements side by
// side, so that they are read and stored by words of 16, 8 and 4 bytes. Thread rule: device code.
#pragma once

#include "cuda/kernels/attention/qkv.h"
#include "cuda/kernels/kv/kv_rows.cuh"

namespace sharpi::cuda {

/// The only pair of a lane, of elements 32 apart.
template <int kPer>
__device__ __forceinline__ void rotate_pair(float cos, float sin, float (&x)[kPer]) {
  const float a = x[0], b = x[1];
  x[0] = fmaf(-b, sin, a * cos);
  x[1] = fmaf(a, sin, b * cos);
}

// --- heads of 128, 256 and 512: a lane has four elements of every 128 side by side ---

/// The lane's elements of a head: 128 * i + 4 * lane + j in x[4 * i + j], or lane + 32 i of the
/// narrower ones.
template <int kPer>
__device__ __forceinline__ void load_head(const float* from, float (&x)[kPer]) {
  const uint32_t lane = threadIdx.x % 32;
  if constexpr (kPer % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kPer; i += 4) {
      const float4 v = reinterpret_cast<const float4*>(from)[8 * i + static_cast<int>(lane)];
      x[i] = v.x, x[i + 1] = v.y, x[i + 2] = v.z, x[i + 3] = v.w;
    }
  } else {
#pragma unroll
    for (uint32_t i = 0; i < kPer; ++i) x[i] = from[32 * i + lane];
  }
}
template <int kPer>
__device__ __forceinline__ void store_query(float* to, const float (&x)[kPer]) {
  const uint32_t lane = threadIdx.x % 32;
  if constexpr (kPer % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kPer; i += 4) {
      reinterpret_cast<float4*>(to)[8 * i + static_cast<int>(lane)] = {x[i], x[i + 1], x[i + 2],
                                                                       x[i + 3]};
    }
  } else {
#pragma unroll
    for (uint32_t i = 0; i < kPer; ++i) to[32 * i + lane] = x[i];
  }
}
/// Angles of the pairs that the lane has a part of.
template <int kPer, int kAngles>
__device__ __forceinline__ void load_angles(const QkvParams& p, uint32_t row, float (&cos)[kAngles],
                                            float (&sin)[kAngles]) {
  const uint32_t lane = threadIdx.x % 32;
  const uint64_t first = uint64_t{row} * p.n_half;
  if constexpr (kPer % 4 == 0) {
#pragma unroll
    for (uint32_t i = 0; i < kAngles / 4; ++i) {
      const uint32_t at = (i * 128 + lane * 4) & (p.n_half - 1);
      const float4 c = *reinterpret_cast<const float4*>(p.cos + first + at);
      const float4 s = *reinterpret_cast<const float4*>(p.sin + first + at);
      cos[4 * i] = c.x, cos[4 * i + 1] = c.y, cos[4 * i + 2] = c.z, cos[4 * i + 3] = c.w;
      sin[4 * i] = s.x, sin[4 * i + 1] = s.y, sin[4 * i + 2] = s.z, sin[4 * i + 3] = s.w;
    }
  } else {
    cos[0] = p.cos[first + lane];
    sin[0] = p.sin[first + lane];
  }
}

/// Pairs j, j + n_half. Up to 64 apart they are four elements of two lanes, else of one lane.
template <int kPer, int kAngles>
__device__ __forceinline__ void rotate_fours(uint32_t n_half, const float (&cos)[kAngles],
                                             const float (&sin)[kAngles], float (&x)[kPer]) {
  if (n_half <= 64) {
    const uint32_t lane = threadIdx.x % 32, apart = n_half / 4;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float other = __shfl_xor_sync(0xFFFFFFFFu, x[j], static_cast<int>(apart));
      const float turned = fmaf((lane & apart) != 0 ? other : -other, sin[j], x[j] * cos[j]);
      if (lane < 2 * apart) x[j] = turned;
    }
    return;
  }
#pragma unroll
  for (int apart = 4; 2 * apart <= kPer; apart *= 2) {
    if (n_half != 32u * static_cast<uint32_t>(apart)) continue;
#pragma unroll
    for (int i = 0; i < apart; ++i) {
      const float a = x[i], b = x[i + apart];
      x[i] = fmaf(-b, sin[i], a * cos[i]);
      x[i + apart] = fmaf(a, sin[i], b * cos[i]);
    }
  }
}

/// Pairs 2j, 2j + 1: of one lane where it has four elements side by side, else of two lanes.
template <int kPer>
__device__ __forceinline__ void rotate_neighbours(const QkvParams& p, uint32_t row,
                                                  float (&x)[kPer]) {
  const uint32_t lane = threadIdx.x % 32;
  const float* const cos = p.cos + uint64_t{row} * p.n_half;
  const float* const sin = p.sin + uint64_t{row} * p.n_half;
  if constexpr (kPer % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kPer; i += 4) {
      const uint32_t pair = 16 * i + 2 * lane;
      if (pair >= p.n_half) continue;
      const float2 c = *reinterpret_cast<const float2*>(cos + pair);
      const float2 s = *reinterpret_cast<const float2*>(sin + pair);
      const float a = x[i], b = x[i + 1], d = x[i + 2], e = x[i + 3];
      x[i] = fmaf(-b, s.x, a * c.x);
      x[i + 1] = fmaf(a, s.x, b * c.x);
      x[i + 2] = fmaf(-e, s.y, d * c.y);
      x[i + 3] = fmaf(d, s.y, e * c.y);
    }
  } else {
#pragma unroll
    for (uint32_t i = 0; i < kPer; ++i) {
      const uint32_t pair = 16 * i + lane / 2;
      const float other = __shfl_xor_sync(0xFFFFFFFFu, x[i], 1);
      if (pair >= p.n_half) continue;
      x[i] = fmaf(lane % 2 == 0 ? -other : other, sin[pair], x[i] * cos[pair]);
    }
  }
}

/// A head's elements to a stored row of n elements, from element `at` on, in its codec.
template <int kPer>
__device__ __forceinline__ void store_head(KvDtype type, uint32_t at, uint32_t n,
                                           const float (&x)[kPer], const StoredTo& to) {
  constexpr bool kFours = kPer % 4 == 0;
  const uint32_t lane = threadIdx.x % 32;
  if (has_scales(type)) {
    return with_kv_codec(
        type, [&]<KvDtype kType>() requires(has_scales(kType)) {
          if constexpr (kFours) {
            DeviceCodec<kType>::template store_fours<kPer>(at, n, x, to);
          } else {
            DeviceCodec<kType>::template store_head<kPer>(at, n, x, to);
          }
        });
  }
#pragma unroll
  for (uint32_t i = 0; i < (kFours ? kPer / 4 : kPer); ++i) {
    with_kv_codec(
        type, [&]<KvDtype kType>() requires(!has_scales(kType)) {
          if constexpr (kFours) {
            DeviceCodec<kType>::store_four(at / 4 + 32 * i + lane, x + 4 * i, to);
          } else {
            DeviceCodec<kType>::store_one(at + lane + 32 * i, x[i], to);
          }
        });
  }
}

}  // namespace sharpi::cuda
