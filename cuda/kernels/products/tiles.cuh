// SPDX-License-Identifier: MIT
// The inside of a kTiles unit (16 rows x 256 columns) per type, as seen by one lane of a warp.
// A lane (g = lane / 4, t = lane % 4) owns rows g and g + 8 and, of each block of 32 columns, the
// columns 16 i + 4 t + j (i < 2, j < 4): its share of two m16n8k16 A fragments, with the columns of
// both operands permuted alike. codes() gives them as eight registers a[4 h + 2 i + j / 2], h = row
// half: two 16-bit lanes (j even, j odd), each an unsigned code in bits 0.. (j < 2) or in bits
// kOddShift.. (j >= 2). Read as f16 they are subnormals: code * 2^-24 exactly, which tensor cores
// multiply without loss, so unpacking is masks and shifts only.
// Those of MXFP4 are f16 numbers (fp4.cuh): 2^-15 of the integers that scales are for.
// value = scale * (code - kOffset) - min; with kSuper, scale and min are integers and still need
// the super-block's d and dmin. Thread rule: device code.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/kernels/products/fp4.cuh"
#include "gguf/ggml_type.h"

namespace sharpi::cuda {

constexpr uint32_t kNibbleLo = 0x000F000Fu, kNibbleHi = 0x00F000F0u;

struct Scales {
  float s[2][2];  // [row half][column half i]
  float m[2];     // [row half]
};

__device__ __forceinline__ float half_bits(uint32_t bits) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}
template <class T>
__device__ __forceinline__ T load_as(const uint8_t* p) {
  return *reinterpret_cast<const T*>(p);
}
__device__ __forceinline__ float byte_float(uint32_t w, int i) {
  return static_cast<float>((w >> (8 * i)) & 255u);
}

/// a[0..4) = the half-word pairs of one row's eight nibbles.
__device__ __forceinline__ void nibble_codes(uint32_t w, uint32_t* a) {
  const uint32_t v = w >> 8;
  a[0] = w & kNibbleLo;
  a[1] = w & kNibbleHi;
  a[2] = v & kNibbleLo;
  a[3] = v & kNibbleHi;
}

/// Fifth bits of a block: per 16-bit lane of v, bit n belongs to a[2 n] and bit 4 + n to a[2 n +
/// 1].
__device__ __forceinline__ void add_fifth_bits(uint32_t v, uint32_t (&a)[8]) {
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const uint32_t u = v << (4 - n);
    a[2 * n] |= u & 0x00100010u;
    a[2 * n + 1] |= u & 0x01000100u;
  }
}

template <GgmlType kType>
struct Tile;

/// What the types with blocks of 32 share: a unit is a sequence of 16 x 32 pieces, each with its
/// own scales behind its codes.
struct SmallBlockTile {
  static constexpr bool kSuper = false, kHalves = false;
  struct Meta {};
  __device__ static Meta meta(const uint8_t*, int) { return {}; }
};

__device__ __forceinline__ Scales scales_only(const uint8_t* at, int lane) {
  const auto d = load_as<uint32_t>(at + lane / 4 * 4);
  const float lo = half_bits(d & 0xFFFFu), hi = half_bits(d >> 16);
  return {{{lo, lo}, {hi, hi}}, {0.0f, 0.0f}};
}
/// (d, m) of row g and of row g + 8; the value is d * code + m.
__device__ __forceinline__ Scales scales_and_mins(const uint8_t* at, int lane) {
  const auto d = load_as<uint2>(at + lane / 4 * 8);
  const float lo = half_bits(d.x & 0xFFFFu), hi = half_bits(d.y & 0xFFFFu);
  return {{{lo, lo}, {hi, hi}}, {-half_bits(d.x >> 16), -half_bits(d.y >> 16)}};
}

