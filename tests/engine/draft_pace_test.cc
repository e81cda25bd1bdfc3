// SPDX-License-Identifier: MIT
// Which drafts are found in a text, and how many of them are taken, with made-up times.
#include "engine/draft_pace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/draft_ngram.h"
#include "engine/pcg32.h"

namespace sharpi {
namespace {

std::vector<int32_t> proposed(NgramDrafter& drafter, const std::vector<int32_t>& history,
                              int32_t next, uint32_t most, uint32_t* match = nullptr) {
  std::vector<int32_t> out(most, -1);
  uint32_t agreed = 0;
  out.resize(drafter.propose(history, next, most, out.data(), &agreed));
  if (match != nullptr) *match = agreed;
  return out;
}

TEST(Ngram, FindsWhatFollowedTheLongestAgreement) {
  NgramDrafter drafter(64);
  // 1 2 3 stands twice; behind 9 1 2 3 comes 5, not 4.
  const std::vector<int32_t> text = {9, 1, 2, 3, 5, 6, 7, 1, 2, 3, 4, 8, 9, 1, 2};
  uint32_t match = 0;
  EXPECT_EQ(proposed(drafter, text, 3, 3, &match), (std::vector<int32_t>{5, 6, 7}));
  EXPECT_EQ(match, 4u);
}

TEST(Ngram, TwoTokensAreNoAgreement) {
  NgramDrafter drafter(64);
  EXPECT_TRUE(proposed(drafter, {1, 2, 4, 5, 1}, 2, 4).empty());
  EXPECT_TRUE(proposed(drafter, {}, 2, 4).empty());
  EXPECT_TRUE(proposed(drafter, {1, 2}, 3, 4).empty());
}

TEST(Ngram, ATextThatRepeatsIsCopiedOnPastItsEnd) {
  NgramDrafter drafter(64);
  EXPECT_EQ(proposed(drafter, {1, 2, 3, 1, 2, 3, 1, 2}, 3, 7),
            (std::vector<int32_t>{1, 2, 3, 1, 2, 3, 1}));
}

TEST(Ngram, WhatWasCutOffIsNotFoundAgain) {
  NgramDrafter drafter(64);
  std::vector<int32_t> text = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2};
  EXPECT_FALSE(proposed(drafter, text, 3, 2).empty());
  text = {7, 7, 8};
  drafter.truncate(0);
  EXPECT_TRUE(proposed(drafter, text, 3, 2).empty());
  text = {7, 7, 8, 1, 2};  // stale places of 1 2 3 lie behind this text, or in it
  EXPECT_TRUE(proposed(drafter, text, 3, 2).empty());
}

TEST(Ngram, RandomTextsAndCutsGiveOnlyWhatTheTextHas) {
  Pcg32 random(5);
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random.uniform() * n); };
  NgramDrafter drafter(200);
  std::vector<int32_t> text;
  for (int round = 0; round < 4000; ++round) {
    if (text.size() > 150 || below(40) == 0) {
      text.resize(below(static_cast<uint32_t>(text.size()) + 1));
      drafter.truncate(static_cast<uint32_t>(text.size()));
    }
    const auto next = static_cast<int32_t>(below(3));
    uint32_t match = 0;
    const std::vector<int32_t> out = proposed(drafter, text, next, 5, &match);
    if (!out.empty()) {
      std::vector<int32_t> all = text;
      all.push_back(next);
      ASSERT_GE(match, 3u);
      // Some earlier place has the last `match` tokens, and the drafts behind them.
      const auto tail = all.end() - static_cast<std::ptrdiff_t>(match);
      bool found = false;
      for (size_t p = match; p < all.size() && !found; ++p) {
        found = std::equal(tail, all.end(), all.begin() + static_cast<std::ptrdiff_t>(p - match));
        for (size_t i = 0; i < 5 && found; ++i) {
          const size_t at = p + i;
          found = out[i] == (at < all.size() ? all[at] : out[at - all.size()]);
        }
      }
      ASSERT_TRUE(found) << round;
    }
    text.push_back(next);
  }
}

/// How often a draft is right by its place, if those before it are; the last one also behind.
using Accepted = std::vector<double>;

