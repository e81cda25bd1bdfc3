// SPDX-License-Identifier: MIT
#include "cpu/mamba2.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
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
  Mamba2Shape shape;
  uint32_t n;
  std::vector<float> xbc, z, dt, conv, conv_bias, bias, a, d, norm;
  float eps = 1e-5f;

  Layer(Mamba2Shape s, uint32_t rows, uint32_t seed)
      : shape(s),
        n(rows),
        xbc(random_floats(size_t{rows} * s.conv_dim(), seed)),
        z(random_floats(size_t{rows} * s.inner(), seed + 1)),
        dt(random_floats(size_t{rows} * s.n_heads, seed + 2)),
        conv(random_floats(size_t{s.conv_dim()} * s.conv_kernel, seed + 4, 0.5f)),
        conv_bias(random_floats(s.conv_dim(), seed + 8, 0.3f)),
        bias(random_floats(s.n_heads, seed + 5)),
        a(random_floats(s.n_heads, seed + 6)),
        d(random_floats(s.n_heads, seed + 9, 0.5f, 1.0f)),
        norm(random_floats(s.inner(), seed + 7, 0.2f, 1.0f)) {
    for (float& v : a) v = -std::fabs(v) * 0.3f;
  }
};

struct State {
  std::vector<float> s, conv;
  explicit State(const Mamba2Shape& h, uint32_t seed = 0)
      : s(h.state_floats()), conv(h.conv_floats()) {
    if (seed == 0) return;
    s = random_floats(s.size(), seed, 0.3f);
    conv = random_floats(conv.size(), seed + 1);
  }
};

/// Rows [from, from + n) of a layer as a task on copies of what it consumes.
struct Rows {
  std::vector<float> xbc, dt, out;
  Mamba2Task task;
  Rows(const Layer& l, uint32_t from, uint32_t n)
      : xbc(l.xbc.begin() + from * l.shape.conv_dim(),
            l.xbc.begin() + (from + n) * l.shape.conv_dim()),
        dt(l.dt.begin() + from * l.shape.n_heads, l.dt.begin() + (from + n) * l.shape.n_heads),
        out(size_t{n} * l.shape.inner() + 16, std::nanf("")) {
    task.shape = l.shape;
    task.xbc = xbc.data();
    task.dt = dt.data();
    task.z = l.z.data() + size_t{from} * l.shape.inner();
    task.conv1d = l.conv.data();
    task.conv_bias = l.conv_bias.empty() ? nullptr : l.conv_bias.data();
    task.dt_bias = l.bias.data();
    task.a = l.a.data();
    task.d = l.d.data();
    task.norm = l.norm.data();
    task.eps = l.eps;
    task.out = out.data();
    task.n_rows = n;
  }
  Rows(const Rows&) = delete;
  Rows& operator=(const Rows&) = delete;
  void reads(const State& s) { task.state_in = s.s.data(), task.conv_in = s.conv.data(); }
  void writes(State* s) { task.state_out = s->s.data(), task.conv_out = s->conv.data(); }
  /// What came out; nothing is written behind it.
  std::vector<float> result() const {
    const size_t n = size_t{task.n_rows} * task.shape.inner();
    for (size_t i = n; i < out.size(); ++i) EXPECT_TRUE(std::isnan(out[i]));
    return {out.begin(), out.begin() + static_cast<ptrdiff_t>(n)};
  }
};

struct Run {
  Isa isa = Isa::kScalar;
  bool sequential = true;
  uint32_t n_threads = 1;

  void operator()(const Mamba2Task& t, uint64_t bytes) const {
    std::vector<float> scratch(bytes / 4 + 16, std::nanf(""));
    mamba2(pool_of(n_threads), kernels_of(isa), t, sequential,
           reinterpret_cast<std::byte*>(scratch.data()), bytes);
  }
};

