// SPDX-License-Identifier: MIT
// The codec q4 on the device: its levels as bytes, its rotation in the registers of a warp or in
// shared memory, and how blocks are made; equals kv/codec.cc and kv/rotation.cc bit for bit.
// Thread rule: device code; whole warps.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/kv/kv_numbers.cuh"
#include "kv/levels.h"

namespace sharpi::cuda {

constexpr uint32_t four_levels(uint32_t first) {
  uint32_t word = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    word |= static_cast<uint32_t>(static_cast<uint8_t>(kQ4Levels[first + i])) << (8 * i);
  }
  return word;
}

constexpr uint32_t kLevels0 = four_levels(0), kLevels4 = four_levels(4), kLevels8 = four_levels(8),
                   kLevels12 = four_levels(12);

/// Eight codes, the first one lowest, to the bytes of a table of sixteen, four a word.
__device__ __forceinline__ uint2 looked_up(uint32_t codes, uint32_t t0, uint32_t t4, uint32_t t8,
                                           uint32_t t12) {
  const uint32_t in = codes & 0x77777777u;  // a set upper bit would ask for the sign
  const uint32_t upper = 0x32103210u | (codes & 0x88888888u) >> 1;
  return {__byte_perm(__byte_perm(t0, t4, in), __byte_perm(t8, t12, in), upper),
          __byte_perm(__byte_perm(t0, t4, in >> 16), __byte_perm(t8, t12, in >> 16), upper >> 16)};
}
/// Eight codes to their levels as signed bytes.
__device__ __forceinline__ uint2 levels_of(uint32_t codes) {
  return looked_up(codes, kLevels0, kLevels4, kLevels8, kLevels12);
}
/// The same to levels + 128.
__device__ __forceinline__ uint2 biased_levels_of(uint32_t codes) {
  constexpr uint32_t kBias = 0x80808080u;
  return looked_up(codes, kLevels0 ^ kBias, kLevels4 ^ kBias, kLevels8 ^ kBias, kLevels12 ^ kBias);
}

/// prmt as it is: a selector's upper bit asks for eight times the byte's sign.
__device__ __forceinline__ uint32_t bytes_or_signs(uint32_t low, uint32_t high, uint32_t select) {
  uint32_t r;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(low), "r"(high), "r"(select));
  return r;
}
constexpr bool levels_change_sign() {
  for (uint32_t i = 0; i < kQ4LevelCount; ++i) {
    if (i < 8 ? kQ4Levels[i] >= 0 : kQ4Levels[i] < 0 || kQ4Levels[i] == 127) return false;
  }
  return true;
}
static_assert(levels_change_sign());

/// Signed bytes whose sums are the levels of eight codes, for integer products that are added up
/// anyway: choosing between the halves of the table would take half as many instructions again.
/// The lower half's bytes are negative, so that codes of the other one get -1 from it; those are
/// one larger for that, and not negative, so that codes of the lower half get 0.
struct LevelTerms {
  uint2 lower, upper;
};
__device__ __forceinline__ LevelTerms level_terms(uint32_t codes) {
  constexpr uint32_t k8 = kLevels8 + 0x01010101u, k12 = kLevels12 + 0x01010101u;
  const uint32_t other = codes ^ 0x88888888u;
  return {
      {bytes_or_signs(kLevels0, kLevels4, codes), bytes_or_signs(kLevels0, kLevels4, codes >> 16)},
      {bytes_or_signs(k8, k12, other), bytes_or_signs(k8, k12, other >> 16)}};
}

/// Within what f16 products of levels stay finite; scales have signs.
__device__ __forceinline__ __half2 bounded_scales(__half2 s) {
  const __half2 most = __float2half2_rn(kMostScale);
  return __hmax2(__hmin2(s, most), __hneg2(most));
}

// --- rotation ---

