// SPDX-License-Identifier: MIT
// Block formats in AVX-512, continued: the K formats, and the choice of a format by type.
// Only for kernel files compiled for AVX-512: everything here has internal linkage.
// Thread rule: pure functions. Reads nothing outside the unit.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "cpu/x86/quant_avx512.h"

namespace sharpi::cpu {
namespace {  // NOLINT: internal linkage keeps AVX-512 code out of other translation units

inline __m512 twice_8(__m256 v) {
  return _mm512_broadcast_f32x8(v);
}
inline __m256 half_to_8(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_set1_epi16(static_cast<short>(load_u16(p))));
}
inline __m512 half_to_16(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_set1_epi16(static_cast<short>(load_u16(p))));
}
/// Nibbles of 32 bytes: the low ones, then the high ones; kDot leaves the high ones times 16.
template <bool kDot>
inline __m512i nibbles_32(const uint8_t* p) {
  if constexpr (kDot) return _mm512_and_si512(twice_32(p), halves(0x0F, 0xF0));
  return _mm512_and_si512(_mm512_srlv_epi16(twice_32(p), half_words(0, 4)), bytes(15));
}
/// Bit 2j of the 32 bytes at p for the low half, bit 2j + 1 for the high half.
inline __mmask64 bit_planes(const uint8_t* p, int j) {
  return _mm512_test_epi8_mask(twice_32(p), halves(1 << 2 * j, 2 << 2 * j));
}

/// Q4_K and Q5_K: 6-bit scales and minima of 8 groups in 12 bytes behind d and dmin. The bits are
/// sorted out in general registers, whose ports are idle.
inline __m512 k_scales(const uint8_t* p) {
  uint64_t ab;  // groups 0-3: scales, minima; above them the high bits of groups 4-7
  std::memcpy(&ab, p + 4, sizeof ab);
  const uint64_t c = load_u32(p + 12);  // groups 4-7: low halves of scales and minima
  const uint64_t first = ab & 0x3F3F3F3F3F3F3F3F;
  const uint64_t second = ((ab >> 2) & 0x3030303030303030) | ((c | c << 28) & 0x0F0F0F0F0F0F0F0F);
  const __m128i six = _mm_unpacklo_epi32(_mm_cvtsi64_si128(static_cast<long long>(first)),
                                         _mm_cvtsi64_si128(static_cast<long long>(second)));
  const __m512i index = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
  const __m128 d_dmin = _mm_cvtph_ps(_mm_cvtsi32_si128(static_cast<int>(load_u32(p))));
  const __m512 d = _mm512_permutexvar_ps(index, _mm512_castps128_ps512(d_dmin));
  return _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(six)));
}

struct Q4_K : Group32 {
  static constexpr uint32_t kBlockBytes = 144, kUnitBytes = kBlockBytes;
  static constexpr float kMin = -1;
  static constexpr Times16 kTimes16 = Times16::kUpper8Lanes;
  template <bool kDot>
  static void codes(const uint8_t* p, __m512i u[4]) {
    for (int j = 0; j < 4; ++j) u[j] = nibbles_32<kDot>(p + 16 + 32 * j);
  }
  static __m512 scales(const uint8_t* p) { return k_scales(p); }
};

struct Q5_K : Group32 {
  static constexpr uint32_t kBlockBytes = 176, kUnitBytes = kBlockBytes;
  static constexpr float kMin = -1;
  template <bool>
  static void codes(const uint8_t* p, __m512i u[4]) {
    for (int j = 0; j < 4; ++j) {
      u[j] = add_where(nibbles_32<false>(p + 48 + 32 * j), bit_planes(p + 16, j), 16);
    }
  }
  static __m512 scales(const uint8_t* p) { return k_scales(p); }
};

struct Q6_K : Group16 {
  static constexpr uint32_t kBlockBytes = 210, kUnitBytes = kBlockBytes;
  static constexpr float kMin = -32;
  template <bool>
  static void codes(const uint8_t* p, __m512i u[4]) {
    constexpr int kOrAnd = 0xF8;  // a | (b & c)
    for (int h = 0; h < 2; ++h) {
      const __m512i low = load_64(p + 64 * h), high = twice_32(p + 128 + 32 * h);
      const __m512i first = _mm512_sllv_epi16(high, half_words(4, 2));
      const __m512i second = _mm512_srlv_epi16(high, half_words(0, 2));
      u[2 * h] =
          _mm512_ternarylogic_epi64(_mm512_and_si512(low, bytes(15)), first, bytes(0x30), kOrAnd);
      u[2 * h + 1] = _mm512_ternarylogic_epi64(
          _mm512_and_si512(_mm512_srli_epi16(low, 4), bytes(15)), second, bytes(0x30), kOrAnd);
    }
  }
  static void scales(const uint8_t* p, __m512& s, __m512& m) {
    s = _mm512_mul_ps(half_to_16(p + 208),
                      _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_16(p + 192))));
    m = s;
  }
};