/// Rows [from, to) through the library. The states are double-buffered unless in_place.
std::vector<float> run(const Run& r, const Layer& l, uint32_t from, uint32_t to, State* state,
                       bool in_place = false) {
  State next = *state;
  Rows rows(l, from, to - from);
  if (!in_place) {
    std::fill(next.s.begin(), next.s.end(), std::nanf(""));
    std::fill(next.conv.begin(), next.conv.end(), std::nanf(""));
  }
  rows.reads(in_place ? next : *state);
  rows.writes(&next);
  r(rows.task, mamba2_scratch_bytes(l.shape, r.n_threads, to - from));
  *state = next;
  return rows.result();
}

struct Reference {
  std::vector<double> out, s, conv;
};

double silu(double x) {
  return x / (1 + std::exp(-x));
}

/// Gate and norm of a row, by groups.
void finish_row(const Layer& l, uint32_t t, std::vector<double> o, Reference* r) {
  const Mamba2Shape& h = l.shape;
  const size_t inner = h.inner(), n = inner / h.n_groups;
  for (size_t i = 0; i < inner; ++i) o[i] *= silu(l.z[t * inner + i]);
  for (size_t g = 0; g < inner; g += n) {
    double square = 0;
    for (size_t i = g; i < g + n; ++i) square += o[i] * o[i];
    const double f = 1 / std::sqrt(square / static_cast<double>(n) + l.eps);
    for (size_t i = g; i < g + n; ++i) r->out.push_back(o[i] * f * l.norm[i]);
  }
}

/// The formulas of the header, token by token in double.
Reference reference(const Layer& l, const State& start) {
  const Mamba2Shape& h = l.shape;
  const uint32_t cd = h.conv_dim(), kernel = h.conv_kernel, n = h.state_dim;
  Reference r;
  r.s.assign(start.s.begin(), start.s.end());
  std::vector<std::vector<double>> rows;
  for (uint32_t i = 0; i + 1 < kernel; ++i)
    rows.emplace_back(start.conv.begin() + i * cd, start.conv.begin() + (i + 1) * cd);
  for (uint32_t t = 0; t < l.n; ++t)
    rows.emplace_back(l.xbc.begin() + t * cd, l.xbc.begin() + (t + 1) * cd);
  for (uint32_t t = 0; t < l.n; ++t) {
    std::vector<double> y(cd, 0.0), o(h.inner());
    for (uint32_t c = 0; c < cd; ++c) {
      if (!l.conv_bias.empty()) y[c] = l.conv_bias[c];
      for (uint32_t i = 0; i < kernel; ++i) y[c] += double{l.conv[c * kernel + i]} * rows[t + i][c];
      y[c] = silu(y[c]);
    }
    for (uint32_t head = 0; head < h.n_heads; ++head) {
      const double raw = double{l.dt[size_t{t} * h.n_heads + head]} + l.bias[head];
      const double dt = raw > 20 ? raw : std::log1p(std::exp(raw));
      const double* b = &y[h.inner() + head / (h.n_heads / h.n_groups) * n];
      const double* c = b + h.n_groups * n;
      for (uint32_t p = 0; p < h.head_dim; ++p) {
        const uint32_t at = head * h.head_dim + p;
        o[at] = l.d[head] * y[at];
        for (uint32_t i = 0; i < n; ++i) {
          double& s = r.s[size_t{at} * n + i];
          s = s * std::exp(l.a[head] * dt) + dt * y[at] * b[i];
          o[at] += s * c[i];
        }
      }
    }
    finish_row(l, t, std::move(o), &r);
  }
  for (uint32_t i = 0; i + 1 < kernel; ++i)
    r.conv.insert(r.conv.end(), rows[l.n + i].begin(), rows[l.n + i].end());
  return r;
}

/// Per group of `n` values: |got - want| <= tolerance * |want|_2.
template <class Floats>
void expect_groups(const std::vector<float>& got, const Floats& want, size_t n, double tolerance,
                   const char* what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t g = 0; g < got.size(); g += n) {
    double square = 0;
    for (size_t i = 0; i < n; ++i) square += double{want[g + i]} * want[g + i];
    const double bound = tolerance * std::sqrt(square) + 1e-30;
    for (size_t i = 0; i < n; ++i)
      ASSERT_NEAR(got[g + i], want[g + i], bound) << what << " " << g << "+" << i;
  }
}

