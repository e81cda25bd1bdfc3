// SPDX-License-Identifier: MIT
// Draws are compared with exact distributions: chi-square with fixed seeds, thresholds at p = 1e-6.
#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace sharpi {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Everything off: plain softmax at temperature 1.
sharpi_sampler_params plain(uint64_t seed = 1) {
  sharpi_sampler_params p = default_sampler_params();
  p.temperature = 1.0f;
  p.top_k = 0;
  p.top_p = 1.0f;
  p.min_p = 0.0f;
  p.seed = seed;
  return p;
}

sharpi_sampler_params greedy() {
  sharpi_sampler_params p = plain();
  p.temperature = 0.0f;
  return p;
}

class Draws {
 public:
  explicit Draws(const sharpi_sampler_params& params, std::vector<float> logits,
                 std::vector<int32_t> recent = {}, std::vector<int32_t> never = {})
      : logits_(std::move(logits)),
        recent_(std::move(recent)),
        never_(std::move(never)),
        sampler_(static_cast<uint32_t>(logits_.size()), never_) {
    const Status s = sampler_.configure(params);
    EXPECT_TRUE(s.is_ok()) << s.text();
  }
  int32_t one() {
    std::vector<float> row = logits_;
    int32_t token = -1;
    const Status s = sampler_.sample(row.data(), recent_, {}, &token);
    EXPECT_TRUE(s.is_ok()) << s.text();
    return token;
  }
  std::vector<int32_t> many(int n) {
    std::vector<int32_t> out;
    for (int i = 0; i < n; ++i) out.push_back(one());
    return out;
  }
  std::vector<int> counts(int n) {
    std::vector<int> c(logits_.size());
    for (int i = 0; i < n; ++i) ++c[static_cast<size_t>(one())];
    return c;
  }
  Sampler& sampler() { return sampler_; }

 private:
  std::vector<float> logits_;
  std::vector<int32_t> recent_, never_;
  Sampler sampler_;
};

std::vector<double> softmax(const std::vector<double>& logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  std::vector<double> p;
  double sum = 0;
  for (const double x : logits) p.push_back(std::exp(x - top)), sum += p.back();
  for (double& x : p) x /= sum;
  return p;
}

/// Upper 1e-6 point of chi-square, by the cube approximation of Wilson and Hilferty (1931).
double chi_square_limit(int degrees) {
  constexpr double kZ = 4.7534;  // of the standard normal
  const double k = degrees, a = 2.0 / (9.0 * k);
  return k * std::pow(1.0 - a + kZ * std::sqrt(a), 3.0);
}

/// Tokens of probability 0 must never come; the others must come as often as they should.
void expect_distribution(const std::vector<int>& counts, const std::vector<double>& p) {
  const double n = std::accumulate(counts.begin(), counts.end(), 0.0);
  double chi = 0;
  int degrees = -1;
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] == 0.0) {
      EXPECT_EQ(counts[i], 0) << "token " << i << " is excluded";
      continue;
    }
    ASSERT_GE(p[i] * n, 5.0) << "too few draws for token " << i;
    const double d = counts[i] - p[i] * n;
    chi += d * d / (p[i] * n);
    ++degrees;
  }
  if (degrees > 0) {
    EXPECT_LT(chi, chi_square_limit(degrees));
  }
}

constexpr int kDraws = 40000;
const std::vector<float> kLogits{1.0f, 2.5f, -0.5f, 0.25f, 2.0f, -1.0f, 1.5f, 0.0f};

std::vector<double> scaled(const std::vector<float>& logits, double temperature) {
  std::vector<double> out;
  for (const float x : logits) out.push_back(static_cast<double>(x) / temperature);
  return out;
}

/// Keeps the given tokens of a distribution and renormalises.
std::vector<double> only(std::vector<double> p, const std::vector<size_t>& kept) {
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    if (std::find(kept.begin(), kept.end(), i) == kept.end()) p[i] = 0.0;
    sum += p[i];
  }
  for (double& x : p) x /= sum;
  return p;
}

TEST(Sampler, DrawsFromTheSoftmaxWhenEverythingIsOff) {
  Draws draws(plain(), kLogits);
  expect_distribution(draws.counts(kDraws), softmax(scaled(kLogits, 1.0)));
}

