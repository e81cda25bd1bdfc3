// SPDX-License-Identifier: MIT
// The sampler's selections over a large vocabulary, against a sort.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "engine/sampler.h"

namespace sharpi {
namespace {

constexpr uint32_t kVocab = 40000;

std::vector<int32_t> ascending(uint32_t a, uint32_t b) {
  return {static_cast<int32_t>(std::min(a, b)), static_cast<int32_t>(std::max(a, b))};
}

/// Rounded to eighths, so that there are many ties.
std::vector<float> make_logits(float spread, uint32_t seed) {
  std::mt19937 gen(seed);
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> logits(kVocab);
  for (float& x : logits) x = std::round(normal(gen) * 8.0f) / 8.0f;
  return logits;
}

/// Best first, ties by id.
std::vector<uint32_t> sorted(const std::vector<float>& logits) {
  std::vector<uint32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return logits[a] > logits[b]; });
  return order;
}

std::vector<int32_t> draw(const sharpi_sampler_params& p, const std::vector<float>& logits, int n) {
  Sampler sampler(kVocab, {});
  EXPECT_TRUE(sampler.configure(p).is_ok());
  std::vector<int32_t> out(static_cast<size_t>(n));
  for (int32_t& token : out) {
    std::vector<float> row = logits;
    EXPECT_TRUE(sampler.sample(row.data(), {}, {}, &token).is_ok());
  }
  return out;
}

sharpi_sampler_params seeded(uint64_t seed) {
  sharpi_sampler_params p = default_sampler_params();
  p.temperature = 1.0f;
  p.top_k = 0;
  p.top_p = 1.0f;
  p.min_p = 0.0f;
  p.seed = seed;
  return p;
}

TEST(SamplerLarge, TopKKeepsWhatASortPutsFirst) {
  const std::vector<float> logits = make_logits(3.0f, 6);
  const std::vector<uint32_t> order = sorted(logits);
  for (const uint32_t k : {1u, 2u, 40u, 999u, 30000u}) {
    sharpi_sampler_params p = seeded(k);
    p.top_k = k;
    p.temperature = 50.0f;  // nearly flat, so that the last of the k come as well
    const std::set<uint32_t> best(order.begin(), order.begin() + k);
    for (const int32_t token : draw(p, logits, 60)) {
      EXPECT_EQ(best.count(static_cast<uint32_t>(token)), 1u) << "k " << k << " token " << token;
    }
  }
}

struct Nucleus {
  float spread, top_p, min_p;
};

class SamplerNucleus : public ::testing::TestWithParam<Nucleus> {};

/// Draws stay inside what the definition keeps, reach its lighter half, and have its mean logit.
TEST_P(SamplerNucleus, KeepsWhatASortKeeps) {
  const Nucleus& c = GetParam();
  const std::vector<float> logits = make_logits(c.spread, 8);
  const std::vector<uint32_t> order = sorted(logits);
  const auto weight = [&](uint32_t i) {
    return std::exp(static_cast<double>(logits[i]) - static_cast<double>(logits[order[0]]));
  };
  double total = 0;
  for (const uint32_t i : order) total += weight(i);
  double mass = 0, mean = 0, square = 0, kept_mass = 0;
  std::set<uint32_t> kept;
  for (const uint32_t i : order) {
    if (mass >= static_cast<double>(c.top_p) * total) break;
    mass += weight(i);
    if (weight(i) < static_cast<double>(c.min_p)) continue;
    kept.insert(i);
    kept_mass += weight(i);
    mean += weight(i) * static_cast<double>(logits[i]);
    square += weight(i) * static_cast<double>(logits[i]) * static_cast<double>(logits[i]);
  }
  mean /= kept_mass;
  const double deviation = std::sqrt(std::max(0.0, square / kept_mass - mean * mean));
  sharpi_sampler_params p = seeded(3);
  p.top_p = c.top_p;
  p.min_p = c.min_p;
  constexpr int kDraws = 150;
  double drawn = 0;
  for (const int32_t token : draw(p, logits, kDraws)) {
    ASSERT_EQ(kept.count(static_cast<uint32_t>(token)), 1u) << token << " of " << kept.size();
    drawn += static_cast<double>(logits[static_cast<size_t>(token)]) / kDraws;
  }
  EXPECT_NEAR(drawn, mean, 5.0 * deviation / std::sqrt(kDraws) + 1e-9) << kept.size() << " kept";
}

INSTANTIATE_TEST_SUITE_P(Shapes, SamplerNucleus,
                         ::testing::Values(Nucleus{0.5f, 0.9f, 0.0f}, Nucleus{2.5f, 0.95f, 0.0f},
                                           Nucleus{2.5f, 0.1f, 0.0f}, Nucleus{4.0f, 0.5f, 0.0f},
                                           Nucleus{2.5f, 1.0f, 0.05f}, Nucleus{2.5f, 0.7f, 0.02f},
                                           Nucleus{2.5f, 0.999f, 1e-4f},
                                           Nucleus{8.0f, 0.95f, 0.0f}));

TEST(SamplerLarge, TiesAtTheEndOfTheNucleusGoToTheLowestIds) {
  std::vector<float> logits(kVocab, 0.0f);
  for (uint32_t i = 0; i < kVocab; i += 2) logits[i] = -0.0f;  // equal to 0
  sharpi_sampler_params p = seeded(5);
  p.top_p = 0.00379f;  // 152 of the equal tokens
  std::set<int32_t> seen;
  for (const int32_t token : draw(p, logits, 400)) {
    EXPECT_LT(token, 152);
    seen.insert(token);
  }
  EXPECT_GT(seen.size(), 100u);
}