/// What the offset or the minima of a unit contribute is a product of its own: F (16 rows x 8 or 16
/// blocks) times the inputs' sums over the blocks, which are staged as f16 (high part, rest).
/// fix_operand() gives F's A fragment; kFix * F * sums * 64 is added to the codes' sums (before d
/// with kHalves, times dmin with kSuper minima).
__device__ __forceinline__ void fix_operand_small(const uint8_t* scales, uint32_t block_bytes,
                                                  int n_blocks, bool second, int lane,
                                                  uint32_t (&a)[4]) {
  const int b = lane % 4 * 2;
  uint32_t w[2][2] = {};  // [block][row half], in the low half
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    if (b + n >= n_blocks) continue;
    const uint8_t* at = scales + (b + n) * block_bytes;
    if (second) {
      const auto v = load_as<uint2>(at + lane / 4 * 8);
      w[n][0] = v.x >> 16;
      w[n][1] = v.y >> 16;
    } else {
      const auto v = load_as<uint32_t>(at + lane / 4 * 4);
      w[n][0] = v & 0xFFFFu;
      w[n][1] = v >> 16;
    }
  }
  a[0] = a[2] = w[0][0] | w[1][0] << 16;
  a[1] = a[3] = w[0][1] | w[1][1] << 16;
}

template <>
struct Tile<GgmlType::kQ8_0> : SmallBlockTile {
  static constexpr bool kMins = false;
  static constexpr int kOffset = 128, kOddShift = 0;
  static constexpr uint32_t kBlockBytes = 544;  // 16 x 32: codes 512, scales 32
  __device__ static void codes(const uint8_t* unit, int b, int lane, uint32_t (&a)[8]) {
    const auto q = load_as<uint4>(unit + b * kBlockBytes + lane * 16);
    const uint32_t w[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      a[2 * n] = w[n] & 0x00FF00FFu;
      a[2 * n + 1] = (w[n] >> 8) & 0x00FF00FFu;
    }
  }
  __device__ static Scales scales(const uint8_t* unit, const Meta&, int b, int lane) {
    return scales_only(unit + b * kBlockBytes + 512, lane);
  }
  static constexpr float kFix = -128.0f * 0x1p-24f;
  __device__ static void fix_operand(const uint8_t* unit, const Meta&, int n_blocks, int lane,
                                     uint32_t (&a)[4]) {
    fix_operand_small(unit + 512, kBlockBytes, n_blocks, false, lane, a);
  }
};

template <>
struct Tile<GgmlType::kQ4_0> : SmallBlockTile {
  static constexpr bool kMins = false;
  static constexpr int kOffset = 8, kOddShift = 4;
  static constexpr uint32_t kBlockBytes = 288;  // codes 256, scales 32
  __device__ static void codes(const uint8_t* unit, int b, int lane, uint32_t (&a)[8]) {
    const auto q = load_as<uint2>(unit + b * kBlockBytes + lane * 8);
    nibble_codes(q.x, a);
    nibble_codes(q.y, a + 4);
  }
  __device__ static Scales scales(const uint8_t* unit, const Meta&, int b, int lane) {
    return scales_only(unit + b * kBlockBytes + 256, lane);
  }
  static constexpr float kFix = -8.0f * 0x1p-24f;
  __device__ static void fix_operand(const uint8_t* unit, const Meta&, int n_blocks, int lane,
                                     uint32_t (&a)[4]) {
    fix_operand_small(unit + 256, kBlockBytes, n_blocks, false, lane, a);
  }
};

template <>
struct Tile<GgmlType::kQ4_1> : SmallBlockTile {
  static constexpr bool kMins = true;
  static constexpr int kOffset = 0, kOddShift = 4;
  static constexpr uint32_t kBlockBytes = 320;  // codes 256, scales and minima 64
  __device__ static void codes(const uint8_t* unit, int b, int lane, uint32_t (&a)[8]) {
    const auto q = load_as<uint2>(unit + b * kBlockBytes + lane * 8);
    nibble_codes(q.x, a);
    nibble_codes(q.y, a + 4);
  }
  __device__ static Scales scales(const uint8_t* unit, const Meta&, int b, int lane) {
    return scales_and_mins(unit + b * kBlockBytes + 256, lane);
  }
  static constexpr float kFix = 0x1p-24f;
  __device__ static void fix_operand(const uint8_t* unit, const Meta&, int n_blocks, int lane,
                                     uint32_t (&a)[4]) {
    fix_operand_small(unit + 256, kBlockBytes, n_blocks, true, lane, a);
  }
};

