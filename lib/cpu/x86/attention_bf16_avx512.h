// SPDX-License-Identifier: MIT
// Attention of a block of query vectors with one tile of keys, rounded to bf16, with f32 sums:
//   S^T[16 keys][16 vectors] += K[16][32 d] Q^T[16 d pairs][16][2]    bf16 K is read in place
//   O[16 vectors][16 d]      += P[16][32 keys] V[16 key pairs][16][2]
// Q, K, V and the weights P are rounded once; the softmax is f32, lanes are query vectors. With
// kWide each element is the sum of two bf16 numbers, high and low; of the four products all but low
// * low are computed: three times the products, and an error of 2^-16 of an element. The file that
// includes this one provides the class Products, which multiplies by AMX tiles or by dot products
// of pairs:
//   static constexpr bool kWeightsByVector   P is [16 vectors][16 key pairs], otherwise transposed
//   Products(n_vectors)                      the state that it needs while it multiplies
//   scores(k, k_pitch, q, groups, padded, scores)
//   weigh(tile, v0, weights, values)
// Bound: decode by memory, with q8_0 by the conversion of rows; prefill by exponentials and
// products.
// Thread rule: pure functions with internal linkage.
#pragma once

#include "cpu/carver.h"
#include "cpu/x86/attention_bf16_rows_avx512.h"
#include "cpu/x86/attention_bf16_softmax_avx512.h"
#include "cpu/x86/transpose_avx512.h"

