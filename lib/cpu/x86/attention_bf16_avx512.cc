// SPDX-License-Identifier: MIT
// attention_bf16.h with the dot products of pairs of AVX-512 BF16: for chunks, whose many rows
// share what a tile of keys costs to convert.
#include "cpu/x86/vec_avx512.h"
// The vectors come first: the kernels are written over them.
#include "cpu/x86/attention_bf16_avx512.h"
#include "cpu/x86/kernel_tables.h"

namespace sharpi::cpu {
namespace {

inline V::R dot_pairs(V::R sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}
/// A pair of bf16 in every lane.
inline __m512i every_pair(const std::byte* p) {
  int32_t pair;
  __builtin_memcpy(&pair, p, sizeof pair);
  return _mm512_set1_epi32(pair);
}

/// S^T of 16 keys with kGroups groups, as many keys at once as there are sums for.
template <uint32_t kGroups>
inline void score_keys(const std::byte* k, uint64_t k_pitch, const std::byte* q, uint32_t padded,
                       float* scores) {
  constexpr uint32_t kKeys = kGroups == 1 ? 16 : kGroups == 2 ? 8 : 4;
  const uint64_t q_group = uint64_t{kGroup} * padded * sizeof(uint16_t);
  for (uint32_t key = 0; key < kPiece; key += kKeys) {
    const std::byte* at = k + key * k_pitch;
    V::R sum[kKeys][kGroups];
#pragma GCC unroll 16
    for (uint32_t i = 0; i < kKeys; ++i) {
#pragma GCC unroll 4
      for (uint32_t g = 0; g < kGroups; ++g) sum[i][g] = V::zero();
    }
    for (uint32_t pair = 0; pair < padded / 2; ++pair) {
      __m512i queries[kGroups];
#pragma GCC unroll 4
      for (uint32_t g = 0; g < kGroups; ++g)
        queries[g] = _mm512_load_si512(q + g * q_group + uint64_t{pair} * 64);
#pragma GCC unroll 16
      for (uint32_t i = 0; i < kKeys; ++i) {
        const __m512i keys = every_pair(at + i * k_pitch + pair * sizeof(uint32_t));
#pragma GCC unroll 4
        for (uint32_t g = 0; g < kGroups; ++g) sum[i][g] = dot_pairs(sum[i][g], queries[g], keys);
      }
    }
#pragma GCC unroll 16
    for (uint32_t i = 0; i < kKeys; ++i) {
#pragma GCC unroll 4
      for (uint32_t g = 0; g < kGroups; ++g)
        V::store(scores + g * kScoreFloats + (key + i) * kGroup, sum[i][g]);
    }
  }
}

/// O of kVectors vectors in kColumns vectors of columns, over the pairs of keys [first, last).
template <uint32_t kVectors, uint32_t kColumns>
inline void weigh_block(const std::byte* weights, const uint32_t* v, uint32_t padded,
                        uint32_t first, uint32_t last, float* o) {
  V::R sum[kVectors][kColumns];
#pragma GCC unroll 4
  for (uint32_t i = 0; i < kVectors; ++i) {
#pragma GCC unroll 4
    for (uint32_t c = 0; c < kColumns; ++c) sum[i][c] = V::load(o + i * padded + c * V::kWidth);
  }
  for (uint32_t pair = first; pair < last; ++pair) {
    __m512i values[kColumns];
#pragma GCC unroll 4
    for (uint32_t c = 0; c < kColumns; ++c)
      values[c] = _mm512_loadu_si512(v + uint64_t{pair} * padded + c * V::kWidth);
#pragma GCC unroll 4
    for (uint32_t i = 0; i < kVectors; ++i) {
      const __m512i weight = every_pair(weights + uint64_t{pair} * 64 + i * sizeof(uint32_t));
#pragma GCC unroll 4
      for (uint32_t c = 0; c < kColumns; ++c) sum[i][c] = dot_pairs(sum[i][c], values[c], weight);
    }
  }
#pragma GCC unroll 4
  for (uint32_t i = 0; i < kVectors; ++i) {
#pragma GCC unroll 4
    for (uint32_t c = 0; c < kColumns; ++c) V::store(o + i * padded + c * V::kWidth, sum[i][c]);
  }
}

template <uint32_t kVectors>
inline void weigh_vectors(const AttentionTile& a, const std::byte* weights, const uint32_t* v,
                          float* o) {
  const uint32_t first = a.v.begin / 2, last = (a.v.end + 1) / 2;
  uint32_t d = 0;
  for (; d + 4 * V::kWidth <= a.padded; d += 4 * V::kWidth)
    weigh_block<kVectors, 4>(weights, v + d, a.padded, first, last, o + d);
  for (; d < a.padded; d += 2 * V::kWidth)
    weigh_block<kVectors, 2>(weights, v + d, a.padded, first, last, o + d);
}

struct PairDots {
  static constexpr bool kWeightsByVector = false;

  static void begin(uint32_t) {}
  static void end() {}

  static void scores(const std::byte* k, uint64_t k_pitch, const std::byte* q, uint32_t groups,
                     uint32_t padded, float* scores) {
    if (groups == 1) return score_keys<1>(k, k_pitch, q, padded, scores);
    if (groups == 2) return score_keys<2>(k, k_pitch, q, padded, scores);
    if (groups == 3) return score_keys<3>(k, k_pitch, q, padded, scores);
    score_keys<4>(k, k_pitch, q, padded, scores);
  }

  /// The halves of the weights lie behind each other, pair after pair.
  static void weigh(const AttentionTile& a, uint32_t v0, const std::byte* weights,
                    const uint32_t* v) {
    const uint32_t n = a.n_vectors - v0 < kGroup ? a.n_vectors - v0 : kGroup;
    float* o = a.state.o + uint64_t{v0} * a.padded;
    const auto of = [&](uint32_t i) { return weights + i * sizeof(uint32_t); };
    const auto to = [&](uint32_t i) { return o + uint64_t{i} * a.padded; };
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4) weigh_vectors<4>(a, of(i), v, to(i));
    for (; i + 2 <= n; i += 2) weigh_vectors<2>(a, of(i), v, to(i));
    for (; i < n; ++i) weigh_vectors<1>(a, of(i), v, to(i));
  }
};

}  // namespace

const AttentionTable kAttentionBf16Avx512 = make_bf16_table<PairDots, false>();

}  // namespace sharpi::cpu
