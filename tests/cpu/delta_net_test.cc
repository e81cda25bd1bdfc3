// SPDX-License-Identifier: MIT
#include "cpu/delta_net.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "isas.h"

namespace sharpi::cpu {
namespace {

ThreadPool& pool_of(uint32_t n_threads) {
  static std::unique_ptr<ThreadPool> pools[4];
  if (pools[n_threads] == nullptr) pools[n_threads] = ThreadPool::create(n_threads).take();
  return *pools[n_threads];
}

std::vector<float> random_floats(size_t n, uint32_t seed, float scale = 1.0f, float mean = 0.0f) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(mean, scale);
  std::vector<float> x(n);
  for (float& v : x) v = normal(rng);
  return x;
}

/// One layer's weights and the raw inputs of a run of tokens.
struct Layer {
  DeltaNetShape shape;
  uint32_t n;
  std::vector<float> qkv, z, alpha, beta, conv, bias, a, norm;
  float eps = 1e-6f;

  Layer(DeltaNetShape s, uint32_t rows, uint32_t seed)
      : shape(s),
        n(rows),
        qkv(random_floats(size_t{rows} * s.conv_dim(), seed)),
        z(random_floats(size_t{rows} * s.value_dim(), seed + 1)),
        alpha(random_floats(size_t{rows} * s.n_v_heads, seed + 2)),
        beta(random_floats(size_t{rows} * s.n_v_heads, seed + 3)),
        conv(random_floats(size_t{s.conv_dim()} * s.conv_kernel, seed + 4, 0.5f)),
        bias(random_floats(s.n_v_heads, seed + 5)),
        a(random_floats(s.n_v_heads, seed + 6)),
        norm(random_floats(s.head_dim, seed + 7, 0.2f, 1.0f)) {
    for (float& v : a) v = -std::fabs(v) * 0.2f;
  }
};

struct State {
  std::vector<float> s, conv;
  explicit State(const DeltaNetShape& h, uint32_t seed = 0)
      : s(h.state_floats()), conv(h.conv_floats()) {
    if (seed == 0) return;
    s = random_floats(s.size(), seed, 0.3f);
    conv = random_floats(conv.size(), seed + 1);
  }
};

struct Run {
  Isa isa = Isa::kScalar;
  bool sequential = true;
  uint32_t n_threads = 1;
};

/// Rows [from, to) through the library. The states are double-buffered unless in_place.
std::vector<float> run(const Run& r, const Layer& l, uint32_t from, uint32_t to, State* state,
                       bool in_place = false) {
  const DeltaNetShape& h = l.shape;
  const uint32_t n = to - from;
  std::vector<float> qkv(l.qkv.begin() + from * h.conv_dim(), l.qkv.begin() + to * h.conv_dim());
  std::vector<float> out(size_t{n} * h.value_dim() + 16, std::nanf(""));
  State next = *state;
  if (!in_place) {
    std::fill(next.s.begin(), next.s.end(), std::nanf(""));
    std::fill(next.conv.begin(), next.conv.end(), std::nanf(""));
  }
  DeltaNetTask t;
  t.shape = h;
  t.qkv = qkv.data();
  t.z = l.z.data() + size_t{from} * h.value_dim();
  t.alpha = l.alpha.data() + size_t{from} * h.n_v_heads;
  t.beta = l.beta.data() + size_t{from} * h.n_v_heads;
  t.conv1d = l.conv.data();
  t.dt_bias = l.bias.data();
  t.a = l.a.data();
  t.norm = l.norm.data();
  t.eps = l.eps;
  t.state_in = in_place ? next.s.data() : state->s.data();
  t.conv_in = in_place ? next.conv.data() : state->conv.data();
  t.state_out = next.s.data();
  t.conv_out = next.conv.data();
  t.out = out.data();
  t.n_rows = n;
  const uint64_t bytes = delta_net_scratch_bytes(h, r.n_threads, n);
  std::vector<float> scratch(bytes / 4 + 16, std::nanf(""));
  delta_net(pool_of(r.n_threads), kernels_of(r.isa), t, r.sequential,
            reinterpret_cast<std::byte*>(scratch.data()), bytes);
  for (size_t i = size_t{n} * h.value_dim(); i < out.size(); ++i) EXPECT_TRUE(std::isnan(out[i]));
  out.resize(size_t{n} * h.value_dim());
  *state = next;
  return out;
}

/// The formulas of the header, token by token in double. `raw` receives o before norm and gate.
struct Reference {
  std::vector<double> out, raw, s, conv;
};

Reference reference(const Layer& l, const State& start) {
  const DeltaNetShape& h = l.shape;
  const uint32_t d = h.head_dim, cd = h.conv_dim(), kernel = h.conv_kernel;
  Reference r;
  r.s.assign(start.s.begin(), start.s.end());
  std::vector<std::vector<double>> rows;
  for (uint32_t i = 0; i + 1 < kernel; ++i) {
    rows.emplace_back(start.conv.begin() + i * cd, start.conv.begin() + (i + 1) * cd);
  }
  for (uint32_t t = 0; t < l.n; ++t)
    rows.emplace_back(l.qkv.begin() + t * cd, l.qkv.begin() + (t + 1) * cd);
  for (uint32_t t = 0; t < l.n; ++t) {
    std::vector<double> y(cd, 0.0);
    for (uint32_t c = 0; c < cd; ++c) {
      for (uint32_t i = 0; i < kernel; ++i) y[c] += double{l.conv[c * kernel + i]} * rows[t + i][c];
      y[c] /= 1 + std::exp(-y[c]);
    }
    for (uint32_t head = 0; head < 2 * h.n_k_heads; ++head) {
      double norm = 0;
      for (uint32_t i = 0; i < d; ++i) norm += y[head * d + i] * y[head * d + i];
      const double f =
          (head < h.n_k_heads ? 1 / std::sqrt(d) : 1.0) / std::max(std::sqrt(norm), double{l.eps});
      for (uint32_t i = 0; i < d; ++i) y[head * d + i] *= f;
    }
    for (uint32_t head = 0; head < h.n_v_heads; ++head) {
      const size_t m = head % h.n_k_heads, at = size_t{t} * h.n_v_heads + head;
      const double* q = &y[m * d];
      const double* k = &y[h.key_dim() + m * d];
      const double* v = &y[2 * h.key_dim() + head * d];
      const double x = double{l.alpha[at]} + l.bias[head];
      const double decay = std::exp(l.a[head] * (x > 20 ? x : std::log1p(std::exp(x))));
      const double beta = 1 / (1 + std::exp(-double{l.beta[at]}));
      std::vector<double> o(d, 0.0);
      double square = 0;
      for (uint32_t j = 0; j < d; ++j) {
        double* s = &r.s[(size_t{head} * d + j) * d];
        double p = 0;
        for (uint32_t i = 0; i < d; ++i) p += (s[i] *= decay) * k[i];
        for (uint32_t i = 0; i < d; ++i) o[j] += (s[i] += k[i] * beta * (v[j] - p)) * q[i];
        square += o[j] * o[j];
      }
      for (uint32_t j = 0; j < d; ++j) {
        const double z = l.z[size_t{t} * h.value_dim() + head * d + j];
        r.raw.push_back(o[j]);
        r.out.push_back(o[j] / std::sqrt(square / d + l.eps) * l.norm[j] * z / (1 + std::exp(-z)));
      }
    }
  }
  for (uint32_t i = 0; i + 1 < kernel; ++i) {
    r.conv.insert(r.conv.end(), rows[l.n + i].begin(), rows[l.n + i].end());
  }
  return r;
}

double norm_of(const std::vector<double>& x, size_t first, size_t n) {
  double sum = 0;
  for (size_t i = first; i < first + n; ++i) sum += x[i] * x[i];
  return std::sqrt(sum);
}

/// Per group of `n` values: |got - want| <= tolerance * |want|_2.
template <class Floats>
void expect_groups(const std::vector<float>& got, const Floats& want, size_t n, double tolerance,
                   const char* what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t g = 0; g < got.size(); g += n) {
    std::vector<double> w(want.begin() + static_cast<ptrdiff_t>(g),
                          want.begin() + static_cast<ptrdiff_t>(g + n));
    const double bound = tolerance * norm_of(w, 0, n) + 1e-30;
    for (size_t i = 0; i < n; ++i)
      ASSERT_NEAR(got[g + i], w[i], bound) << what << " " << g << "+" << i;
  }
}

