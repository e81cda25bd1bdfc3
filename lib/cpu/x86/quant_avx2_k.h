// SPDX-License-Identifier: MIT
// Block formats in AVX2, continued: the K formats, and the choice of a format by type.
// Only for kernel files compiled for AVX2: everything here has internal linkage.
// Thread rule: pure functions. Reads nothing outside the unit.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "cpu/x86/quant_avx2.h"

namespace sharpi::cpu {
namespace {  // NOLINT: internal linkage keeps AVX2 code out of other translation units

/// Q4_K and Q5_K: 6-bit scales and minima of 8 groups in 12 bytes behind d and dmin.
inline void k_scales(const uint8_t* p, Scales& v) {
  const __m128i b = load_16(p);  // d dmin | a | b | c
  const __m128i low = _mm_srlv_epi32(_mm_shuffle_epi32(b, _MM_SHUFFLE(3, 2, 3, 1)),  // a c b c
                                     _mm_setr_epi32(0, 0, 0, 4));
  const __m128i low_mask = _mm_setr_epi32(0x3F3F3F3F, 0x0F0F0F0F, 0x3F3F3F3F, 0x0F0F0F0F);
  const __m128i high = _mm_srli_epi32(_mm_shuffle_epi32(b, _MM_SHUFFLE(2, 2, 1, 1)), 2);
  const __m128i high_mask = _mm_setr_epi32(0, 0x30303030, 0, 0x30303030);
  const __m128i six = _mm_or_si128(_mm_and_si128(low, low_mask), _mm_and_si128(high, high_mask));
  v.s[0] = _mm256_mul_ps(half_to_8(p), floats_of_low8(six));
  v.m[0] = _mm256_mul_ps(half_to_8(p + 2), times(floats_of_high8(six), -1));
}

struct Q4_K : Group32 {
  static constexpr uint32_t kBlockBytes = 144, kUnitBytes = kBlockBytes;
  static constexpr int kMostCode = 15;
  static void codes(const uint8_t* p, __m256i u[8]) {
    for (int j = 0; j < 4; ++j) {
      const __m256i v = load_32(p + 16 + 32 * j);
      u[2 * j] = field(v, 0, 15);
      u[2 * j + 1] = field(v, 4, 15);
    }
  }
  static void scales(const uint8_t* p, Scales& v) { k_scales(p, v); }
};

struct Q5_K : Group32 {
  static constexpr uint32_t kBlockBytes = 176, kUnitBytes = kBlockBytes;
  static constexpr int kMostCode = 31;
  static void codes(const uint8_t* p, __m256i u[8]) {
    const __m256i high = load_32(p + 16);
    for (int j = 0; j < 4; ++j) {
      const __m256i v = load_32(p + 48 + 32 * j);
      u[2 * j] = _mm256_or_si256(field(v, 0, 15), shift_left(field(high, 2 * j, 1), 4));
      u[2 * j + 1] = _mm256_or_si256(field(v, 4, 15), shift_left(field(high, 2 * j + 1, 1), 4));
    }
  }
  static void scales(const uint8_t* p, Scales& v) { k_scales(p, v); }
};

/// Scales of 16 groups from 16 signed bytes and d; minima are kMin times the scales.
template <int kMin>
inline void signed_scales(__m128i b, const uint8_t* d, Scales& v) {
  v.s[0] = _mm256_mul_ps(half_to_8(d), floats_of_low8(b));
  v.s[1] = _mm256_mul_ps(half_to_8(d), floats_of_high8(b));
  for (int i = 0; i < 2; ++i) v.m[i] = times(v.s[i], kMin);
}

struct Q6_K : Group16 {
  static constexpr uint32_t kBlockBytes = 210, kUnitBytes = kBlockBytes;
  static constexpr int kMostCode = 63;
  static void codes(const uint8_t* p, __m256i u[8]) {
    for (int h = 0; h < 2; ++h) {
      const __m256i a = load_32(p + 64 * h), b = load_32(p + 64 * h + 32);
      const __m256i high = load_32(p + 128 + 32 * h);
      u[4 * h] = _mm256_or_si256(field(a, 0, 15), shift_left(field(high, 0, 3), 4));
      u[4 * h + 1] = _mm256_or_si256(field(b, 0, 15), shift_left(field(high, 2, 3), 4));
      u[4 * h + 2] = _mm256_or_si256(field(a, 4, 15), shift_left(field(high, 4, 3), 4));
      u[4 * h + 3] = _mm256_or_si256(field(b, 4, 15), shift_left(field(high, 6, 3), 4));
    }
  }
  static void scales(const uint8_t* p, Scales& v) {
    signed_scales<-32>(load_16(p + 192), p + 208, v);
  }
};

struct Q2_K : Group16 {
  static constexpr uint32_t kBlockBytes = 84, kUnitBytes = kBlockBytes;
  static constexpr int kMostCode = 3;
  static void codes(const uint8_t* p, __m256i u[8]) {
    for (int g = 0; g < 8; ++g) u[g] = field(load_32(p + 16 + 32 * (g / 4)), 2 * (g % 4), 3);
  }
  static void scales(const uint8_t* p, Scales& v) {
    const __m128i b = load_16(p), nibble = _mm_set1_epi8(15);
    const __m128i s = _mm_and_si128(b, nibble), m = _mm_and_si128(_mm_srli_epi16(b, 4), nibble);
    v.s[0] = _mm256_mul_ps(half_to_8(p + 80), floats_of_low8(s));
    v.s[1] = _mm256_mul_ps(half_to_8(p + 80), floats_of_high8(s));
    v.m[0] = times(_mm256_mul_ps(half_to_8(p + 82), floats_of_low8(m)), -1);
    v.m[1] = times(_mm256_mul_ps(half_to_8(p + 82), floats_of_high8(m)), -1);
  }
};

struct Q3_K : Group16 {
  static constexpr uint32_t kBlockBytes = 110, kUnitBytes = kBlockBytes;
  static constexpr int kMostCode = 7;
  static void codes(const uint8_t* p, __m256i u[8]) {
    const __m256i high = load_32(p);
    for (int g = 0; g < 8; ++g) {
      const __m256i low = field(load_32(p + 32 + 32 * (g / 4)), 2 * (g % 4), 3);
      u[g] = _mm256_or_si256(low, shift_left(field(high, g, 1), 2));
    }
  }
  static void scales(const uint8_t* p, Scales& v) {
    const uint8_t* c = p + 96;
    const __m128i low = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(c));
    const __m128i four =
        _mm_and_si128(_mm_unpacklo_epi64(low, _mm_srli_epi16(low, 4)), _mm_set1_epi8(15));
    const __m128i high = _mm_srlv_epi32(_mm_set1_epi32(static_cast<int>(load_u32(c + 8))),
                                        _mm_setr_epi32(0, 2, 4, 6));
    const __m128i two = _mm_slli_epi16(_mm_and_si128(high, _mm_set1_epi8(3)), 4);
    signed_scales<-4>(_mm_sub_epi8(_mm_or_si128(four, two), _mm_set1_epi8(32)), p + 108, v);
  }
};

struct IQ4_XS : Group32 {
  static constexpr uint32_t kBlockBytes = 136, kUnitBytes = kBlockBytes;
  static constexpr bool kSigned = true;
  static constexpr int kMostCode = 127;
  static void codes(const uint8_t* p, __m256i u[8]) {
    for (int g = 0; g < 8; ++g) u[g] = iq4_codes(nibbles_16(p + 8 + 16 * g));
  }
  static void scales(const uint8_t* p, Scales& v) {
    const __m128i wide = _mm_cvtepu8_epi16(_mm_cvtsi32_si128(static_cast<int>(load_u32(p + 4))));
    const __m128i low =
        _mm_and_si128(_mm_or_si128(wide, _mm_slli_epi16(wide, 4)), _mm_set1_epi8(15));
    const __m256i high = _mm256_srlv_epi32(_mm256_set1_epi32(load_u16(p + 2)),
                                           _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14));
    const __m256i two = _mm256_slli_epi32(_mm256_and_si256(high, _mm256_set1_epi32(3)), 4);
    const __m256i six =
        _mm256_sub_epi32(_mm256_or_si256(_mm256_cvtepu8_epi32(low), two), _mm256_set1_epi32(32));
    v.s[0] = _mm256_mul_ps(half_to_8(p), _mm256_cvtepi32_ps(six));
  }
};

/// Keeps the compiler from forwarding stores at p to later loads: as shuffles they would cost more.
inline void keep_in_memory(const void* p) {
  __asm__ volatile("" : : "r"(p) : "memory");
}

}  // namespace
}  // namespace sharpi::cpu

// Behind the formats.
#include "cpu/generic/quant_formats.h"
