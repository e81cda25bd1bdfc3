// SPDX-License-Identifier: MIT
// Block formats in NEON: 256 weights at a time ("a unit": one K block, or eight blocks of 32) in
// two halves of 128, as signed byte codes in element order, with a scale and a minimum per group of
// 32 or 16:
//   w[i] = s[group(i)] * code[i] + m[group(i)]
// Codes of formats with a fixed offset have it (kSigned: m = 0); kOffset is what element_of() has
// not taken off. None is larger than kMostCode. Everything here has internal linkage. Thread rule:
// pure functions. Reads nothing outside the unit.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#include "cpu/generic/quant_levels.h"

namespace sharpi::cpu {
namespace {

/// Scales and minima of a unit: 8 groups of 32 in the first two vectors, or 16 groups of 16.
struct Scales {
  float32x4_t s[4], m[4];
};

inline uint16_t load_u16(const uint8_t* p) {
  uint16_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline uint32_t load_u32(const uint8_t* p) {
  uint32_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline float32x4_t floats_of_halves(uint16x4_t v) {
  return vcvt_f32_f16(vreinterpret_f16_u16(v));
}
inline float half_at(const uint8_t* p) {
  return vgetq_lane_f32(floats_of_halves(vdup_n_u16(load_u16(p))), 0);
}
/// The halves at p, p + kStride, ... of eight blocks.
template <uint32_t kStride>
inline void eight_halves(const uint8_t* p, float32x4_t* out) {
  const auto at = [p](uint32_t i) { return reinterpret_cast<const uint16_t*>(p + i * kStride); };
  for (uint32_t i = 0; i < 2; ++i) {
    uint16x4_t v = vld1_dup_u16(at(4 * i));
    v = vld1_lane_u16(at(4 * i + 1), v, 1);
    v = vld1_lane_u16(at(4 * i + 2), v, 2);
    v = vld1_lane_u16(at(4 * i + 3), v, 3);
    out[i] = floats_of_halves(v);
  }
}
/// 16 signed bytes as floats, times d.
inline void scaled_bytes(int8x16_t b, float d, float32x4_t* out) {
  const int16x8_t low = vmovl_s8(vget_low_s8(b)), high = vmovl_high_s8(b);
  out[0] = vmulq_n_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), d);
  out[1] = vmulq_n_f32(vcvtq_f32_s32(vmovl_high_s16(low)), d);
  out[2] = vmulq_n_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), d);
  out[3] = vmulq_n_f32(vcvtq_f32_s32(vmovl_high_s16(high)), d);
}

inline int8x16_t signed_bytes(uint8x16_t v) {
  return vreinterpretq_s8_u8(v);
}
/// The bytes less kOffset.
template <int kOffset>
inline int8x16_t less(uint8x16_t v) {
  return kOffset == 0 ? signed_bytes(v) : vsubq_s8(signed_bytes(v), vdupq_n_s8(kOffset));
}
inline uint8x16_t low_nibbles(uint8x16_t v) {
  return vandq_u8(v, vdupq_n_u8(15));
}
inline uint8x16_t high_nibbles(uint8x16_t v) {
  return vshrq_n_u8(v, 4);
}
/// (v >> shift) & mask in every byte.
inline uint8x16_t field(uint8x16_t v, int shift, uint8_t mask) {
  return vandq_u8(vshlq_u8(v, vdupq_n_s8(static_cast<int8_t>(-shift))), vdupq_n_u8(mask));
}
/// Bit `bit` of every byte as `value`, which is a power of two.
inline uint8x16_t bit_as(uint8x16_t v, int bit, uint8_t value) {
  return vandq_u8(vtstq_u8(v, vdupq_n_u8(static_cast<uint8_t>(1 << bit))), vdupq_n_u8(value));
}
/// 16 in the bytes whose bit is set in two bytes.
inline uint8x16_t sixteen_where(const uint8_t* bits) {
  const uint8x8_t each = {1, 2, 4, 8, 16, 32, 64, 128};
  const uint8x16_t v = vcombine_u8(vdup_n_u8(bits[0]), vdup_n_u8(bits[1]));
  return vandq_u8(vtstq_u8(v, vcombine_u8(each, each)), vdupq_n_u8(16));
}

/// What of a minimum a format has.
struct Minima {
  static constexpr bool kSigned = false;
  static constexpr int kOffset = 0;
};
template <int kLess>
struct NoMinima {
  static constexpr bool kSigned = true;
  static constexpr int kOffset = kLess;
};
struct Group32 {
  static constexpr bool kGroup16 = false;
};
struct Group16 {
  static constexpr bool kGroup16 = true;
};