/// The signs that elements i, i + 1, .. of every 128 are given, the first one's in the lowest bit;
/// as many as are left of their 32.
__device__ __forceinline__ uint32_t signs_from(uint32_t i) {
  constexpr uint32_t kWords[4] = {kRotationSigns[0], kRotationSigns[1], kRotationSigns[2],
                                  kRotationSigns[3]};
  const uint32_t w = i < 32 ? kWords[0] : i < 64 ? kWords[1] : i < 96 ? kWords[2] : kWords[3];
  return w >> i % 32;
}
__device__ __forceinline__ float signed_at(float x, uint32_t i) {
  return __uint_as_float(__float_as_uint(x) ^ signs_from(i) << 31);
}
/// 1 / sqrt(b) as kv/rotation.cc rounds it, without a root and a division in every kernel.
__device__ __forceinline__ float rotation_norm(uint32_t b) {
  return b == 128 ? 0x1.6a09e6p-4f : b == 64 ? 0x1p-3f : b == 32 ? 0x1.6a09e6p-3f : 0x1p-2f;
}
/// One stage between lanes `apart` from each other: the sum in the lower lane, the difference in
/// the upper one, whose topmost bit of `upper` is set. The product with 1 or -1 is exact, so one
/// instruction rounds as the sum alone would.
template <int kPer>
__device__ __forceinline__ void across(float (&x)[kPer], uint32_t apart, uint32_t upper) {
  const float sign = __uint_as_float(0x3F800000u | (upper & 0x80000000u));
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    x[i] = fmaf(x[i], sign, __shfl_xor_sync(0xFFFFFFFFu, x[i], static_cast<int>(apart)));
  }
}
template <int kPer>
__device__ __forceinline__ void across(float (&x)[kPer], uint32_t apart) {
  across(x, apart, (threadIdx.x & apart) != 0 ? 0x80000000u : 0u);
}
__device__ __forceinline__ void within(float& low, float& high) {
  const float a = low, b = high;
  low = __fadd_rn(a, b);
  high = __fsub_rn(a, b);
}

/// kFours: 128 i + 4 lane + j in x[4 i + j], b = 128. Else lane + 32 i in x[i], any b up to 128.
/// Stages are a loop, because a step of one row executes them once: fetching what unrolled stages
/// are made of would take longer than executing it. The lane's number goes through it backwards, a
/// bit a stage: else every stage would read the number anew, which takes as long as a shuffle.
template <bool kFours, int kPer>
__device__ __forceinline__ void hadamard(float (&x)[kPer], uint32_t b) {
  uint32_t upper = __brev(threadIdx.x);
  if constexpr (kFours) {
#pragma unroll
    for (int i = 0; i < kPer; i += 4) {
      within(x[i], x[i + 1]), within(x[i + 2], x[i + 3]);
      within(x[i], x[i + 2]), within(x[i + 1], x[i + 3]);
    }
#pragma unroll 1
    for (uint32_t apart = 1; apart < 32; apart *= 2, upper *= 2) across(x, apart, upper);
  } else {
#pragma unroll 1
    for (uint32_t apart = 1; apart < 32 && apart < b; apart *= 2, upper *= 2) {
      across(x, apart, upper);
    }
#pragma unroll
    for (int apart = 1; apart < 4; apart *= 2) {
      if (32u * static_cast<uint32_t>(apart) >= b) continue;
#pragma unroll
      for (int i = 0; i + apart < kPer; ++i) {
        if ((i & apart) == 0) within(x[i], x[i + apart]);
      }
    }
  }
  const float norm = rotation_norm(kFours ? 128 : b);
#pragma unroll
  for (int i = 0; i < kPer; ++i) x[i] = __fmul_rn(x[i], norm);
}
template <bool kFours, int kPer>
__device__ __forceinline__ void rotation_signs(float (&x)[kPer], uint32_t b) {
  const uint32_t lane = threadIdx.x % 32;
  [[maybe_unused]] const uint32_t four = kFours ? signs_from(4 * lane) : 0;  // of four neighbours
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    if constexpr (kFours) {
      x[i] = __uint_as_float(__float_as_uint(x[i]) ^ (four << (31 - i % 4) & 0x80000000u));
    } else {
      x[i] = signed_at(x[i], (lane + 32 * static_cast<uint32_t>(i)) % b);
    }
  }
}
/// A head in a warp's registers, as above.
template <bool kFours, int kPer>
__device__ __forceinline__ void rotate_head_by(float (&x)[kPer], uint32_t b) {
  rotation_signs<kFours>(x, b);
  hadamard<kFours>(x, b);
}