/// A draw from the best logits alone, as a tier that keeps the row would hand them over.
bool draw_best(Sampler* sampler, const std::vector<float>& logits, uint32_t n, int32_t* out) {
  const std::vector<uint32_t> order = sorted(logits);
  std::vector<float> values, row(logits.size(), std::nanf(""));
  std::vector<int32_t> ids;
  for (uint32_t i = 0; i < n; ++i) {
    values.push_back(logits[order[i]]);
    ids.push_back(static_cast<int32_t>(order[i]));
  }
  bool enough = false;
  sampler->sample_best(values.data(), ids.data(), n, row.data(), out, &enough);
  return enough;
}

TEST(SamplerBest, DrawsWhatTheWholeRowWouldGive) {
  for (uint32_t seed = 1; seed <= 40; ++seed) {
    const std::vector<float> logits = make_logits(seed % 2 == 0 ? 1.0f : 3.0f, seed);
    const std::vector<uint32_t> order = sorted(logits);
    const std::vector<int32_t> never = ascending(order[3], order[seed % 2]);
    sharpi_sampler_params p = seeded(seed);
    p.temperature = seed % 5 == 0 ? 0.0f : 0.8f;
    p.top_k = 1 + seed * 5;
    p.top_p = seed % 3 == 0 ? 0.9f : 1.0f;
    p.min_p = seed % 4 == 0 ? 0.1f : 0.0f;
    Sampler whole(kVocab, never), best(kVocab, never);
    ASSERT_TRUE(whole.configure(p).is_ok());
    ASSERT_TRUE(best.configure(p).is_ok());
    ASSERT_GT(best.n_best({}), 0u);
    for (int i = 0; i < 20; ++i) {
      int32_t want = -1, got = -1;
      std::vector<float> row = logits;
      ASSERT_TRUE(whole.sample(row.data(), {}, {}, &want).is_ok());
      ASSERT_TRUE(draw_best(&best, logits, best.n_best({}), &got));
      ASSERT_EQ(got, want) << "seed " << seed << " draw " << i;
    }
  }
}

TEST(SamplerBest, WhatAMaskForbidsComesAsNothingAndTheRestDecides) {
  for (const size_t n_allowed : {size_t{1}, size_t{6}, size_t{300}}) {
    const std::vector<float> logits = make_logits(1.0f, 21);
    const std::vector<uint32_t> order = sorted(logits);
    std::vector<uint32_t> mask((kVocab + 31) / 32);
    for (size_t i = 0; i < n_allowed; ++i) mask[order[5 * i] / 32] |= 1u << (order[5 * i] % 32);
    const Draw draw{true, mask, {}, {}};
    std::vector<float> masked = logits;
    for (uint32_t i = 0; i < kVocab; ++i) {
      if (!draw.allows(i)) masked[i] = -std::numeric_limits<float>::infinity();
    }
    sharpi_sampler_params p = seeded(4);
    p.top_k = 20;
    Sampler whole(kVocab, {}), best(kVocab, {});
    ASSERT_TRUE(whole.configure(p).is_ok());
    ASSERT_TRUE(best.configure(p).is_ok());
    for (int i = 0; i < 50; ++i) {
      int32_t want = -1, got = -2;
      std::vector<float> row = logits;
      ASSERT_TRUE(whole.sample(row.data(), {}, draw, &want).is_ok());
      ASSERT_TRUE(draw_best(&best, masked, best.n_best(draw), &got));
      ASSERT_EQ(got, want) << n_allowed << " allowed, draw " << i;
    }
  }
}

TEST(SamplerBest, NeedsTheRowWhenTooFewAreLeft) {
  std::vector<float> logits = make_logits(1.0f, 7);
  const std::vector<uint32_t> order = sorted(logits);
  sharpi_sampler_params p = seeded(1);
  p.top_k = 4;
  const std::vector<int32_t> never = ascending(order[0], order[2]);
  Sampler sampler(kVocab, never);
  ASSERT_TRUE(sampler.configure(p).is_ok());
  const SamplerMark mark = sampler.mark();
  int32_t token = -1;
  EXPECT_FALSE(draw_best(&sampler, logits, 5, &token));
  EXPECT_EQ(sampler.mark().state, mark.state) << "a random number was used";
  EXPECT_TRUE(draw_best(&sampler, logits, 6, &token));
  logits[order[1]] = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(draw_best(&sampler, logits, 6, &token));
}

TEST(SamplerBest, BiasPenaltyAndOpenEndsNeedTheRow) {
  Sampler sampler(kVocab, {});
  const auto n_best = [&](auto edit) {
    sharpi_sampler_params p = seeded(1);
    p.top_k = 40;
    edit(&p);
    EXPECT_TRUE(sampler.configure(p).is_ok());
    return sampler.n_best({});
  };
  const int32_t token = 5;
  const float bias = 1.0f;
  EXPECT_EQ(n_best([](auto*) {}), 40u);
  EXPECT_EQ(n_best([](auto* p) { p->temperature = 0.0f, p->top_k = 0; }), 1u);
  const std::vector<int32_t> never{3};
  EXPECT_GT(Sampler(kVocab, never).n_best({}), 40u) << "forbidden ones may be among the best";
  EXPECT_EQ(n_best([](auto* p) { p->top_k = 0; }), 0u);
  EXPECT_EQ(n_best([](auto* p) { p->top_k = 5000; }), 0u);
  EXPECT_EQ(n_best([](auto* p) { p->repeat_penalty = 1.1f; }), 0u);
  EXPECT_EQ(
      n_best([&](auto* p) { p->n_bias = 1, p->bias_tokens = &token, p->bias_values = &bias; }), 0u);
}

}  // namespace
}  // namespace sharpi
