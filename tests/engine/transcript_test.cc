// SPDX-License-Identifier: MIT
// Tokens, ledger and rows of logits change together, whatever verb comes behind which.
#include "engine/transcript.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "engine/pcg32.h"

namespace sharpi {
namespace {

// Nobody writes tokens, rows or what is counted of them but by a verb: each of these would be a way
// around one, and none compiles.
template <class T>
concept GivesMembers = requires(T t) {
  t.tokens_;
}
|| requires(T t) {
  t.ledger_;
}
|| requires(T t) {
  t.n_tried_;
}
|| requires(T t) {
  t.logit_rows_;
};
template <class T>
concept GivesTokens = requires(T t) {
  t.tokens()[0] = 1;
}
|| requires(T t) {
  t.tokens().push_back(1);
};
template <class T>
concept GivesRows = requires(T t) {
  t.ledger().commit(1u);
}
|| requires(T t) {
  t.ledger().truncate(0u);
};
template <class T>
concept GivesLogitRows = requires(T t) {
  t.logit_rows().n = 1;
};
static_assert(!GivesMembers<Transcript> && !GivesTokens<Transcript> && !GivesRows<Transcript> &&
              !GivesLogitRows<Transcript>);
// The questions are asked rightly: of what may be written they say yes.
struct Open {
  std::vector<int32_t>& tokens();
  KvLedger& ledger();
  LogitRows& logit_rows();
  int tokens_;
};
static_assert(GivesMembers<Open> && GivesTokens<Open> && GivesRows<Open> && GivesLogitRows<Open>);

constexpr uint32_t kContext = 64, kWindow = 12, kRing = 17;

/// Two layers that see everything, with one KV head and with two, and one with a window.
ModelSpec three_layers() {
  ModelSpec spec;
  spec.layers.resize(3);
  for (LayerSpec& l : spec.layers) {
    l.mixer = MixerKind::kAttention;
    l.attention.kv_source = -1;
    l.attention.n_kv_heads = 1;
    l.attention.window = 0;
  }
  spec.layers[1].attention.n_kv_heads = 2;
  spec.layers[2].attention.window = kWindow;
  return spec;
}

class TranscriptTest : public ::testing::Test {
 protected:
  TranscriptTest() {
    KvLedger empty(three_layers(), kWindow, kRing);
    empty.set_capture_window(4);
    t_.begin(std::move(empty), kContext);
    t_.reserve_positions(kContext);
  }
  uint32_t below(uint32_t n) { return static_cast<uint32_t>(random_.uniform() * n); }
  std::vector<int32_t> some(uint32_t n) {
    std::vector<int32_t> out(n);
    std::iota(out.begin(), out.end(), static_cast<int32_t>(t_.tokens().size()));
    return out;
  }
  void expect(uint32_t n_tokens, uint32_t n_logit_rows) const {
    const Status agrees = t_.check();
    EXPECT_TRUE(agrees.is_ok()) << agrees.text();
    EXPECT_EQ(t_.tokens().size(), n_tokens);
    EXPECT_EQ(t_.ledger().n_tokens(), n_tokens);
    EXPECT_EQ(t_.logit_rows().n, n_logit_rows);
  }
  /// Every second row of the first layer stays, and the first half of the others' rows.
  void compact() {
    std::vector<KvMove> moves;
    std::vector<uint32_t> odd, half;
    for (uint32_t i = 1; i < t_.ledger().n_slots(0); i += 2) odd.push_back(i);
    for (uint32_t i = 0; i < t_.ledger().n_slots(1) / 2; ++i) half.push_back(i);
    moves.push_back(KvMove{0, {odd.data(), 1, static_cast<uint32_t>(odd.size()), odd.size()}});
    moves.push_back(KvMove{1, {half.data(), 1, static_cast<uint32_t>(half.size()), half.size()}});
    t_.compact(moves);
  }
  Transcript t_;
  Pcg32 random_{7};
};

TEST_F(TranscriptTest, TriedTokensCountOrWereNeverThere) {
  t_.commit(some(5), 2);
  expect(5, 2);
  t_.try_token(40, 2);
  t_.try_token(41, 1);
  EXPECT_EQ(t_.tokens().size(), 7u);  // the sampler sees them
  EXPECT_EQ(t_.ledger().n_tokens(), 5u);
  EXPECT_FALSE(t_.check().is_ok());
  t_.take_back_tried();
  expect(5, 0);
  t_.try_token(42, 2);
  t_.try_token(43, 1);
  t_.commit_tried();
  expect(7, 1);
  EXPECT_EQ(t_.logit_rows().first, 1u);
  EXPECT_EQ(t_.tokens()[6], 43);
  t_.try_token(44, 0);
  t_.fail(3, true, 1);
  expect(7, 0);
}

TEST_F(TranscriptTest, WhateverComesTokensAndRowsAgree) {
  for (int i = 0; i < 4000; ++i) {
    const uint32_t n = t_.ledger().n_tokens(), room = kContext - n;
    const uint32_t what = below(7);
    if (what <= 1 && room != 0) {
      t_.commit(some(1 + below(std::min(room, 9u))), below(2));
    } else if (what == 2 && room > 3) {
      for (uint32_t k = below(3); k > 0; --k) t_.try_token(1, k);
      below(2) == 0 ? t_.commit_tried() : t_.take_back_tried();
    } else if (what == 3) {
      t_.fail(1 + below(8), below(2) == 0, 1);
    } else if (what == 4) {
      const uint32_t floor = std::max(t_.ledger().evicted_floor(), t_.ledger().ring_floor());
      t_.take_back(below(3) == 0 || floor > n ? 0 : floor + below(n - floor + 1));
    } else if (what == 5 && t_.ledger().max_slots() > 8) {
      compact();
    } else if (what == 6 && t_.ledger().is_compacted() && n > t_.ledger().max_slots() + kRing) {
      t_.shift_context(n - t_.ledger().max_slots() - kRing);
    }
    const Status agrees = t_.check();
    ASSERT_TRUE(agrees.is_ok()) << "verb " << what << ": " << agrees.text();
    ASSERT_EQ(t_.tokens().size(), t_.ledger().n_tokens());
  }
}

/// Restoring is the one verb that is told both numbers; what does not agree is refused by name.
TEST_F(TranscriptTest, TokensWithoutTheirRowsAreRefused) {
  t_.restore(std::vector<int32_t>{1, 2, 3}, 1, [](KvLedger*) {});
  EXPECT_EQ(t_.check().code(), Code::kInternal);
  EXPECT_EQ(t_.check().text(), "the session has 3 tokens, 0 of them tried, but counts 0");
  t_.restore(std::vector<int32_t>{1}, 1, [](KvLedger* rows) { rows->commit(2); });
  EXPECT_EQ(t_.check().code(), Code::kInternal);
  t_.restore(std::vector<int32_t>{1, 2}, 1, [](KvLedger*) {});
  expect(2, 1);
  t_.take_back(0);
  expect(0, 0);
}

TEST_F(TranscriptTest, ACopyIsLikeIt) {
  t_.commit(some(20), 1);
  compact();
  Transcript copy;
  copy.begin(KvLedger(three_layers(), kWindow, kRing), kContext);
  copy.copy_from(t_);
  EXPECT_TRUE(copy.check().is_ok());
  EXPECT_EQ(copy.tokens().size(), 20u);
  EXPECT_EQ(copy.ledger().n_slots(0), t_.ledger().n_slots(0));
  EXPECT_EQ(copy.logit_rows().n, 1u);
  copy.take_back(0);
  EXPECT_TRUE(copy.check().is_ok());
  EXPECT_TRUE(copy.tokens().empty());
  EXPECT_EQ(t_.tokens().size(), 20u);
}

}  // namespace
}  // namespace sharpi