// Errors enter as roundings of sums of state_dim terms and decay with the state: those of some
// hundred roundings at 6e-8 each stay below 1e-5 of the norm of a state or of a group's output.
constexpr double kTolerance = 1e-5;

void expect_matches(const Layer& l, const State& start, const State& end,
                    const std::vector<float>& out) {
  const Reference want = reference(l, start);
  const Mamba2Shape& h = l.shape;
  expect_groups(end.s, want.s, h.head_state_floats(), kTolerance, "state");
  expect_groups(out, want.out, h.inner() / h.n_groups, kTolerance, "output");
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

class Mamba2 : public testing::TestWithParam<Path> {};
INSTANTIATE_TEST_SUITE_P(Paths, Mamba2, testing::ValuesIn(paths()), [](const auto& p) {
  return std::string(isa_name(p.param.isa)) + (p.param.sequential ? "_sequential" : "_auto");
});

/// Two groups of three heads.
constexpr Mamba2Shape kSmall{6, 32, 2, 48, 4};

TEST_P(Mamba2, EveryNumberOfRowsMatchesDouble) {
  for (const uint32_t n : {1u, 2u, 3u, 5u, 15u, 16u, 17u, 33u, 63u, 64u, 65u, 100u, 129u}) {
    SCOPED_TRACE(n);
    const Layer l(kSmall, n, n);
    const State start(kSmall, 500 + n);
    State state = start;
    const std::vector<float> out = run(GetParam().run(), l, 0, n, &state);
    expect_matches(l, start, state, out);
  }
}

TEST_P(Mamba2, ShapesMatchDouble) {
  // One head, many of one group, odd sizes of heads and states, other kernels.
  for (const Mamba2Shape h :
       {Mamba2Shape{1, 16, 1, 16, 4}, Mamba2Shape{20, 16, 1, 32, 4}, Mamba2Shape{4, 24, 2, 20, 3},
        Mamba2Shape{2, 9, 1, 7, 2}, Mamba2Shape{8, 64, 8, 128, 4}, Mamba2Shape{3, 80, 1, 40, 5}}) {
    SCOPED_TRACE(h.head_dim);
    const Layer l(h, 70, h.head_dim);
    const State start(h, 600);
    State state = start;
    const std::vector<float> out = run(GetParam().run(3), l, 0, 70, &state);
    expect_matches(l, start, state, out);
  }
}

TEST_P(Mamba2, RealShapesMatchDouble) {
  // Granite 4 (tiny), Nemotron 3 Nano.
  for (const Mamba2Shape h : {Mamba2Shape{48, 64, 1, 128, 4}, Mamba2Shape{64, 64, 8, 128, 4}}) {
    const Layer l(h, 18, 9);
    const State start(h, 601);
    State state = start;
    const std::vector<float> out = run(GetParam().run(2), l, 0, 18, &state);
    expect_matches(l, start, state, out);
  }
}

TEST_P(Mamba2, AConvolutionMayHaveNoBias) {
  Layer l(kSmall, 20, 19);
  l.conv_bias.clear();
  const State start(kSmall, 602);
  State state = start;
  const std::vector<float> out = run(GetParam().run(), l, 0, 20, &state);
  expect_matches(l, start, state, out);
}

TEST_P(Mamba2, TheNumberOfThreadsKeepsTheBits) {
  const Mamba2Shape h{20, 16, 2, 32, 4};
  const Layer l(h, 90, 10);
  State one(h, 602), three = one;
  const std::vector<float> a = run(GetParam().run(1), l, 0, 90, &one);
  const std::vector<float> b = run(GetParam().run(3), l, 0, 90, &three);
  EXPECT_EQ(a, b);
  EXPECT_EQ(one.s, three.s);
  EXPECT_EQ(one.conv, three.conv);
}

TEST_P(Mamba2, StateMayBeUpdatedInPlace) {
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

TEST_P(Mamba2, AnySplitGivesTheSameState) {
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
      expect_groups(state.s, whole.s, kSmall.head_state_floats(), kTolerance, "state");
      expect_groups(parts, out, kSmall.inner() / kSmall.n_groups, kTolerance, "output");
    }
  }
}

