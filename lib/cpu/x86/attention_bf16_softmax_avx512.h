// SPDX-License-Identifier: MIT
// Scores of sixteen query vectors with a tile of keys to weights in bf16; lanes are query vectors.
// Included by one kernel file at a time, behind vec_avx512.h.
// Thread rule: pure functions with internal linkage.
#pragma once

#include "cpu/x86/attention_bf16_rows_avx512.h"
#include "cpu/x86/exp2_avx512.h"
#include "cpu/x86/transpose_avx512.h"

namespace sharpi::cpu {
namespace {

constexpr uint32_t kGroup = 16;        // query vectors that are multiplied together
constexpr uint32_t kTileBytes = 1024;  // of their weights of 32 keys

/// Which of 16 vectors see key t.
struct Visible {
  __m512i lo, hi;
  bool all;
  Visible(const AttentionTile& a, uint32_t v0, uint32_t n) {
    const auto lanes = static_cast<__mmask16>((1u << n) - 1u);
    lo = _mm512_maskz_loadu_epi32(lanes, a.lo + v0);
    hi = _mm512_maskz_loadu_epi32(lanes, a.hi + v0);
    const auto whole = _mm512_mask_cmpeq_epi32_mask(
        _mm512_cmpeq_epi32_mask(lo, _mm512_setzero_si512()), hi, _mm512_set1_epi32(kTileKeys));
    all = (whole & lanes) == lanes;
  }
  __mmask16 at(uint32_t t) const {
    const __m512i key = _mm512_set1_epi32(static_cast<int>(t));
    return _mm512_mask_cmpgt_epi32_mask(_mm512_cmple_epi32_mask(lo, key), hi, key);
  }
};

/// Adds pairs of weights, as rounded, to the sums of their keys.
[[gnu::always_inline]] inline void add_weights(__m512i pairs, V::R* first, V::R* second) {
  const __m512i high = _mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u)));
  *first = V::add(*first, _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)));
  *second = V::add(*second, _mm512_castsi512_ps(high));
}

constexpr float kLog2E = 1.44269504f;

/// The weights of 32 keys: 2^(score * log2(e) + shift2).
template <bool kByVector, bool kWide>
[[gnu::always_inline]] inline void weigh_half(const float* scores, V::R shift2, V::R* sums,
                                              std::byte* weights) {
  const V::R log2e = V::set1(kLog2E);
  const __m512i to_pairs =
      _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                       21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  __m512i pairs[kGroup], rests[kGroup];
#pragma GCC unroll 2
  for (uint32_t i = 0; i < kGroup; ++i) {
    const float* s = scores + 2 * i * kGroup;
    const V::R p0 = exp2_for_weights(V::fma(V::load(s), log2e, shift2));
    const V::R p1 = exp2_for_weights(V::fma(V::load(s + kGroup), log2e, shift2));
    const uint32_t j = i % 2 * 2;
    if constexpr (kWide) {
      const TwoParts p = two_parts(p0, p1);
      pairs[i] = _mm512_permutexvar_epi16(to_pairs, p.head);
      rests[i] = _mm512_permutexvar_epi16(to_pairs, p.rest);
      add_weights(rests[i], &sums[j], &sums[j + 1]);
    } else {
      pairs[i] = _mm512_permutexvar_epi16(to_pairs, to_bf16(p0, p1));
    }
    add_weights(pairs[i], &sums[j], &sums[j + 1]);
  }
  if constexpr (kByVector) transpose(pairs);
  for (uint32_t i = 0; i < kGroup; ++i) _mm512_store_si512(weights + i * 64, pairs[i]);
  if constexpr (kWide) {
    if constexpr (kByVector) transpose(rests);
    std::byte* behind = weights + 2 * kTileBytes;
    for (uint32_t i = 0; i < kGroup; ++i) _mm512_store_si512(behind + i * 64, rests[i]);
  }
}

/// Scores of a group to weights in bf16, twice 32 keys: pairs of keys for 16 vectors, or the other
/// way round. The rounded weights are added to four sums, one after the other in each. Scores of
/// keys that no vector sees were not computed and are not read. Where kWide, the parts that
/// rounding left over follow the weights.
template <bool kByVector, bool kWide>
inline void group_softmax(const AttentionTile& a, uint32_t v0, float* scores, std::byte* weights) {
  const uint32_t n = a.n_vectors - v0 < kGroup ? a.n_vectors - v0 : kGroup;
  const Visible visible(a, v0, n);
  const V::R masked = V::set1(-__builtin_inff());
  V::R top[4] = {masked, masked, masked, masked};
  if (!visible.all) {
    for (uint32_t t = 0; t < kTileKeys; ++t) {
      float* s = scores + t * kGroup;
      V::store(s, _mm512_mask_blend_ps(visible.at(t), masked, V::load(s)));
    }
  }
  for (uint32_t t = 0; t < kTileKeys; t += 4) {
#pragma GCC unroll 4
    for (uint32_t j = 0; j < 4; ++j) top[j] = V::max(top[j], V::load(scores + (t + j) * kGroup));
  }
  const V::R old_m = load_first(a.state.m + v0, n);
  const V::R new_m = V::max(old_m, V::max(V::max(top[0], top[1]), V::max(top[2], top[3])));
  const V::R shift = V::max(new_m, V::set1(-1.0e38f));  // finite, also times log2(e)
  const V::R keep = vexp(V::sub(old_m, shift));

  // The largest score may come out at 2^+-1e-5: it is within the rounding of the weights.
  const V::R shift2 = V::sub(V::zero(), V::mul(shift, V::set1(kLog2E)));
  V::R sums[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
  for (uint32_t half = 0; half < 2; ++half) {
    weigh_half<kByVector, kWide>(scores + half * kDepth * kGroup, shift2, sums,
                                 weights + half * kTileBytes);
  }
  const V::R sum = V::add(V::add(sums[0], sums[1]), V::add(sums[2], sums[3]));
  store_first(a.state.l + v0, V::fma(load_first(a.state.l + v0, n), keep, sum), n);
  store_first(a.state.m + v0, new_m, n);
  if (V::all_equal(old_m, new_m)) return;
  alignas(64) float keeps[kGroup];
  V::store(keeps, keep);
  for (uint32_t i = 0; i < n; ++i) {
    if (keeps[i] != 1.0f) scale_row(a.state.o + uint64_t{v0 + i} * a.padded, keeps[i], a.padded);
  }
}

}  // namespace
}  // namespace sharpi::cpu