/// Nibbles, then two bytes of fifth bits per lane (low byte: even half-words, high byte: odd ones).
__device__ __forceinline__ void five_bit_codes(const uint8_t* block, int lane, uint32_t (&a)[8]) {
  const auto q = load_as<uint2>(block + lane * 8);
  const uint32_t high = load_as<uint16_t>(block + 256 + lane * 2);
  nibble_codes(q.x, a);
  nibble_codes(q.y, a + 4);
  add_fifth_bits(__byte_perm(high, 0, 0x4140), a);
}

template <>
struct Tile<GgmlType::kQ5_0> : SmallBlockTile {
  static constexpr bool kMins = false;
  static constexpr int kOffset = 16, kOddShift = 4;
  static constexpr uint32_t kBlockBytes = 352;  // codes 256, fifth bits 64, scales 32
  __device__ static void codes(const uint8_t* unit, int b, int lane, uint32_t (&a)[8]) {
    five_bit_codes(unit + b * kBlockBytes, lane, a);
  }
  __device__ static Scales scales(const uint8_t* unit, const Meta&, int b, int lane) {
    return scales_only(unit + b * kBlockBytes + 320, lane);
  }
  static constexpr float kFix = -16.0f * 0x1p-24f;
  __device__ static void fix_operand(const uint8_t* unit, const Meta&, int n_blocks, int lane,
                                     uint32_t (&a)[4]) {
    fix_operand_small(unit + 320, kBlockBytes, n_blocks, false, lane, a);
  }
};

template <>
struct Tile<GgmlType::kQ5_1> : SmallBlockTile {
  static constexpr bool kMins = true;
  static constexpr int kOffset = 0, kOddShift = 4;
  static constexpr uint32_t kBlockBytes = 384;  // codes 256, fifth bits 64, scales and minima 64
  __device__ static void codes(const uint8_t* unit, int b, int lane, uint32_t (&a)[8]) {
    five_bit_codes(unit + b * kBlockBytes, lane, a);
  }
  __device__ static Scales scales(const uint8_t* unit, const Meta&, int b, int lane) {
    return scales_and_mins(unit + b * kBlockBytes + 320, lane);
  }
  static constexpr float kFix = 0x1p-24f;
  __device__ static void fix_operand(const uint8_t* unit, const Meta&, int n_blocks, int lane,
                                     uint32_t (&a)[4]) {
    fix_operand_small(unit + 320, kBlockBytes, n_blocks, true, lane, a);
  }
};

template <>
struct Tile<GgmlType::kMXFP4> : SmallBlockTile {
  static constexpr bool kMins = false;
  static constexpr int kOffset = 0, kOddShift = 0;
  static constexpr uint32_t kBlockBytes = 272;  // codes 256, scales 16
  __device__ static void codes(const uint8_t* unit, int b, int lane, uint32_t (&a)[8]) {
    const auto q = load_as<uint2>(unit + b * kBlockBytes + lane * 8);
    fp4_halves(q.x, a);
    fp4_halves(q.y, a + 4);
  }
  __device__ static Scales scales(const uint8_t* unit, const Meta&, int b, int lane) {
    const uint32_t e = load_as<uint16_t>(unit + b * kBlockBytes + 256 + lane / 4 * 2);
    const float lo = mxfp4_scale(e & 255u), hi = mxfp4_scale(e >> 8);
    return {{{lo, lo}, {hi, hi}}, {0.0f, 0.0f}};
  }
  static constexpr float kFix = 0.0f;  // there is nothing to fix
};
/// What f16 numbers of codes are multiplied by to be the integers that scales are for.
constexpr float kFp4Unit = 0x1p15f;