// Errors enter as roundings of sums of head_dim terms, and stay: |I - beta k k^T| <= 1, so a token
// never amplifies what earlier ones left. 64 tokens of 130 roundings at 6e-8 each, in the root mean
// square that independent roundings give, stay below 1e-5 of the norm of a state or output head.
constexpr double kStateTolerance = 1e-5;
// An output is divided by its own norm: an o that is small against |S||q| magnifies the state's
// error by their ratio, which stays under 10 on these inputs.
constexpr double kOutTolerance = 1e-4;

void expect_matches(const Layer& l, const State& start, const State& end,
                    const std::vector<float>& out) {
  const Reference want = reference(l, start);
  const size_t d = l.shape.head_dim;
  expect_groups(end.s, want.s, d * d, kStateTolerance, "state");
  expect_groups(out, want.out, d, kOutTolerance, "output");
  for (size_t i = 0; i < want.conv.size(); ++i)
    ASSERT_EQ(end.conv[i], static_cast<float>(want.conv[i]));
}

struct Path {
  Isa isa;
  bool sequential;
  Run run(uint32_t n_threads = 1) const { return {isa, sequential, n_threads}; }
};

std::vector<Path> paths() {
  std::vector<Path> all;
  for (const Isa isa : runnable_isas()) {
    all.push_back({isa, true});
    all.push_back({isa, false});
  }
  return all;
}