double at(const Accepted& accepted, uint32_t place) {
  return accepted[std::min<size_t>(place, accepted.size() - 1)];
}

/// Steps with made-up times: seconds with drafts over seconds without, per token.
double speed_up(const Accepted& accepted, double per_row, uint32_t match, uint32_t* most_drafts) {
  DraftPace pace;
  Pcg32 random(9);
  double with = 0, tokens = 0;
  *most_drafts = 0;
  for (int step = 0; step < 20000; ++step) {
    const uint32_t n = pace.choose(match, 32);
    uint32_t right = 0;
    while (right < n && random.uniform() < at(accepted, right)) ++right;
    const double seconds = 1 + per_row * n;
    pace.took({n}, right + 1, seconds);
    if (n != 0) pace.verified(match, n, right);
    with += seconds;
    tokens += right + 1;
    if (step > 10000) *most_drafts = std::max(*most_drafts, n);
  }
  return tokens / with;
}

TEST(Pace, LosesNextToNothingOnTextThatAcceptsNothing) {
  uint32_t most = 0;
  for (const double per_row : {0.02, 0.1, 0.3}) {
    EXPECT_GT(speed_up({0.0}, per_row, 4, &most), 0.98) << per_row;
  }
}

/// The same over so few steps that what is learned first counts, every twentieth of which takes
/// three times as long as it should.
double first_steps(double accepted, double per_row, int n_tokens) {
  double with = 0, without = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    DraftPace pace;
    Pcg32 random(seed);
    for (int tokens = 0; tokens < n_tokens;) {
      const uint32_t n = pace.choose(DraftPace::kOfModel, 8);
      const double pause = random.uniform() < 0.05 ? 3 : 1;
      uint32_t right = 0;
      while (right < n && random.uniform() < accepted) ++right;
      const double seconds = (1 + per_row * n) * pause;
      pace.took({n}, right + 1, seconds);
      if (n != 0) pace.verified(DraftPace::kOfModel, n, right);
      with += seconds;
      without += (right + 1) * 1.1;
      tokens += static_cast<int>(right) + 1;
    }
  }
  return without / with;
}

TEST(Pace, AModelWhoseDraftsCostAStepEachLosesLittleFromTheBeginning) {
  for (const double per_row : {0.05, 0.2, 0.6, 1.2}) {
    EXPECT_GT(first_steps(0.0, per_row, 200), 0.97) << per_row;
    EXPECT_GT(first_steps(0.0, per_row, 2000), 0.99) << per_row;
  }
  EXPECT_GT(first_steps(0.9, 0.2, 200), 2.0);
}

/// Right nine times in ten, and still not worth 1.2 steps a draft: a step without drafts that a
/// pause of the machine made slow must not hide that.
TEST(Pace, ADrafterThatIsRightAndTooSlowLosesLittle) {
  EXPECT_GT(first_steps(0.9, 1.2, 200), 0.98);
  EXPECT_GT(first_steps(0.9, 1.2, 2000), 0.99);
  EXPECT_GT(first_steps(0.6, 0.6, 2000), 0.99);
}

/// A drafter that costs `per_row` steps for a draft and its row, and a tenth of a step for each
/// token that it did not follow: steps without drafts over those with them.
double with_catching_up(double accepted, double per_row, int n_tokens) {
  DraftPace pace;
  Pcg32 random(3);
  double with = 0;
  int tokens = 0, seen = 0;
  while (tokens < n_tokens) {
    const auto lag = static_cast<uint32_t>(tokens - seen);
    const uint32_t n = pace.choose(DraftPace::kOfModel, 8, lag);
    uint32_t right = 0;
    while (right < n && random.uniform() < accepted) ++right;
    const double seconds = 1 + per_row * n, behind = n == 0 ? 0 : 0.1 * lag;
    if (n != 0) pace.verified(DraftPace::kOfModel, n, right);
    pace.took({n, 0, DraftPace::kOfModel, n == 0 ? 0 : lag, behind}, right + 1, seconds);
    with += seconds + behind;
    tokens += static_cast<int>(right) + 1;
    if (n != 0) seen = tokens;
  }
  return tokens / with;
}