/// Two bits of each of the 32 bytes at p: positions 4 * odd (low half) and 4 * odd + 2 (high half).
inline __m512i crumbs(const uint8_t* p, int odd) {
  return _mm512_and_si512(_mm512_srlv_epi16(twice_32(p), half_words(4 * odd, 4 * odd + 2)),
                          bytes(3));
}

struct Q2_K : Group16 {
  static constexpr uint32_t kBlockBytes = 84, kUnitBytes = kBlockBytes;
  static constexpr float kMin = -1;
  template <bool>
  static void codes(const uint8_t* p, __m512i u[4]) {
    for (int j = 0; j < 4; ++j) u[j] = crumbs(p + 16 + 32 * (j / 2), j % 2);
  }
  static void scales(const uint8_t* p, __m512& s, __m512& m) {
    const __m512i b = _mm512_cvtepu8_epi32(load_16(p));
    s = _mm512_mul_ps(half_to_16(p + 80),
                      _mm512_cvtepi32_ps(_mm512_and_si512(b, _mm512_set1_epi32(15))));
    m = _mm512_mul_ps(half_to_16(p + 82), _mm512_cvtepi32_ps(_mm512_srli_epi32(b, 4)));
  }
};

struct Q3_K : Group16 {
  static constexpr uint32_t kBlockBytes = 110, kUnitBytes = kBlockBytes;
  static constexpr float kMin = -4;
  template <bool>
  static void codes(const uint8_t* p, __m512i u[4]) {
    for (int j = 0; j < 4; ++j) {
      u[j] = add_where(crumbs(p + 32 + 32 * (j / 2), j % 2), bit_planes(p, j), 4);
    }
  }
  static void scales(const uint8_t* p, __m512& s, __m512& m) {
    const uint8_t* c = p + 96;
    const __m128i low = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(c));
    const __m128i four =
        _mm_and_si128(_mm_unpacklo_epi64(low, _mm_srli_epi16(low, 4)), _mm_set1_epi8(15));
    const __m128i high = _mm_srlv_epi32(_mm_set1_epi32(static_cast<int>(load_u32(c + 8))),
                                        _mm_setr_epi32(0, 2, 4, 6));
    const __m128i two = _mm_slli_epi16(_mm_and_si128(high, _mm_set1_epi8(3)), 4);
    const __m128i six = _mm_sub_epi8(_mm_or_si128(four, two), _mm_set1_epi8(32));
    s = _mm512_mul_ps(half_to_16(p + 108), _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(six)));
    m = s;
  }
};

struct IQ4_XS : Group32 {
  static constexpr uint32_t kBlockBytes = 136, kUnitBytes = kBlockBytes;
  static constexpr float kMin = -128;
  static constexpr int kCodeOffset = 128;
  template <bool>
  static void codes(const uint8_t* p, __m512i u[4]) {
    for (int j = 0; j < 4; ++j) {
      u[j] = iq4_codes(nibbles_16<false>(p + 8 + 32 * j, p + 24 + 32 * j));
    }
  }
  static __m512 scales(const uint8_t* p) {
    const __m128i wide = _mm_cvtepu8_epi16(_mm_cvtsi32_si128(static_cast<int>(load_u32(p + 4))));
    const __m128i low =
        _mm_and_si128(_mm_or_si128(wide, _mm_slli_epi16(wide, 4)), _mm_set1_epi8(15));
    const __m256i high = _mm256_srlv_epi32(_mm256_set1_epi32(load_u16(p + 2)),
                                           _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14));
    const __m256i two = _mm256_slli_epi32(_mm256_and_si256(high, _mm256_set1_epi32(3)), 4);
    const __m256i six =
        _mm256_sub_epi32(_mm256_or_si256(_mm256_cvtepu8_epi32(low), two), _mm256_set1_epi32(32));
    return twice_8(_mm256_mul_ps(half_to_8(p), _mm256_cvtepi32_ps(six)));
  }
};

}  // namespace
}  // namespace sharpi::cpu

// Behind the formats.
#include "cpu/generic/quant_formats.h"
