// SPDX-License-Identifier: MIT
// Stored KV rows as bf16 operands for instructions that multiply pairs of bf16: keys in their
// order, values with the elements of two keys interleaved. Elements are rounded to one bf16; with
// kWide they are the sum of two, the rounded element and the rest, which is good to 2^-17 of the
// element.
// Included by one kernel file at a time, behind vec_avx512.h.
// Thread rule: pure functions with internal linkage.
#pragma once

#include "cpu/generic/attention_kernels.h"

namespace sharpi::cpu {
namespace {

constexpr uint32_t kDepth = 32;  // bf16 of a vector

inline __m512i to_bf16(V::R low, V::R high) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}

template <class Row>
[[gnu::always_inline]] inline __m512i bf16_vector(const Row& row, uint32_t i) {
  return to_bf16(row.vector(i), row.vector(i + V::kWidth));
}
template <>
[[gnu::always_inline]] inline __m512i bf16_vector(const StoredRow<KvDtype::kBf16>& row,
                                                  uint32_t i) {
  return _mm512_loadu_si512(row.p + i);
}
/// A row that was decoded to f32.
struct FloatRow {
  const float* p;
  V::R vector(uint32_t i) const { return V::load(p + i); }
};

/// 32 elements as the sum of two bf16 each.
struct TwoParts {
  __m512i head, rest;
};
/// Elements that are no infinity or NaN.
inline __mmask32 finite_of(__m512i bf16) {
  const __m512i exponent = _mm512_set1_epi16(0x7F80);
  return _mm512_cmpneq_epi16_mask(_mm512_and_si512(bf16, exponent), exponent);
}
[[gnu::always_inline]] inline V::R widen(__m256i bf16) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bf16), 16));
}
[[gnu::always_inline]] inline TwoParts two_parts(V::R low, V::R high) {
  const __m512i head = to_bf16(low, high);
  const V::R rest_low = V::sub(low, widen(_mm512_castsi512_si256(head)));
  const V::R rest_high = V::sub(high, widen(_mm512_extracti64x4_epi64(head, 1)));
  // Nothing is left over of an infinity, and a NaN need not be there twice.
  return {head, _mm512_maskz_mov_epi16(finite_of(head), to_bf16(rest_low, rest_high))};
}
template <class Row>
[[gnu::always_inline]] inline TwoParts two_parts_of(const Row& row, uint32_t i) {
  return two_parts(row.vector(i), row.vector(i + V::kWidth));
}

bool by_vectors(const TileRows& t) {
  return t.dim % kDepth == 0 && t.first % kDepth == 0;
}

/// A row of keys has kKeyParts parts of `padded` elements, values and weights have kValueParts.
template <bool kWide>
constexpr uint32_t kKeyParts = kWide ? 3 : 1;
template <bool kWide>
constexpr uint32_t kValueParts = kWide ? 2 : 1;

/// 32 elements of a key from i on. Where kWide a row is heads, heads, rests: its product with a
/// query of heads, rests, heads leaves out the rests' products alone. Infinities are not
/// multiplied with the query's rests, whose sign is not the query's.
template <bool kWide, class Row>
[[gnu::always_inline]] inline void put_key(const Row& row, uint32_t i, uint32_t padded,
                                           uint16_t* out) {
  if constexpr (kWide) {
    const TwoParts x = two_parts_of(row, i);
    _mm512_storeu_si512(out + i, x.head);
    _mm512_storeu_si512(out + padded + i, _mm512_maskz_mov_epi16(finite_of(x.head), x.head));
    _mm512_storeu_si512(out + 2 * padded + i, x.rest);
  } else {
    _mm512_storeu_si512(out + i, bf16_vector(row, i));
  }
}

/// Keys [from, to) to [to - from][kKeyParts * padded]. `row` is scratch for heads that are no
/// multiple of 32.
template <class Row, bool kWide>
void load_keys(const TileRows& t, uint32_t from, uint32_t to, uint32_t padded, float* row,
               uint16_t* out, Prefetcher& ahead) {
  const typename Row::Head head = Row::head(t);
  const bool vectors = by_vectors(t);
  for (uint32_t key = from; key < to; ++key, out += kKeyParts<kWide> * padded) {
    ahead();
    const Row source(head, t.rows[key]);
    if (vectors) {
      for (uint32_t i = 0; i < padded; i += kDepth) put_key<kWide>(source, i, padded, out);
      continue;
    }
    decode_row(t, source, padded, row);
    for (uint32_t i = 0; i < padded; i += kDepth) put_key<kWide>(FloatRow{row}, i, padded, out);
  }
}

