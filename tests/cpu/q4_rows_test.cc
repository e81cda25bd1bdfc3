// SPDX-License-Identifier: MIT
// How the attention kernels of each instruction set decode rows of q4, bit by bit against
// kv_decode_row(). A query vector that sees one key gives it a weight of 1, and -0, to which values
// are added, changes none of them: so the sum that a kernel leaves is the row as it decoded it.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "cpu/isa.h"
#include "cpu/kernel_set.h"
#include "kv/codec.h"
#include "kv/levels.h"

namespace sharpi::cpu {
namespace {

constexpr uint32_t kBlock = 32;

/// A row of q4: n elements as codes, and the scales of their blocks.
std::vector<std::byte> q4_row(const std::vector<uint8_t>& codes,
                              const std::vector<uint16_t>& scales) {
  std::vector<std::byte> row(codes.size() / 2 + scales.size() * sizeof(uint16_t));
  for (size_t i = 0; i < codes.size(); i += 2)
    row[i / 2] = static_cast<std::byte>(codes[i] | codes[i + 1] << 4);
  std::memcpy(row.data() + codes.size() / 2, scales.data(), scales.size() * sizeof(uint16_t));
  return row;
}

/// A head's part of a row of q4, as one instruction set's kernels decode it.
class Decoder {
 public:
  Decoder(const AttentionTable& table, uint64_t row_elems, uint64_t first, uint32_t dim)
      : table_(table), zeros_(dim + table.pad_to), o_(zeros_.size()) {
    a_.padded = (dim + table.pad_to - 1) / table.pad_to * table.pad_to;
    a_.n_vectors = 1;
    a_.lo = &kFirst, a_.hi = &kEnd;
    a_.k = {k_rows_, kFirst, kEnd, dim, 0, dim, KvDtype::kF32, 0};
    a_.v = {v_rows_, kFirst, kEnd, row_elems, first, dim, KvDtype::kQ4, 0};
    k_rows_[kFirst] = reinterpret_cast<const std::byte*>(zeros_.data());
    q_.resize(table.q_bytes(1, a_.padded) / sizeof(float));
    work_.resize(table.work_bytes(1, a_.padded) / sizeof(float) + 16);
    a_.q = reinterpret_cast<const std::byte*>(q_.data());
    a_.work = reinterpret_cast<std::byte*>(work_.data());
  }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  const float* decode(const std::vector<std::byte>& row) {
    float m = 0, l = 0;
    std::fill(o_.begin(), o_.end(), -0.0f);
    v_rows_[kFirst] = row.data();
    a_.state = {&m, &l, o_.data()};
    table_.add_tile(a_);
    EXPECT_EQ(l, 1.0f);
    return o_.data();
  }

