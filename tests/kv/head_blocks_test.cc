// SPDX-License-Identifier: MIT
// Rows in blocks of one head: every row is found where the tables say, with the bytes it had in
// ranges, whatever the lags, the codecs and the sizes of heads, after being taken apart and put
// into other orders; sizes are those of the blocks, and who grows, shrinks or shares a prefix finds
// whole blocks there.
#include "kv/head_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace sharpi {
namespace {

struct LayerOf {
  uint32_t n_heads, head_dim;
  KvDtype k, v;
};

KvGroup group_of(const std::vector<LayerOf>& layers) {
  KvGroup g;
  for (const LayerOf& one : layers) {
    KvLayerLayout l;
    l.layer = static_cast<uint32_t>(g.layers.size());
    l.n_heads = one.n_heads;
    l.head_dim = one.head_dim;
    l.k_dtype = one.k;
    l.v_dtype = one.v;
    const uint64_t n = uint64_t{one.n_heads} * one.head_dim;
    l.k_row_bytes = static_cast<uint32_t>(kv_row_bytes(one.k, n));
    l.v_row_bytes = static_cast<uint32_t>(kv_row_bytes(one.v, n));
    l.k_offset = g.block_stride;
    l.v_offset = l.k_offset + uint64_t{kKvBlockSlots} * l.k_row_bytes;
    g.block_stride = l.v_offset + uint64_t{kKvBlockSlots} * l.v_row_bytes;
    g.layers.push_back(l);
  }
  return g;
}

/// A group in memory, and what its rows have to be.
class Rows {
 public:
  Rows(const std::vector<LayerOf>& layers, uint32_t most, uint32_t seed)
      : group_(group_of(layers)), blocks_(group_, most), random_(seed) {
    memory_.resize(group_.block_bytes(most));
    tables_.resize(blocks_.table_bytes());
    blocks_.use(tables_.data());
  }
  HeadBlocks& blocks() { return blocks_; }
  std::byte* base() { return memory_.data(); }
  uint32_t n_heads() const { return blocks_.n_heads(); }

  /// Random rows in ranges; of each head the first counts[h] are to be kept.
  void fill(const std::vector<uint32_t>& counts) {
    for (std::byte& b : memory_) b = static_cast<std::byte>(random_());
    want_.assign(n_heads(), {});
    for (size_t i = 0; i < group_.layers.size(); ++i) {
      const KvLayerLayout& l = group_.layers[i];
      KvView v;
      v.k = memory_.data() + l.k_offset;
      v.v = memory_.data() + l.v_offset;
      v.block_stride = group_.block_stride;
      v.k_row_bytes = l.k_row_bytes, v.v_row_bytes = l.v_row_bytes;
      v.k_dtype = l.k_dtype, v.v_dtype = l.v_dtype;
      v.n_heads = l.n_heads, v.head_dim = l.head_dim;
      for (uint32_t h = 0; h < l.n_heads; ++h) {
        const uint32_t head = blocks_.first_head(i) + h;
        for (uint32_t slot = 0; slot < counts[head]; ++slot) {
          std::string row;
          for (const bool value : {false, true}) {
            const auto* from = reinterpret_cast<const char*>(value ? v.v_row(slot) : v.k_row(slot));
            for (const KvPart& p : KvHeadParts(v, value, h)) row.append(from + p.offset, p.bytes);
          }
          want_[head].push_back(row);
        }
      }
    }
  }
  void take_apart(const std::vector<uint32_t>& counts) {
    blocks_.take_apart(memory_.data(), counts);
    settle(counts);
  }
  /// Of every head the first counts[h] rows stay.
  void put_in_order(uint32_t n_slots, const std::vector<uint32_t>& counts) {
    blocks_.put_in_order(memory_.data(), blocks_.bytes(n_slots), counts);
    for (uint32_t h = 0; h < n_heads(); ++h) want_[h].resize(counts[h]);
    settle(counts);
  }
  void expect_rows(const std::string& what) {
    for (size_t i = 0; i < group_.layers.size(); ++i) {
      for (uint32_t h = 0; h < group_.layers[i].n_heads; ++h) {
        const uint32_t head = blocks_.first_head(i) + h;
        const KvView v = blocks_.view(i, h, memory_.data());
        ASSERT_EQ(v.n_heads, 1u);
        for (uint32_t slot = 0; slot < want_[head].size(); ++slot) {
          std::string row(reinterpret_cast<const char*>(v.k_row(slot)), v.k_row_bytes);
          row.append(reinterpret_cast<const char*>(v.v_row(slot)), v.v_row_bytes);
          ASSERT_TRUE(row == want_[head][slot])
              << what << ": row " << slot << " of head " << h << " of layer " << i;
        }
      }
    }
  }