TEST(Pace, WhatADrafterReadsToCatchUpIsPaidFor) {
  for (const double accepted : {0.0, 0.5, 1.0}) {
    for (const double per_row : {0.2, 1.0, 1.2}) {
      EXPECT_GT(with_catching_up(accepted, per_row, 400), 0.97) << accepted << ", " << per_row;
      EXPECT_GT(with_catching_up(accepted, per_row, 4000), 0.985) << accepted << ", " << per_row;
    }
  }
  EXPECT_GT(with_catching_up(0.9, 0.2, 400), 1.6);
}

TEST(Pace, TakesAllWhereRowsAreCheapAndDraftsRight) {
  uint32_t most = 0;
  EXPECT_GT(speed_up({1.0}, 0.01, 30, &most), 20.0);
  EXPECT_EQ(most, 32u);
}

/// Against the best number, if it were known and always taken.
double of_the_best(const Accepted& accepted, double per_row, uint32_t match) {
  double best = 1, tokens = 1, reach = 1;
  for (uint32_t n = 1; n <= 32; ++n) {
    tokens += reach *= at(accepted, n - 1);
    best = std::max(best, tokens / (1 + per_row * n));
  }
  uint32_t most = 0;
  return speed_up(accepted, per_row, match, &most) / best;
}

TEST(Pace, ComesNearTheBestFixedNumber) {
  for (const double accepted : {0.4, 0.7, 0.9}) {
    for (const double per_row : {0.03, 0.15, 0.4}) {
      for (const uint32_t match : {8u, DraftPace::kOfModel}) {
        EXPECT_GT(of_the_best({accepted}, per_row, match), 0.9) << accepted << ", " << per_row;
      }
    }
  }
}

/// What one rate for all places cannot say: a second draft that is seldom right where the first
/// one is, or the reverse, and rates that fall from place to place.
TEST(Pace, ComesNearTheBestFixedNumberWhereRatesDifferByPlace) {
  const std::pair<Accepted, double> all[] = {{{.76, .62, .46, .40}, 0.985},
                                             {{.99, .94, .88, .80, .70}, 0.985},
                                             {{.9, .1}, 0.96},
                                             {{.6, .95}, 0.96}};
  for (const auto& [accepted, share] : all) {
    for (const double per_row : {0.03, 0.15, 0.4}) {
      for (const uint32_t match : {8u, DraftPace::kOfModel}) {
        EXPECT_GT(of_the_best(accepted, per_row, match), share) << accepted[0] << ", " << per_row;
      }
    }
  }
}

TEST(Pace, APlaceThatWasWrongForAWhileIsTriedAgain) {
  for (const uint32_t match : {8u, DraftPace::kOfModel}) {
    DraftPace pace;
    pace.took({}, 1, 1.0);
    uint32_t n = 0, n_alone = 0;
    for (int step = 0; step < 400; ++step) {
      n = pace.choose(match, 8);
      const uint32_t right = std::min(n, step < 200 ? 1u : 8u);  // the second one is always wrong
      pace.took({n}, right + 1, 1 + 0.1 * n);
      if (n != 0) pace.verified(match, n, right);
      if (step >= 100 && step < 200 && n == 1) ++n_alone;
    }
    EXPECT_GT(n_alone, 50u);
    EXPECT_EQ(n, 8u);
  }
}

/// Passes of four sessions that take 0.9 and 0.1 for each row.
TEST(SharedPass, APriceIsThatOfAllSessionsDoingTheSame) {
  Pcg32 random(4);
  SharedPass passes;
  for (int i = 0; i < 400; ++i) {
    const auto rows = 4 + static_cast<uint32_t>(random.uniform() * 9);
    passes.took(rows, 0.9 + 0.1 * rows);
  }
  EXPECT_NEAR(passes.price(1, 5, 1.4, 5, 0.25), 1.65, 1e-6);  // alone: its own pass
  EXPECT_NEAR(passes.price(4, 4, 1.3, 1, 0.0), 1.3, 0.01);
  EXPECT_NEAR(passes.price(4, 8, 1.7, 5, 0.0), 0.9 + 4 * 0.5, 0.1);
  EXPECT_NEAR(passes.price(4, 8, 1.7, 1, 0.0), 1.3, 0.02);  // the drafts of others cost it nothing
  EXPECT_NEAR(passes.price(4, 4, 1.3, 1, 0.25), 1.3 + 4 * 0.25, 0.01);
  EXPECT_NEAR(passes.enter(4), 1.3, 0.02);
  EXPECT_NEAR(passes.enter(4), 1.0, 1e-9);
  EXPECT_NEAR(passes.enter(1), 1 / 1.3, 0.02);
}

