// SPDX-License-Identifier: MIT
// What the row-dot kernels of cpu/x86/matmul_avx512.cc need of a block format beyond its codes: the
// sums of a unit in as few vectors as possible, and the scales of several units at a time. Once the
// bytes of a unit are loaded, these two are most of its cost.
// Only for kernel files compiled for AVX-512: everything here has internal linkage.
// Thread rule: pure functions. Reads nothing outside the units.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "cpu/x86/quant_avx512_k.h"

namespace sharpi::cpu {
namespace {  // NOLINT: internal linkage keeps AVX-512 code out of other translation units

/// Lane numbers that spread the group scales over the 16 sums of vector j of a unit.
template <bool kGroup16>
inline __m512i spread_index(int j) {
  if constexpr (kGroup16) {
    const __m512i quarter = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    return _mm512_add_epi32(quarter, _mm512_set1_epi32(4 * j));
  }
  const __m512i half = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
  return _mm512_add_epi32(half, _mm512_set1_epi32(2 * j));
}

/// What undoes Times16 in the 16 lanes of the accumulator.
inline __m512 lane_factors(Times16 times16) {
  constexpr float k = 1.0f / 16;
  if (times16 == Times16::kOdd4Lanes) {
    return _mm512_setr_ps(1, 1, 1, 1, k, k, k, k, 1, 1, 1, 1, k, k, k, k);
  }
  if (times16 == Times16::kUpper8Lanes) {
    return _mm512_setr_ps(1, 1, 1, 1, 1, 1, 1, 1, k, k, k, k, k, k, k, k);
  }
  return _mm512_set1_ps(1);
}

/// Scales a unit at a time.
template <class Format>
struct DotScales {
  const uint8_t* p;
  void load(const uint8_t* unit, uint64_t) { p = unit; }
  __m512 get(uint32_t) const { return Format::scales(p); }
  void get(__m512& s, __m512& m) const { Format::scales(p, s, m); }
};

/// The usual way: four vectors of 64 codes in element order, one of sums for each.
template <class Format>
struct DotForm {
  static constexpr bool kPermuted = false;  // activations in element order
  static constexpr int kVectors = 4;
  static constexpr uint32_t kScaleUnits = 1;
  using Scales = DotScales<Format>;
  static void codes(const uint8_t* p, __m512i* u) { Format::template codes<true>(p, u); }
  static __m512i sums(const __m512i* u, const __m512i* q, int j) {
    return _mm512_dpbusd_epi32(_mm512_setzero_si512(), u[j], q[j]);
  }
  static __m512i spread(int j) { return spread_index<Format::kGroup16>(j); }
  static __m512 factors() { return lane_factors(Format::kTimes16); }
};

/// Four units' scales and minima as bytes, s of groups 0-7 and then m, 16 for each unit; and what
/// they are to be multiplied with. kOdd = 1 / 16 where odd groups' codes are left times 16.
template <uint32_t kBlockBytes, int kOdd16>
struct KScales {
  alignas(64) uint8_t six[64];
  __m512 d;  // d and dmin of the four units, then the same divided by 16

  void load(const uint8_t* p, uint64_t n_left) {
    const auto at = [=](uint64_t i) { return load_16(p + (i < n_left ? i : 0) * kBlockBytes); };
    __m512i h = _mm512_castsi128_si512(at(0));
    h = _mm512_mask_broadcast_i32x4(h, 0x00F0, at(1));
    h = _mm512_mask_broadcast_i32x4(h, 0x0F00, at(2));
    h = _mm512_mask_broadcast_i32x4(h, 0xF000, at(3));
    // In each 16 bytes: scales 0-3, scales 4-7, minima 0-3, minima 4-7; the latter of each have
    // their low bits in the last word of the header and their high bits above the former.
    const __m512i low =
        _mm512_shuffle_epi8(h, _mm512_broadcast_i32x4(_mm_setr_epi8(4, 5, 6, 7, 12, 13, 14, 15, 8,
                                                                    9, 10, 11, 12, 13, 14, 15)));
    const __m512i high = _mm512_shuffle_epi8(
        h,
        _mm512_broadcast_i32x4(_mm_setr_epi8(4, 5, 6, 7, 4, 5, 6, 7, 8, 9, 10, 11, 8, 9, 10, 11)));
    const __m512i low_mask =
        _mm512_broadcast_i32x4(_mm_setr_epi32(0x3F3F3F3F, 0x0F0F0F0F, 0x3F3F3F3F, 0x0F0F0F0F));
    const __m512i high_mask = _mm512_broadcast_i32x4(_mm_setr_epi32(0, 0x30303030, 0, 0x30303030));
    const __m512i shift = _mm512_broadcast_i32x4(_mm_setr_epi32(0, 0, 0, 4));
    constexpr int kOrAnd = 0xF8;  // a | (b & c)
    const __m512i first = _mm512_and_si512(_mm512_srlv_epi32(low, shift), low_mask);
    _mm512_store_si512(
        six, _mm512_ternarylogic_epi32(first, _mm512_srli_epi32(high, 2), high_mask, kOrAnd));
    const __m512i halves = _mm512_permutexvar_epi32(
        _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0), h);
    const __m512 twice = _mm512_cvtph_ps(_mm512_castsi512_si256(halves));
    constexpr float k = 1.0f / 16;
    d = _mm512_mul_ps(twice, _mm512_setr_ps(1, 1, 1, 1, 1, 1, 1, 1, k, k, k, k, k, k, k, k));
  }
  /// s of the 8 groups of unit i in lanes 0-7, m in lanes 8-15.
  __m512 get(uint32_t i) const {
    constexpr int o = kOdd16 ? 8 : 0;
    const __m512i lane = _mm512_setr_epi32(0, o, 0, o, 0, o, 0, o, 1, 1, 1, 1, 1, 1, 1, 1);
    const __m512 f = _mm512_permutexvar_ps(
        _mm512_add_epi32(lane, _mm512_set1_epi32(static_cast<int>(2 * i))), d);
    return _mm512_mul_ps(f, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load_16(six + 16 * i))));
  }
};