class DeltaNet : public testing::TestWithParam<Path> {};
INSTANTIATE_TEST_SUITE_P(Paths, DeltaNet, testing::ValuesIn(paths()), [](const auto& p) {
  return std::string(isa_name(p.param.isa)) + (p.param.sequential ? "_sequential" : "_auto");
});

constexpr DeltaNetShape kSmall{2, 6, 32, 4};

TEST_P(DeltaNet, EveryNumberOfRowsMatchesDouble) {
  for (const uint32_t n : {1u, 2u, 3u, 4u, 5u, 15u, 16u, 17u, 33u, 63u, 64u, 65u, 100u, 129u}) {
    const Layer l(kSmall, n, n);
    const State start(kSmall, 500 + n);
    State state = start;
    const std::vector<float> out = run(GetParam().run(), l, 0, n, &state);
    expect_matches(l, start, state, out);
  }
}

TEST_P(DeltaNet, HeadShapesMatchDouble) {
  // Equal heads, three value heads per key head, odd head sizes, other kernels.
  for (const DeltaNetShape h :
       {DeltaNetShape{2, 2, 16, 4}, DeltaNetShape{3, 9, 8, 2}, DeltaNetShape{1, 2, 24, 3},
        DeltaNetShape{1, 4, 20, 4}, DeltaNetShape{1, 3, 128, 4}, DeltaNetShape{2, 4, 64, 5}}) {
    const Layer l(h, 70, h.head_dim);
    const State start(h, 600);
    State state = start;
    const std::vector<float> out = run(GetParam().run(), l, 0, 70, &state);
    expect_matches(l, start, state, out);
  }
}

TEST_P(DeltaNet, RealShapeMatchesDouble) {
  constexpr DeltaNetShape h{16, 48, 128, 4};
  const Layer l(h, 18, 9);
  const State start(h, 601);
  State state = start;
  const std::vector<float> out = run(GetParam().run(2), l, 0, 18, &state);
  expect_matches(l, start, state, out);
}

TEST_P(DeltaNet, TheNumberOfThreadsKeepsTheBits) {
  const Layer l(kSmall, 90, 10);
  State one(kSmall, 602), three = one;
  const std::vector<float> a = run(GetParam().run(1), l, 0, 90, &one);
  const std::vector<float> b = run(GetParam().run(3), l, 0, 90, &three);
  EXPECT_EQ(a, b);
  EXPECT_EQ(one.s, three.s);
  EXPECT_EQ(one.conv, three.conv);
}

