// SPDX-License-Identifier: MIT
// How each KV codec's stored rows are read by the attention kernels, over the vectors V: elements
// as f32, W at a time. cpu/attention_kernels.h is written over these. Thread rule: pure functions
// with internal linkage.
#pragma once

#include <cstdint>

#include "cpu/attention_table.h"
#include "cpu/vec_math.h"
#include "kv/codec_traits.h"
#include "kv/levels.h"

namespace sharpi::cpu {
namespace {

constexpr uint32_t kQ8Block = 32;
static_assert(kQ8Block % V::kWidth == 0);

/// A head's part of a stored row of a codec: W elements from i on (`dim`, `first` and i multiples
/// of W, so that no vector reads past a row or over a block) or one. `Head` is what the rows of a
/// tile have in common.
template <KvDtype kType>
struct StoredRow;

template <>
struct StoredRow<KvDtype::kF32> {
  using Head = uint64_t;
  static Head head(const TileRows& t) { return t.first; }
  const float* p;
  StoredRow(Head first, const std::byte* row) : p(reinterpret_cast<const float*>(row) + first) {}
  V::R vector(uint32_t i) const { return V::load(p + i); }
  float element(uint32_t i) const { return p[i]; }
};

template <>
struct StoredRow<KvDtype::kBf16> {
  using Head = uint64_t;
  static Head head(const TileRows& t) { return t.first; }
  const uint16_t* p;
  StoredRow(Head first, const std::byte* row) : p(reinterpret_cast<const uint16_t*>(row) + first) {}
  V::R vector(uint32_t i) const { return V::load_bf16(p + i); }
  float element(uint32_t i) const {
    const uint32_t bits = uint32_t{p[i]} << 16;
    float f;
    __builtin_memcpy(&f, &bits, sizeof f);
    return f;
  }
};

template <>
struct StoredRow<KvDtype::kQ8_0> {
  struct Head {
    uint64_t first, scales;   // offsets in the row
    uint32_t n_scales, skip;  // elements of the first block that belong to the head before
  };
  static Head head(const TileRows& t) {
    const auto skip = static_cast<uint32_t>(t.first % kQ8Block);
    return {t.first, t.row_elems + t.first / kQ8Block * sizeof(uint16_t),
            (skip + t.dim - 1) / kQ8Block + 1, skip};
  }
  const int8_t* q;
  uint32_t skip;
  alignas(64) float scales[kMaxHeadDim / kQ8Block + 16];
  StoredRow(const Head& h, const std::byte* row)
      : q(reinterpret_cast<const int8_t*>(row) + h.first), skip(h.skip) {
    V::halves(reinterpret_cast<const uint16_t*>(row + h.scales), h.n_scales, scales);
  }
  float scale(uint32_t i) const { return scales[(skip + i) / kQ8Block]; }
  V::R vector(uint32_t i) const { return V::mul(V::set1(scale(i)), V::load_i8(q + i)); }
  float element(uint32_t i) const { return scale(i) * static_cast<float>(q[i]); }
};

/// Rotated rows, which products take as they are: queries are rotated too.
template <>
struct StoredRow<KvDtype::kQ4> {
  struct Head {
    uint64_t first, scales;   // the head's first element; where the scales of its blocks begin
    uint32_t n_scales, skip;  // elements of the first block that belong to the head before
  };
  static Head head(const TileRows& t) {
    const auto skip = static_cast<uint32_t>(t.first % kQ8Block);
    return {t.first, t.row_elems / 2 + t.first / kQ8Block * sizeof(uint16_t),
            (skip + t.dim - 1) / kQ8Block + 1, skip};
  }
  const uint8_t* codes;
  uint64_t first;
  uint32_t skip;
  alignas(64) float scales[kMaxHeadDim / kQ8Block + 16];
  StoredRow(const Head& h, const std::byte* row)
      : codes(reinterpret_cast<const uint8_t*>(row)), first(h.first), skip(h.skip) {
    V::halves(reinterpret_cast<const uint16_t*>(row + h.scales), h.n_scales, scales);
  }
  float scale(uint32_t i) const { return scales[(skip + i) / kQ8Block]; }
  V::R vector(uint32_t i) const {
    return V::mul(V::set1(scale(i)), V::load_levels(codes, first + i));
  }
  /// The elements up to `dim` that are whole blocks, where vectors look 32 levels up at once;
  /// returns how many. Bits as those of vector().
  template <class Vectors = V>
  uint32_t whole_blocks(uint32_t dim, float* out) const {
    uint32_t i = 0;
    if constexpr (requires(V::R * levels) { Vectors::load_32_levels(codes, levels); }) {
      for (; skip == 0 && i + kQ8Block <= dim; i += kQ8Block) {
        V::R levels[kQ8Block / V::kWidth];
        Vectors::load_32_levels(codes + (first + i) / 2, levels);
        const V::R factor = V::set1(scale(i));
        for (uint32_t j = 0; j < kQ8Block / V::kWidth; ++j) {
          V::store(out + i + j * V::kWidth, V::mul(factor, levels[j]));
        }
      }
    }
    return i;
  }
  float element(uint32_t i) const {
    const uint64_t e = first + i;
    return scale(i) * static_cast<float>(kQ4Levels[codes[e / 2] >> e % 2 * 4 & 15]);
  }
};

}  // namespace
}  // namespace sharpi::cpu
