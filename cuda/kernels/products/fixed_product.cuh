// SPDX-License-Identifier: MIT
// One unit of weights (tiles.cuh) times one row in fixed point, one warp: the inner loop of
// chain.cu. The row: every 256 columns scaled so that the largest becomes 127 * 256, rounded to
// integers (finer than f16 for all but the smallest of them), each split into 256 * high + low, two
// signed bytes. On 8-bit tensor cores, columns of the second operand hold high and low parts in
// turn, each pair of columns of other blocks, so that a lane has few sums to scale; products of
// integer codes and their sums under integer scales are exact; what is rounded is the row, and the
// sums of units in f32. Against f16 fragments this takes half the instructions.
// Thread rule: device code.
#pragma once

#include "cuda/kernels/products/fixed_map.h"
#include "cuda/kernels/products/fixed_unit.cuh"
#include "cuda/kernels/products/stage.cuh"
#include "cuda/kernels/products/tiles.cuh"

namespace sharpi::cuda {

constexpr float kFixedMost = 127.0f * 256.0f;

/// v * scale (below 2^22) rounded to an integer, in the low bits of a float of 1.5 * 2^23 and more.
constexpr uint32_t kRoundingBits = 0x4B400000u;
__device__ __forceinline__ uint32_t rounded_bits(float v, float scale) {
  return __float_as_uint(fmaf(v, scale, __uint_as_float(kRoundingBits)));
}

/// Writes unit u of row `row` of kRows: per 32 columns, row after row, high bytes then low bytes,
/// each in the order in which a lane's nibbles of a block come; `map` is of all rows' units. Sums
/// of columns are for types with minima. All 32 lanes of a warp.
template <uint32_t kRows = 1>
__device__ __forceinline__ void stage_fixed(uint8_t* image, const FixedMap& map, uint32_t u,
                                            const LaneInputs& in, uint32_t lane, uint32_t row = 0,
                                            bool with_sums = true) {
  float amax = 0.0f;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const float4 v = in.v[k];
    amax = fmaxf(amax, fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))));
  }
  amax = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(amax)));
  // Far below what a row holds, the scale stays finite.
  const float most = fmaxf(amax, 0x1p-100f), scale = __fdividef(kFixedMost, most);
  const uint32_t inverse = map.inverse + (u * kRows + row) * 4;
  if (lane == 0) *reinterpret_cast<float*>(image + inverse) = most * (1.0f / kFixedMost);
  const uint32_t q = lane % 8, t = q % 4;
  const bool second = q >= 4;  // columns 16 .. 31 of the block
#pragma unroll
  for (uint32_t k = 0; k < 2; ++k) {
    const float4 v = in.v[k];
    // Rounded by the sum itself: the low bits are the integer.
    const uint32_t n[4] = {rounded_bits(v.x, scale), rounded_bits(v.y, scale),
                           rounded_bits(v.z, scale), rounded_bits(v.w, scale)};
    // n = 256 * high + low: the low byte as it is, the high one of n + 128.
    const uint32_t low = __byte_perm(__byte_perm(n[0], n[1], 0x0040),
                                     __byte_perm(n[2], n[3], 0x0040), 0x5410),
                   high = __byte_perm(__byte_perm(n[0] + 128, n[1] + 128, 0x0051),
                                      __byte_perm(n[2] + 128, n[3] + 128, 0x0051), 0x5410);
    int sum = static_cast<int>((n[0] + n[1]) + (n[2] + n[3]) - 4 * kRoundingBits);
    if (with_sums) {
#pragma unroll
      for (int d = 1; d < 8; d *= 2) sum += __shfl_xor_sync(~0u, sum, d);
    }
    // Lanes of the first half of a block write the high bytes of both halves, the others the low.
    const uint32_t other = __shfl_xor_sync(~0u, second ? high : low, 4);
    const uint32_t first = second ? other : high, next = second ? low : other;
    const uint32_t block = 4 * k + lane / 8;
    const uint32_t at =
        u * (512 * kRows) + block * (64 * kRows) + row * 64 + (second ? 32 : 0) + t * 8;
    const uint2 bytes = {__byte_perm(first, next, 0x5140), __byte_perm(first, next, 0x7362)};
    *reinterpret_cast<uint2*>(image + at) = bytes;
    if (with_sums && q == 0) {
      const uint32_t of = map.sums + (u * kRows + row) * 32 + block * 4;
      *reinterpret_cast<float*>(image + of) = static_cast<float>(sum);
    }
  }
}

