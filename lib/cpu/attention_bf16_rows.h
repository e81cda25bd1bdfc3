// SPDX-License-Identifier: MIT
// Stored rows as bf16 for kernels that multiply pairs of it: keys as they are, values with two
// keys' elements beside each other. Included by one kernel file at a time, behind vec_avx512.h.
// Thread rule: pure functions with internal linkage.
#pragma once

#include "cpu/attention_kernels.h"

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
[[gnu::always_inline]] inline __m512i bf16_floats(const float* row, uint32_t i) {
  return to_bf16(V::load(row + i), V::load(row + i + V::kWidth));
}

bool by_vectors(const TileRows& t) {
  return t.dim % kDepth == 0 && t.first % kDepth == 0;
}

/// Keys [from, to) to [to - from][padded]. `row` is scratch for heads that are no multiple of 32.
template <class Row>
void load_keys(const TileRows& t, uint32_t from, uint32_t to, uint32_t padded, float* row,
               uint16_t* out, Prefetcher& ahead) {
  const typename Row::Head head = Row::head(t);
  const bool vectors = by_vectors(t);
  for (uint32_t key = from; key < to; ++key, out += padded) {
    ahead();
    const Row source(head, t.rows[key]);
    if (vectors) {
      for (uint32_t i = 0; i < padded; i += kDepth)
        _mm512_storeu_si512(out + i, bf16_vector(source, i));
      continue;
    }
    decode_row(t, source, padded, row);
    for (uint32_t i = 0; i < padded; i += kDepth) _mm512_storeu_si512(out + i, bf16_floats(row, i));
  }
}

/// Two keys' dims [i, i + 32) interleaved within 128-bit lanes: dword j of them is dim
/// column_of(j).
[[gnu::always_inline]] inline void store_pairs(uint32_t* out, __m512i a, __m512i b) {
  _mm512_storeu_si512(out, _mm512_unpacklo_epi16(a, b));
  _mm512_storeu_si512(out + V::kWidth, _mm512_unpackhi_epi16(a, b));
}

/// The slow way to a pair of keys: by f32 rows, zeros for keys outside [begin, end). Their weights
/// are 0, and 0 times anything must be nothing.
template <class Row>
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
  const float* other = rows + padded;
  for (uint32_t i = 0; i < padded; i += kDepth) {
    store_pairs(out + i, bf16_floats(rows, i), bf16_floats(other, i));
  }
}

/// The 32-key halves of a tile that hold keys of [begin, end), to [32 pairs][padded].
template <class Row>
void load_values(const TileRows& t, uint32_t padded, float* rows, uint32_t* out,
                 Prefetcher& ahead) {
  const uint32_t first = t.begin / kDepth * kDepth, last = (t.end + kDepth - 1) / kDepth * kDepth;
  const typename Row::Head head = Row::head(t);
  const bool vectors = by_vectors(t);
  out += uint64_t{first} / 2 * padded;
  for (uint32_t key = first; key < last; key += 2, out += padded) {
    ahead();
    if (!vectors || key < t.begin || key + 1 >= t.end) {
      load_odd_pair<Row>(t, key, padded, rows, out);
      continue;
    }
    const Row a(head, t.rows[key]), b(head, t.rows[key + 1]);
    for (uint32_t i = 0; i < padded; i += kDepth) {
      store_pairs(out + i, bf16_vector(a, i), bf16_vector(b, i));
    }
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

Loaders loaders_of(KvDtype dtype) {
  return visit_kv_codec(
      dtype,
      []<KvDtype kType>() {
        return Loaders{load_keys<StoredRow<kType>>, load_values<StoredRow<kType>>};
      },
      [] { return Loaders{}; });
}

}  // namespace
}  // namespace sharpi::cpu