/// Q4_K and Q5_K: 16 bytes per row as in the file: d, dmin, eight 6-bit scales and eight minima.
struct SuperMinTile {
  static constexpr bool kSuper = true, kHalves = false, kMins = true;
  static constexpr int kOffset = 0, kOddShift = 4;
  struct Meta {
    float d[2], dmin[2];
    uint32_t scale[2][2], min[2][2];  // [row half][b / 4], one byte per block
  };
  __device__ static Meta meta_at(const uint8_t* rows, int lane) {
    Meta m;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const auto w = load_as<uint4>(rows + (lane / 4 + 8 * h) * 16);
      m.d[h] = half_bits(w.x & 0xFFFFu);
      m.dmin[h] = half_bits(w.x >> 16);
      m.scale[h][0] = w.y & 0x3F3F3F3Fu;
      m.min[h][0] = w.z & 0x3F3F3F3Fu;
      m.scale[h][1] = (w.w & 0x0F0F0F0Fu) | ((w.y >> 2) & 0x30303030u);
      m.min[h][1] = ((w.w >> 4) & 0x0F0F0F0Fu) | ((w.z >> 2) & 0x30303030u);
    }
    return m;
  }
  __device__ static Scales scales(const uint8_t*, const Meta& m, int b, int) {
    const float lo = byte_float(m.scale[0][b / 4], b % 4),
                hi = byte_float(m.scale[1][b / 4], b % 4);
    return {{{lo, lo}, {hi, hi}},
            {byte_float(m.min[0][b / 4], b % 4), byte_float(m.min[1][b / 4], b % 4)}};
  }
  static constexpr float kFix = -1.0f;  // the minima stay integers, as subnormals
  __device__ static void fix_operand(const uint8_t*, const Meta& m, int, int lane,
                                     uint32_t (&a)[4]) {
    const uint32_t select = lane % 2 == 0 ? 0x4140u : 0x4342u;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      a[h] = a[h + 2] = __byte_perm(lane % 4 < 2 ? m.min[h][0] : m.min[h][1], 0, select);
    }
  }
};

template <>
struct Tile<GgmlType::kQ4_K> : SuperMinTile {
  static constexpr uint32_t kUnitBytes = 2304;  // codes 2048, rows 256
  __device__ static Meta meta(const uint8_t* unit, int lane) { return meta_at(unit + 2048, lane); }
  __device__ static void codes(const uint8_t* unit, int b, int lane, uint32_t (&a)[8]) {
    const auto q = load_as<uint2>(unit + b * 256 + lane * 8);
    nibble_codes(q.x, a);
    nibble_codes(q.y, a + 4);
  }
};

template <>
struct Tile<GgmlType::kQ5_K> : SuperMinTile {
  static constexpr uint32_t kUnitBytes = 2816;  // codes 2048, fifth bits 512, rows 256
  __device__ static Meta meta(const uint8_t* unit, int lane) { return meta_at(unit + 2560, lane); }
  __device__ static void codes(const uint8_t* unit, int b, int lane, uint32_t (&a)[8]) {
    const auto q = load_as<uint2>(unit + b * 256 + lane * 8);
    // One word holds two blocks: the odd one in bits 8 to 15 of each half-word.
    const auto high = load_as<uint32_t>(unit + 2048 + b / 2 * 128 + lane * 4);
    nibble_codes(q.x, a);
    nibble_codes(q.y, a + 4);
    add_fifth_bits(b % 2 == 0 ? high : high >> 8, a);
  }
};

