// SPDX-License-Identifier: MIT
// The expert cache's policy: sequences made by hand with the order that must come out, pins, what
// holds whatever happens, equal inputs giving equal states.
#include "tier/expert_cache.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <vector>

namespace sharpi {
namespace {

using Ids = std::vector<uint32_t>;

/// A cache of one layer whose fills arrive at once, between calls.
class Cache {
 public:
  Cache(uint32_t n_experts, uint32_t n_slots, ExpertPolicy policy = ExpertPolicy::kSegmented)
      : n_experts_(n_experts), cache_({1, n_experts, n_slots, policy}) {}
  /// One call; hits.
  uint32_t call(const Ids& ids) {
    uint32_t hits = 0;
    for (const uint32_t e : ids) hits += cache_.use({0, e}) ? 1 : 0;
    cache_.end_call();
    settle();
    return hits;
  }
  void calls(const Ids& ids, uint32_t n) {
    for (uint32_t i = 0; i < n; ++i) call(ids);
  }
  void settle() {
    ExpertFill f;
    while (cache_.next_fill(&f)) cache_.filled(f);
  }
  std::set<uint32_t> resident() const {
    std::set<uint32_t> out;
    for (uint32_t e = 0; e < n_experts_; ++e) {
      if (cache_.find({0, e}) >= 0) out.insert(e);
    }
    return out;
  }
  ExpertCache& operator*() { return cache_; }
  ExpertCache* operator->() { return &cache_; }

