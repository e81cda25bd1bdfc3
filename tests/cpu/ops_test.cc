// SPDX-License-Identifier: MIT
#include "cpu/ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <tuple>
#include <vector>

#include "isas.h"
#include "kv/codec.h"
#include "kv/rotation.h"
#include "tier/rope_tables.h"

namespace sharpi::cpu {
namespace {

// Rounding of one f32 operation.
constexpr double kUlp = 0x1p-24;
// Every remainder of the 8 and 16 lane kernels, and of their 8-fold unrolled sums.
constexpr uint64_t kLengths[] = {1,  2,  7,   8,   9,   15,  16,  17,  31,
                                 33, 64, 100, 127, 128, 129, 300, 1000};

std::vector<float> random_row(size_t n, uint32_t seed, float scale = 1.0f) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> x(n);
  for (float& v : x) v = normal(rng);
  return x;
}

/// Values over the whole useful range of an activation function, zero and both tails included.
std::vector<float> sweep() {
  std::vector<float> x = {0.0f, -0.0f, 1e-30f, -1e-30f, 120.0f, -120.0f, 87.5f, -87.5f, 0.625f};
  for (int i = -4000; i <= 4000; ++i) x.push_back(static_cast<float>(i) * 0.0053f);
  for (int e = -40; e <= 5; ++e) {
    for (const float m : {1.0f, 1.3f, -1.7f}) x.push_back(std::ldexp(m, e));
  }
  return x;
}

double sigmoid(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}
double gelu_tanh(double g) {
  return 0.5 * g * (1.0 + std::tanh(0.7978845608028654 * (g + 0.044715 * g * g * g)));
}

class Ops : public testing::TestWithParam<Isa> {};
INSTANTIATE_TEST_SUITE_P(Isas, Ops, testing::ValuesIn(runnable_isas()),
                         [](const auto& p) { return std::string(isa_name(p.param)); });

/// Checks y[i] against want(i) within rel * |want| + abs and that y[n] (padding) is untouched.
void expect_close(const std::vector<float>& y, size_t n, const std::function<double(size_t)>& want,
                  double rel, double abs) {
  for (size_t i = 0; i < n; ++i) {
    const double w = want(i);
    ASSERT_NEAR(y[i], w, rel * std::fabs(w) + abs) << "index " << i << " of " << n;
  }
  for (size_t i = n; i < y.size(); ++i) ASSERT_TRUE(std::isnan(y[i])) << "padding written at " << i;
}

std::vector<float> padded(std::vector<float> x) {
  x.resize(x.size() + 16, std::nanf(""));
  return x;
}

TEST_P(Ops, DotMatchesDoubleAtEveryLength) {
  for (const uint64_t n : kLengths) {
    const std::vector<float> a = padded(random_row(n, 1)), b = padded(random_row(n, 2));
    double want = 0, magnitude = 0;
    for (size_t i = 0; i < n; ++i) {
      want += double{a[i]} * b[i];
      magnitude += std::fabs(double{a[i]} * b[i]);
    }
    // The scalar sum is the longest chain: 8 partial sums of n/8 products.
    const double depth = static_cast<double>(n) / 8 + 12;
    EXPECT_NEAR(dot(kernels_of(GetParam()), a.data(), b.data(), n), want, magnitude * depth * kUlp)
        << n;
  }
}

TEST_P(Ops, RmsNormMatchesDoubleWithAndWithoutWeight) {
  for (const uint64_t n : kLengths) {
    const std::vector<float> x = padded(random_row(n, 3)), w = padded(random_row(n, 4));
    double square = 0;
    for (size_t i = 0; i < n; ++i) square += double{x[i]} * x[i];
    const double r = 1.0 / std::sqrt(square / static_cast<double>(n) + 1e-6);
    const double rel = (static_cast<double>(n) / 8 + 20) * kUlp;
    std::vector<float> y(n + 16, std::nanf(""));
    rms_norm(kernels_of(GetParam()), x.data(), w.data(), 1e-6f, n, y.data());
    expect_close(
        y, n, [&](size_t i) { return x[i] * r * w[i]; }, rel, 0);
    std::vector<float> in_place = x;
    rms_norm(kernels_of(GetParam()), in_place.data(), nullptr, 1e-6f, n, in_place.data());
    expect_close(
        in_place, n, [&](size_t i) { return x[i] * r; }, rel, 0);
  }
}

TEST_P(Ops, RmsNormOfAZeroRowIsZero) {
  std::vector<float> x(40, 0.0f);
  rms_norm(kernels_of(GetParam()), x.data(), nullptr, 1e-6f, x.size(), x.data());
  EXPECT_EQ(x, std::vector<float>(40, 0.0f));
}

TEST_P(Ops, RmsNormHeadsEqualsOneNormPerHead) {
  const uint32_t heads = 5, dim = 36;
  const std::vector<float> w = random_row(dim, 5);
  std::vector<float> x = random_row(heads * dim, 6), want = x;
  for (uint32_t h = 0; h < heads; ++h) {
    rms_norm(kernels_of(GetParam()), want.data() + h * dim, w.data(), 1e-5f, dim,
             want.data() + h * dim);
  }
  rms_norm_heads(kernels_of(GetParam()), x.data(), w.data(), 1e-5f, heads, dim);
  EXPECT_EQ(x, want);
}

class Rope : public ::testing::TestWithParam<std::tuple<Isa, RopePairs>> {};

TEST_P(Rope, RotatesPairsThatAreNeighboursOrHalfTheRotatedWidthApart) {
  const auto [isa, pairs] = GetParam();
  const bool halves = pairs == RopePairs::kHalves;
  struct Shape {
    uint32_t heads, dim, rot;
  };
  for (const Shape s : {Shape{3, 128, 128}, Shape{2, 256, 64}, Shape{1, 40, 24}, Shape{2, 6, 2}}) {
    std::vector<double> freq(s.rot / 2);
    for (size_t j = 0; j < freq.size(); ++j)
      freq[j] = std::pow(1e6, -2.0 * static_cast<double>(j) / s.rot);
    std::vector<float> c(s.rot / 2), sn(s.rot / 2);
    const uint64_t position = 100003;
    rope_angles(freq.data(), s.rot / 2, position, 1.25f, c.data(), sn.data());
    const std::vector<float> x = random_row(s.heads * s.dim, 7);
    std::vector<float> y = padded(x);
    rope_apply(kernels_of(isa), pairs, y.data(), s.heads, s.dim, s.rot, c.data(), sn.data());
    const auto want = [&](size_t i) -> double {
      const size_t base = i / s.dim * s.dim, d = i % s.dim, half = s.rot / 2;
      if (d >= s.rot) return x[i];
      const size_t j = halves ? d % half : d / 2;
      const double a = static_cast<double>(position) * freq[j];
      const double lo = x[base + (halves ? j : 2 * j)],
                   hi = x[base + (halves ? j + half : 2 * j + 1)];
      const bool first = halves ? d < half : d % 2 == 0;
      return 1.25 *
             (first ? lo * std::cos(a) - hi * std::sin(a) : lo * std::sin(a) + hi * std::cos(a));
    };
    expect_close(y, x.size(), want, 0, 1.25 * 5 * 4 * kUlp);  // |x| < 5, table + 3 operations
  }
}

TEST_P(Rope, AtPositionZeroIsTheIdentity) {
  const auto [isa, pairs] = GetParam();
  const double freq[2] = {1.0, 0.5};
  float c[2], s[2];
  rope_angles(freq, 2, 0, 1.0f, c, s);
  const std::vector<float> x = random_row(12, 8);
  std::vector<float> y = x;
  rope_apply(kernels_of(isa), pairs, y.data(), 2, 6, 4, c, s);
  EXPECT_EQ(y, x);
}

INSTANTIATE_TEST_SUITE_P(Isas, Rope,
                         ::testing::Combine(::testing::ValuesIn(runnable_isas()),
                                            ::testing::Values(RopePairs::kHalves,
                                                              RopePairs::kNeighbours)));

TEST_P(Ops, AddAndScaleMatchDoubleAndKeepPadding) {
  for (const uint64_t n : kLengths) {
    const std::vector<float> x = random_row(n, 9), y0 = random_row(n, 10);
    std::vector<float> y = padded(y0);
    add_inplace(kernels_of(GetParam()), y.data(), x.data(), n);
    expect_close(
        y, n, [&](size_t i) { return double{y0[i]} + x[i]; }, kUlp, 0);
    y = padded(y0);
    scale_inplace(kernels_of(GetParam()), y.data(), -0.3f, n);
    expect_close(
        y, n, [&](size_t i) { return double{y0[i]} * -0.3f; }, kUlp, 0);
    y = padded(y0);
    add_scaled(kernels_of(GetParam()), y.data(), x.data(), 1.7f, n);
    expect_close(
        y, n, [&](size_t i) { return double{y0[i]} + double{x[i]} * 1.7f; }, kUlp, 10 * kUlp);
  }
}

// A sigmoid is one exponential (2 ulp), an addition and a division; the products add one each.
constexpr double kSigmoidRel = 6 * 2 * kUlp;
// exp(-x) overflows for x < -88.7, where the sigmoid is below 1e-38 anyway.
constexpr double kTiny = 2e-36;

TEST_P(Ops, SwigluMatchesDoubleOverTheWholeRange) {
  const std::vector<float> g = sweep(), up = random_row(g.size(), 11);
  std::vector<float> y(g.size() + 16, std::nanf(""));
  swiglu(kernels_of(GetParam()), g.data(), up.data(), g.size(), y.data());
  expect_close(
      y, g.size(), [&](size_t i) { return g[i] * sigmoid(g[i]) * up[i]; }, kSigmoidRel, kTiny);
}

TEST_P(Ops, ClampedSwigluMatchesDoubleOverTheWholeRange) {
  const std::vector<float> g = sweep();
  std::vector<float> up = random_row(g.size(), 13), y(g.size() + 16, std::nanf(""));
  for (float& u : up) u *= 6;  // some beyond either limit
  swiglu_clamped(kernels_of(GetParam()), g.data(), up.data(), g.size(), y.data());
  for (size_t i = 0; i < g.size(); ++i) {
    const double gate = std::min(double{g[i]}, 7.0);
    const double want =
        gate * sigmoid(double{1.702f} * gate) * (std::clamp(double{up[i]}, -7.0, 7.0) + 1);
    // The exponent is rounded once more, and what is left of up near -1 as well.
    const double rel = kSigmoidRel + 4 * kUlp * std::fabs(gate) * 1.702;
    ASSERT_NEAR(y[i], want, rel * std::fabs(want) + 8 * kUlp * std::fabs(gate) + kTiny) << g[i];
  }
}

TEST_P(Ops, GeluWithTheErrorFunctionMatchesDouble) {
  std::vector<float> x, bias;
  for (int i = -4000; i <= 4000; ++i) {
    x.push_back(static_cast<float>(i) / 250.0f);
    bias.push_back(i % 2 == 0 ? 0.5f : -0.25f);
  }
  std::vector<float> y = x, with_bias = x;
  gelu(kernels_of(GetParam()), y.data(), nullptr, y.size());
  gelu(kernels_of(GetParam()), with_bias.data(), bias.data(), y.size());
  const auto exact = [](double v) { return 0.5 * v * std::erfc(-v / std::sqrt(2.0)); };
  for (size_t i = 0; i < x.size(); ++i) {
    const auto v = static_cast<double>(x[i]);
    EXPECT_NEAR(static_cast<double>(y[i]), exact(v), 3e-7 * std::max(1.0, std::fabs(v))) << v;
    const double moved = v + static_cast<double>(bias[i]);
    EXPECT_NEAR(static_cast<double>(with_bias[i]), exact(moved),
                3e-7 * std::max(1.0, std::fabs(moved)))
        << moved;
  }
}

TEST_P(Ops, SquaresOfWhatIsPositiveAreExact) {
  std::vector<float> x = random_row(1003, 21), bias = random_row(1003, 22);
  std::vector<float> y = x, with_bias = x;
  activate_alone(kernels_of(GetParam()), Activation::kReluSquared, y.data(), nullptr, y.size());
  relu_squared(kernels_of(GetParam()), with_bias.data(), bias.data(), y.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const float plain = std::max(x[i], 0.0f), moved = std::max(x[i] + bias[i], 0.0f);
    ASSERT_EQ(y[i], plain * plain);
    ASSERT_EQ(with_bias[i], moved * moved);
  }
}

TEST_P(Ops, SigmoidMatchesDouble) {
  std::vector<float> x;
  for (int i = -400; i <= 400; ++i) x.push_back(static_cast<float>(i) / 8.0f);
  std::vector<float> y = x;
  sigmoid(kernels_of(GetParam()), y.data(), y.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double want = sigmoid(static_cast<double>(x[i]));
    ASSERT_NEAR(y[i], want, kSigmoidRel * want + kTiny) << x[i];
  }
}

TEST_P(Ops, LayerNormMatchesDoubleInPlaceToo) {
  for (const size_t n : {1u, 7u, 32u, 384u, 1001u}) {
    std::vector<float> x(n), w(n), b(n), y(n);
    for (size_t i = 0; i < n; ++i) {
      x[i] = 5.0f + std::sin(static_cast<float>(i) * 1.7f);
      w[i] = 1.0f + 0.01f * static_cast<float>(i % 13);
      b[i] = 0.1f * static_cast<float>(i % 5);
    }
    double mean = 0, variance = 0;
    for (const float v : x) mean += static_cast<double>(v) / static_cast<double>(n);
    for (const float v : x)
      variance += (static_cast<double>(v) - mean) * (static_cast<double>(v) - mean) /
                  static_cast<double>(n);
    layer_norm(kernels_of(GetParam()), x.data(), w.data(), b.data(), 1e-5f, n, y.data());
    for (size_t i = 0; i < n; ++i) {
      const double want = (static_cast<double>(x[i]) - mean) / std::sqrt(variance + 1e-5) *
                              static_cast<double>(w[i]) +
                          static_cast<double>(b[i]);
      EXPECT_NEAR(static_cast<double>(y[i]), want, 2e-5) << n << " " << i;
    }
    layer_norm(kernels_of(GetParam()), x.data(), w.data(), b.data(), 1e-5f, n, x.data());
    EXPECT_EQ(x, y);
  }
}

TEST_P(Ops, GegluMatchesDoubleOverTheWholeRange) {
  const std::vector<float> g = sweep(), up = random_row(g.size(), 12);
  std::vector<float> y(g.size() + 16, std::nanf(""));
  geglu(kernels_of(GetParam()), g.data(), up.data(), g.size(), y.data());
  // The exponent 2u reaches -88 before the result vanishes: its own rounding is 3 ulp of 88.
  // Absolutely, the error of the result is that times |g| e^2u, largest where |2u| is near 1.
  for (size_t i = 0; i < g.size(); ++i) {
    const double u2 = 2 * 0.7978845608028654 * (g[i] + 0.044715 * std::pow(double{g[i]}, 3));
    const double rel = kSigmoidRel + (u2 < 0 ? 4 * kUlp * -u2 : 0);
    const double want = g[i] * sigmoid(u2) * up[i];
    ASSERT_NEAR(y[i], want, rel * std::fabs(want) + kTiny) << g[i];
    // And the form with tanh is the same function.
    ASSERT_NEAR(want, gelu_tanh(g[i]) * up[i], 1e-12 * (1 + std::fabs(want)));
  }
}

TEST_P(Ops, GatesMatchDoubleOverTheWholeRange) {
  const std::vector<float> g = sweep(), y0 = random_row(g.size(), 13);
  std::vector<float> y = padded(y0);
  sigmoid_gate(kernels_of(GetParam()), y.data(), g.data(), g.size());
  expect_close(
      y, g.size(), [&](size_t i) { return y0[i] * sigmoid(g[i]); }, kSigmoidRel, kTiny);
  y = padded(y0);
  silu_gate(kernels_of(GetParam()), y.data(), g.data(), g.size());
  expect_close(
      y, g.size(), [&](size_t i) { return y0[i] * (g[i] * sigmoid(g[i])); }, kSigmoidRel, kTiny);
}

TEST_P(Ops, SoftcapMatchesDoubleNearZeroAndAtTheCap) {
  std::vector<float> x = sweep();
  for (const float v : {1e4f, -1e4f, 18.75f, 18.749f, -18.76f}) x.push_back(v);
  std::vector<float> y = padded(x);
  softcap(kernels_of(GetParam()), y.data(), 30.0f, x.size());
  expect_close(
      y, x.size(), [&](size_t i) { return 30.0 * std::tanh(double{x[i]} / 30.0); }, 8 * 2 * kUlp,
      0);
}

TEST_P(Ops, SoftmaxSumsToOneAndMatchesDouble) {
  for (const uint64_t n : kLengths) {
    const std::vector<float> x0 = random_row(n, 14, 8.0f);
    std::vector<float> x = padded(x0);
    softmax(kernels_of(GetParam()), x.data(), n);
    double top = x0[0], sum = 0;
    for (const float v : x0) top = std::max(top, double{v});
    for (const float v : x0) sum += std::exp(v - top);
    // The rounded difference x - max, up to 60, costs 60 ulp relative; the sum n/2 additions.
    const double rel = (60 + 4 + static_cast<double>(n) / 2) * kUlp * 2;
    expect_close(
        x, n, [&](size_t i) { return std::exp(x0[i] - top) / sum; }, rel, 1e-37);
  }
}

TEST_P(Ops, SoftmaxOfHugeLogitsDoesNotOverflow) {
  std::vector<float> x = {3e38f, 3e38f, -3e38f, 0.0f};
  softmax(kernels_of(GetParam()), x.data(), x.size());
  EXPECT_EQ(x, (std::vector<float>{0.5f, 0.5f, 0.0f, 0.0f}));
}

TEST_P(Ops, SoftmaxGivesMaskedEntriesExactlyZero) {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> x(37, -inf);
  x[20] = 5.0f;
  softmax(kernels_of(GetParam()), x.data(), x.size());
  for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(x[i], i == 20 ? 1.0f : 0.0f);
}

TEST_P(Ops, NanPropagatesThroughActivations) {
  std::vector<float> g(20, 1.0f), up(20, 1.0f), y(20);
  g[3] = g[18] = std::nanf("");
  swiglu(kernels_of(GetParam()), g.data(), up.data(), g.size(), y.data());
  EXPECT_TRUE(std::isnan(y[3]) && std::isnan(y[18]));
  EXPECT_FALSE(std::isnan(y[4]));
}

TEST(RopeAngles, ArePreciseFarBeyondF32) {
  const double freq[1] = {1.0};
  float c, s;
  rope_angles(freq, 1, 16777217, 1.0f, &c, &s);  // not representable in f32
  EXPECT_EQ(c, static_cast<float>(std::cos(16777217.0)));
  EXPECT_EQ(s, static_cast<float>(std::sin(16777217.0)));
}

TEST(TopK, ReturnsDescendingValuesWithTiesToTheLowerIndex) {
  const std::vector<float> p = {0.1f, 0.3f, 0.2f, 0.3f, 0.0f, 0.3f, 0.2f};
  std::vector<uint32_t> ids(5);
  std::vector<float> values(5);
  top_k(p.data(), 7, 5, ids.data(), values.data());
  EXPECT_EQ(ids, (std::vector<uint32_t>{1, 3, 5, 2, 6}));
  EXPECT_EQ(values, (std::vector<float>{0.3f, 0.3f, 0.3f, 0.2f, 0.2f}));
}

TEST(TopK, OfEqualProbabilitiesTakesTheFirst) {
  const std::vector<float> p(256, 1.0f / 256);
  std::vector<uint32_t> ids(8);
  std::vector<float> values(8);
  top_k(p.data(), 256, 8, ids.data(), values.data());
  EXPECT_EQ(ids, (std::vector<uint32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST(TopK, MatchesAStableSortOnRandomTies) {
  std::mt19937 rng(15);
  for (int round = 0; round < 200; ++round) {
    const uint32_t n = 1 + static_cast<uint32_t>(rng() % 64),
                   k = 1 + static_cast<uint32_t>(rng() % n);
    std::vector<float> p(n);
    for (float& v : p) v = static_cast<float>(rng() % 8);
    std::vector<uint32_t> order(n), ids(k);
    for (uint32_t i = 0; i < n; ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](uint32_t a, uint32_t b) { return p[a] > p[b]; });
    std::vector<float> values(k);
    top_k(p.data(), n, k, ids.data(), values.data());
    order.resize(k);
    EXPECT_EQ(ids, order);
    for (uint32_t i = 0; i < k; ++i) EXPECT_EQ(values[i], p[ids[i]]);
  }
}

TEST_P(Ops, RotationHasTheBitsOfThePlainForm) {
  for (const uint32_t b : {16u, 32u, 64u, 128u}) {
    std::vector<float> x = random_row(3 * b + 1, b), want = x;
    rotate(kernels_of(GetParam()), x.data(), 3 * b, b);
    kv_rotate(want.data(), 3 * b, b);
    ASSERT_EQ(std::memcmp(x.data(), want.data(), x.size() * 4), 0) << b;
    unrotate(kernels_of(GetParam()), x.data(), 3 * b, b);
    kv_unrotate(want.data(), 3 * b, b);
    ASSERT_EQ(std::memcmp(x.data(), want.data(), x.size() * 4), 0) << b;
  }
}

/// Blocks of every size of scale, with ties, zeros, infinities and NaN among them.
TEST_P(Ops, StoredRowsHaveTheBitsOfThePlainForm) {
  constexpr size_t kBlocks = 400, n = 32 * kBlocks;
  std::vector<float> x = random_row(n, 3);
  for (size_t i = 0; i < n; ++i) x[i] = std::ldexp(x[i], static_cast<int>(i / 32 % 250) - 125);
  for (size_t i = 0; i < 32; ++i) {
    x[32 * 300 + i] = static_cast<float>(static_cast<int>(i) - 16) * 0.5f * 127.0f / 125.0f;
    x[32 * 301 + i] = i % 2 == 0 ? 2.0f : -2.0f;
    x[32 * 302 + i] = 0.0f;
    x[32 * 303 + i] = i == 7 ? std::nanf("") : 1.0f;
    x[32 * 304 + i] = i == 31 ? -INFINITY : 1.0f;
    x[32 * 305 + i] = 3e38f;
    x[32 * 306 + i] = i == 4 ? 1e-28f : 1e-38f;
  }
  for (const KvDtype dtype : kAllKvCodecs) {
    for (const uint32_t dim : {80u, 96u, 64u, 256u, 16u}) {
      std::vector<float> a = x, b = x;
      a.resize(n / dim * dim / 32 * 32);
      b = a;
      std::vector<std::byte> got(kv_row_bytes(dtype, a.size())), want(got.size());
      ASSERT_TRUE(
          store_row(kernels_of(GetParam()), dtype, dim, a.data(), a.size(), got.data()).is_ok());
      kv_rotate(b.data(), b.size(), kv_rotation(dtype, dim));
      ASSERT_TRUE(kv_encode_row(dtype, b.data(), b.size(), want.data()).is_ok());
      EXPECT_EQ(got, want) << kv_dtype_name(dtype) << ", heads of " << dim;
    }
    std::vector<std::byte> got(kv_row_bytes(dtype, n)), want(got.size());
    ASSERT_TRUE(kv_encode_row(dtype, x.data(), n, want.data()).is_ok());
    std::vector<float> a = x;
    if (dtype != KvDtype::kQ4) continue;
    kernels_of(GetParam()).ops.encode_q4(a.data(), n, reinterpret_cast<uint8_t*>(got.data()));
    EXPECT_EQ(got, want) << "not rotated";
  }
}

}  // namespace
}  // namespace sharpi::cpu