template <>
struct Tile<GgmlType::kQ6_K> {
  static constexpr bool kSuper = true, kHalves = true, kMins = false;
  static constexpr int kOffset = 32, kOddShift = 4;
  static constexpr uint32_t kUnitBytes = 3360;  // nibbles 2048, high bits 1024, scales 256, d 32
  struct Meta {
    float d[2], dmin[2];
    uint32_t scale[2][4];  // [row half][b / 2], one signed byte per 16 columns
  };
  __device__ static Meta meta(const uint8_t* unit, int lane) {
    Meta m;
    const auto d = load_as<uint32_t>(unit + 3328 + lane / 4 * 4);
    m.d[0] = half_bits(d & 0xFFFFu);
    m.d[1] = half_bits(d >> 16);
    m.dmin[0] = m.dmin[1] = 0.0f;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const auto w = load_as<uint4>(unit + 3072 + (lane / 4 + 8 * h) * 16);
      m.scale[h][0] = w.x;
      m.scale[h][1] = w.y;
      m.scale[h][2] = w.z;
      m.scale[h][3] = w.w;
    }
    return m;
  }
  __device__ static void codes(const uint8_t* unit, int b, int lane, uint32_t (&a)[8]) {
    const auto q = load_as<uint2>(unit + b * 256 + lane * 8);
    const auto high = load_as<uint32_t>(unit + 2048 + b * 128 + lane * 4);
    nibble_codes(q.x, a);
    nibble_codes(q.y, a + 4);
    // Per half-word of `high`, pairs 0 and 2 belong to a[0] and a[1], 1 and 3 to a[2] and a[3],
    // 4 and 6 to a[4] and a[5], 5 and 7 to a[6] and a[7]: one shift serves two registers.
    const uint32_t v[4] = {high << 4, high << 2, high >> 4, high >> 6};
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      a[2 * n] |= v[n] & 0x00300030u;
      a[2 * n + 1] |= v[n] & 0x03000300u;
    }
  }
  __device__ static float scale_byte(uint32_t w, int i) {
    return static_cast<float>(static_cast<int8_t>(w >> (8 * i)));
  }
  __device__ static Scales scales(const uint8_t*, const Meta& m, int b, int) {
    Scales s;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      s.s[h][0] = scale_byte(m.scale[h][b / 2], b % 2 * 2);
      s.s[h][1] = scale_byte(m.scale[h][b / 2], b % 2 * 2 + 1);
      s.m[h] = 0.0f;
    }
    return s;
  }
  static constexpr float kFix = -32.0f * 0x1p-24f;
  __device__ static void fix_operand(const uint8_t* unit, const Meta&, int, int lane,
                                     uint32_t (&a)[4]) {
    const uint8_t* at = unit + 3072 + lane / 4 * 16 + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < 4; ++n) {  // row half n % 2, blocks of 16 columns 2 t + 8 (n / 2)
      const uint32_t pair = load_as<uint16_t>(at + n % 2 * 128 + n / 2 * 8);
      uint32_t biased = __byte_perm(pair, 0x64u, 0x4140u) ^ 0x00800080u;  // 1024 + 128 + scale
      const __half2 v =
          __hsub2(reinterpret_cast<const __half2&>(biased), __float2half2_rn(1152.0f));
      a[n] = reinterpret_cast<const uint32_t&>(v);
    }
  }
};

/// Code of (row half h, column half i, j) in the registers of codes().
template <GgmlType kType>
__device__ __forceinline__ int code_of(const uint32_t (&a)[8], int h, int i, int j) {
  const uint32_t w = a[4 * h + 2 * i + j / 2];
  const uint32_t lane = j % 2 == 0 ? w & 0xFFFFu : w >> 16;
  return static_cast<int>(j < 2 ? lane : lane >> Tile<kType>::kOddShift);
}

/// The four values of columns 16 i + 4 t .. + 3 in row half h, rounded as dequantize_row does.
template <GgmlType kType>
__device__ __forceinline__ float4 tile_values(const uint32_t (&a)[8], const Scales& s,
                                              const typename Tile<kType>::Meta& meta, int h,
                                              int i) {
  using T = Tile<kType>;
  float scale = s.s[h][i], min = s.m[h];
  if constexpr (T::kSuper) {
    scale = __fmul_rn(meta.d[h], scale);
    min = __fmul_rn(meta.dmin[h], min);
  }
  float v[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if constexpr (kType == GgmlType::kMXFP4) {
      const auto code = static_cast<uint32_t>(code_of<kType>(a, h, i, j));
      v[j] = __fmul_rn(scale, fmaf(half_bits(code), kFp4Unit, 0.0f));  // both zeros are +0
    } else {
      v[j] = __fmul_rn(scale, static_cast<float>(code_of<kType>(a, h, i, j) - T::kOffset));
    }
    if constexpr (T::kMins) v[j] = __fsub_rn(v[j], min);
  }
  return {v[0], v[1], v[2], v[3]};
}

}  // namespace sharpi::cuda
