// SPDX-License-Identifier: MIT
// How each KV codec's stored rows are read by the attention kernels, over the vectors V: elements
// as f32, W at a time. cpu/generic/attention_kernels.h is written over these. Thread rule: pure
// functions with internal linkage.
#pragma once

#include <cstdint>

#include "cpu/attention_table.h"
#include "cpu/generic/vec_math.h"
#include "kv/codec_traits.h"
#include "kv/levels.h"

namespace sharpi::cpu {
namespace {

constexpr uint32_t kQ8Block = 32;
static_assert(kQ8Block % V::kWidth == 0);

/// Whether a head's parts of rows lie too far apart for the hardware to guess the next one.
template <KvDtype kType>
inline bool heads_lie_apart(const TileRows& t) {
  constexpr uint64_t kApart = 256;
  return kv_value_bytes<kType>(t.row_elems) >= kApart;
}

/// Asks for a head's part of a stored row, for the cache that products read from. The driver asks
/// for rows a tile before they are wanted, but for a cache that holds whole tiles: too far from the
/// products for what they take of a row. Inlined always: GCC 12 drops calls of functions that do
/// nothing but prefetch.
template <KvDtype kType, uint32_t kPlane = 0>
[[gnu::always_inline]] inline void ask_for(const TileRows& t, const std::byte* row) {
  constexpr uint32_t kLine = 64;
  constexpr KvPlane plane = KvCodecTraits<kType>::kPlanes[kPlane];
  const std::byte* from = row + plane.bytes_of(t.first);
  const auto bytes = static_cast<uint32_t>(plane.bytes_of(t.dim));
  for (uint32_t at = 0; at < bytes; at += kLine) __builtin_prefetch(from + at, 0, 3);
  if constexpr (kPlane + 1 < kKvPlanes<kType>) {
    ask_for<kType, kPlane + 1>(t, row + plane.bytes_of(t.row_elems));
  }
}

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
  /// As q4's below.
  template <class Vectors = V>
  static auto load_block(const Head& h, const std::byte* row, uint32_t i, V::R* out)
      -> decltype(Vectors::load_32_i8(nullptr, out)) {
    Vectors::load_32_i8(reinterpret_cast<const int8_t*>(row) + h.first + i, out);
  }
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
  /// The levels of a whole block that begins at element i, where vectors look 32 up at once.
  template <class Vectors = V>
  static auto load_block(const Head& h, const std::byte* row, uint32_t i, V::R* out)
      -> decltype(Vectors::load_32_levels(nullptr, out)) {
    Vectors::load_32_levels(reinterpret_cast<const uint8_t*>(row) + (h.first + i) / 2, out);
  }
  /// A whole block that begins at element i, as vector() has it, where vectors scale the table of
  /// levels.
  template <class Vectors = V>
  auto block(uint32_t i, V::R* out) const
      -> decltype(Vectors::load_32_scaled_levels(nullptr, V::R{}, out)) {
    Vectors::load_32_scaled_levels(codes + (first + i) / 2, V::set1(scale(i)), out);
  }
  float element(uint32_t i) const {
    const uint64_t e = first + i;
    return scale(i) * static_cast<float>(kQ4Levels[codes[e / 2] >> e % 2 * 4 & 15]);
  }
};

template <class Row>
concept HasBlocks = requires(const typename Row::Head& h, V::R* out) {
  Row::load_block(h, nullptr, 0, out);
};

template <class Row>
concept ScalesTable = requires(const Row& row, V::R* out) {
  row.block(0, out);
};

/// Elements of a head that are decoded block by block.
template <class Row>
inline uint32_t block_elements(const typename Row::Head& h, uint32_t dim) {
  if constexpr (HasBlocks<Row>) return h.skip == 0 ? dim / kQ8Block * kQ8Block : 0;
  return 0;
}

/// The first n elements of a head's part of a row, whole blocks, each scale taken where it is used:
/// preparing a StoredRow costs a head of 64 a seventh of its time. Bits as those of vector().
template <class Row, class Vectors = V>
inline void decode_blocks(const typename Row::Head& h, const std::byte* row, uint32_t n,
                          float* out) {
  constexpr uint32_t kVectors = kQ8Block / V::kWidth;
  const auto* scales = reinterpret_cast<const uint16_t*>(row + h.scales);
  for (uint32_t i = 0; i < n; i += kQ8Block) {
    V::R values[kVectors];
    Row::load_block(h, row, i, values);
    const V::R factor = Vectors::set1_half(scales++);
    for (uint32_t j = 0; j < kVectors; ++j) {
      V::store(out + i + j * V::kWidth, V::mul(factor, values[j]));
    }
  }
}

}  // namespace
}  // namespace sharpi::cpu