/// d += a (16 x 32 bytes) * b (32 x 8 signed bytes).
template <bool kSigned>
__device__ __forceinline__ void mma_bytes(int (&d)[4], const uint32_t (&a)[4], uint2 b) {
  if constexpr (kSigned) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
  } else {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
  }
}

/// What a lane sums over a panel's units, for rows g and g + 8; to be added up over the four lanes
/// of a row.
struct FixedSums {
  float part[2] = {};
};

/// One unit of the staged row as a lane reads it.
struct FixedInputs {
  const uint8_t* x;   // high or low bytes, as the lane's column wants
  const float* sums;  // of the unit
  float inverse;
};

/// acc += unit * in. `Unit` says where the unit's bytes are (fixed_unit.cuh); each part is asked
/// for once.
template <GgmlType kType>
struct FixedProduct;

/// By a product, for the units that select have more to do.
__device__ __forceinline__ uint2 if_so(uint32_t so, uint2 v) {
  return {so * v.x, so * v.y};
}
/// Whether n is i, for what is said of a lane: as 0 or 1 that the compiler takes for any number.
__device__ __forceinline__ uint32_t is_own(int n, int i) {
  return 0x01u << (8 * n) >> (8 * i) & 1u;
}

/// Bit 2 h + i + 4 (j / 2) of each half-word of `wide` belongs to half i of register (h, j / 2).
__device__ __forceinline__ void add_fifth_bits_of_bytes(uint32_t wide, uint32_t (&a)[4]) {
  a[0] |= ((wide << 4) & 0x00100010u) | ((wide << 11) & 0x10001000u);
  a[1] |= ((wide << 2) & 0x00100010u) | ((wide << 9) & 0x10001000u);
  a[2] |= (wide & 0x00100010u) | ((wide << 7) & 0x10001000u);
  a[3] |= ((wide >> 2) & 0x00100010u) | ((wide << 5) & 0x10001000u);
}

