// SPDX-License-Identifier: MIT
// Block formats in AVX-512: 256 weights at a time ("a unit": one K block, or eight blocks of 32) as
// unsigned byte codes in element order with a scale and a minimum per group of 32 or 16:
//   w[i] = s[group(i)] * code[i] + kMin * m[group(i)]     (m = s for formats with a fixed offset)
// Only for kernel files compiled for AVX-512: everything here has internal linkage.
// Thread rule: pure functions. Reads nothing outside the unit.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace sharpi::cpu {
namespace {  // NOLINT: internal linkage keeps AVX-512 code out of other translation units

/// Which lanes of 4 codes `codes<true>` leaves multiplied by 16: it does not shift high nibbles
/// down, and the scale makes up for it.
enum class Times16 { kNone, kOdd4Lanes, kUpper8Lanes };

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
inline __m512i load_64(const uint8_t* p) {
  return _mm512_loadu_si512(p);
}
inline __m512i twice_32(const uint8_t* p) {
  return _mm512_broadcast_i64x4(load_32(p));
}
inline __m512i join_32(__m256i low, __m256i high) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}
inline __m512i bytes(int v) {
  return _mm512_set1_epi8(static_cast<char>(v));
}
/// Two byte constants for the halves of a vector.
inline __m512i halves(int low, int high) {
  return join_32(_mm256_set1_epi8(static_cast<char>(low)),
                 _mm256_set1_epi8(static_cast<char>(high)));
}
inline __m512i half_words(int low, int high) {
  return join_32(_mm256_set1_epi16(static_cast<short>(low)),
                 _mm256_set1_epi16(static_cast<short>(high)));
}
/// 16 bytes at a and 16 at b, each twice: a a b b.
inline __m512i twice_16(const uint8_t* a, const uint8_t* b) {
  const __m512i v = _mm512_broadcast_i32x4(load_16(a));
  return _mm512_mask_broadcast_i32x4(v, 0xFF00, load_16(b));
}

/// Where the 16-bit headers of eight blocks lie: lane l < 8 is block l's word at offset 0, lane l +
/// 8 its word at kSecond, gathered by one word permutation per 64 bytes that hold several headers.
template <uint32_t kStride, uint32_t kSecond>
struct HeaderWords {
  static constexpr uint32_t kPerLoad = (64 - kSecond - 2) / kStride + 1;
  static constexpr uint32_t kLoads = (8 + kPerLoad - 1) / kPerLoad;
  /// The last load moves back so that it ends with the unit. An even shift keeps words whole.
  static constexpr uint32_t at(uint32_t load) {
    const uint32_t from = load * kPerLoad * kStride;
    return from + 64 <= 8 * kStride ? from : (8 * kStride - 64) / 2 * 2;
  }
  static constexpr uint32_t mask(uint32_t load) {
    uint32_t bits = 0;
    for (uint32_t b = load * kPerLoad; b < (load + 1) * kPerLoad && b < 8; ++b) bits |= 0x101u << b;
    return bits;
  }
  struct Index {
    alignas(64) uint16_t word[32];
  };
  static constexpr Index index(uint32_t load) {
    Index v{};
    for (uint32_t b = load * kPerLoad; b < (load + 1) * kPerLoad && b < 8; ++b) {
      v.word[b] = static_cast<uint16_t>((b * kStride - at(load)) / 2);
      v.word[b + 8] = static_cast<uint16_t>((b * kStride + kSecond - at(load)) / 2);
    }
    return v;
  }
  static __m256i load(const uint8_t* p) {
    __m512i v = _mm512_setzero_si512();
    merge<0>(p, v);
    return _mm512_castsi512_si256(v);
  }

 private:
  template <uint32_t kLoad>
  static void merge(const uint8_t* p, __m512i& v) {
    static constexpr Index kIndex = index(kLoad);
    v = _mm512_mask_permutexvar_epi16(v, mask(kLoad), _mm512_load_si512(&kIndex),
                                      load_64(p + at(kLoad)));
    if constexpr (kLoad + 1 < kLoads) merge<kLoad + 1>(p, v);
  }
};
/// The halves at offset 0 of eight blocks in lanes 0-7, those at kSecond in lanes 8-15.
template <uint32_t kStride, uint32_t kSecond>
inline __m512 header_halves(const uint8_t* p) {
  return _mm512_cvtph_ps(HeaderWords<kStride, kSecond>::load(p));
}

/// Nibbles of two 16-byte blocks (low nibbles first in each); kDot leaves the high ones times 16.
template <bool kDot>
inline __m512i nibbles_16(const uint8_t* a, const uint8_t* b) {
  const __m512i v = twice_16(a, b);
  const __m512i mask = _mm512_set_epi64(
      -0x0F0F0F0F0F0F0F10, -0x0F0F0F0F0F0F0F10, 0x0F0F0F0F0F0F0F0F, 0x0F0F0F0F0F0F0F0F,
      -0x0F0F0F0F0F0F0F10, -0x0F0F0F0F0F0F0F10, 0x0F0F0F0F0F0F0F0F, 0x0F0F0F0F0F0F0F0F);
  if constexpr (kDot) return _mm512_and_si512(v, mask);
  const __m512i shift = _mm512_set_epi64(4, 4, 0, 0, 4, 4, 0, 0);
  return _mm512_and_si512(_mm512_srlv_epi64(v, shift), bytes(15));
}
/// Adds `value` to the bytes whose bit is set.
inline __m512i add_where(__m512i v, __mmask64 bits, int value) {
  return _mm512_mask_add_epi8(v, bits, v, bytes(value));
}
struct Group32 {  // scales() gives s of the 8 groups in lanes 0-7 and m in lanes 8-15
  static constexpr bool kGroup16 = false;
  static constexpr int kCodeOffset = 0;  // what signed codes of the format are moved up by
  static constexpr Times16 kTimes16 = Times16::kNone;
};
struct Group16 {  // scales() gives s and m of the 16 groups
  static constexpr bool kGroup16 = true;
  static constexpr int kCodeOffset = 0;
  static constexpr Times16 kTimes16 = Times16::kNone;
};