/// Rows whose state nobody keeps give the outputs of those whose state is kept.
TEST_P(Mamba2, AStateThatIsNotKeptChangesNoOutput) {
  for (const uint32_t n : {1u, 4u, 80u}) {
    const Layer l(kSmall, n, 21);
    State kept(kSmall, 605);
    const State start = kept;
    const std::vector<float> want = run(GetParam().run(2), l, 0, n, &kept);
    Rows rows(l, 0, n);
    rows.reads(start);
    GetParam().run(2)(rows.task, mamba2_scratch_bytes(kSmall, 2, n));
    EXPECT_EQ(rows.result(), want);
  }
}

/// Rows in front whose outputs nobody wants, and the rows behind them, in one call: bit by bit what
/// two calls make of the states and outputs, also where the states of the rows behind are not kept,
/// and where scratch for both is not there, so that one goes before the other.
TEST_P(Mamba2, RowsInFrontGoWithTheRest) {
  uint32_t n_apart = 0;
  const auto go = GetParam().run(2);
  const Mamba2Shape h{2, 16, 1, 16, 4};
  for (const uint32_t n_before : {1u, 2u, 7u, 15u, 4000u}) {
    for (const uint32_t n : {1u, 3u, 15u, 4000u}) {
      for (const bool kept : {true, false}) {
        SCOPED_TRACE(std::to_string(n_before) + " and " + std::to_string(n) + " rows");
        const Layer l(h, n_before + n, 14);
        const State start(h, 606);
        State apart = start;
        run(go, l, 0, n_before, &apart);
        const State between = apart;
        const std::vector<float> want = run(go, l, n_before, n_before + n, &apart);

        State left = start, end = start;
        Rows before(l, 0, n_before), rows(l, n_before, n);
        before.task.z = nullptr;
        before.reads(start);
        before.writes(&left);
        rows.task.before = &before.task;
        if (kept) rows.writes(&end);
        const uint64_t bytes = mamba2_scratch_bytes(h, 2, std::max(n_before, n));
        n_apart += goes_with(before.task, rows.task, go.sequential, 2, bytes) ? 0 : 1;
        go(rows.task, bytes);
        EXPECT_EQ(rows.result(), want);
        EXPECT_EQ(left.s, between.s);
        EXPECT_EQ(left.conv, between.conv);
        if (!kept) continue;
        EXPECT_EQ(end.s, apart.s);
        EXPECT_EQ(end.conv, apart.conv);
      }
    }
  }
  EXPECT_GT(n_apart, 0u);
}

TEST_P(Mamba2, NoRowsCopyTheState) {
  const Layer l(kSmall, 1, 13);
  State state(kSmall, 605);
  const State start = state;
  run(GetParam().run(), l, 0, 0, &state);
  EXPECT_EQ(state.s, start.s);
  EXPECT_EQ(state.conv, start.conv);
}

TEST_P(Mamba2, ExtremeDecaysForgetWithoutNan) {
  // Sums of decays pass -2000 within a chunk. Some heads do not decay at all.
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

TEST_P(Mamba2, StepsOfNothingWriteNothing) {
  Layer l(kSmall, 70, 16);
  std::fill(l.dt.begin(), l.dt.end(), -200.0f);
  State state(kSmall, 606);
  const State start = state;
  run(GetParam().run(), l, 0, 70, &state);
  EXPECT_EQ(state.s, start.s);
}

}  // namespace
}  // namespace sharpi::cpu