 private:
  uint32_t n_experts_;
  ExpertCache cache_;
};

TEST(ExpertCache, FreeSlotsFillWithWhatIsMissed) {
  Cache c(8, 3);
  EXPECT_EQ(c.call({5}), 0u);
  EXPECT_EQ(c.call({5, 6}), 1u);
  EXPECT_EQ(c.resident(), (std::set<uint32_t>{5, 6}));
  EXPECT_EQ(c->n_uses(), 3u);
  EXPECT_EQ(c->n_hits(), 1u);
  EXPECT_EQ(c->n_resident(), 2u);
  EXPECT_EQ(c->n_evictions(), 0u);
}

/// The admission: once used is not more than once used.
TEST(ExpertCache, AnExpertMustBeUsedMoreThanWhatItReplaces) {
  Cache c(8, 2);
  c.call({0, 1});
  c.call({2});
  EXPECT_EQ(c.resident(), (std::set<uint32_t>{0, 1}));
  c.call({2});
  EXPECT_TRUE(c.resident().contains(2));
  EXPECT_EQ(c->n_evictions(), 1u);
}

/// Four slots: one of probation, three protected. Hits protect; the least used of probation goes.
TEST(ExpertCache, ProbationIsEvictedBeforeTheProtected) {
  Cache c(10, 4);
  c.call({0, 1, 2, 3});
  c.call({0});
  c.call({1});
  c.call({2});  // 0, 1, 2 are protected with two uses, 3 is on probation with one
  c.call({7});
  c.call({7});
  EXPECT_EQ(c.resident(), (std::set<uint32_t>{0, 1, 2, 7}));
}

/// Protected overflow: the least recent falls back to probation and is the next to go.
TEST(ExpertCache, TheProtectedTailFallsBack) {
  Cache c(10, 4);
  c.call({0, 1, 2, 3});
  for (const uint32_t e : {0u, 1u, 2u, 3u}) c.call({e});  // 0 fell back when 3 came
  c.calls({8}, 3);
  EXPECT_EQ(c.resident(), (std::set<uint32_t>{1, 2, 3, 8}));
}

TEST(ExpertCache, OfEquallyUsedTheLeastRecentGoes) {
  Cache c(10, 8);  // two of probation
  c.call({0, 1, 2, 3, 4, 5, 6, 7});
  for (const uint32_t e : {2u, 3u, 4u, 5u, 6u, 7u}) c.call({e});
  c.calls({9}, 2);  // 0 and 1 have one use each; of equals what was missed last came in first: 1
  EXPECT_TRUE(c.resident().contains(0));
  EXPECT_FALSE(c.resident().contains(1));
}

TEST(ExpertCache, TheBusiestOfTheMissedComesFirst) {
  Cache c(10, 1);
  c.call({0});
  ExpertFill f;
  for (int i = 0; i < 3; ++i) {
    c->use({0, 4});
    c->use({0, 4});
    c->use({0, 6});
    c->end_call();
  }
  ASSERT_TRUE(c->next_fill(&f));
  EXPECT_EQ(f.id, (ExpertId{0, 4}));
  EXPECT_TRUE(f.replaces);
  EXPECT_EQ(f.victim, (ExpertId{0, 0}));
}

TEST(ExpertCache, WhatIsOnItsWayIsNeitherResidentNorAskedForAgain) {
  Cache c(10, 2);
  ExpertFill f, g;
  c->use({0, 4});
  c->end_call();
  ASSERT_TRUE(c->next_fill(&f));
  EXPECT_EQ(c->find({0, 4}), -1);
  EXPECT_FALSE(c->use({0, 4}));
  c->end_call();
  EXPECT_FALSE(c->next_fill(&g));
  c->filled(f);
  EXPECT_EQ(c->find({0, 4}), static_cast<int32_t>(f.slot));
  EXPECT_TRUE(c->use({0, 4}));
}

TEST(ExpertCache, AnAbandonedFillLeavesItsSlotFree) {
  Cache c(10, 1);
  ExpertFill f;
  c->use({0, 4});
  c->end_call();
  ASSERT_TRUE(c->next_fill(&f));
  c->abandoned(f);
  EXPECT_EQ(c->n_resident(), 0u);
  EXPECT_EQ(c->n_coming(), 0u);
  c.call({5});
  EXPECT_EQ(c.resident(), (std::set<uint32_t>{5}));
}

TEST(ExpertCache, PinnedExpertsStay) {
  Cache c(10, 3);
  ExpertFill f;
  ASSERT_TRUE(c->force_fill({0, 9}, &f));
  c->filled(f);
  c->pin({0, 9});
  EXPECT_FALSE(c->force_fill({0, 9}, &f));
  for (uint32_t round = 0; round < 20; ++round) c.calls({round % 8}, 5);
  EXPECT_TRUE(c.resident().contains(9));
  EXPECT_EQ(c->n_pinned(), 1u);
  for (const uint32_t e : {1u, 2u}) {
    if (c->force_fill({0, e}, &f)) c->filled(f);
    c->pin({0, e});
  }
  EXPECT_FALSE(c->force_fill({0, 5}, &f)) << "no slot is left that is not pinned";
  c.calls({5}, 50);
  EXPECT_EQ(c.resident(), (std::set<uint32_t>{1, 2, 9}));
}

/// Counts halve with time: yesterday's favourites give way.
TEST(ExpertCache, OldFavouritesAreForgotten) {
  Cache c(10, 2);
  c.calls({0, 1}, 2000);
  c.calls({2, 3}, 600);
  EXPECT_EQ(c.resident(), (std::set<uint32_t>{2, 3}));
}

TEST(ExpertCache, PlainPoliciesForComparison) {
  Cache lru(10, 2, ExpertPolicy::kLru);
  lru.call({0});
  lru.call({1});
  lru.call({0});
  lru.call({2});
  EXPECT_EQ(lru.resident(), (std::set<uint32_t>{0, 2}));
  Cache lfu(10, 2, ExpertPolicy::kLfu);
  lfu.calls({0}, 3);
  lfu.calls({1}, 2);
  lfu.call({2});
  EXPECT_EQ(lfu.resident(), (std::set<uint32_t>{0, 2}));
}

TEST(ExpertCache, NoSlotsCountsUsesOnly) {
  Cache c(4, 0);
  EXPECT_EQ(c.call({1, 2}), 0u);
  EXPECT_EQ(c->n_uses(), 2u);
  EXPECT_EQ(c->uses({0, 2}), 1u);
  ExpertFill f;
  EXPECT_FALSE(c->next_fill(&f));
  EXPECT_FALSE(c->force_fill({0, 1}, &f));
}

/// Random calls over several layers with fills that take their time. Each slot holds at most one
/// expert, found where it lies; counts are those of the fills; equal inputs give equal states.
TEST(ExpertCache, WhateverHappensTheSlotsAreConsistent) {
  for (const ExpertPolicy policy :
       {ExpertPolicy::kSegmented, ExpertPolicy::kLru, ExpertPolicy::kLfu}) {
    const ExpertCacheShape shape{3, 16, 10, policy};
    ExpertCache a(shape), b(shape);
    std::vector<ExpertFill> under_way;
    uint64_t random = 7, n_filled = 0, n_abandoned = 0;
    const auto draw = [&](uint32_t n) {
      random = random * 6364136223846793005ull + 1442695040888963407ull;
      return static_cast<uint32_t>((random >> 33) % n);
    };
    for (uint32_t call = 0; call < 3000; ++call) {
      for (uint32_t i = 0; i < 6; ++i) {
        const ExpertId id{draw(3), std::min(draw(16), draw(16))};
        EXPECT_EQ(a.use(id), a.find(id) >= 0);
        b.use(id);
      }
      a.end_call(), b.end_call();
      ExpertFill f, g;
      while (under_way.size() < 3 && a.next_fill(&f)) {
        ASSERT_TRUE(b.next_fill(&g));
        ASSERT_EQ(f.id, g.id);
        ASSERT_EQ(f.slot, g.slot);
        under_way.push_back(f);
      }
      if (!under_way.empty() && draw(2) == 0) {
        const ExpertFill done = under_way.front();
        under_way.erase(under_way.begin());
        const bool arrives = draw(8) != 0;
        arrives ? a.filled(done) : a.abandoned(done);
        arrives ? b.filled(done) : b.abandoned(done);
        (arrives ? n_filled : n_abandoned) += 1;
      }
      std::map<int32_t, ExpertId> at;
      for (uint32_t l = 0; l < 3; ++l) {
        for (uint32_t e = 0; e < 16; ++e) {
          const int32_t slot = a.find({l, e});
          ASSERT_EQ(slot, b.find({l, e}));
          if (slot < 0) continue;
          ASSERT_LT(slot, 10);
          ASSERT_TRUE(at.emplace(slot, ExpertId{l, e}).second) << "two experts in slot " << slot;
        }
      }
      for (const ExpertFill& u : under_way) {
        ASSERT_FALSE(at.contains(static_cast<int32_t>(u.slot))) << "a slot that is being written";
      }
      ASSERT_EQ(at.size(), a.n_resident());
      ASSERT_EQ(under_way.size(), a.n_coming());
    }
    EXPECT_GT(n_filled, 20u);
    EXPECT_GT(n_abandoned, 2u);
  }
}

}  // namespace
}  // namespace sharpi
