// SPDX-License-Identifier: MIT
// A head of a projected row in the registers of a warp: how it is read, rotated and stored. Heads
// of 64 and 96 have element lane + 32 i in a lane, those of 128 and more four elements side by
// side, so that they are read and stored by words of 16, 8 and 4 bytes. Thread rule: device code.
#pragma once

#include "cuda/kernels/kv_rows.cuh"
#include "cuda/kernels/qkv.h"

namespace sharpi::cuda {

/// The only pair of a lane, of elements 32 apart.
template <int kPer>
__device__ __forceinline__ void rotate_pair(float cos, float sin, float (&x)[kPer]) {
  const float a = x[0], b = x[1];
  x[0] = fmaf(-b, sin, a * cos);
  x[1] = fmaf(a, sin, b * cos);
}

/// Where a head's K or V row goes, and its twin in the ring or null.
struct StoredTo {
  std::byte *row, *twin;
};
template <class T>
__device__ __forceinline__ void store_both(const StoredTo& to, uint32_t at, T v) {
  reinterpret_cast<T*>(to.row)[at] = v;
  if (to.twin != nullptr) reinterpret_cast<T*>(to.twin)[at] = v;
}

/// Element lane + 32 i of KV head h to a stored row of n elements, in its codec. The scales of the
/// head's blocks are found side by side, one per lane: divisions take long.
template <int kPer>
__device__ __forceinline__ void store_head(KvDtype type, uint32_t h, uint32_t n,
                                           const float (&x)[kPer], const StoredTo& to) {
  const uint32_t lane = threadIdx.x % 32, at = h * kPer * 32 + lane;
  if (type == KvDtype::kQ8_0) {
    uint32_t top = 0;
#pragma unroll
    for (uint32_t i = 0; i < kPer; ++i) {
      const uint32_t of = q8_top(x[i]);
      if (lane == i) top = of;
    }
    const Q8Scale scale = q8_scale_of(top);
    if (lane < kPer) store_both(to, n / 2 + h * kPer + lane, scale.bits);
#pragma unroll
    for (uint32_t i = 0; i < kPer; ++i) {
      const float inverse = __shfl_sync(0xFFFFFFFFu, scale.inverse, static_cast<int>(i));
      store_both(to, at + 32 * i, q8_code(x[i], inverse));
    }
    return;
  }
#pragma unroll
  for (uint32_t i = 0; i < kPer; ++i) {
    if (type == KvDtype::kF32) {
      store_both(to, at + 32 * i, x[i]);
    } else {
      store_both(to, at + 32 * i, static_cast<uint16_t>(bf16_bits(x[i])));
    }
  }
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

/// A head's elements to a stored row of n elements, from element `at` on, in its codec. q8_0: of
/// eight lanes that have a block of 32 each finds the scale of another one's, for divisions take
/// long.
template <int kPer>
__device__ __forceinline__ void store_fours(KvDtype type, uint32_t at, uint32_t n,
                                            const float (&x)[kPer], const StoredTo& to) {
  constexpr uint32_t kGroups = kPer / 4;
  const uint32_t lane = threadIdx.x % 32;
  if (type == KvDtype::kQ8_0) {
    uint32_t top = 0;  // of block 4 * (lane % 8) + lane / 8
#pragma unroll
    for (uint32_t i = 0; i < kGroups; ++i) {
      uint32_t most = 0;
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) {
        most = max(most, __float_as_uint(x[4 * i + j]) & 0x7FFFFFFFu);
      }
#pragma unroll
      for (int d = 1; d < 8; d *= 2) most = max(most, __shfl_xor_sync(0xFFFFFFFFu, most, d));
      if (kGroups == 1 || lane % 8 == i) top = most;
    }
    const Q8Scale scale = q8_scale_of(top);
    if (lane % 8 < kGroups) {
      store_both(to, n / 2 + at / 32 + lane % 8 * 4 + lane / 8, scale.bits);
    }
#pragma unroll
    for (uint32_t i = 0; i < kGroups; ++i) {
      const float inverse =
          kGroups == 1 ? scale.inverse
                       : __shfl_sync(0xFFFFFFFFu, scale.inverse, static_cast<int>((lane & 24) + i));
      uint32_t codes = 0;
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) {
        codes |= uint32_t{static_cast<uint8_t>(q8_code(x[4 * i + j], inverse))} << (8 * j);
      }
      store_both(to, at / 4 + 32 * i + lane, codes);
    }
    return;
  }
#pragma unroll
  for (uint32_t i = 0; i < kGroups; ++i) {
    const float* v = x + 4 * i;
    if (type == KvDtype::kF32) {
      store_both(to, at / 4 + 32 * i + lane, float4{v[0], v[1], v[2], v[3]});
    } else {
      store_both(
          to, at / 4 + 32 * i + lane,
          uint2{bf16_bits(v[0]) | bf16_bits(v[1]) << 16, bf16_bits(v[2]) | bf16_bits(v[3]) << 16});
    }
  }
}

}  // namespace sharpi::cuda