TEST(Sampler, TemperatureDividesTheLogits) {
  for (const float t : {0.5f, 2.0f}) {
    sharpi_sampler_params p = plain(7);
    p.temperature = t;
    Draws draws(p, kLogits);
    expect_distribution(draws.counts(kDraws), softmax(scaled(kLogits, static_cast<double>(t))));
  }
}

TEST(Sampler, TemperatureZeroIsTheBestTokenAndUsesNoRandomNumber) {
  Draws draws(greedy(), kLogits);
  const uint64_t before = draws.sampler().mark().state;
  EXPECT_EQ(draws.many(5), std::vector<int32_t>(5, 1));
  EXPECT_EQ(draws.sampler().mark().state, before);
}

TEST(Sampler, GreedyTiesGoToTheLowestId) {
  std::vector<float> logits(100, -3.0f);
  logits[97] = logits[41] = logits[63] = 4.0f;
  EXPECT_EQ(Draws(greedy(), logits).one(), 41);
}

TEST(Sampler, AVerySmallTemperatureIsTheBestToken) {
  sharpi_sampler_params p = plain();
  p.temperature = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(Draws(p, kLogits).many(20), std::vector<int32_t>(20, 1));
}

TEST(Sampler, TopKKeepsTheKBest) {
  sharpi_sampler_params p = plain(3);
  p.top_k = 3;
  Draws draws(p, kLogits);
  expect_distribution(draws.counts(kDraws), only(softmax(scaled(kLogits, 1.0)), {1, 4, 6}));
}

TEST(Sampler, TopKTiesGoToTheLowestIds) {
  std::vector<float> logits(70, 1.0f);
  logits[69] = 2.0f;
  sharpi_sampler_params p = plain(3);
  p.top_k = 3;
  const std::vector<int> counts = Draws(p, logits).counts(5000);
  EXPECT_GT(counts[69], 0);
  EXPECT_GT(counts[0], 0);
  EXPECT_GT(counts[1], 0);
  EXPECT_EQ(counts[69] + counts[0] + counts[1], 5000);
}

TEST(Sampler, TopKOfTheWholeVocabularyOrMoreIsOff) {
  for (const uint32_t k : {8u, 1000u}) {
    sharpi_sampler_params p = plain(11);
    p.top_k = k;
    EXPECT_EQ(Draws(p, kLogits).many(200), Draws(plain(11), kLogits).many(200));
  }
}

TEST(Sampler, TopKOfOneIsGreedyAtAnyTemperature) {
  sharpi_sampler_params p = plain();
  p.top_k = 1;
  p.temperature = 100.0f;
  EXPECT_EQ(Draws(p, kLogits).many(50), std::vector<int32_t>(50, 1));
}

TEST(Sampler, TopPKeepsTheShortestPrefixThatReachesIt) {
  const std::vector<double> p = softmax(scaled(kLogits, 1.0));
  sharpi_sampler_params params = plain(5);
  // 1 and 4 do not reach it, 1, 4 and 6 do.
  params.top_p = static_cast<float>(p[1] + p[4] + 0.5 * p[6]);
  Draws draws(params, kLogits);
  expect_distribution(draws.counts(kDraws), only(p, {1, 4, 6}));
}

TEST(Sampler, TopPOfZeroIsTheBestToken) {
  sharpi_sampler_params p = plain();
  p.top_p = 0.0f;
  EXPECT_EQ(Draws(p, kLogits).many(50), std::vector<int32_t>(50, 1));
}

TEST(Sampler, TopPIsMeasuredOnWhatTopKLeft) {
  sharpi_sampler_params params = plain(5);
  params.top_k = 3;
  const std::vector<double> p = only(softmax(scaled(kLogits, 1.0)), {1, 4, 6});
  params.top_p = static_cast<float>(p[1] + 0.5 * p[4]);
  Draws draws(params, kLogits);
  expect_distribution(draws.counts(kDraws), only(p, {1, 4}));
}

TEST(Sampler, MinPKeepsTokensWithThatShareOfTheBest) {
  sharpi_sampler_params params = plain(9);
  // 6 is e^-1 of the best, 0 is e^-1.5.
  params.min_p = 0.3f;
  Draws draws(params, kLogits);
  expect_distribution(draws.counts(kDraws), only(softmax(scaled(kLogits, 1.0)), {1, 4, 6}));
}