namespace sharpi::cpu {
namespace {

constexpr uint32_t kPiece = 16;  // keys

constexpr uint32_t groups_of(uint32_t n_vectors) {
  return (n_vectors + kGroup - 1) / kGroup;
}

template <bool kWide>
uint64_t bf16_q_bytes(uint32_t n, uint32_t padded) {
  return uint64_t{groups_of(n)} * kGroup * kKeyParts<kWide> * padded * sizeof(uint16_t);
}

/// One thread's memory of a tile.
struct Buffers {
  float* scores;       // [group][64 keys][16 vectors]
  std::byte* weights;  // [group][parts][two tiles of 16 vectors x 32 keys]
  uint16_t* k;         // [16 keys][parts][padded]
  uint32_t* v;         // [parts][32 key pairs][padded]
  float* row;          // [2][padded], for heads that are no multiple of 32
};
constexpr uint64_t kScoreFloats = uint64_t{kTileKeys} * kGroup;
template <bool kWide>
constexpr uint64_t kWeightBytes = uint64_t{kValueParts<kWide>} * 2 * kTileBytes;

template <bool kWide>
Buffers take_buffers(Carver& c, uint32_t n_vectors, uint32_t padded) {
  const uint64_t groups = groups_of(n_vectors);
  Buffers b{};
  b.scores = c.take<float>(groups * kScoreFloats);
  b.weights = c.take<std::byte>(groups * kWeightBytes<kWide>);
  b.k = c.take<uint16_t>(uint64_t{kPiece} * kKeyParts<kWide> * padded);
  b.v = c.take<uint32_t>(uint64_t{kValueParts<kWide>} * kTileKeys / 2 * padded);
  b.row = c.take<float>(uint64_t{2} * padded);
  return b;
}

template <bool kWide>
uint64_t bf16_work_bytes(uint32_t n, uint32_t padded) {
  Carver c(nullptr);
  take_buffers<kWide>(c, n, padded);
  return c.used();
}

/// Elements [d0, d0 + 32) of 16 vectors: rounded to bf16, or what the rounding left over.
inline void query_rows(const float* const* vectors, uint32_t n, uint32_t d0, uint32_t dim, V::R f,
                       bool rests, __m512i* rows) {
  for (uint32_t i = 0; i < kGroup; ++i) {
    V::R half[2] = {V::zero(), V::zero()};
    for (uint32_t h = 0; h < 2; ++h) {
      const uint32_t at = d0 + h * V::kWidth;
      if (i >= n || at >= dim) continue;
      const uint32_t left = dim - at < V::kWidth ? dim - at : V::kWidth;
      half[h] = V::mul(V::load_n(vectors[i] + at, left), f);
    }
    rows[i] = rests ? two_parts(half[0], half[1]).rest : to_bf16(half[0], half[1]);
  }
}

/// Right operands: per group and 32 dims, 16 rows of dim pairs with one dword per vector. Where
/// kWide heads, rests and heads follow each other: see put_key.
template <bool kWide>
void bf16_prepare_q(const float* const* vectors, uint32_t n, uint32_t dim, uint32_t padded,
                    float scale, std::byte* q) {
  const V::R f = V::set1(scale);
  for (uint32_t v0 = 0; v0 < n; v0 += kGroup) {
    for (uint32_t part = 0; part < kKeyParts<kWide>; ++part) {
      for (uint32_t d0 = 0; d0 < padded; d0 += kDepth, q += kTileBytes) {
        __m512i rows[kGroup];
        query_rows(vectors + v0, n - v0, d0, dim, f, part == 1, rows);
        transpose(rows);
        for (uint32_t i = 0; i < kGroup; ++i) _mm512_store_si512(q + i * 64, rows[i]);
      }
    }
  }
}

/// Whether a piece of keys is multiplied where it lies.
bool in_place(const AttentionTile& a, uint32_t n_keys) {
  return a.k.dtype == KvDtype::kBf16 && a.k.pitch != 0 && n_keys == kPiece && a.k.dim == a.padded;
}

template <class Products, bool kWide>
inline void all_scores(const AttentionTile& a, const Buffers& b, Prefetcher& ahead) {
  const uint32_t groups = groups_of(a.n_vectors), depth = kKeyParts<kWide> * a.padded;
  const uint64_t q_group = uint64_t{kGroup} * depth * sizeof(uint16_t);
  const KeyLoader load = loaders_of<kWide>(a.k.dtype).keys;
  for (uint32_t key = a.k.begin / kPiece * kPiece; key < a.k.end; key += kPiece) {
    const uint32_t from = key > a.k.begin ? key : a.k.begin;
    const uint32_t to = key + kPiece < a.k.end ? key + kPiece : a.k.end;
    const std::byte* rows = reinterpret_cast<const std::byte*>(b.k);
    uint64_t pitch = depth * sizeof(uint16_t);
    if (!kWide && in_place(a, to - from)) {
      rows = a.k.rows[key] + a.k.first * sizeof(uint16_t);
      pitch = a.k.pitch;
      for (uint32_t i = 0; i < kPiece; ++i) ahead();
    } else {
      load(a.k, from, to, a.padded, b.row, b.k + uint64_t{from - key} * depth, ahead);
    }
    for (uint32_t g = 0; g < groups; g += 4) {
      Products::scores(rows, pitch, a.q + g * q_group, groups - g, depth,
                       b.scores + g * kScoreFloats + uint64_t{key} * kGroup);
    }
  }
}

/// A key that a vector does not see has weight 0 for it, and 0 times an infinity or a NaN among its
/// values would be NaN. Where that may happen, such values are taken out of the tile and added, one
/// by one, to those vectors that do see them.
void lift_non_finite(const AttentionTile& a, const Buffers& b) {
  const __m512i exponent = _mm512_set1_epi16(0x7F80);
  const auto lift = [&](uint32_t key, uint32_t j, uint16_t* at) {
    const uint32_t bits = uint32_t{*at} << 16;
    float x;
    __builtin_memcpy(&x, &bits, sizeof x);
    *at = 0;
    for (uint32_t i = 0; i < a.n_vectors; ++i) {
      if (key >= a.lo[i] && key < a.hi[i]) a.state.o[uint64_t{i} * a.padded + j] += x;
    }
  };
  for (uint32_t key = a.v.begin / 2 * 2; key < a.v.end; key += 2) {
    uint32_t* row = b.v + uint64_t{key} / 2 * a.padded;
    for (uint32_t j = 0; j < a.padded; j += V::kWidth) {
      const __m512i x = _mm512_and_si512(_mm512_loadu_si512(row + j), exponent);
      uint32_t found = _mm512_cmpeq_epi16_mask(x, exponent);
      for (; found != 0; found &= found - 1) {
        const auto half = static_cast<uint32_t>(__builtin_ctz(found));
        lift(key + half % 2, j + half / 2, reinterpret_cast<uint16_t*>(row + j) + half);
      }
    }
  }
}

bool all_see_all(const AttentionTile& a) {
  for (uint32_t i = 0; i < a.n_vectors; ++i) {
    if (a.lo[i] > a.v.begin || a.hi[i] < a.v.end) return false;
  }
  return true;
}

/// O of a group += its weights times the values.
template <class Products, bool kWide>
inline void weigh_group(const AttentionTile& a, const Buffers& b, uint32_t g) {
  const std::byte* weights = b.weights + g * kWeightBytes<kWide>;
  Products::weigh(a, g * kGroup, weights, b.v);
  if constexpr (kWide) {
    Products::weigh(a, g * kGroup, weights, b.v + uint64_t{kTileKeys} / 2 * a.padded);
    Products::weigh(a, g * kGroup, weights + 2 * kTileBytes, b.v);
  }
}

template <class Products, bool kWide>
void bf16_tile(const AttentionTile& a) {
  Products::begin(a.n_vectors);
  Carver c(a.work);
  const Buffers b = take_buffers<kWide>(c, a.n_vectors, a.padded);
  Prefetcher ahead_k(a.ahead_k, kTileKeys), ahead_v(a.ahead_v, kTileKeys / 2);
  const uint32_t groups = groups_of(a.n_vectors);

  all_scores<Products, kWide>(a, b, ahead_k);
  for (uint32_t g = 0; g < groups; ++g) {
    group_softmax<Products::kWeightsByVector, kWide>(a, g * kGroup, b.scores + g * kScoreFloats,
                                                     b.weights + g * kWeightBytes<kWide>);
  }
  loaders_of<kWide>(a.v.dtype).values(a.v, a.padded, b.row, b.v, ahead_v);
  // The rests of weights have either sign, and must not meet an infinity.
  if (kWide || !all_see_all(a)) lift_non_finite(a, b);
  for (uint32_t g = 0; g < groups; ++g) weigh_group<Products, kWide>(a, b, g);
  Products::end();
}

/// The dim that element j of a stored state belongs to: see load_values.
constexpr uint32_t column_of(uint32_t j) {
  const uint32_t in = j % kDepth, half = in / V::kWidth, lane = in % V::kWidth / 4;
  return j - in + lane * 8 + half * 4 + in % 4;
}

void bf16_finish(const float* o, float l, uint32_t dim, float* out) {
  const float f = 1.0f / l;
  const uint32_t padded = (dim + kDepth - 1) / kDepth * kDepth;
  for (uint32_t j = 0; j < padded; ++j) {
    const uint32_t d = column_of(j);
    // A sum of nothing but zero products is +0 or -0 by the tile's other keys; it is given as +0.
    if (d < dim) out[d] = o[j] * f + 0.0f;
  }
}

template <class Products, bool kWide>
constexpr AttentionTable make_bf16_table() {
  return {.pad_to = kDepth,
          .max_vectors = 64,
          .has_codec = has_codec,
          .q_bytes = bf16_q_bytes<kWide>,
          .work_bytes = bf16_work_bytes<kWide>,
          .prepare_q = bf16_prepare_q<kWide>,
          .add_tile = bf16_tile<Products, kWide>,
          .merge = merge,
          .finish = bf16_finish};
}

}  // namespace
}  // namespace sharpi::cpu