/// Block b of a unit as the first operand of a product (fixed_rows.cuh has several rows as the
/// second one), and whether its bytes are signed.
template <GgmlType kType>
struct UnitOperand {
  static constexpr bool kSigned = kType != GgmlType::kQ4_K && kType != GgmlType::kQ5_K;
  template <class Unit>
  static __device__ __forceinline__ void get(const Unit& unit, int b, uint32_t (&a)[4]) {
    const auto w = unit.codes(b);
    if constexpr (kType == GgmlType::kQ4_K) {  // sixteen times as much
      a[0] = (w.x << 4) & 0xF0F0F0F0u;
      a[1] = (w.y << 4) & 0xF0F0F0F0u;
      a[2] = w.x & 0xF0F0F0F0u;
      a[3] = w.y & 0xF0F0F0F0u;
    } else if constexpr (kType == GgmlType::kQ5_K) {
      a[0] = w.x & 0x0F0F0F0Fu;
      a[1] = w.y & 0x0F0F0F0Fu;
      a[2] = (w.x >> 4) & 0x0F0F0F0Fu;
      a[3] = (w.y >> 4) & 0x0F0F0F0Fu;
      const uint32_t bits = unit.extra(b) >> (b % 2 * 8);
      add_fifth_bits_of_bytes(bits & 0x00FF00FFu, a);
    } else if constexpr (kType == GgmlType::kQ6_K) {
      const uint32_t v = unit.extra(b);
      // 4 (code - 32) as signed bytes; pairs 4 h + 2 (j / 2) + i of each half-word of v.
      a[0] = ((w.x << 2) & 0x3C3C3C3Cu) ^ 0x80808080u;
      a[1] = ((w.y << 2) & 0x3C3C3C3Cu) ^ 0x80808080u;
      a[2] = ((w.x >> 2) & 0x3C3C3C3Cu) ^ 0x80808080u;
      a[3] = ((w.y >> 2) & 0x3C3C3C3Cu) ^ 0x80808080u;
      a[0] ^= ((v << 6) & 0x00C000C0u) ^ ((v << 12) & 0xC000C000u);
      a[1] ^= ((v >> 2) & 0x00C000C0u) ^ ((v << 4) & 0xC000C000u);
      a[2] ^= ((v << 2) & 0x00C000C0u) ^ ((v << 8) & 0xC000C000u);
      a[3] ^= ((v >> 6) & 0x00C000C0u) ^ (v & 0xC000C000u);
    } else if constexpr (kType == GgmlType::kQ8_0) {
      // Bytes j = 0, 2, 1, 3 of (row half, column half), to the order of the nibbles.
      a[0] = __byte_perm(w.x, w.y, 0x6240) ^ 0x80808080u;
      a[1] = __byte_perm(w.z, w.w, 0x6240) ^ 0x80808080u;
      a[2] = __byte_perm(w.x, w.y, 0x7351) ^ 0x80808080u;
      a[3] = __byte_perm(w.z, w.w, 0x7351) ^ 0x80808080u;
    } else {  // Q4_0: 16 (code - 8)
      a[0] = ((w.x << 4) & 0xF0F0F0F0u) ^ 0x80808080u;
      a[1] = ((w.y << 4) & 0xF0F0F0F0u) ^ 0x80808080u;
      a[2] = (w.x & 0xF0F0F0F0u) ^ 0x80808080u;
      a[3] = (w.y & 0xF0F0F0F0u) ^ 0x80808080u;
    }
  }
};

/// Four blocks of 32 columns, each in columns of its own of the second operand (high and low
/// parts), zeros in the others: so their products come apart, lane t of a row gets the t-th.
template <GgmlType kType, class Unit>
__device__ __forceinline__ void four_blocks(const Unit& unit, const FixedInputs& in, int half,
                                            int lane, int (&d)[4]) {
  const int own = lane / 8;
  const auto x = load_as<uint2>(in.x + (4 * half + own) * 64);
#pragma unroll
  for (int n = 0; n < 4; ++n) d[n] = 0;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    uint32_t a[4];
    UnitOperand<kType>::get(unit, 4 * half + j, a);
    mma_bytes<UnitOperand<kType>::kSigned>(d, a, if_so(is_own(own, j), x));
  }
}

/// Q4_K and Q5_K: integer scales, minima by the sums of the row.
template <GgmlType kType>
struct FixedSuperMin {
  template <class Unit>
  static __device__ __forceinline__ void add(Unit unit, const FixedInputs& in, int lane,
                                             FixedSums& acc) {
    constexpr bool kFive = kType == GgmlType::kQ5_K;
    const int t = lane % 4;
    int d[2][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) four_blocks<kType>(unit, in, half, lane, d[half]);
    const float2 sums = *reinterpret_cast<const float2*>(in.sums + 2 * t);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint4 meta = unit.meta(h);
      const uint32_t late_scale = (meta.w & 0x0F0F0F0Fu) | ((meta.y >> 2) & 0x30303030u);
      const auto first = static_cast<int>(meta.y >> (8 * t) & 63u),
                 second = static_cast<int>(late_scale >> (8 * t) & 63u);
      const int high = first * d[0][2 * h] + second * d[1][2 * h],
                low = first * d[0][2 * h + 1] + second * d[1][2 * h + 1];
      const float dot = fmaf(static_cast<float>(high), kFive ? 256.0f : 16.0f,
                             static_cast<float>(low) * (kFive ? 1.0f : 0.0625f));
      const uint32_t late = ((meta.w >> 4) & 0x0F0F0F0Fu) | ((meta.z >> 2) & 0x30303030u);
      const uint32_t mins = (t < 2 ? meta.z & 0x3F3F3F3Fu : late) >> (t % 2 * 16);
      const float fix = static_cast<float>(mins & 255u) * sums.x +
                        static_cast<float>((mins >> 8) & 255u) * sums.y;
      acc.part[h] = fmaf(half_bits(meta.x & 0xFFFFu) * in.inverse, dot,
                         fmaf(half_bits(meta.x >> 16) * -in.inverse, fix, acc.part[h]));
    }
  }
};
template <>
struct FixedProduct<GgmlType::kQ4_K> : FixedSuperMin<GgmlType::kQ4_K> {};
template <>
struct FixedProduct<GgmlType::kQ5_K> : FixedSuperMin<GgmlType::kQ5_K> {};

