// SPDX-License-Identifier: MIT
// Which rows a compaction keeps, against a plain sort; and the average over neighbours.
#include "kv/policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

namespace sharpi {
namespace {

std::vector<uint32_t> sorted_choice(const PolicyParams& p, const std::vector<float>& scores) {
  const auto n = static_cast<uint32_t>(scores.size());
  const uint32_t budget = std::min(p.budget, n), recent = std::min(p.recency, budget);
  const uint32_t first = std::min({p.sinks, budget - recent, n - recent});
  std::vector<uint32_t> order(n - recent - first), keep(n);
  std::iota(order.begin(), order.end(), first);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return scores[a] > scores[b]; });
  order.resize(std::min<size_t>(order.size(), budget - recent - first));
  std::iota(keep.begin(), keep.end(), 0u);
  std::vector<uint32_t> out(keep.begin(), keep.begin() + first);
  out.insert(out.end(), order.begin(), order.end());
  out.insert(out.end(), keep.end() - recent, keep.end());
  std::sort(out.begin(), out.end());
  return out;
}

TEST(Policy, KeepsTheBestRowsAndTheEarlierOfEqualOnes) {
  std::mt19937 rng(3);
  for (int i = 0; i < 2000; ++i) {
    const auto n = static_cast<uint32_t>(1 + rng() % 500);
    std::vector<float> scores(n);
    for (float& s : scores) {
      const auto few = static_cast<float>(rng() % 5) * 0.1f - 0.2f;  // many ties
      const auto any =
          std::ldexp(static_cast<float>(rng() % 2001) - 1000.0f, -static_cast<int>(rng() % 40));
      s = rng() % 3 == 0 ? few : rng() % 7 == 0 ? -0.0f : any;
    }
    PolicyParams p;
    p.budget = static_cast<uint32_t>(rng() % (n + 20));
    p.recency = static_cast<uint32_t>(rng() % 40);
    p.sinks = static_cast<uint32_t>(rng() % 9);
    std::vector<uint32_t> scratch(n), keep(n);
    keep.resize(select_rows(p, scores.data(), n, scratch.data(), keep.data()));
    ASSERT_EQ(keep, sorted_choice(p, scores)) << "case " << i;
  }
}

TEST(Policy, AveragesOverNeighboursWithRepeatedEdges) {
  std::mt19937 rng(5);
  for (const uint32_t n : {1u, 7u, 513u, 1100u, 2048u}) {
    std::vector<float> sum(n), got(n), scratch(n);
    for (float& s : sum) s = static_cast<float>(rng() % 1000);
    LayerScores s;
    s.n_kv_heads = 1;
    s.n_slots = n;
    s.n_observed = 1;
    s.sum = s.max = sum.data();
    PolicyParams p;
    p.policy = SHARPI_POLICY_SNAPKV;
    p.pool_kernel = 13;
    policy_scores(p, s, 0, got.data(), scratch.data());
    for (int64_t i = 0; i < n; ++i) {
      double want = 0;
      for (int64_t j = i - 6; j <= i + 6; ++j) {
        want += static_cast<double>(sum[static_cast<size_t>(std::clamp<int64_t>(j, 0, n - 1))]);
      }
      ASSERT_EQ(got[static_cast<size_t>(i)], static_cast<float>(want / 13)) << n << " " << i;
    }
  }
}

/// A quarter of the context between 1024 rows (or the context) and 4096, and nothing where the
/// whole cache is smaller than 256 MiB; a cache of unknown size counts as large.
TEST(Policy, TheAutomaticBudgetFollowsTheContextAndTheCache) {
  constexpr uint64_t kWorthwhile = 256ull << 20;
  EXPECT_EQ(auto_budget(8192, kWorthwhile - 1), 0u);
  EXPECT_EQ(auto_budget(8192, 1), 0u);
  EXPECT_EQ(auto_budget(8192, kWorthwhile), 2048u);
  EXPECT_EQ(auto_budget(8192, 0), 2048u);
  EXPECT_EQ(auto_budget(4096, kWorthwhile), 1024u);
  EXPECT_EQ(auto_budget(2048, kWorthwhile), 1024u);
  EXPECT_EQ(auto_budget(512, kWorthwhile), 512u);
  EXPECT_EQ(auto_budget(16384, kWorthwhile), 4096u);
  EXPECT_EQ(auto_budget(1u << 20, kWorthwhile), 4096u);
}

}  // namespace
}  // namespace sharpi