TEST(Sampler, MinPOfOneKeepsTheBestAndItsEquals) {
  std::vector<float> logits = kLogits;
  logits[7] = 2.5f;
  sharpi_sampler_params p = plain(9);
  p.min_p = 1.0f;
  Draws draws(p, logits);
  expect_distribution(draws.counts(4000), only(softmax(scaled(logits, 1.0)), {1, 7}));
}

TEST(Sampler, MinPComesAfterTemperature) {
  sharpi_sampler_params params = plain(9);
  params.temperature = 4.0f;
  params.min_p = 0.6f;  // e^(-1.5/4) = 0.69 stays, e^(-2.25/4) = 0.57 goes
  Draws draws(params, kLogits);
  expect_distribution(draws.counts(kDraws), only(softmax(scaled(kLogits, 4.0)), {0, 1, 4, 6}));
}

TEST(Sampler, AllCutsTogetherEqualTheirDefinition) {
  std::mt19937 gen(4);
  std::normal_distribution<float> normal(0.0f, 2.0f);
  std::vector<float> logits(500);
  for (float& x : logits) x = normal(gen);
  sharpi_sampler_params params = plain(2);
  params.temperature = 0.9f;
  params.top_k = 20;
  params.top_p = 0.8f;
  params.min_p = 0.1f;
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  order.resize(20);
  std::vector<double> p = only(softmax(scaled(logits, 0.9)), order);
  std::vector<size_t> kept;
  double sum = 0;
  for (const size_t i : order) {
    if (sum >= 0.8) break;
    sum += p[i];
    if (p[i] >= 0.1 * p[order[0]]) kept.push_back(i);
  }
  Draws draws(params, logits);
  expect_distribution(draws.counts(kDraws), only(p, kept));
}

TEST(Sampler, BiasIsAddedAndMinusInfinityForbids) {
  const std::vector<int32_t> tokens{0, 1, 3};
  const std::vector<float> values{1.25f, -kInf, -0.5f};
  sharpi_sampler_params p = plain(13);
  p.n_bias = 3;
  p.bias_tokens = tokens.data();
  p.bias_values = values.data();
  Draws draws(p, kLogits);
  std::vector<double> logits = scaled(kLogits, 1.0);
  logits[0] += 1.25;
  logits[3] -= 0.5;
  expect_distribution(draws.counts(kDraws), only(softmax(logits), {0, 2, 3, 4, 5, 6, 7}));
}

TEST(Sampler, BiasIsCopied) {
  std::vector<int32_t> tokens{1};
  std::vector<float> values{-kInf};
  sharpi_sampler_params p = greedy();
  p.n_bias = 1;
  p.bias_tokens = tokens.data();
  p.bias_values = values.data();
  Draws draws(p, kLogits);
  tokens[0] = 4;
  values[0] = 100.0f;
  EXPECT_EQ(draws.one(), 4);  // the best without token 1, with no bias of its own
}

TEST(Sampler, PenaltyDividesPositiveAndMultipliesNegativeLogitsOnce) {
  sharpi_sampler_params p = plain(17);
  p.repeat_penalty = 2.0f;
  Draws draws(p, kLogits, {1, 2, 1, 1, 5});
  std::vector<double> logits = scaled(kLogits, 1.0);
  logits[1] /= 2.0;
  logits[2] *= 2.0;
  logits[5] *= 2.0;
  expect_distribution(draws.counts(kDraws), softmax(logits));
}

TEST(Sampler, PenaltyLooksBackRepeatLastNTokens) {
  sharpi_sampler_params p = greedy();
  p.repeat_penalty = 10.0f;
  p.repeat_last_n = 2;
  EXPECT_EQ(Draws(p, kLogits, {1, 4, 3, 3}).one(), 1);
  EXPECT_EQ(Draws(p, kLogits, {4, 3, 1, 3}).one(), 4);
  p.repeat_last_n = 0;
  EXPECT_EQ(Draws(p, kLogits, {1, 1, 1, 1}).one(), 1);
}

TEST(Sampler, PenaltyComesAfterBias) {
  const int32_t token = 2;
  const float value = 4.5f;  // -0.5 becomes 4, which the penalty halves to 2
  sharpi_sampler_params p = greedy();
  p.repeat_penalty = 2.0f;
  p.n_bias = 1;
  p.bias_tokens = &token;
  p.bias_values = &value;
  EXPECT_EQ(Draws(p, kLogits, {2}).one(), 1);
  EXPECT_EQ(Draws(p, kLogits).one(), 2);
}