 private:
  static constexpr uint32_t kFirst = 3, kEnd = 4;  // the key that the vector sees
  const AttentionTable& table_;
  const std::byte* k_rows_[kTileKeys] = {};
  const std::byte* v_rows_[kTileKeys] = {};
  std::vector<float> zeros_, o_, q_, work_;
  AttentionTile a_;
};

/// The first element whose bits are others, as text; empty where there is none.
std::string first_difference(const float* got, const std::vector<float>& want) {
  for (size_t i = 0; i < want.size(); ++i) {
    const auto g = std::bit_cast<uint32_t>(got[i]), w = std::bit_cast<uint32_t>(want[i]);
    if (g == w) continue;
    char text[96];
    std::snprintf(text, sizeof text, "element %zu: %.9g (%08x), not %.9g (%08x)", i,
                  static_cast<double>(got[i]), g, static_cast<double>(want[i]), w);
    return text;
  }
  return "";
}

void expect_scalar_bits(Decoder& decoder, const std::vector<std::byte>& row, uint64_t row_elems,
                        uint64_t first, uint32_t dim, const std::string& of) {
  std::vector<float> want(dim);
  ASSERT_TRUE(kv_decode_row(KvDtype::kQ4, row.data(), row_elems, first, dim, want.data()).is_ok());
  const float* got = decoder.decode(row);
  if (std::memcmp(got, want.data(), dim * sizeof(float)) == 0) return;
  FAIL() << of << ": " << first_difference(got, want);
}

/// Sets whose f32 kernels are their own.
std::vector<const KernelSet*> decoding_sets() {
  std::vector<const KernelSet*> sets;
  for (const InstructionSet& set : processor().sets) {
    const KernelSet& kernels = kernel_set(set);
    const auto same = [&](const KernelSet* s) {
      return &s->attention.exact.table == &kernels.attention.exact.table;
    };
    if (std::none_of(sets.begin(), sets.end(), same)) sets.push_back(&kernels);
  }
  return sets;
}

class Q4Rows : public testing::TestWithParam<const KernelSet*> {
 protected:
  void SetUp() override {
    const auto resolved = resolve_isa(GetParam()->isa);
    if (!resolved.is_ok()) GTEST_SKIP() << resolved.status().text();
  }
};
INSTANTIATE_TEST_SUITE_P(Isas, Q4Rows, testing::ValuesIn(decoding_sets()),
                         [](const auto& p) { return std::string(p.param->name); });

/// All 65 536 halves: zeros, subnormals, the largest, infinities and what is no number, either
/// sign. Every scale meets every level at every place of a block, beside other levels.
TEST_P(Q4Rows, EveryLevelAtEveryPlaceUnderEveryScaleHasTheScalarBits) {
  constexpr uint32_t kBlocks = 32, kDim = kBlocks * kBlock;
  static_assert(kDim <= kMaxHeadDim);
  std::vector<uint16_t> all(1 << 16);
  std::iota(all.begin(), all.end(), uint16_t{0});
  std::mt19937 rng(1);
  std::shuffle(all.begin(), all.end(), rng);
  Decoder decoder(GetParam()->attention.exact.table, kDim, 0, kDim);
  for (size_t at = 0; at < all.size(); at += kBlocks) {
    const std::vector<uint16_t> scales(all.begin() + static_cast<std::ptrdiff_t>(at),
                                       all.begin() + static_cast<std::ptrdiff_t>(at + kBlocks));
    std::vector<uint8_t> codes(kDim);
    for (uint8_t& c : codes) c = static_cast<uint8_t>(rng() % kQ4LevelCount);
    for (uint32_t turn = 0; turn < kQ4LevelCount; ++turn) {
      const std::string of = "scales from " + std::to_string(at) + ", turn " + std::to_string(turn);
      expect_scalar_bits(decoder, q4_row(codes, scales), kDim, 0, kDim, of);
      if (HasFatalFailure()) return;
      for (uint8_t& c : codes) c = static_cast<uint8_t>((c + 1) % kQ4LevelCount);
    }
  }
}

/// Heads of any whole or partial blocks, wherever they begin in a row: blocks that are looked up
/// whole and vectors that are not.
TEST_P(Q4Rows, HeadsAnywhereInARowHaveTheScalarBits) {
  constexpr uint32_t kRow = 768;
  std::mt19937 rng(2);
  for (const uint32_t dim : {16u, 32u, 48u, 64u, 80u, 96u, 128u, 192u, 256u}) {
    for (uint32_t first = 0; first + dim <= kRow; first += dim) {
      std::vector<uint8_t> codes(kRow);
      std::vector<uint16_t> scales(kRow / kBlock);
      for (uint8_t& c : codes) c = static_cast<uint8_t>(rng() % kQ4LevelCount);
      for (uint16_t& s : scales) s = static_cast<uint16_t>(rng());
      Decoder decoder(GetParam()->attention.exact.table, kRow, first, dim);
      expect_scalar_bits(decoder, q4_row(codes, scales), kRow, first, dim,
                         std::to_string(dim) + " from " + std::to_string(first));
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace sharpi::cpu