struct Q8_0 : Group32, NoMinima<0> {
  static constexpr uint32_t kBlockBytes = 34, kUnitBytes = 8 * kBlockBytes;
  static constexpr int kMostCode = 127;
  template <uint32_t kHalf>
  static void codes(const uint8_t* p, int8x16_t* u) {
    for (uint32_t g = 0; g < 4; ++g) {
      const auto* from = reinterpret_cast<const int8_t*>(p + (4 * kHalf + g) * kBlockBytes + 2);
      u[2 * g] = vld1q_s8(from);
      u[2 * g + 1] = vld1q_s8(from + 16);
    }
  }
  static void scales(const uint8_t* p, Scales& v) { eight_halves<kBlockBytes>(p, v.s); }
};

/// 32 nibbles behind kHead bytes of block header; kHigh: the fifth bits are the last 4 of them.
template <uint32_t kHead, bool kHigh, class Minimum>
struct NibbleBlocks : Group32, Minimum {
  static constexpr uint32_t kBlockBytes = kHead + 16, kUnitBytes = 8 * kBlockBytes;
  static constexpr int kMostCode = Minimum::kOffset != 0 ? Minimum::kOffset : kHigh ? 31 : 15;
  template <uint32_t kHalf>
  static void codes(const uint8_t* p, int8x16_t* u) {
    p += 4 * kHalf * kBlockBytes + kHead;
    for (uint32_t g = 0; g < 4; ++g, p += kBlockBytes) {
      const uint8x16_t v = vld1q_u8(p);
      uint8x16_t low = low_nibbles(v), high = high_nibbles(v);
      if constexpr (kHigh) {
        low = vorrq_u8(low, sixteen_where(p - 4));
        high = vorrq_u8(high, sixteen_where(p - 2));
      }
      u[2 * g] = less<Minimum::kOffset>(low);
      u[2 * g + 1] = less<Minimum::kOffset>(high);
    }
  }
  static void scales(const uint8_t* p, Scales& v) {
    eight_halves<kBlockBytes>(p, v.s);
    if constexpr (!Minimum::kSigned) eight_halves<kBlockBytes>(p + 2, v.m);
  }
};
struct Q4_0 : NibbleBlocks<2, false, NoMinima<8>> {};
struct Q4_1 : NibbleBlocks<4, false, Minima> {};
struct Q5_0 : NibbleBlocks<6, true, NoMinima<16>> {};
struct Q5_1 : NibbleBlocks<8, true, Minima> {};

/// 32 nibbles that name levels.
inline void level_codes(const uint8_t* p, int8x16_t levels, int8x16_t* u) {
  const uint8x16_t v = vld1q_u8(p);
  u[0] = vqtbl1q_s8(levels, low_nibbles(v));
  u[1] = vqtbl1q_s8(levels, high_nibbles(v));
}

struct IQ4_NL : Group32, NoMinima<0> {
  static constexpr uint32_t kBlockBytes = 18, kUnitBytes = 8 * kBlockBytes;
  static constexpr int kMostCode = 127;
  template <uint32_t kHalf>
  static void codes(const uint8_t* p, int8x16_t* u) {
    const int8x16_t levels = vld1q_s8(kIq4Levels);
    for (uint32_t g = 0; g < 4; ++g) {
      level_codes(p + (4 * kHalf + g) * kBlockBytes + 2, levels, u + 2 * g);
    }
  }
  static void scales(const uint8_t* p, Scales& v) { eight_halves<kBlockBytes>(p, v.s); }
};

struct MXFP4 : Group32, NoMinima<0> {
  static constexpr uint32_t kBlockBytes = 17, kUnitBytes = 8 * kBlockBytes;
  static constexpr int kMostCode = 12;
  template <uint32_t kHalf>
  static void codes(const uint8_t* p, int8x16_t* u) {
    const int8x16_t levels = vld1q_s8(kMxLevels);
    for (uint32_t g = 0; g < 4; ++g) {
      level_codes(p + (4 * kHalf + g) * kBlockBytes + 1, levels, u + 2 * g);
    }
  }
  static void scales(const uint8_t* p, Scales& v) {
    for (uint32_t i = 0; i < 2; ++i, p += 4 * kBlockBytes) {
      const uint32x4_t e = {p[0], p[kBlockBytes], p[2 * kBlockBytes], p[3 * kBlockBytes]};
      // 2^(e - 128); the two smallest are subnormal.
      const uint32x4_t normal = vshlq_n_u32(vsubq_u32(e, vdupq_n_u32(1)), 23);
      const uint32x4_t tiny = vshlq_u32(vdupq_n_u32(0x00200000), vreinterpretq_s32_u32(e));
      const uint32x4_t is_tiny = vcltq_u32(e, vdupq_n_u32(2));
      v.s[i] = vreinterpretq_f32_u32(vbslq_u32(is_tiny, tiny, normal));
    }
  }
};

}  // namespace
}  // namespace sharpi::cpu