/// n floats in shared or global memory, a multiple of b, by warps `first`, `first` + `stride`, ..
/// Element lane + 32 i of every 128 in a lane; b divides what is left behind the last whole 128.
template <bool kBack>
__device__ __forceinline__ void rotate_floats(float* x, uint32_t n, uint32_t b, uint32_t first,
                                              uint32_t stride) {
  const uint32_t lane = threadIdx.x % 32;
  for (uint32_t at = first * 128; at < n; at += stride * 128) {
    float v[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t e = at + lane + 32 * i;
      v[i] = e < n ? x[e] : 0.0f;
    }
    if (!kBack) rotation_signs<false>(v, b);
    hadamard<false>(v, b);
    if (kBack) rotation_signs<false>(v, b);
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t e = at + lane + 32 * i;
      if (e < n) x[e] = v[i];
    }
  }
}

// --- blocks ---

/// Numbers in steps of eight, from -128 on: how many middles lie below the step, and in the bits
/// above these four the middle within it, or infinity (middles are halves and lie twelve or more
/// apart).
struct Q4Steps {
  uint32_t of[32];
};
constexpr Q4Steps q4_steps() {
  Q4Steps steps{};
  for (uint32_t i = 0; i < 32; ++i) {
    const float from = 8.0f * static_cast<float>(i) - 128.0f;
    uint32_t below = 0;
    while (below < kQ4LevelCount - 1 && kQ4Middles[below] < from) ++below;
    const bool has = below < kQ4LevelCount - 1 && kQ4Middles[below] < from + 8.0f;
    steps.of[i] = (has ? __builtin_bit_cast(uint32_t, kQ4Middles[below]) : 0x7F800000u) | below;
  }
  return steps;
}
constexpr bool middles_fit_steps() {
  for (uint32_t i = 0; i + 1 < kQ4LevelCount; ++i) {
    if ((__builtin_bit_cast(uint32_t, kQ4Middles[i]) & 15u) != 0) return false;
    if (i != 0 && kQ4Middles[i] - kQ4Middles[i - 1] < 8.0f) return false;
  }
  return true;
}
static_assert(middles_fit_steps());
static __device__ const Q4Steps kQ4Steps = q4_steps();

/// Asks for the table's line early, where a kernel still waits for the one before it.
__device__ __forceinline__ void prefetch_q4_steps() {
  asm volatile("prefetch.global.L1 [%0];" ::"l"(kQ4Steps.of));
}

/// The search for codes, held by a warp: a step and a level in each lane. Fifteen comparisons an
/// element would be most of what a kernel of few rows executes, and each instruction only once.
class Q4Search {
 public:
  __device__ __forceinline__ Q4Search()
      : step_(__ldg(kQ4Steps.of + threadIdx.x % 32)),
        level_(static_cast<float>(static_cast<int8_t>(levels_of(threadIdx.x % 16).x))) {}

  /// The step's number is rounded down into the lowest bits of a float, which is where a shuffle
  /// looks for a lane: so no conversion is waited for. NaN has code 0, as no middle is below it.
  __device__ __forceinline__ uint32_t code(float y) const {
    const float in = fminf(fmaxf(y, -128.0f), 127.5f);
    const int at = __float_as_int(__fmaf_rd(in, 0.125f, 0x1p23f + 16.0f));
    const uint32_t found = __shfl_sync(0xFFFFFFFFu, step_, at);
    return (found & 15u) + (y > __uint_as_float(found & ~15u) ? 1 : 0);
  }
  __device__ __forceinline__ float level(uint32_t code) const {
    return __shfl_sync(0xFFFFFFFFu, level_, static_cast<int>(code));
  }

 private:
  uint32_t step_;
  float level_;
};

/// Blocks of 32, kCount of them side by side in their chains of shuffles and divisions: elements of
/// a block lie kEach in each of 32 / kEach neighbouring lanes, those of block b in x[kEach * b] on.
template <int kEach, int kCount>
struct Q4Blocks {
  uint32_t code[kCount * kEach];
  uint16_t scale[kCount];