/// The byte that the selector names, its sign extended.
__device__ __forceinline__ int signed_byte(uint32_t w, uint32_t selector) {
  int v;
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(v) : "r"(w), "r"(selector));
  return v;
}

/// Q6_K: a scale per 16 columns, so columns of the second operand hold halves of blocks, of two
/// blocks at a time.
template <>
struct FixedProduct<GgmlType::kQ6_K> {
  template <class Unit>
  static __device__ __forceinline__ void add(Unit unit, const FixedInputs& in, int lane,
                                             FixedSums& acc) {
    const int t = lane % 4, own = lane / 16;
    const uint32_t keep = lane / 8 % 2 == 0 ? 0x00FF00FFu : 0xFF00FF00u;
    uint32_t scale[2][4];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint4 w = unit.meta(h);
      scale[h][0] = w.x;
      scale[h][1] = w.y;
      scale[h][2] = w.z;
      scale[h][3] = w.w;
    }
    const uint32_t byte = 0x8880u + 0x1111u * static_cast<uint32_t>(t);  // t-th, its sign extended
    int high[2] = {}, low[2] = {};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      auto x = load_as<uint2>(in.x + (2 * k + own) * 64);
      x = {x.x & keep, x.y & keep};
      int d[4] = {};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t a[4];
        UnitOperand<GgmlType::kQ6_K>::get(unit, 2 * k + i, a);
        mma_bytes<true>(d, a, if_so(is_own(own, i), x));
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int s = signed_byte(scale[h][k], byte);
        high[h] += s * d[2 * h];
        low[h] += s * d[2 * h + 1];
      }
    }
    const uint32_t ds = unit.scales(0);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float d = half_bits(h == 0 ? ds & 0xFFFFu : ds >> 16) * 0.25f;
      const float dot = fmaf(static_cast<float>(high[h]), 256.0f, static_cast<float>(low[h]));
      acc.part[h] = fmaf(d * in.inverse, dot, acc.part[h]);
    }
  }
};

/// Q4_0 and Q8_0: an f16 scale per block.
template <GgmlType kType>
struct FixedSmall {
  template <class Unit>
  static __device__ __forceinline__ void add(Unit unit, const FixedInputs& in, int lane,
                                             FixedSums& acc) {
    constexpr bool kBytes = kType == GgmlType::kQ8_0;
    float sum[2] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int d[4];
      four_blocks<kType>(unit, in, half, lane, d);
      const uint32_t scales = unit.scales(half);
      sum[0] = fmaf(half_bits(scales & 0xFFFFu), static_cast<float>(d[0] * 256 + d[1]), sum[0]);
      sum[1] = fmaf(half_bits(scales >> 16), static_cast<float>(d[2] * 256 + d[3]), sum[1]);
    }
    const float unit_scale = kBytes ? in.inverse : in.inverse * 0.0625f;
#pragma unroll
    for (int h = 0; h < 2; ++h) acc.part[h] = fmaf(unit_scale, sum[h], acc.part[h]);
  }
};
template <>
struct FixedProduct<GgmlType::kQ4_0> : FixedSmall<GgmlType::kQ4_0> {};
template <>
struct FixedProduct<GgmlType::kQ8_0> : FixedSmall<GgmlType::kQ8_0> {};

}  // namespace sharpi::cuda
