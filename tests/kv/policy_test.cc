// SPDX-License-Identifier: MIT
// Which rows a compaction keeps, against a plain sort; and the average over neighbours.
#include "kv/policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
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

/// Of a small budget the scores get a part, and what a host gives is kept or refused.
TEST(Policy, DefaultsLeaveRowsOfASmallBudgetToTheScores) {
  constexpr uint32_t kUnset = SHARPI_UNSET;
  const struct {
    uint32_t recency, sinks, budget, want_recency, want_sinks;
  } cases[] = {
      {kUnset, kUnset, 1024, 64, 4},
      {kUnset, kUnset, 128, 64, 4},
      {kUnset, kUnset, 64, 32, 4},
      {kUnset, kUnset, 16, 8, 4},
      {kUnset, kUnset, 8, 4, 2},
      {kUnset, kUnset, 3, 1, 1},
      {kUnset, kUnset, 2, 1, 0},
      {kUnset, kUnset, 1, 0, 0},
      {kUnset, kUnset, UINT32_MAX, 64, 4},
      {60, kUnset, 64, 60, 2},
      {64, kUnset, 64, 64, 0},
      {0, kUnset, 64, 0, 4},
      {kUnset, 0, 64, 32, 0},
      {kUnset, 40, 50, 10, 40},
      {kUnset, 50, 50, 0, 50},
      {20, 30, 50, 20, 30},
  };
  for (const auto& c : cases) {
    const auto got = resolve_fixed_rows(c.recency, c.sinks, c.budget);
    ASSERT_TRUE(got.is_ok()) << c.recency << " " << c.sinks << " of " << c.budget;
    EXPECT_EQ(got.value().recency, c.want_recency)
        << c.recency << " " << c.sinks << " " << c.budget;
    EXPECT_EQ(got.value().sinks, c.want_sinks) << c.recency << " " << c.sinks << " " << c.budget;
  }
  for (const auto& [budget, recency] : {std::array{1024u, 16u}, std::array{20u, 10u}}) {
    const auto got = resolve_fixed_rows(kUnset, kUnset, budget, 16);
    ASSERT_TRUE(got.is_ok());
    EXPECT_EQ(got.value().recency, recency) << budget;
  }
  for (const auto& c : {std::array{65u, kUnset}, std::array{kUnset, 65u}, std::array{60u, 5u}}) {
    const auto got = resolve_fixed_rows(c[0], c[1], 64);
    ASSERT_FALSE(got.is_ok());
    EXPECT_EQ(got.status().code(), Code::kInvalidArgument);
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