struct Q8_0 : Group32 {
  static constexpr uint32_t kBlockBytes = 34, kUnitBytes = 8 * kBlockBytes;
  static constexpr float kMin = -128;
  static constexpr int kCodeOffset = 128;
  template <bool>
  static void codes(const uint8_t* p, __m512i u[4]) {
    for (int j = 0; j < 4; ++j) {
      const uint8_t* b = p + 2 * static_cast<uint32_t>(j) * kBlockBytes + 2;
      u[j] = _mm512_xor_si512(join_32(load_32(b), load_32(b + kBlockBytes)), bytes(0x80));
    }
  }
  static __m512 scales(const uint8_t* p) { return header_halves<kBlockBytes, 0>(p); }
};

/// 32 nibbles behind kHead bytes of block header.
template <uint32_t kHead>
struct NibbleBlocks : Group32 {
  static constexpr uint32_t kBlockBytes = kHead + 16, kUnitBytes = 8 * kBlockBytes;
  template <bool kDot>
  static __m512i pair(const uint8_t* p, int j) {
    const uint8_t* b = p + 2 * static_cast<uint32_t>(j) * kBlockBytes + kHead;
    return nibbles_16<kDot>(b, b + kBlockBytes);
  }
};

struct Q4_0 : NibbleBlocks<2> {
  static constexpr float kMin = -8;
  static constexpr Times16 kTimes16 = Times16::kOdd4Lanes;
  template <bool kDot>
  static void codes(const uint8_t* p, __m512i u[4]) {
    for (int j = 0; j < 4; ++j) u[j] = pair<kDot>(p, j);
  }
  static __m512 scales(const uint8_t* p) { return header_halves<kBlockBytes, 0>(p); }
};

struct Q4_1 : NibbleBlocks<4> {
  static constexpr float kMin = 1;
  static constexpr Times16 kTimes16 = Times16::kOdd4Lanes;
  template <bool kDot>
  static void codes(const uint8_t* p, __m512i u[4]) {
    for (int j = 0; j < 4; ++j) u[j] = pair<kDot>(p, j);
  }
  static __m512 scales(const uint8_t* p) { return header_halves<kBlockBytes, 2>(p); }
};

template <uint32_t kHead>
struct FiveBitBlocks : NibbleBlocks<kHead> {
  using Base = NibbleBlocks<kHead>;
  template <bool>
  static void codes(const uint8_t* p, __m512i u[4]) {
    for (int j = 0; j < 4; ++j) {
      const uint8_t* bits = p + 2 * static_cast<uint32_t>(j) * Base::kBlockBytes + kHead - 4;
      const uint64_t high = uint64_t{load_u32(bits + Base::kBlockBytes)} << 32 | load_u32(bits);
      u[j] = add_where(Base::template pair<false>(p, j), high, 16);
    }
  }
};

struct Q5_0 : FiveBitBlocks<6> {
  static constexpr float kMin = -16;
  static __m512 scales(const uint8_t* p) { return header_halves<kBlockBytes, 0>(p); }
};

struct Q5_1 : FiveBitBlocks<8> {
  static constexpr float kMin = 1;
  static __m512 scales(const uint8_t* p) { return header_halves<kBlockBytes, 2>(p); }
};

/// IQ4 codebook plus 128.
inline __m512i iq4_codes(__m512i nibbles) {
  const __m128i table =
      _mm_setr_epi8(1, 24, 45, 63, 79, 93, 106, 118, -127, -115, -103, -90, -75, -59, -39, -15);
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), nibbles);
}

struct IQ4_NL : NibbleBlocks<2> {
  static constexpr float kMin = -128;
  static constexpr int kCodeOffset = 128;
  template <bool>
  static void codes(const uint8_t* p, __m512i u[4]) {
    for (int j = 0; j < 4; ++j) u[j] = iq4_codes(pair<false>(p, j));
  }
  static __m512 scales(const uint8_t* p) { return header_halves<kBlockBytes, 0>(p); }
};

struct MXFP4 : NibbleBlocks<1> {
  static constexpr float kMin = -12;
  static constexpr int kCodeOffset = 12;
  template <bool>
  static void codes(const uint8_t* p, __m512i u[4]) {
    const __m128i table = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    for (int j = 0; j < 4; ++j) {
      u[j] = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), pair<false>(p, j));
    }
  }
  static __m512 scales(const uint8_t* p) {
    // An odd block's exponent is the upper byte of its word.
    const __m256i words = HeaderWords<kBlockBytes, 0>::load(p);
    const __m256i shifted = _mm256_srlv_epi16(words, _mm256_set1_epi32(8 << 16));
    const __m512i e = _mm512_cvtepu16_epi32(_mm256_and_si256(shifted, _mm256_set1_epi16(255)));
    // 2^(e - 128); the two smallest are subnormal.
    const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    const __m512i tiny = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
    const __mmask16 is_tiny = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, is_tiny, tiny));
  }
};

}  // namespace
}  // namespace sharpi::cpu
