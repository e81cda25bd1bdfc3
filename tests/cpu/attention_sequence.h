// SPDX-License-Identifier: MIT
// A conversation for the attention tests, with its rows as the tier stores them and as they come
// back, by the plain functions. Thread rule: objects belong to one thread.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "kv/codec.h"
#include "kv/rotation.h"

namespace sharpi::cpu {
namespace {

void encode_rotated(KvDtype dtype, uint32_t dim, std::vector<float> x, std::byte* row) {
  kv_rotate(x.data(), x.size(), kv_rotation(dtype, dim));
  ASSERT_TRUE(kv_encode_row(dtype, x.data(), x.size(), row).is_ok());
}

std::vector<float> decode_rotated(KvDtype dtype, uint32_t dim, const std::byte* row, size_t n) {
  std::vector<float> y(n);
  EXPECT_TRUE(kv_decode_row(dtype, row, n, 0, n, y.data()).is_ok());
  kv_unrotate(y.data(), n, kv_rotation(dtype, dim));
  return y;
}

/// Of a normal distribution: a piece of a table, because drawing each number took as long as the
/// kernels.
std::vector<float> random_row(size_t n, std::mt19937& rng) {
  constexpr size_t kNumbers = 1 << 20;
  static const std::vector<float> numbers = [] {
    std::mt19937 of_table(20);
    std::normal_distribution<float> normal(0.0f, 1.0f);
    std::vector<float> all(kNumbers);
    for (float& v : all) v = normal(of_table);
    return all;
  }();
  const auto from = numbers.begin() + static_cast<ptrdiff_t>(rng() % (kNumbers - n));
  return {from, from + static_cast<ptrdiff_t>(n)};
}

struct Shape {
  uint32_t n_heads = 4, n_kv = 2, dim = 64;
  KvDtype k = KvDtype::kF32, v = KvDtype::kF32;
  bool one_row = false;  // keys are values, too, and stored once
  uint32_t row() const { return n_kv * dim; }
};

/// A row as it is stored and as it comes back. A position is stored and looked at again and again,
/// so a sequence keeps these; `from` says whether they still are those of its values.
struct StoredRow {
  std::vector<float> from;
  std::vector<std::byte> bytes;
  std::vector<float> back;

  StoredRow() = default;
  StoredRow(KvDtype dtype, uint32_t dim, const std::vector<float>& x)
      : from(x), bytes(kv_row_bytes(dtype, x.size())) {
    encode_rotated(dtype, dim, x, bytes.data());
    back = decode_rotated(dtype, dim, bytes.data(), x.size());
  }
};

/// A conversation: queries, keys and values of every position.
struct Sequence {
  Shape shape;
  float scale;
  std::vector<std::vector<float>> q, k, v;
  std::vector<float> sinks;  // of each head, or none

  Sequence(const Shape& s, uint64_t n, uint32_t seed)
      : shape(s), scale(1.0f / std::sqrt(static_cast<float>(s.dim))) {
    std::mt19937 rng(seed);
    for (uint64_t i = 0; i < n; ++i) {
      q.push_back(random_row(s.n_heads * s.dim, rng));
      k.push_back(random_row(s.row(), rng));
      v.push_back(s.one_row ? k.back() : random_row(s.row(), rng));
    }
  }
  const StoredRow& k_row(uint64_t i) const { return stored(k_rows_, shape.k, k, i); }
  const StoredRow& v_row(uint64_t i) const { return stored(v_rows_, shape.v, v, i); }

 private:
  using Rows = std::vector<StoredRow>;
  const StoredRow& stored(Rows& rows, KvDtype dtype, const std::vector<std::vector<float>>& all,
                          uint64_t i) const {
    rows.resize(all.size());
    if (rows[i].from != all[i]) rows[i] = StoredRow(dtype, shape.dim, all[i]);
    return rows[i];
  }
  mutable Rows k_rows_, v_rows_;
};

}  // namespace
}  // namespace sharpi::cpu