TEST_P(DeltaNet, StateMayBeUpdatedInPlace) {
  for (const uint32_t n : {1u, 2u, 3u, 80u}) {
    const Layer l(kSmall, n, 11);
    State apart(kSmall, 603), in_place = apart;
    const std::vector<float> a = run(GetParam().run(), l, 0, n, &apart);
    const std::vector<float> b = run(GetParam().run(), l, 0, n, &in_place, true);
    EXPECT_EQ(a, b);
    EXPECT_EQ(apart.s, in_place.s);
    EXPECT_EQ(apart.conv, in_place.conv);
  }
}

TEST_P(DeltaNet, AnySplitGivesTheSameState) {
  constexpr uint32_t n = 90;
  const Layer l(kSmall, n, 12);
  State whole(kSmall, 604);
  const State start = whole;
  const std::vector<float> out = run(GetParam().run(), l, 0, n, &whole);
  for (uint32_t cut = 1; cut < n; ++cut) {
    State state = start;
    std::vector<float> parts = run(GetParam().run(), l, 0, cut, &state);
    const std::vector<float> rest = run(GetParam().run(), l, cut, n, &state);
    parts.insert(parts.end(), rest.begin(), rest.end());
    ASSERT_EQ(state.conv, whole.conv);
    if (GetParam().sequential) {
      ASSERT_EQ(state.s, whole.s) << "cut at " << cut;
      ASSERT_EQ(parts, out) << "cut at " << cut;
    } else {
      expect_groups(state.s, whole.s, size_t{32} * 32, kStateTolerance, "state");
      expect_groups(parts, out, 32, kOutTolerance, "output");
    }
  }
}

/// Rows in front whose outputs nobody wants, and the rows behind them, in one call: bit by bit what
/// two calls make of the states and outputs, also where the states of the rows behind are not kept,
/// and where scratch for both is not there, so that one goes before the other.
/// A call that reserves scratch by the rows of both has room for the gates of each, which are
/// rounded up by themselves. With heads as small as this nothing behind them has room to spare.
TEST(DeltaNetScratch, HoldsTheGatesOfRowsInFrontAndOfTheRest) {
  const DeltaNetShape shape{1, 1, 4, 4};
  constexpr uint32_t kBefore = 2, kRows = 8190;
  const uint64_t bytes = delta_net_scratch_bytes(shape, 1, kBefore + kRows);
  const uint64_t lines = kBefore + kRows + 14 + 16;  // gates of 2 rows take 16 floats
  EXPECT_GE(bytes / sizeof(float), 2 * 16 + 2 * lines - 32 + 2 * kRows + 16);
}

