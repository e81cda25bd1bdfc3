// SPDX-License-Identifier: MIT
// Block formats in NEON, continued: the K formats, and the choice of a format by type.
// Everything here has internal linkage. Thread rule: pure functions. Reads nothing outside the
// unit.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "cpu/arm/quant_neon.h"

namespace sharpi::cpu {
namespace {

/// Q4_K and Q5_K: 6-bit scales and minima of 8 groups in 12 bytes behind d and dmin.
inline void k_scales(const uint8_t* p, Scales& v) {
  const uint32_t a = load_u32(p + 4), b = load_u32(p + 8), c = load_u32(p + 12);
  const uint32x4_t six = {a & 0x3F3F3F3Fu, (c & 0x0F0F0F0Fu) | (a >> 2 & 0x30303030u),
                          b & 0x3F3F3F3Fu, (c >> 4 & 0x0F0F0F0Fu) | (b >> 2 & 0x30303030u)};
  float32x4_t all[4];
  scaled_bytes(vreinterpretq_s8_u32(six), 1.0f, all);
  const float d = half_at(p), least = -half_at(p + 2);
  for (int i = 0; i < 2; ++i) {
    v.s[i] = vmulq_n_f32(all[i], d);
    v.m[i] = vmulq_n_f32(all[2 + i], least);
  }
}

struct Q4_K : Group32, Minima {
  static constexpr uint32_t kBlockBytes = 144, kUnitBytes = kBlockBytes;
  static constexpr int kMostCode = 15;
  template <uint32_t kHalf>
  static void codes(const uint8_t* p, int8x16_t* u) {
    for (uint32_t j = 0; j < 2; ++j) {
      for (uint32_t i = 0; i < 2; ++i) {
        const uint8x16_t v = vld1q_u8(p + 16 + 64 * kHalf + 32 * j + 16 * i);
        u[4 * j + i] = signed_bytes(low_nibbles(v));
        u[4 * j + 2 + i] = signed_bytes(high_nibbles(v));
      }
    }
  }
  static void scales(const uint8_t* p, Scales& v) { k_scales(p, v); }
};

struct Q5_K : Group32, Minima {
  static constexpr uint32_t kBlockBytes = 176, kUnitBytes = kBlockBytes;
  static constexpr int kMostCode = 31;
  template <uint32_t kHalf>
  static void codes(const uint8_t* p, int8x16_t* u) {
    for (uint32_t i = 0; i < 2; ++i) {
      const uint8x16_t high = vld1q_u8(p + 16 + 16 * i);
      for (uint32_t j = 0; j < 2; ++j) {
        const int bit = static_cast<int>(4 * kHalf + 2 * j);
        const uint8x16_t v = vld1q_u8(p + 48 + 64 * kHalf + 32 * j + 16 * i);
        u[4 * j + i] = signed_bytes(vorrq_u8(low_nibbles(v), bit_as(high, bit, 16)));
        u[4 * j + 2 + i] = signed_bytes(vorrq_u8(high_nibbles(v), bit_as(high, bit + 1, 16)));
      }
    }
  }
  static void scales(const uint8_t* p, Scales& v) { k_scales(p, v); }
};

struct Q6_K : Group16, NoMinima<32> {
  static constexpr uint32_t kBlockBytes = 210, kUnitBytes = kBlockBytes;
  static constexpr int kMostCode = 32;
  template <uint32_t kHalf>
  static void codes(const uint8_t* p, int8x16_t* u) {
    for (uint32_t i = 0; i < 2; ++i) {
      const uint8x16_t a = vld1q_u8(p + 64 * kHalf + 16 * i);
      const uint8x16_t b = vld1q_u8(p + 64 * kHalf + 32 + 16 * i);
      const uint8x16_t high = vld1q_u8(p + 128 + 32 * kHalf + 16 * i), two = vdupq_n_u8(0x30);
      const auto six = [&](uint8x16_t low, uint8x16_t bits) {
        return less<kOffset>(vorrq_u8(low, vandq_u8(bits, two)));
      };
      u[i] = six(low_nibbles(a), vshlq_n_u8(high, 4));
      u[2 + i] = six(low_nibbles(b), vshlq_n_u8(high, 2));
      u[4 + i] = six(high_nibbles(a), high);
      u[6 + i] = six(high_nibbles(b), vshrq_n_u8(high, 2));
    }
  }
  static void scales(const uint8_t* p, Scales& v) {
    scaled_bytes(vld1q_s8(reinterpret_cast<const int8_t*>(p + 192)), half_at(p + 208), v.s);
  }
};

struct Q2_K : Group16, Minima {
  static constexpr uint32_t kBlockBytes = 84, kUnitBytes = kBlockBytes;
  static constexpr int kMostCode = 3;
  template <uint32_t kHalf>
  static void codes(const uint8_t* p, int8x16_t* u) {
    for (uint32_t i = 0; i < 2; ++i) {
      const uint8x16_t v = vld1q_u8(p + 16 + 32 * kHalf + 16 * i);
      for (int g = 0; g < 4; ++g) u[2 * g + static_cast<int>(i)] = signed_bytes(field(v, 2 * g, 3));
    }
  }
  static void scales(const uint8_t* p, Scales& v) {
    const uint8x16_t b = vld1q_u8(p);
    scaled_bytes(signed_bytes(low_nibbles(b)), half_at(p + 80), v.s);
    scaled_bytes(signed_bytes(high_nibbles(b)), -half_at(p + 82), v.m);
  }
};

struct Q3_K : Group16, NoMinima<4> {
  static constexpr uint32_t kBlockBytes = 110, kUnitBytes = kBlockBytes;
  static constexpr int kMostCode = 4;
  template <uint32_t kHalf>
  static void codes(const uint8_t* p, int8x16_t* u) {
    for (uint32_t i = 0; i < 2; ++i) {
      const uint8x16_t high = vld1q_u8(p + 16 * i);
      const uint8x16_t v = vld1q_u8(p + 32 + 32 * kHalf + 16 * i);
      for (int g = 0; g < 4; ++g) {
        const uint8x16_t third = bit_as(high, static_cast<int>(4 * kHalf) + g, 4);
        u[2 * g + static_cast<int>(i)] = less<kOffset>(vorrq_u8(field(v, 2 * g, 3), third));
      }
    }
  }
  static void scales(const uint8_t* p, Scales& v) {
    const uint8x8_t low = vld1_u8(p + 96);
    const uint8x16_t four = vcombine_u8(vand_u8(low, vdup_n_u8(15)), vshr_n_u8(low, 4));
    const uint32_t high = load_u32(p + 104);
    const uint32x4_t two = {high << 4, high << 2, high, high >> 2};
    const uint8x16_t six = vorrq_u8(four, vandq_u8(vreinterpretq_u8_u32(two), vdupq_n_u8(0x30)));
    scaled_bytes(less<32>(six), half_at(p + 108), v.s);
  }
};

struct IQ4_XS : Group32, NoMinima<0> {
  static constexpr uint32_t kBlockBytes = 136, kUnitBytes = kBlockBytes;
  static constexpr int kMostCode = 127;
  template <uint32_t kHalf>
  static void codes(const uint8_t* p, int8x16_t* u) {
    const int8x16_t levels = vld1q_s8(kIq4Levels);
    for (uint32_t g = 0; g < 4; ++g) {
      level_codes(p + 8 + 64 * kHalf + 16 * g, levels, u + 2 * g);
    }
  }
  static void scales(const uint8_t* p, Scales& v) {
    const uint8x8_t bytes = vreinterpret_u8_u32(vdup_n_u32(load_u32(p + 4)));
    const uint8x8_t low = vzip1_u8(vand_u8(bytes, vdup_n_u8(15)), vshr_n_u8(bytes, 4));
    const int16x8_t shifts = {0, -2, -4, -6, -8, -10, -12, -14};
    const uint16x8_t two =
        vandq_u16(vshlq_u16(vdupq_n_u16(load_u16(p + 2)), shifts), vdupq_n_u16(3));
    const uint16x8_t six = vorrq_u16(vmovl_u8(low), vshlq_n_u16(two, 4));
    const int16x8_t scale = vsubq_s16(vreinterpretq_s16_u16(six), vdupq_n_s16(32));
    const float d = half_at(p);
    v.s[0] = vmulq_n_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(scale))), d);
    v.s[1] = vmulq_n_f32(vcvtq_f32_s32(vmovl_high_s16(scale)), d);
  }
};

}  // namespace
}  // namespace sharpi::cpu

// Behind the formats.
#include "cpu/generic/quant_formats.h"