TEST(Sampler, ForbiddenTokensAreNeverDrawnNotEvenWithABias) {
  const int32_t token = 1;
  const float value = 50.0f;
  sharpi_sampler_params p = plain(19);
  p.n_bias = 1;
  p.bias_tokens = &token;
  p.bias_values = &value;
  Draws draws(p, kLogits, {}, {1, 4, 4000, -1});
  expect_distribution(draws.counts(kDraws),
                      only(softmax(scaled(kLogits, 1.0)), {0, 2, 3, 5, 6, 7}));
}

TEST(Sampler, NanAndMinusInfinityAreNeverDrawn) {
  std::vector<float> logits = kLogits;
  logits[1] = kNan;
  logits[4] = -kInf;
  Draws draws(plain(23), logits);
  expect_distribution(draws.counts(kDraws),
                      only(softmax(scaled(kLogits, 1.0)), {0, 2, 3, 5, 6, 7}));
  EXPECT_EQ(Draws(greedy(), logits).one(), 6);
}

TEST(Sampler, PlusInfinityWins) {
  std::vector<float> logits = kLogits;
  logits[5] = kInf;
  EXPECT_EQ(Draws(greedy(), logits).one(), 5);
  EXPECT_EQ(Draws(plain(), logits).many(20), std::vector<int32_t>(20, 5));
}

TEST(Sampler, ABiasThatForbidsEverythingIsTheCallersAffair) {
  const std::vector<int32_t> tokens{0, 1, 2, 3};
  const std::vector<float> values(4, -kInf);
  sharpi_sampler_params p = plain();
  p.n_bias = 4;
  p.bias_tokens = tokens.data();
  p.bias_values = values.data();
  Sampler sampler(4, {});
  ASSERT_TRUE(sampler.configure(p).is_ok());
  std::vector<float> logits{1.0f, 2.0f, 3.0f, 4.0f};
  int32_t token = 77;
  EXPECT_EQ(sampler.sample(logits.data(), {}, {}, &token).code(), Code::kState);
  EXPECT_EQ(token, 77);
}

TEST(Sampler, NothingAllowedIsAFaultOfTheFile) {
  for (const float t : {0.0f, 1.0f}) {
    sharpi_sampler_params p = plain();
    p.temperature = t;
    Sampler sampler(4, {});
    ASSERT_TRUE(sampler.configure(p).is_ok());
    std::vector<float> logits{-kInf, kNan, -kInf, kNan};
    int32_t token = 77;
    EXPECT_EQ(sampler.sample(logits.data(), {}, {}, &token).code(), Code::kFormat);
    EXPECT_EQ(token, 77);
  }
}

TEST(Sampler, EqualSeedsGiveEqualDrawsAndOthersDiffer) {
  const auto a = Draws(plain(42), kLogits).many(100);
  EXPECT_EQ(Draws(plain(42), kLogits).many(100), a);
  EXPECT_NE(Draws(plain(43), kLogits).many(100), a);
}

TEST(Sampler, TheSequenceOfASeedIsPinned) {
  // 16 equal tokens: the top four bits of each draw. A change breaks every host's reproducibility.
  const std::vector<int32_t> drawn = Draws(plain(42), std::vector<float>(16, 0.0f)).many(8);
  EXPECT_EQ(drawn, (std::vector<int32_t>{10, 11, 11, 11, 14, 3, 14, 2}));
}

TEST(Sampler, ConfigureRestartsTheSequence) {
  Draws draws(plain(42), kLogits);
  const auto first = draws.many(20);
  ASSERT_TRUE(draws.sampler().configure(plain(42)).is_ok());
  EXPECT_EQ(draws.many(20), first);
}

TEST(Sampler, RestoreRepeatsWhatFollowedTheMark) {
  Draws draws(plain(42), kLogits);
  const SamplerMark mark = draws.sampler().mark();
  const auto first = draws.many(20);
  draws.sampler().restore(mark);
  EXPECT_EQ(draws.many(20), first);
}