TEST_P(DeltaNet, RowsInFrontGoWithTheRest) {
  uint32_t n_apart = 0;
  for (const uint32_t n_before : {1u, 2u, 7u, 15u}) {
    for (const uint32_t n : {1u, 3u, 15u}) {
      for (const auto& [kept, room] : {std::pair(true, true), {false, true}, {true, false}}) {
        SCOPED_TRACE(std::to_string(n_before) + " and " + std::to_string(n) + " rows");
        const Layer l(kSmall, n_before + n, 14);
        const State start(kSmall, 606);
        State apart = start;
        run(GetParam().run(2), l, 0, n_before, &apart);
        const State between = apart;
        const std::vector<float> want = run(GetParam().run(2), l, n_before, n_before + n, &apart);

        State left = start, end = start;
        std::vector<float> qkv = l.qkv, out(size_t{n} * kSmall.value_dim());
        const auto task = [&](uint32_t from, uint32_t rows) {
          DeltaNetTask t;
          t.shape = kSmall;
          t.qkv = qkv.data() + size_t{from} * kSmall.conv_dim();
          t.alpha = l.alpha.data() + size_t{from} * kSmall.n_v_heads;
          t.beta = l.beta.data() + size_t{from} * kSmall.n_v_heads;
          t.conv1d = l.conv.data(), t.dt_bias = l.bias.data(), t.a = l.a.data();
          t.norm = l.norm.data(), t.eps = l.eps, t.n_rows = rows;
          return t;
        };
        DeltaNetTask before = task(0, n_before), t = task(n_before, n);
        before.state_in = start.s.data(), before.conv_in = start.conv.data();
        before.state_out = left.s.data(), before.conv_out = left.conv.data();
        std::vector<float> unused(size_t{n_before} * kSmall.value_dim());
        before.out = unused.data();
        t.before = &before;
        t.z = l.z.data() + size_t{n_before} * kSmall.value_dim();
        t.out = out.data();
        if (kept) t.state_out = end.s.data(), t.conv_out = end.conv.data();
        const bool sequential = GetParam().sequential;
        uint64_t bytes = delta_net_scratch_bytes(kSmall, 2, n_before + n);
        ASSERT_TRUE(goes_with(before, t, sequential, 2, bytes));
        EXPECT_FALSE(goes_with(before, t, sequential, 2, bytes - 1));
        // Scratch is handed out in lines of the cache: for few rows in all it is the same.
        if (!room) bytes = delta_net_scratch_bytes(kSmall, 2, std::max(n_before, n));
        n_apart += goes_with(before, t, sequential, 2, bytes) ? 0 : 1;
        std::vector<float> scratch(bytes / 4 + 16, std::nanf(""));
        delta_net(pool_of(2), kernels_of(GetParam().isa), t, sequential,
                  reinterpret_cast<std::byte*>(scratch.data()), bytes);
        EXPECT_EQ(out, want);
        EXPECT_EQ(left.s, between.s);
        EXPECT_EQ(left.conv, between.conv);
        if (!kept) continue;
        EXPECT_EQ(end.s, apart.s);
        EXPECT_EQ(end.conv, apart.conv);
      }
    }
  }
  EXPECT_GT(n_apart, 0u);
  // Chunks do not go with rows in front.
  const Layer l(kSmall, 1, 15);
  DeltaNetTask one, many;
  one.shape = many.shape = kSmall;
  one.n_rows = 1, many.n_rows = 16;
  const uint64_t bytes = delta_net_scratch_bytes(kSmall, 1, 17);
  EXPECT_EQ(goes_with(one, many, GetParam().sequential, 1, bytes), GetParam().sequential);
  EXPECT_EQ(goes_with(many, one, GetParam().sequential, 1, bytes), GetParam().sequential);
}

TEST_P(DeltaNet, NoRowsCopyTheState) {
  const Layer l(kSmall, 1, 13);
  State state(kSmall, 605);
  const State start = state;
  run(GetParam().run(), l, 0, 0, &state);
  EXPECT_EQ(state.s, start.s);
  EXPECT_EQ(state.conv, start.conv);
}

/// Inputs whose convolution is the identity on the current row, so that tests choose q, k and v:
/// the SiLU is inverted by bisection.
float inverse_silu(double y) {
  double lo = -1.2, hi = 1e3;
  for (int i = 0; i < 200; ++i) {
    const double mid = (lo + hi) / 2;
    (mid / (1 + std::exp(-mid)) < y ? lo : hi) = mid;
  }
  return static_cast<float>(lo);
}

Layer plain_layer(const DeltaNetShape& h, uint32_t n) {
  Layer l(h, n, 14);
  std::fill(l.conv.begin(), l.conv.end(), 0.0f);
  for (uint32_t c = 0; c < h.conv_dim(); ++c) l.conv[c * h.conv_kernel + h.conv_kernel - 1] = 1.0f;
  std::fill(l.qkv.begin(), l.qkv.end(), 0.0f);
  return l;
}

