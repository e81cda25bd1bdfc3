// SPDX-License-Identifier: MIT
// Eight-lane vectors (AVX2, FMA, F16C) for the generic kernels. Included by one kernel file at a
// time, which is compiled with these instruction sets; everything has internal linkage.
// Thread rule: pure functions.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kv/levels.h"

namespace sharpi::cpu {
namespace {

alignas(32) constexpr int32_t kLaneMasks[16] = {-1, -1, -1, -1, -1, -1, -1, -1};

alignas(32) constexpr float kLevelFloats[kQ4LevelCount] = {
    kQ4Levels[0],  kQ4Levels[1],  kQ4Levels[2],  kQ4Levels[3], kQ4Levels[4],  kQ4Levels[5],
    kQ4Levels[6],  kQ4Levels[7],  kQ4Levels[8],  kQ4Levels[9], kQ4Levels[10], kQ4Levels[11],
    kQ4Levels[12], kQ4Levels[13], kQ4Levels[14], kQ4Levels[15]};

/// Bytes 2 and 3 of the levels' floats, for lookups in either half of a vector.
struct LevelBytes {
  alignas(32) uint8_t of[2][32];
};
constexpr LevelBytes make_level_bytes() {
  LevelBytes b{};
  for (uint32_t i = 0; i < 32; ++i) {
    const auto bits =
        __builtin_bit_cast(uint32_t, static_cast<float>(kQ4Levels[i % kQ4LevelCount]));
    b.of[0][i] = static_cast<uint8_t>(bits >> 16);
    b.of[1][i] = static_cast<uint8_t>(bits >> 24);
  }
  return b;
}
constexpr LevelBytes kLevelBytes = make_level_bytes();

struct V {
  using R = __m256;
  static constexpr uint32_t kWidth = 8;
  /// How many stored rows ahead of the one being decoded are prefetched; 0 = none. Measured: 2 and
  /// 4 come too late, 16 and 24 gain nothing more.
  static constexpr uint32_t kRowsAhead = 8;