/// Q4_K with the halves of groups 0, 2, 4, 6 (low nibbles) and of 1, 3, 5, 7 (high ones) in the
/// 128-bit lanes of one vector each, so that both halves add to the same four sums of a group.
template <>
struct DotForm<Q4_K> {
  static constexpr bool kPermuted = true;
  static constexpr int kVectors = 2;
  static constexpr uint32_t kScaleUnits = 4;
  using Scales = KScales<Q4_K::kBlockBytes, 1>;
  static void codes(const uint8_t* p, __m512i* u) {
    const __m512i a = load_64(p + 16), b = load_64(p + 80);
    const __m512i first = _mm512_shuffle_i32x4(a, b, 0x88),
                  second = _mm512_shuffle_i32x4(a, b, 0xDD);
    u[0] = _mm512_and_si512(first, bytes(0x0F));
    u[1] = _mm512_and_si512(second, bytes(0x0F));
    u[2] = _mm512_and_si512(first, bytes(0xF0));
    u[3] = _mm512_and_si512(second, bytes(0xF0));
  }
  static __m512i sums(const __m512i* u, const __m512i* q, int j) {
    const __m512i s = _mm512_dpbusd_epi32(_mm512_setzero_si512(), u[2 * j], q[2 * j]);
    return _mm512_dpbusd_epi32(s, u[2 * j + 1], q[2 * j + 1]);
  }
  static __m512i spread(int j) {
    const __m512i even = _mm512_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2, 4, 4, 4, 4, 6, 6, 6, 6);
    return _mm512_add_epi32(even, _mm512_set1_epi32(j));
  }
  static __m512 factors() { return _mm512_set1_ps(1); }
  /// Activations of one unit in the order of the codes.
  static void permute(const int8_t* from, int8_t* to) {
    for (int i = 0; i < 4; ++i) {
      // Vector i: half i % 2 of groups i / 2, i / 2 + 2, ...
      for (int lane = 0; lane < 4; ++lane) {
        const int at = 32 * (2 * lane + i / 2) + 16 * (i % 2);
        _mm_store_si128(reinterpret_cast<__m128i*>(to + 64 * i + 16 * lane),
                        _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at)));
      }
    }
  }
};

/// Blocks of 32 nibbles behind kHead bytes, with the low nibbles of four blocks in the 128-bit
/// lanes of one vector and the high ones in another, which add to the same four sums of a block.
template <class Format, uint32_t kHead>
struct NibbleForm : DotForm<Q8_0> {
  static constexpr bool kPermuted = true;
  static constexpr int kVectors = 2;
  struct Words {
    alignas(64) uint16_t index[32];
  };
  static constexpr uint32_t kLate = 4 * Format::kBlockBytes - 64;
  /// Words of block b < 3 from a load at the first block, of block 3 from one that ends with it.
  static constexpr Words words() {
    Words w{};
    for (uint32_t i = 0; i < 32; ++i) {
      const uint32_t at = i / 8 * Format::kBlockBytes + kHead + i % 8 * 2;
      w.index[i] = static_cast<uint16_t>((i < 24 ? at : at - kLate) / 2);
    }
    return w;
  }
  static void codes(const uint8_t* p, __m512i* u) {
    static constexpr Words kWords = words();
    const __m512i index = _mm512_load_si512(&kWords);
    for (int h = 0; h < 2; ++h, p += 4 * Format::kBlockBytes) {
      const __m512i three = _mm512_permutexvar_epi16(index, load_64(p));
      const __m512i v = _mm512_mask_permutexvar_epi16(three, 0xFF000000, index, load_64(p + kLate));
      u[2 * h] = _mm512_and_si512(v, bytes(15));
      u[2 * h + 1] = _mm512_and_si512(_mm512_srli_epi16(v, 4), bytes(15));
    }
  }
  using Scales = DotScales<Format>;
  static __m512i sums(const __m512i* u, const __m512i* q, int j) {
    const __m512i s = _mm512_dpbusd_epi32(_mm512_setzero_si512(), u[2 * j], q[2 * j]);
    return _mm512_dpbusd_epi32(s, u[2 * j + 1], q[2 * j + 1]);
  }
  static __m512i spread(int j) { return spread_index<true>(j); }
  static void permute(const int8_t* from, int8_t* to) {
    for (int i = 0; i < 4; ++i) {
      for (int lane = 0; lane < 4; ++lane) {
        const int at = 32 * (4 * (i / 2) + lane) + 16 * (i % 2);
        _mm_store_si128(reinterpret_cast<__m128i*>(to + 64 * i + 16 * lane),
                        _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at)));
      }
    }
  }
};
template <>
struct DotForm<Q4_0> : NibbleForm<Q4_0, 2> {};
template <>
struct DotForm<Q4_1> : NibbleForm<Q4_1, 4> {};

/// Q5_K: the scales of four units together.
template <>
struct DotForm<Q5_K> : DotForm<Q8_0> {
  static constexpr uint32_t kScaleUnits = 4;
  using Scales = KScales<Q5_K::kBlockBytes, 0>;
  static void codes(const uint8_t* p, __m512i* u) { Q5_K::codes<true>(p, u); }
};

}  // namespace
}  // namespace sharpi::cpu
