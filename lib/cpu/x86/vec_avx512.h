// SPDX-License-Identifier: MIT
// Sixteen-lane vectors (AVX-512 F/BW/DQ/VL) for the generic kernels. Included by one kernel file at
// a time, which is compiled with these instruction sets; everything has internal linkage.
// Thread rule: pure functions.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kv/levels.h"

namespace sharpi::cpu {
namespace {

alignas(64) constexpr float kLevelFloats[kQ4LevelCount] = {
    kQ4Levels[0],  kQ4Levels[1],  kQ4Levels[2],  kQ4Levels[3], kQ4Levels[4],  kQ4Levels[5],
    kQ4Levels[6],  kQ4Levels[7],  kQ4Levels[8],  kQ4Levels[9], kQ4Levels[10], kQ4Levels[11],
    kQ4Levels[12], kQ4Levels[13], kQ4Levels[14], kQ4Levels[15]};

struct V {
  using R = __m512;
  static constexpr uint32_t kWidth = 16;
  static constexpr uint32_t kRowsAhead = 0;  // see vec_avx2.h

  static R zero() { return _mm512_setzero_ps(); }
  static R set1(float x) { return _mm512_set1_ps(x); }
  static R load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, R v) { _mm512_storeu_ps(p, v); }
  static R load_n(const float* p, uint32_t n) { return _mm512_maskz_loadu_ps(mask(n), p); }
  static void store_n(float* p, R v, uint32_t n) { _mm512_mask_storeu_ps(p, mask(n), v); }
  static R load_i8(const int8_t* p) {
    const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(b));
  }
  static R load_bf16(const uint16_t* p) {
    const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
  }
  /// W levels of q4 from element e on, of codes that begin at p; e: a multiple of W.
  static R load_levels(const uint8_t* p, uint64_t e) {
    const __m128i b = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + e / 2));
    const __m512i words =
        _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1),
                                 _mm512_castsi128_si512(b));
    const __m512i codes = _mm512_srlv_epi32(
        words, _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28));
    return _mm512_permutexvar_ps(codes, _mm512_load_ps(kLevelFloats));
  }
  /// 32 levels of q4, codes from p on, times a block's scale: the table is multiplied, once. A code
  /// is the lower four bits of a lane, which are all that a permutation looks at.
  static void load_32_scaled_levels(const uint8_t* p, R scale, R* out) {
    const R table = mul(scale, _mm512_load_ps(kLevelFloats));
    const __m512i shifts =
        _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    int words[4];
    __builtin_memcpy(words, p, sizeof words);
    for (uint32_t j = 0; j < 2; ++j) {
      const __m512i eight = _mm512_set1_epi32(words[2 * j]);
      const __m512i both = _mm512_mask_set1_epi32(eight, 0xFF00, words[2 * j + 1]);
      out[j] = _mm512_permutexvar_ps(_mm512_srlv_epi32(both, shifts), table);
    }
  }
  static uint16_t half(float x) {
    return static_cast<uint16_t>(_mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(x), 0)));
  }
  /// Writes whole vectors (a masked store would not forward to the loads that follow).
  static void halves(const uint16_t* p, uint32_t n, float* out) {
    for (uint32_t i = 0; i < n; i += 16) {
      const __mmask16 m = mask(n - i < 16 ? n - i : 16);
      store(out + i, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(m, p + i)));
    }
  }

  static R add(R a, R b) { return _mm512_add_ps(a, b); }
  static R sub(R a, R b) { return _mm512_sub_ps(a, b); }
  static R mul(R a, R b) { return _mm512_mul_ps(a, b); }
  static R div(R a, R b) { return _mm512_div_ps(a, b); }
  static R fma(R a, R b, R c) { return _mm512_fmadd_ps(a, b, c); }
  static R fnma(R a, R b, R c) { return _mm512_fnmadd_ps(a, b, c); }
  static R max(R a, R b) { return _mm512_max_ps(a, b); }
  static R min(R a, R b) { return _mm512_min_ps(a, b); }
  static R abs(R a) { return _mm512_abs_ps(a); }
  static R copysign(R magnitude, R sign) {
    const R m = set1(-0.0f);
    return _mm512_or_ps(_mm512_andnot_ps(m, magnitude), _mm512_and_ps(m, sign));
  }
  static R select_lt(R a, R b, R yes, R no) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
  }
  static R round(R a) {
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static R scale2(R a, R n) { return _mm512_scalef_ps(a, n); }
  /// The additions of sum_each: lanes 8 apart, then 4, 2, 1.
  static float sum(R a) {
    const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }
  /// The Hadamard transform of the lanes, neighbours first.
  static R hadamard(R a) {
    R b = _mm512_permute_ps(a, 0xB1);
    a = _mm512_mask_sub_ps(add(b, a), 0xAAAA, b, a);
    b = _mm512_permute_ps(a, 0x4E);
    a = _mm512_mask_sub_ps(add(b, a), 0xCCCC, b, a);
    b = _mm512_shuffle_f32x4(a, a, 0xB1);
    a = _mm512_mask_sub_ps(add(b, a), 0xF0F0, b, a);
    b = _mm512_shuffle_f32x4(a, a, 0x4E);
    return _mm512_mask_sub_ps(add(b, a), 0xFF00, b, a);
  }
  static float max_of(R a) {
    const __m256 h = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
  }
  static float first(R a) { return _mm512_cvtss_f32(a); }
  static bool all_equal(R a, R b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ) == 0xFFFF; }
  /// Lane i of the result is the sum of v[i], every lane in the same order of additions.
  static R sum_each(R* v) { return fold_each(v, add); }
  static R max_each(R* v) { return fold_each(v, max); }

 private:
  // One shuffle and one blend per step: shuffles have a single port.
  template <class Op>
  static R fold_each(R* v, Op op) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      v[i] = op(_mm512_shuffle_f32x4(v[i], v[i + 8], 0x4E),
                _mm512_mask_blend_ps(0xFF00, v[i], v[i + 8]));
    }
    const __m512i cross = _mm512_setr_epi64(2, 3, 8, 9, 6, 7, 12, 13);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m512d moved =
          _mm512_permutex2var_pd(_mm512_castps_pd(v[i]), cross, _mm512_castps_pd(v[i + 4]));
      v[i] = op(_mm512_castpd_ps(moved), _mm512_mask_blend_ps(0xF0F0, v[i], v[i + 4]));
    }
#pragma GCC unroll 2
    for (int i = 0; i < 4; i += 2) {
      v[i] =
          op(_mm512_shuffle_ps(v[i], v[i + 1], 0x4E), _mm512_mask_blend_ps(0xCCCC, v[i], v[i + 1]));
    }
    return op(_mm512_shuffle_ps(v[0], v[2], 0x88), _mm512_shuffle_ps(v[0], v[2], 0xDD));
  }
  static __mmask16 mask(uint32_t n) {
    return static_cast<__mmask16>((1u << n) - 1u);
  }
};

}  // namespace
}  // namespace sharpi::cpu