  static R zero() { return _mm256_setzero_ps(); }
  static R set1(float x) { return _mm256_set1_ps(x); }
  static R load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, R v) { _mm256_storeu_ps(p, v); }
  static R load_n(const float* p, uint32_t n) { return _mm256_maskload_ps(p, mask(n)); }
  static void store_n(float* p, R v, uint32_t n) { _mm256_maskstore_ps(p, mask(n), v); }
  static R load_i8(const int8_t* p) {
    const __m128i b = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(b));
  }
  static void load_32_i8(const int8_t* p, R out[4]) {
    for (int i = 0; i < 4; ++i) out[i] = load_i8(p + 8 * i);
  }
  static R load_bf16(const uint16_t* p) {
    const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
  }
  /// W levels of q4 from element e on, of codes that begin at p; e: a multiple of W.
  static R load_levels(const uint8_t* p, uint64_t e) {
    int32_t word;
    __builtin_memcpy(&word, p + e / 2, sizeof word);
    const __m256i i =
        _mm256_srlv_epi32(_mm256_set1_epi32(word), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    const R low = _mm256_permutevar8x32_ps(_mm256_load_ps(kLevelFloats), i);
    const R high = _mm256_permutevar8x32_ps(_mm256_load_ps(kLevelFloats + 8), i);
    return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(i, 28)));
  }
  /// 32 levels of q4 in order, of the 16 bytes of codes at p. Levels are whole and small, so the
  /// upper 16 bits of their floats are all of them: two lookups of bytes give 32, which unpacking
  /// pairs, and a shift or a mask makes floats of either half of a pair. Codes are laid out so that
  /// they come in order: dword k of a lane holds elements k and k + 8, then those after them.
  static void load_32_levels(const uint8_t* p, R out[4]) {
    const __m256i spread = _mm256_setr_epi8(0, 4, 0, 4, 1, 5, 1, 5, 8, 12, 8, 12, 9, 13, 9, 13, 2,
                                            6, 2, 6, 3, 7, 3, 7, 10, 14, 10, 14, 11, 15, 11, 15);
    const __m256i pairs =
        _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m256i both = _mm256_shuffle_epi8(pairs, spread);
    const __m256i codes = _mm256_and_si256(
        _mm256_blend_epi16(both, _mm256_srli_epi32(both, 4), 0xAA), _mm256_set1_epi8(15));
    const __m256i low = _mm256_shuffle_epi8(level_bytes(0), codes);
    const __m256i high = _mm256_shuffle_epi8(level_bytes(1), codes);
    const __m256i halves[2] = {_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)};
    for (int i = 0; i < 2; ++i) {
      out[2 * i] = _mm256_castsi256_ps(_mm256_slli_epi32(halves[i], 16));
      out[2 * i + 1] = _mm256_castsi256_ps(
          _mm256_and_si256(halves[i], _mm256_set1_epi32(static_cast<int>(0xFFFF0000u))));
    }
  }
  static uint16_t half(float x) {
    return static_cast<uint16_t>(_mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(x), 0)));
  }
  static R set1_half(const uint16_t* p) {
    return _mm256_cvtph_ps(_mm_set1_epi16(static_cast<int16_t>(*p)));
  }
  static void halves(const uint16_t* p, uint32_t n, float* out) {
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
      store(out + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + i))));
    }
    for (; i < n; ++i) out[i] = _cvtsh_ss(p[i]);
  }

  static R add(R a, R b) { return _mm256_add_ps(a, b); }
  static R sub(R a, R b) { return _mm256_sub_ps(a, b); }
  static R mul(R a, R b) { return _mm256_mul_ps(a, b); }
  static R div(R a, R b) { return _mm256_div_ps(a, b); }
  static R fma(R a, R b, R c) { return _mm256_fmadd_ps(a, b, c); }
  static R fnma(R a, R b, R c) { return _mm256_fnmadd_ps(a, b, c); }
  static R max(R a, R b) { return _mm256_max_ps(a, b); }
  static R min(R a, R b) { return _mm256_min_ps(a, b); }
  static R abs(R a) { return _mm256_andnot_ps(set1(-0.0f), a); }
  static R copysign(R magnitude, R sign) {
    const R m = set1(-0.0f);
    return _mm256_or_ps(_mm256_andnot_ps(m, magnitude), _mm256_and_ps(m, sign));
  }
  static R select_lt(R a, R b, R yes, R no) {
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
  }
  static R round(R a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static R scale2(R a, R n) {
    const __m256i i = _mm256_cvtps_epi32(n);
    const __m256i low = _mm256_srai_epi32(i, 1);
    return mul(mul(a, pow2(low)), pow2(_mm256_sub_epi32(i, low)));
  }
  /// The additions of sum_each: lanes 4 apart, then 2, then 1.
  static float sum(R a) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }
  /// The Hadamard transform of the lanes, neighbours first.
  static R hadamard(R a) {
    R b = _mm256_permute_ps(a, 0xB1);
    a = _mm256_blend_ps(add(b, a), sub(b, a), 0xAA);
    b = _mm256_permute_ps(a, 0x4E);
    a = _mm256_blend_ps(add(b, a), sub(b, a), 0xCC);
    b = _mm256_permute2f128_ps(a, a, 0x01);
    return _mm256_blend_ps(add(b, a), sub(b, a), 0xF0);
  }
  static float max_of(R a) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
  }
  static float first(R a) { return _mm256_cvtss_f32(a); }
  static bool all_equal(R a, R b) {
    return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ)) == 0xFF;
  }
  /// Lane i of the result is the sum of v[i], every lane in the same order of additions.
  static R sum_each(R* v) { return fold_each(v, add); }
  static R max_each(R* v) { return fold_each(v, max); }

 private:
  template <class Op>
  static R fold_each(R* v, Op op) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      v[i] =
          op(_mm256_permute2f128_ps(v[i], v[i + 4], 0x21), _mm256_blend_ps(v[i], v[i + 4], 0xF0));
    }
#pragma GCC unroll 2
    for (int i = 0; i < 4; i += 2) {
      v[i] = op(_mm256_shuffle_ps(v[i], v[i + 1], 0x4E), _mm256_blend_ps(v[i], v[i + 1], 0xCC));
    }
    return op(_mm256_shuffle_ps(v[0], v[2], 0x88), _mm256_shuffle_ps(v[0], v[2], 0xDD));
  }
  static __m256i level_bytes(uint32_t i) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(kLevelBytes.of[i]));
  }
  static __m256i mask(uint32_t n) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kLaneMasks + 8 - n));
  }
  static R pow2(__m256i e) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(e, _mm256_set1_epi32(127)), 23));
  }
};

}  // namespace
}  // namespace sharpi::cpu