TEST(SharedPass, PassesOfOneSizeSayNothingAboutRows) {
  SharedPass passes;
  const double before = passes.price(4, 8, 1.0, 5, 0);
  for (int i = 0; i < 100; ++i) passes.took(8, 1.0);
  EXPECT_NEAR(passes.price(4, 8, 1.0, 5, 0), before, 1e-6);
  EXPECT_GT(before, passes.price(4, 8, 1.0, 1, 0));
}

/// Tokens a second of n sessions that draft so many each, where a pass takes 1 - row and `row` for
/// each of its rows.
double speed_of_all(const Accepted& accepted, double row, uint32_t n_sessions, uint32_t n) {
  double tokens = 1, reach = 1;
  for (uint32_t i = 0; i < n; ++i) tokens += reach *= at(accepted, i);
  return n_sessions * tokens / (1 - row + row * n_sessions * (n + 1));
}

/// Steps of sessions, of which so many take part in each span of 50; their speed over that of the
/// best number of drafts, if it were known.
double together(const Accepted& accepted, double row, std::vector<uint32_t> company) {
  std::vector<DraftPace> paces(8);
  std::vector<SharedPass> passes(8);
  Pcg32 random(5);
  double seconds = 0, best_seconds = 0;
  for (uint32_t step = 0; step < 4000; ++step) {
    const uint32_t n_sessions = company[step / 50 % company.size()];
    uint32_t n[8] = {}, right[8] = {}, rows = 0, given = 0;
    for (uint32_t i = 0; i < n_sessions; ++i) {
      n[i] = paces[i].choose(DraftPace::kOfModel, 8);
      while (right[i] < n[i] && random.uniform() < at(accepted, right[i])) ++right[i];
      rows += n[i] + 1;
      given += right[i] + 1;
    }
    const double pass = 1 - row + row * rows;
    for (uint32_t i = 0; i < n_sessions; ++i) {
      passes[i].took(rows, pass);
      paces[i].rescale(passes[i].enter(n_sessions));
      if (n[i] != 0) paces[i].verified(DraftPace::kOfModel, n[i], right[i]);
      paces[i].took({n[i]}, right[i] + 1, passes[i].price(n_sessions, rows, pass, n[i] + 1, 0));
    }
    double best = 0;
    for (uint32_t k = 0; k <= 8; ++k) {
      best = std::max(best, speed_of_all(accepted, row, n_sessions, k));
    }
    seconds += pass;
    best_seconds += given / best;
  }
  return best_seconds / seconds;
}

TEST(SharedPass, DraftsInCompanyComeNearTheBestNumberForAll) {
  const Accepted accepted = {.76, .62, .46, .40};
  for (const double row : {0.02, 0.06, 0.15, 0.5}) {
    EXPECT_GT(together(accepted, row, {8}), 0.97) << row;
    EXPECT_GT(together({0.0}, row, {8}), 0.98) << row;
    EXPECT_GT(together(accepted, row, {1, 8}), 0.95) << row;
    EXPECT_GT(together(accepted, row, {1, 5, 2, 8, 3}), 0.95) << row;
  }
}

/// However many tokens agree: drafts of a text cost nothing, those of a model wait for steps
/// without any to be timed.
TEST(Pace, NoNumberOfTokensThatAgreeIsAModel) {
  for (uint32_t match = 1; match < 100; ++match) {
    DraftPace pace;
    pace.took({}, 1, 1.0);
    EXPECT_GT(pace.choose(match, 32), 1u) << match;
  }
  DraftPace pace;
  pace.took({}, 1, 1.0);
  EXPECT_EQ(pace.choose(DraftPace::kOfModel, 32), 0u);
}

}  // namespace
}  // namespace sharpi
