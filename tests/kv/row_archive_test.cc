// SPDX-License-Identifier: MIT
// The archive of evicted rows against a plain map: what it holds after random arrivals and
// departures, what has no room, and bounds that hold for every key.
#include "kv/row_archive.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <random>

#include "base/half.h"
#include "kv/codec.h"
#include "kv/rotation.h"

namespace sharpi {
namespace {

constexpr uint32_t kDim = 32, kHeads = 2;

/// A row as it is stored, for each side, and its score.
struct Stored {
  std::vector<std::byte> sides[2];
  float score = 0;
};

class ArrivingRows final : public RowArchive::Source {
 public:
  explicit ArrivingRows(const std::map<uint32_t, Stored>& of) {
    for (const auto& [position, row] : of) all_.emplace_back(position, &row);
  }
  void read(uint32_t i, bool value, std::byte* to) const override {
    const std::vector<std::byte>& side = all_[i].second->sides[value];
    std::memcpy(to, side.data(), side.size());
  }
  uint32_t position(uint32_t i) const override { return all_[i].first; }
  float score(uint32_t i) const override { return all_[i].second->score; }

 private:
  std::vector<std::pair<uint32_t, const Stored*>> all_;
};

ModelSpec two_layers() {
  ModelSpec spec;
  spec.layers.resize(2);
  for (LayerSpec& l : spec.layers) {
    l.attention.n_heads = 4;
    l.attention.n_kv_heads = kHeads;
    l.attention.head_dim = kDim;
  }
  return spec;
}

class Archive : public ::testing::TestWithParam<KvDtype> {
 protected:
  Archive() : dtypes_(2, KvDtypePair{GetParam(), KvDtype::kBf16}) {}
  uint32_t below(uint32_t n) { return static_cast<uint32_t>(rng_()) % n; }
  Stored row() {
    Stored r;
    std::vector<float> x(kDim);
    for (float& f : x) f = std::normal_distribution<float>()(rng_);
    for (const bool value : {false, true}) {
      const KvDtype d = value ? KvDtype::kBf16 : GetParam();
      r.sides[value].resize(kv_row_bytes(d, kDim));
      EXPECT_TRUE(kv_encode_row(d, x.data(), kDim, r.sides[value].data()).is_ok());
    }
    r.score = x[0];
    return r;
  }
  void expect_holds(const RowArchive& a, uint32_t layer, uint32_t head,
                    const std::map<uint32_t, Stored>& want) {
    ASSERT_EQ(a.n_rows(layer, head), want.size());
    const std::span<const uint32_t> positions = a.positions(layer, head);
    ASSERT_EQ(std::count(positions.begin(), positions.end(), kNoRow),
              static_cast<std::ptrdiff_t>(positions.size() - want.size()));
    for (const auto& [position, row] : want) {
      const auto at = std::find(positions.begin(), positions.end(), position);
      ASSERT_NE(at, positions.end()) << position;
      const auto i = static_cast<uint32_t>(at - positions.begin());
      ASSERT_EQ(a.score(layer, head, i), row.score) << i;
      for (const bool value : {false, true})
        ASSERT_EQ(std::memcmp(a.row(layer, head, value, i), row.sides[value].data(),
                              row.sides[value].size()),
                  0)
            << i;
      std::vector<float> key(kDim);
      ASSERT_TRUE(
          kv_decode_row(GetParam(), row.sides[0].data(), kDim, 0, kDim, key.data()).is_ok());
      const uint32_t rotation = kv_rotation(GetParam(), kDim);
      if (rotation != 0) kv_unrotate(key.data(), kDim, rotation);
      const auto bounds = a.bounds(layer, head, i / kArchiveBlock);
      for (uint32_t e = 0; e < kDim; ++e) {
        ASSERT_LE(f32_from_bf16(bounds[e]), key[e]) << i;
        ASSERT_GE(f32_from_bf16(bounds[kDim + e]), key[e]) << i;
      }
    }
  }
  std::vector<KvDtypePair> dtypes_;
  std::mt19937 rng_{7};
};

TEST_P(Archive, HoldsWhatAPlainMapHolds) {
  const ModelSpec spec = two_layers();
  const auto nobody = [](uint32_t) { return false; };
  RowArchive a;
  a.reserve(spec, dtypes_, 150, 10, {});  // whole blocks: 160
  EXPECT_EQ(a.bytes(), RowArchive::bytes_for(spec, dtypes_, 150, 10, nobody));
  ASSERT_EQ(a.capacity(), 160u);
  std::map<uint32_t, Stored> want[2][kHeads];
  for (int step = 0; step < 60; ++step) {
    const uint32_t layer = below(2), head = below(kHeads);
    auto& here = want[layer][head];
    if (below(3) != 0) {
      std::map<uint32_t, Stored> more;
      for (uint32_t n = below(70); n != 0; --n) {
        const uint32_t position = below(1000);
        if (here.count(position) == 0) more[position] = row();
      }
      a.insert(layer, head, static_cast<uint32_t>(more.size()), ArrivingRows(more));
      here.insert(more.begin(), more.end());
      while (here.size() > 160) here.erase(here.begin());
    } else {
      std::vector<uint32_t> gone;
      std::map<uint32_t, Stored> come;
      const std::span<const uint32_t> positions = a.positions(layer, head);
      for (uint32_t slot = 0; slot < positions.size(); ++slot) {
        if (positions[slot] == kNoRow || below(4) != 0) continue;
        gone.push_back(slot);
        here.erase(positions[slot]);
      }
      for (uint32_t position = below(900); come.size() < gone.size(); ++position)
        if (here.count(position) == 0) come[position] = row();
      a.replace(layer, head, gone, ArrivingRows(come));
      here.insert(come.begin(), come.end());
    }
    for (uint32_t l = 0; l < 2; ++l) {
      for (uint32_t h = 0; h < kHeads; ++h)
        ASSERT_NO_FATAL_FAILURE(expect_holds(a, l, h, want[l][h]));
    }
  }
  RowArchive twin;
  twin.reserve(spec, dtypes_, 150, 10, {});
  twin.copy_from(a);
  ASSERT_NO_FATAL_FAILURE(expect_holds(twin, 1, 1, want[1][1]));
  twin.shift(300, 20);
  std::map<uint32_t, Stored> later;
  for (const auto& [position, row] : want[1][1]) {
    if (position >= 320) later[position - 300] = row;
  }
  ASSERT_NO_FATAL_FAILURE(expect_holds(twin, 1, 1, later));
  twin.clear();
  EXPECT_EQ(twin.n_rows(0, 0), 0u);
}

/// What a tier lends holds the same rows in the same slots, and their blocks begin when they have
/// none.
TEST_P(Archive, GivesPlacesInLentMemory) {
  const ModelSpec spec = two_layers();
  const uint64_t bytes = RowArchive::lent_bytes(spec, dtypes_, 1, 150);
  EXPECT_EQ(bytes, kHeads * 160 *
                       (8 + kv_row_bytes(GetParam(), kDim) + kv_row_bytes(KvDtype::kBf16, kDim)));
  std::vector<uint64_t> memory(bytes / sizeof(uint64_t));
  const auto lend = [&](uint32_t layer) {
    return layer == 1 ? reinterpret_cast<std::byte*>(memory.data()) : nullptr;
  };
  RowArchive here, lent;
  here.reserve(spec, dtypes_, 150, 10, {});
  lent.reserve(spec, dtypes_, 150, 10, lend);
  EXPECT_EQ(lent.bytes(), RowArchive::bytes_for(spec, dtypes_, 150, 10,
                                                [](uint32_t layer) { return layer == 1; }));
  for (int step = 0; step < 12; ++step) {
    std::map<uint32_t, Stored> more;
    for (uint32_t n = 0; n < 17; ++n) more[static_cast<uint32_t>(step) * 20 + n] = row();
    const ArrivingRows rows(more);
    std::vector<uint32_t> places(17), slots = {2, 3, 40};
    EXPECT_EQ(lent.place(1, 0, 17, rows, places.data()), 0u);
    here.insert(1, 0, 17, rows);
    // In the first block of what came the first row finds it empty, or another row there.
    const uint32_t before = static_cast<uint32_t>(step) * 17;
    if (before + 17 <= 160) {
      EXPECT_EQ(places[0], before | (before % kArchiveBlock == 0 ? kBegins : 0));
      EXPECT_EQ((places[16] & kBegins) != 0, (before + 16) % kArchiveBlock == 0);
    }
    std::map<uint32_t, Stored> come;
    for (uint32_t n = 0; n < 3; ++n) come[static_cast<uint32_t>(step) * 20 + 17 + n] = row();
    if (step < 3) continue;
    here.replace(1, 0, slots, ArrivingRows(come));
    lent.replace(1, 0, slots, ArrivingRows(come), slots.data());
    EXPECT_EQ(slots, (std::vector<uint32_t>{2, 3, 40}));
  }
  const auto a = here.positions(1, 0), b = lent.positions(1, 0);
  EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end()));
  EXPECT_EQ(reinterpret_cast<const std::byte*>(b.data()),
            reinterpret_cast<const std::byte*>(memory.data()));
}

INSTANTIATE_TEST_SUITE_P(Kv, Archive,
                         ::testing::Values(KvDtype::kF32, KvDtype::kBf16, KvDtype::kQ8_0,
                                           KvDtype::kQ4));

}  // namespace
}  // namespace sharpi