TEST_P(DeltaNet, OrthonormalKeysReproduceTheStoredValues) {
  // beta = 1 and g = 0: token t stores v_t under the unit key e_t; a later query e_t reads it back.
  constexpr DeltaNetShape h{1, 1, 32, 4};
  constexpr uint32_t n = 32;
  Layer l = plain_layer(h, 2 * n);
  const std::vector<float> values = random_floats(n * 32, 15, 0.5f);
  l.a[0] = 0.0f;
  std::fill(l.beta.begin(), l.beta.end(), 200.0f);
  for (uint32_t t = 0; t < 2 * n; ++t) {
    float* row = &l.qkv[t * h.conv_dim()];
    row[t % n] = 3.0f;              // query e_t
    if (t < n) row[32 + t] = 2.0f;  // key e_t, none on the second pass
    for (uint32_t j = 0; j < 32 && t < n; ++j)
      row[64 + j] = inverse_silu(std::fabs(values[t * 32 + j]));
  }
  State state(h);
  const std::vector<float> out = run(GetParam().run(), l, 0, 2 * n, &state);
  for (uint32_t t = 0; t < n; ++t) {
    for (uint32_t j = 0; j < 32; ++j) {
      const float x = l.qkv[t * h.conv_dim() + 64 + j];
      const double v = double{x} / (1 + std::exp(-double{x}));
      // Row j of the state is the value channel; its key channel t holds v_t[j], once rounded.
      EXPECT_NEAR(state.s[j * 32 + t], v, std::fabs(v) * 1e-6);
    }
  }
  // Each value was read twice: when it was written and on the second pass. The same bits, up to z.
  for (uint32_t t = 0; t < n; ++t) {
    for (uint32_t j = 0; j < 32; ++j) {
      const double z0 = l.z[t * 32 + j], z1 = l.z[(n + t) * 32 + j];
      const double g0 = z0 / (1 + std::exp(-z0)), g1 = z1 / (1 + std::exp(-z1));
      EXPECT_NEAR(out[t * 32 + j] * g1, out[(n + t) * 32 + j] * g0,
                  1e-5 * (std::fabs(g0 * g1) + 1e-3));
    }
  }
}

TEST_P(DeltaNet, BetaZeroWritesNothing) {
  Layer l(kSmall, 70, 16);
  std::fill(l.beta.begin(), l.beta.end(), -200.0f);
  std::fill(l.a.begin(), l.a.end(), 0.0f);
  State state(kSmall, 606);
  const State start = state;
  run(GetParam().run(), l, 0, 70, &state);
  EXPECT_EQ(state.s, start.s);
}

TEST_P(DeltaNet, ExtremeDecaysForgetWithoutNan) {
  // g of -30 per token: G passes -2000 within a chunk. Some heads do not decay at all.
  Layer l(kSmall, 130, 17);
  for (uint32_t hd = 0; hd < 6; ++hd) {
    l.a[hd] = hd % 2 == 0 ? -30.0f : 0.0f;
    l.bias[hd] = 1.0f;
  }
  const State start(kSmall, 607);
  State state = start;
  const std::vector<float> out = run(GetParam().run(), l, 0, 130, &state);
  for (const float x : out) ASSERT_TRUE(std::isfinite(x));
  expect_matches(l, start, state, out);
}

TEST_P(DeltaNet, AJumpOfDecayInsideAChunkMatchesDouble) {
  // One token wipes the state (g = -2000), its neighbours keep it: only exponent differences work.
  Layer l(kSmall, 64, 18);
  std::fill(l.a.begin(), l.a.end(), -1.0f);
  std::fill(l.bias.begin(), l.bias.end(), 0.0f);
  std::fill(l.alpha.begin(), l.alpha.end(), -20.0f);
  for (uint32_t hd = 0; hd < 6; ++hd) l.alpha[30 * 6 + hd] = 2000.0f;
  const State start(kSmall, 608);
  State state = start;
  const std::vector<float> out = run(GetParam().run(), l, 0, 64, &state);
  expect_matches(l, start, state, out);
}

TEST_P(DeltaNet, ZeroRowsOfInputStayFinite) {
  Layer l = plain_layer(kSmall, 20);
  State state(kSmall);
  const std::vector<float> out = run(GetParam().run(), l, 0, 20, &state);
  EXPECT_EQ(out, std::vector<float>(out.size(), 0.0f));
  EXPECT_EQ(state.s, std::vector<float>(state.s.size(), 0.0f));
}

}  // namespace
}  // namespace sharpi::cpu