TEST(Sampler, ACopyGoesOnAsTheOriginalWould) {
  const int32_t token = 0;
  const float value = 2.0f;
  sharpi_sampler_params p = plain(42);
  p.n_bias = 1;
  p.bias_tokens = &token;
  p.bias_values = &value;
  Draws a(p, kLogits), b(plain(1), kLogits);
  a.many(9);
  b.sampler().copy_from(a.sampler());
  EXPECT_EQ(a.many(50), b.many(50));
}

TEST(Sampler, WithoutConfigureItHasTheDocumentedDefaults) {
  Sampler sampler(static_cast<uint32_t>(kLogits.size()), {});
  sharpi_sampler_params p = default_sampler_params();
  EXPECT_EQ(p.seed, SHARPI_SEED_RANDOM);
  p.seed = 0;  // the session chooses another one
  Draws draws(p, kLogits);
  for (int i = 0; i < 100; ++i) {
    std::vector<float> row = kLogits;
    int32_t token = -1;
    ASSERT_TRUE(sampler.sample(row.data(), {}, {}, &token).is_ok());
    EXPECT_EQ(token, draws.one());
  }
}

struct BadField {
  const char* field;
  void (*set)(sharpi_sampler_params*);
};
void PrintTo(const BadField& b, std::ostream* os) {
  *os << b.field;
}

class SamplerRefuses : public ::testing::TestWithParam<BadField> {};

TEST_P(SamplerRefuses, AValueOutOfRangeNamingTheFieldAndChangesNothing) {
  static const int32_t tokens[] = {1, 8};
  static const float values[] = {0.5f, 0.5f};
  sharpi_sampler_params p = plain(5);
  p.bias_tokens = tokens;
  p.bias_values = values;
  p.n_bias = 1;
  Draws draws(p, kLogits), twin(p, kLogits);
  GetParam().set(&p);
  const Status s = draws.sampler().configure(p);
  EXPECT_EQ(s.code(), Code::kInvalidArgument);
  EXPECT_NE(s.text().find(GetParam().field), std::string::npos) << s.text();
  EXPECT_EQ(draws.many(50), twin.many(50));
}

const int32_t kNegativeToken[] = {-1};
const float kNanBias[] = {kNan}, kInfBias[] = {kInf};

INSTANTIATE_TEST_SUITE_P(
    Fields, SamplerRefuses,
    ::testing::Values(
        BadField{"temperature", [](sharpi_sampler_params* p) { p->temperature = -0.1f; }},
        BadField{"temperature", [](sharpi_sampler_params* p) { p->temperature = kNan; }},
        BadField{"temperature", [](sharpi_sampler_params* p) { p->temperature = kInf; }},
        BadField{"top_p", [](sharpi_sampler_params* p) { p->top_p = -0.01f; }},
        BadField{"top_p", [](sharpi_sampler_params* p) { p->top_p = 1.01f; }},
        BadField{"top_p", [](sharpi_sampler_params* p) { p->top_p = kNan; }},
        BadField{"min_p", [](sharpi_sampler_params* p) { p->min_p = -0.01f; }},
        BadField{"min_p", [](sharpi_sampler_params* p) { p->min_p = 1.01f; }},
        BadField{"min_p", [](sharpi_sampler_params* p) { p->min_p = kNan; }},
        BadField{"repeat_penalty", [](sharpi_sampler_params* p) { p->repeat_penalty = 0.0f; }},
        BadField{"repeat_penalty", [](sharpi_sampler_params* p) { p->repeat_penalty = -1.0f; }},
        BadField{"repeat_penalty", [](sharpi_sampler_params* p) { p->repeat_penalty = kNan; }},
        BadField{"repeat_penalty", [](sharpi_sampler_params* p) { p->repeat_penalty = kInf; }},
        BadField{"bias_tokens", [](sharpi_sampler_params* p) { p->bias_tokens = nullptr; }},
        BadField{"bias_values", [](sharpi_sampler_params* p) { p->bias_values = nullptr; }},
        BadField{"bias_tokens[1]", [](sharpi_sampler_params* p) { p->n_bias = 2; }},
        BadField{"bias_tokens[0]",
                 [](sharpi_sampler_params* p) { p->bias_tokens = kNegativeToken; }},
        BadField{"bias_values[0]", [](sharpi_sampler_params* p) { p->bias_values = kNanBias; }},
        BadField{"bias_values[0]", [](sharpi_sampler_params* p) { p->bias_values = kInfBias; }}));

}  // namespace
}  // namespace sharpi