  __device__ __forceinline__ explicit Q4Blocks(const float* x) {
    const Q4Search search;  // its table is read meanwhile
    uint32_t most[kCount], sign[kCount];
    float d[kCount], inverse[kCount];
    find_most(x, most);
#pragma unroll
    for (int b = 0; b < kCount; ++b) inverse[b] = __fdiv_rn(127.0f, __uint_as_float(most[b]));
    find_sign(x, most, sign);
#pragma unroll
    for (int b = 0; b < kCount; ++b) {
      inverse[b] = __uint_as_float(__float_as_uint(inverse[b]) ^ sign[b]);
    }
    // From the largest element's scale to the codes' own, twice.
#pragma unroll 1
    for (int pass = 0;; ++pass) {
      fit(x, inverse, search, d);
      if (pass == 1) break;
#pragma unroll
      for (int b = 0; b < kCount; ++b) inverse[b] = __frcp_rn(d[b]);
    }
#pragma unroll
    for (int b = 0; b < kCount; ++b) {
      const bool zeros = __uint_as_float(most[b]) < kQ4LeastMagnitude;
      const bool odd = most[b] >= 0x7F800000u;
      scale[b] = zeros ? uint16_t{0} : odd || d[b] != d[b] ? uint16_t{0x7E00} : half_bits_of(d[b]);
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        if (zeros || odd) code[b * kEach + j] = kQ4ZeroCode;
      }
    }
  }

 private:
  static constexpr uint32_t kLanes = 32 / kEach;

  /// The blocks' largest magnitudes, as bits.
  static __device__ __forceinline__ void find_most(const float* x, uint32_t (&most)[kCount]) {
#pragma unroll
    for (int b = 0; b < kCount; ++b) {
      most[b] = 0;
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        most[b] = max(most[b], __float_as_uint(x[b * kEach + j]) & 0x7FFFFFFFu);
      }
    }
#pragma unroll
    for (uint32_t d = 1; d < kLanes; d *= 2) {
#pragma unroll
      for (int b = 0; b < kCount; ++b) {
        most[b] = max(most[b], __shfl_xor_sync(0xFFFFFFFFu, most[b], static_cast<int>(d)));
      }
    }
  }
  /// The sign of the first of the largest, in the topmost bit: every lane says whether it has one,
  /// and its first one's sign; the lowest lane of those that have one counts.
  static __device__ __forceinline__ void find_sign(const float* x, const uint32_t (&most)[kCount],
                                                   uint32_t (&sign)[kCount]) {
    const uint32_t group = threadIdx.x % 32 - threadIdx.x % kLanes;
#pragma unroll
    for (int b = 0; b < kCount; ++b) {
      bool has = false;
      uint32_t below = 0;
#pragma unroll
      for (int j = kEach - 1; j >= 0; --j) {
        const uint32_t bits = __float_as_uint(x[b * kEach + j]);
        if ((bits & 0x7FFFFFFFu) == most[b]) has = true, below = bits >> 31;
      }
      const uint32_t lanes = __ballot_sync(0xFFFFFFFFu, has) >> group;
      const uint32_t negative = __ballot_sync(0xFFFFFFFFu, below != 0) >> group;
      sign[b] = (lanes & (~lanes + 1u) & negative) != 0 ? 0x80000000u : 0u;
    }
  }
  /// Takes the codes nearest to x * inverse, gives the scales of least squares: sums of elements 16
  /// apart, then 8, 4, 2, 1. Sums of squares of levels are whole and small, exact in any order.
  /// Five stages are a loop for the sake of registers, three are not.
  __device__ __forceinline__ void fit(const float* x, const float (&inverse)[kCount],
                                      const Q4Search& search, float (&d)[kCount]) {
    float up[kCount * kEach], down[kCount];
#pragma unroll
    for (int b = 0; b < kCount; ++b) {
      down[b] = 0.0f;
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const int i = b * kEach + j;
        code[i] = search.code(__fmul_rn(x[i], inverse[b]));
        const float c = search.level(code[i]);
        up[i] = __fmul_rn(x[i], c);
        down[b] = fmaf(c, c, down[b]);
      }
    }
#pragma unroll kEach == 1 ? 1 : 3
    for (int apart = 16 / kEach; apart > 0; apart /= 2) {
#pragma unroll
      for (int i = 0; i < kCount * kEach; ++i) {
        up[i] = __fadd_rn(up[i], __shfl_xor_sync(0xFFFFFFFFu, up[i], apart));
      }
#pragma unroll
      for (int b = 0; b < kCount; ++b) {
        down[b] += __shfl_xor_sync(0xFFFFFFFFu, down[b], apart);
      }
    }
#pragma unroll
    for (int b = 0; b < kCount; ++b) {
      float* sum = up + b * kEach;
#pragma unroll
      for (int half = kEach / 2; half > 0; half /= 2) {
#pragma unroll
        for (int j = 0; j < half; ++j) sum[j] = __fadd_rn(sum[j], sum[j + half]);
      }
      d[b] = __fdiv_rn(sum[0], down[b]);
    }
  }
};

}  // namespace sharpi::cuda