 private:
  void settle(const std::vector<uint32_t>& counts) {
    const uint32_t most = *std::max_element(counts.begin(), counts.end());
    for (uint32_t h = 0; h < n_heads(); ++h) ASSERT_EQ(blocks_.lag(h), most - counts[h]);
    blocks_.name_blocks(most);
  }
  KvGroup group_;
  HeadBlocks blocks_;
  std::mt19937 random_;
  std::vector<std::byte> memory_, tables_;
  std::vector<std::vector<std::string>> want_;
};

const std::vector<std::vector<LayerOf>>& groups() {
  constexpr KvDtype f32 = KvDtype::kF32, bf16 = KvDtype::kBf16, q8 = KvDtype::kQ8_0,
                    q4 = KvDtype::kQ4;
  static const std::vector<std::vector<LayerOf>> all = {
      {{1, 32, f32, f32}},
      {{2, 32, q8, q8}, {2, 32, q8, q8}, {2, 32, q8, q8}},
      {{4, 64, q8, q4}, {4, 64, q8, q4}},
      {{2, 32, bf16, bf16}, {1, 64, q4, f32}, {3, 32, q8, bf16}}};  // of several sizes
  return all;
}

TEST(HeadBlocks, RowsAreWhereTheTablesSayWhateverTheLags) {
  std::mt19937 random(7);
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  for (const auto& layers : groups()) {
    for (uint32_t round = 0; round < 30; ++round) {
      constexpr uint32_t kMost = 500;
      Rows rows(layers, kMost, round);
      std::vector<uint32_t> counts(rows.n_heads());
      for (uint32_t& n : counts) n = 1 + below(round % 3 == 0 ? 70 : kMost);
      rows.fill(counts);
      rows.take_apart(counts);
      rows.expect_rows("taken apart");
      for (uint32_t again = 0; again < 3; ++again) {
        const uint32_t most = *std::max_element(counts.begin(), counts.end());
        for (uint32_t& n : counts) n = 1 + below(n);
        rows.put_in_order(most, counts);
        rows.expect_rows("in another order");
      }
    }
  }
}

TEST(HeadBlocks, SizesAreThoseOfPrefixes) {
  std::mt19937 random(3);
  for (const auto& layers : groups()) {
    Rows rows(layers, 400, 1);
    HeadBlocks& b = rows.blocks();
    std::vector<uint32_t> lags(rows.n_heads());
    for (size_t h = 1; h < lags.size(); ++h) lags[h] = static_cast<uint32_t>(random() % 150);
    b.set_lags(lags);
    const KvGroup together = group_of(layers);
    b.name_blocks(400);
    for (uint32_t n = 0; n <= 400; ++n) {
      EXPECT_EQ(b.bytes(n), b.bytes_with(lags, n));
      EXPECT_LE(b.bytes(n), together.block_bytes(n)) << "more than in ranges";
      EXPECT_LE(b.full_bytes(n), b.bytes(n));
      if (n != 0) {
        EXPECT_GE(b.bytes(n), b.bytes(n - 1));
        const uint32_t fits = b.slots_in({}, b.bytes(n), 400);
        EXPECT_GE(fits, n);
        EXPECT_EQ(b.bytes(fits), b.bytes(n));
      }
      const uint32_t behind = b.slots_behind(b.full_bytes(n), 400);
      EXPECT_LE(behind, n);
      EXPECT_EQ(b.full_bytes(behind), b.full_bytes(n));
      // Rows below n are in the first bytes(n), and those from n on behind full_bytes(n).
      for (size_t i = 0, h = 0; i < layers.size(); ++i) {
        for (uint32_t own = 0; own < layers[i].n_heads; ++own, ++h) {
          const KvView v = b.view(i, own, rows.base());
          const uint32_t have = b.rows(static_cast<uint32_t>(h), n);
          if (have != 0) {
            EXPECT_LT(v.block((have - 1) / kKvBlockSlots), b.bytes(n));
          }
          if (n < 400 && n >= lags[h]) {
            EXPECT_GE(v.block(have / kKvBlockSlots), b.full_bytes(n));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace sharpi