/// Two keys' dims [i, i + 32) interleaved within 128-bit lanes: dword j of them is dim
/// column_of(j).
[[gnu::always_inline]] inline void store_pairs(uint32_t* out, __m512i a, __m512i b) {
  _mm512_storeu_si512(out, _mm512_unpacklo_epi16(a, b));
  _mm512_storeu_si512(out + V::kWidth, _mm512_unpackhi_epi16(a, b));
}

/// 32 elements of two keys' values from i on; the rests lie kTileKeys keys behind the heads.
template <bool kWide, class Row>
[[gnu::always_inline]] inline void put_values(const Row& a, const Row& b, uint32_t i,
                                              uint32_t padded, uint32_t* out) {
  if constexpr (kWide) {
    const TwoParts x = two_parts_of(a, i), y = two_parts_of(b, i);
    store_pairs(out + i, x.head, y.head);
    store_pairs(out + uint64_t{kTileKeys} / 2 * padded + i, x.rest, y.rest);
  } else {
    store_pairs(out + i, bf16_vector(a, i), bf16_vector(b, i));
  }
}

/// The slow way to a pair of keys, by rows in f32. Keys outside of [begin, end) become zeros: their
/// weights are 0, and what memory has there might be an infinity or a NaN.
template <class Row, bool kWide>
[[gnu::noinline]] void load_odd_pair(const TileRows& t, uint32_t key, uint32_t padded, float* rows,
                                     uint32_t* out) {
  for (uint32_t j = 0; j < 2; ++j) {
    float* row = rows + uint64_t{j} * padded;
    if (key + j >= t.begin && key + j < t.end) {
      decode_row(t, Row(Row::head(t), t.rows[key + j]), padded, row);
    } else {
      for (uint32_t i = 0; i < padded; ++i) row[i] = 0.0f;
    }
  }
  for (uint32_t i = 0; i < padded; i += kDepth) {
    put_values<kWide>(FloatRow{rows}, FloatRow{rows + padded}, i, padded, out);
  }
}

/// The 32-key halves of a tile that hold keys of [begin, end), to [kValueParts][32 pairs][padded].
template <class Row, bool kWide>
void load_values(const TileRows& t, uint32_t padded, float* rows, uint32_t* out,
                 Prefetcher& ahead) {
  const uint32_t first = t.begin / kDepth * kDepth, last = (t.end + kDepth - 1) / kDepth * kDepth;
  const typename Row::Head head = Row::head(t);
  const bool vectors = by_vectors(t);
  out += uint64_t{first} / 2 * padded;
  for (uint32_t key = first; key < last; key += 2, out += padded) {
    ahead();
    if (!vectors || key < t.begin || key + 1 >= t.end) {
      load_odd_pair<Row, kWide>(t, key, padded, rows, out);
      continue;
    }
    const Row a(head, t.rows[key]), b(head, t.rows[key + 1]);
    for (uint32_t i = 0; i < padded; i += kDepth) put_values<kWide>(a, b, i, padded, out);
  }
}

using KeyLoader = void (*)(const TileRows&, uint32_t from, uint32_t to, uint32_t padded, float* row,
                           uint16_t* out, Prefetcher&);
using ValueLoader = void (*)(const TileRows&, uint32_t padded, float* row, uint32_t* out,
                             Prefetcher&);
struct Loaders {
  KeyLoader keys = nullptr;
  ValueLoader values = nullptr;
};

template <bool kWide>
Loaders loaders_of(KvDtype dtype) {
  return visit_kv_codec(
      dtype,
      []<KvDtype kType>() {
        return Loaders{load_keys<StoredRow<kType>, kWide>, load_values<StoredRow<kType>, kWide>};
      },
      [] { return Loaders{}; });
}

}  // namespace
}  // namespace sharpi::cpu
