// SPDX-License-Identifier: MIT
// Block formats in AVX2: 256 weights at a time ("a unit": one K block, or eight blocks of 32) as
// byte codes in element order, eight vectors of 32, with a scale and a minimum per group of 32 or
// 16:
//   w[i] = s[group(i)] * code[i] + m[group(i)]
// Codes are below 128 and unsigned, or signed with m = 0 (kSigned), as vpmaddubsw wants them; none
// is larger than kMostCode.
// Only for kernel files compiled for AVX2: everything here has internal linkage.
// Thread rule: pure functions. Reads nothing outside the unit.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace sharpi::cpu {
namespace {  // NOLINT: internal linkage keeps AVX2 code out of other translation units

/// Scales and minima of a unit: 8 groups of 32 in the first vectors, or 16 groups of 16.
struct Scales {
  __m256 s[2], m[2];
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
inline float half_at(const uint8_t* p) {
  return _cvtsh_ss(load_u16(p));
}
inline __m128i load_16(const uint8_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
inline __m256i load_32(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline __m256i bytes(int v) {
  return _mm256_set1_epi8(static_cast<char>(v));
}
inline __m256 half_to_8(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_set1_epi16(static_cast<short>(load_u16(p))));
}
/// The halves at p, p + kStride, ... of eight blocks.
template <int kStride>
inline __m256 eight_halves(const uint8_t* p) {
  __m128i v = _mm_cvtsi32_si128(load_u16(p));
  v = _mm_insert_epi16(v, load_u16(p + kStride), 1);
  v = _mm_insert_epi16(v, load_u16(p + 2 * kStride), 2);
  v = _mm_insert_epi16(v, load_u16(p + 3 * kStride), 3);
  v = _mm_insert_epi16(v, load_u16(p + 4 * kStride), 4);
  v = _mm_insert_epi16(v, load_u16(p + 5 * kStride), 5);
  v = _mm_insert_epi16(v, load_u16(p + 6 * kStride), 6);
  v = _mm_insert_epi16(v, load_u16(p + 7 * kStride), 7);
  return _mm256_cvtph_ps(v);
}
inline __m256 times(__m256 v, float k) {
  return _mm256_mul_ps(v, _mm256_set1_ps(k));
}
inline __m256 floats_of_low8(__m128i v) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(v));
}
inline __m256 floats_of_high8(__m128i v) {
  return floats_of_low8(_mm_unpackhi_epi64(v, v));
}

/// 16 bytes of nibbles: low ones, then high ones.
inline __m256i nibbles_16(const uint8_t* p) {
  const __m128i v = load_16(p);
  return _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(v, 4), v), bytes(15));
}
/// (v >> shift) & mask in every byte; mask has at most 8 - shift bits.
inline __m256i field(__m256i v, int shift, int mask) {
  return _mm256_and_si256(_mm256_srli_epi16(v, shift), bytes(mask));
}
inline __m256i shift_left(__m256i v, int n) {
  return _mm256_slli_epi16(v, n);
}  // no bits may cross
/// 16 in the bytes whose bit is set.
inline __m256i sixteen_where(uint32_t bits) {
  const __m256i spread = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2,
                                          2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
  const __m256i each = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
  const __m256i v = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(bits)), spread);
  const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(v, each), each);
  return _mm256_and_si256(set, bytes(16));
}

struct Group32 {
  static constexpr bool kGroup16 = false, kSigned = false;
};
struct Group16 {
  static constexpr bool kGroup16 = true, kSigned = false;
};

struct Q8_0 : Group32 {
  static constexpr uint32_t kBlockBytes = 34, kUnitBytes = 8 * kBlockBytes;
  static constexpr bool kSigned = true;
  static constexpr int kMostCode = 127;
  static void codes(const uint8_t* p, __m256i u[8]) {
    for (uint32_t g = 0; g < 8; ++g) u[g] = load_32(p + g * kBlockBytes + 2);
  }
  static void scales(const uint8_t* p, Scales& v) { v.s[0] = eight_halves<kBlockBytes>(p); }
};

/// 32 nibbles behind kHead bytes of block header; kHigh: the fifth bits are the last 4 of them.
template <uint32_t kHead, bool kHigh>
struct NibbleBlocks : Group32 {
  static constexpr uint32_t kBlockBytes = kHead + 16, kUnitBytes = 8 * kBlockBytes;
  static constexpr int kMostCode = kHigh ? 31 : 15;
  static void codes(const uint8_t* p, __m256i u[8]) {
    for (int g = 0; g < 8; ++g, p += kBlockBytes) {
      u[g] = nibbles_16(p + kHead);
      if (kHigh) u[g] = _mm256_or_si256(u[g], sixteen_where(load_u32(p + kHead - 4)));
    }
  }
};

/// A fixed offset, or a minimum in the second half of the header.
template <uint32_t kHead, bool kHigh, int kOffset>
struct OffsetBlocks : NibbleBlocks<kHead, kHigh> {
  static void scales(const uint8_t* p, Scales& v) {
    v.s[0] = eight_halves<kHead + 16>(p);
    v.m[0] = kOffset == 0 ? eight_halves<kHead + 16>(p + 2) : times(v.s[0], -kOffset);
  }
};
struct Q4_0 : OffsetBlocks<2, false, 8> {};
struct Q4_1 : OffsetBlocks<4, false, 0> {};
struct Q5_0 : OffsetBlocks<6, true, 16> {};
struct Q5_1 : OffsetBlocks<8, true, 0> {};

inline __m256i iq4_codes(__m256i nibbles) {
  const __m128i table =
      _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), nibbles);
}

struct IQ4_NL : Group32 {
  static constexpr uint32_t kBlockBytes = 18, kUnitBytes = 8 * kBlockBytes;
  static constexpr bool kSigned = true;
  static constexpr int kMostCode = 127;
  static void codes(const uint8_t* p, __m256i u[8]) {
    for (uint32_t g = 0; g < 8; ++g) u[g] = iq4_codes(nibbles_16(p + g * kBlockBytes + 2));
  }
  static void scales(const uint8_t* p, Scales& v) { v.s[0] = eight_halves<kBlockBytes>(p); }
};

struct MXFP4 : Group32 {
  static constexpr uint32_t kBlockBytes = 17, kUnitBytes = 8 * kBlockBytes;
  static constexpr bool kSigned = true;
  static constexpr int kMostCode = 12;
  static void codes(const uint8_t* p, __m256i u[8]) {
    const __m256i table = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
    for (uint32_t g = 0; g < 8; ++g) {
      u[g] = _mm256_shuffle_epi8(table, nibbles_16(p + g * kBlockBytes + 1));
    }
  }
  static void scales(const uint8_t* p, Scales& v) {
    const __m256i e = _mm256_setr_epi32(p[0], p[17], p[34], p[51], p[68], p[85], p[102], p[119]);
    // 2^(e - 128); the two smallest are subnormal.
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    const __m256i tiny = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    const __m256i is_tiny = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
    v.s[0] = _mm256_castsi256_ps(_mm256_blendv_epi8(normal, tiny, is_tiny));
  }
};

}  // namespace
}  // namespace sharpi::cpu
