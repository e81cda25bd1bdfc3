// SPDX-License-Identifier: MIT
#include "cpu/matmul.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "cpu/row_peaks.h"
#include "isas.h"
#include "weight_cases.h"

namespace sharpi::cpu {
namespace {

/// One product with everything it needs, and its reference.
struct Product {
  Product(const TypeCase& type_case, uint64_t n_out, uint32_t n_rows, uint32_t seed)
      : c(type_case),
        row_bytes(ggml_row_bytes(c.type, c.n_in)),
        n_out(n_out),
        n_rows(n_rows),
        x_stride(c.n_in + 3),
        w(row_bytes * n_out),
        x((uint64_t{n_rows - 1} * x_stride + c.n_in) * sizeof(float)),
        y(n_rows * (n_out + 2), kUntouched) {
    std::mt19937 rng(seed);
    fill_weights(c, n_out, rng, w.data());
    std::normal_distribution<float> normal;
    for (uint64_t i = 0; i < uint64_t{n_rows - 1} * x_stride + c.n_in; ++i) {
      x.as<float>()[i] = normal(rng) * (i % 97 == 0 ? 8.0f : 1.0f);
    }
    for (uint32_t r = 0; r < n_rows; ++r) ids.push_back((r * 5 + 2) % n_rows);
  }

  void prepare(const Matmul& m) {
    prepared = std::make_unique<Aligned>(Matmul::prepared_bytes(m.config(), c.n_in, n_rows));
    in = {x.as<float>(), x_stride, n_rows, c.n_in, prepared->p.get()};
    m.prepare(in);
  }
  MatmulTask task() {
    MatmulTask t;
    t.w = {c.type, w.data(), c.n_in, n_out, row_bytes};
    t.in = &in;
    t.row_ids = gathered ? ids.data() : nullptr;
    t.n_rows = n_rows;
    t.y = y.data();
    t.y_stride = n_out + 2;
    t.force_f32 = force_f32;
    return t;
  }
  std::vector<float> run(const Matmul& m) {
    prepare(m);
    const MatmulTask t = task();
    m.run({&t, 1});
    return y;
  }
  void check(const Matmul& m) const;

  static constexpr float kUntouched = -1234.5f;
  TypeCase c;
  uint64_t row_bytes, n_out;
  uint32_t n_rows;
  uint64_t x_stride;
  Guarded w, x;
  std::vector<uint32_t> ids;
  std::vector<float> y;
  std::unique_ptr<Aligned> prepared;
  MatmulInput in;
  bool gathered = false, force_f32 = false;
};

double bf16(double v) {
  return f32_from_bf16(bf16_from_f32(static_cast<float>(v)));
}

/// A row of weights or activations as the path sees it, with what its error bound needs.
struct ReferenceRow {
  ReferenceRow(const float* row, uint64_t n, bool tiles) {
    for (uint64_t i = 0; i < n; ++i) {
      if (i % 32 == 0) squares.push_back(0), steps.push_back(0);
      const double x = tiles ? bf16(row[i]) : row[i];
      v.push_back(x);
      max = std::max(max, std::fabs(x));
      abs_sum += std::fabs(x);
      squares.back() += double{row[i]} * row[i];
      steps.back() = std::max(steps.back(), std::fabs(double{row[i]}) / 127);
    }
  }
  /// Without the largest elements of the groups with the largest steps, which f32 multiplies.
  void take_peaks() {
    std::vector<size_t> order(steps.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return steps[a] > steps[b]; });
    order.resize(std::min<size_t>(order.size(), peaks_of_row(v.size())));
    for (const size_t g : order) {
      const size_t end = std::min(v.size(), 32 * g + 32);
      std::vector<double> magnitudes;
      for (size_t i = 32 * g; i < end; ++i) magnitudes.push_back(std::fabs(v[i]));
      std::sort(magnitudes.rbegin(), magnitudes.rend());
      steps[g] = magnitudes[1] / 127;
    }
  }
  std::vector<double> v;
  double max = 0, abs_sum = 0;
  std::vector<double> squares;  // per group of 32
  std::vector<double> steps;    // of int8 rounding, per group of 32
};

struct ReferenceSum {
  ReferenceSum(const ReferenceRow& w, const ReferenceRow& x) {
    for (size_t i = 0; i < w.v.size(); ++i) {
      value += w.v[i] * x.v[i];
      abs += std::fabs(w.v[i] * x.v[i]);
    }
  }
  double value = 0, abs = 0;
};

/// How far a result may lie from the double reference.
double error_bound(const std::string& path, const ReferenceRow& w, const ReferenceRow& x,
                   const ReferenceSum& sum) {
  // f32 sums in at least 8 lanes; scale times code plus minimum may round like 4 max |w|.
  const double steps = static_cast<double>(w.v.size()) / 8 + 16;
  double bound = 0x1p-24 * (steps * sum.abs + 4 * w.max * x.abs_sum);
  if (path.starts_with("int8")) {
    // Six standard deviations of independent, evenly spread rounding errors.
    double variance = 0;
    for (size_t g = 0; g < w.squares.size(); ++g) {
      variance += w.squares[g] * x.steps[g] * x.steps[g] / 12;
    }
    bound += 6 * std::sqrt(variance);
  }
  // A weight or two may round to the other neighbour in bf16.
  if (path.starts_with("bf16")) bound += 2 * 0x1p-8 * w.max * x.max;
  return bound;
}

void Product::check(const Matmul& m) const {
  const std::string path = m.path(c.type, n_rows, force_f32);
  SCOPED_TRACE(std::string(ggml_traits(c.type).name) + " n_in " + std::to_string(c.n_in) +
               " n_rows " + std::to_string(n_rows) + " " + path);
  const bool tiles = path.starts_with("bf16");
  std::vector<ReferenceRow> rows;
  for (uint32_t r = 0; r < n_rows; ++r) {
    rows.emplace_back(x.as<float>() + (gathered ? ids[r] : r) * x_stride, c.n_in, tiles);
    if (path.starts_with("int8")) rows.back().take_peaks();
  }
  std::vector<float> wf(c.n_in);
  for (uint64_t o = 0; o < n_out; ++o) {
    dequantize_row(c.type, w.data() + o * row_bytes, wf.data(), c.n_in);
    const ReferenceRow wr(wf.data(), c.n_in, tiles);
    for (uint32_t r = 0; r < n_rows; ++r) {
      const ReferenceSum want(wr, rows[r]);
      const float got = y[r * (n_out + 2) + o];
      ASSERT_LE(std::fabs(got - want.value), error_bound(path, wr, rows[r], want))
          << "row " << r << " output " << o << ": got " << got << ", want " << want.value;
    }
  }
  for (uint32_t r = 0; r < n_rows; ++r) {
    for (uint64_t pad = 0; pad < 2; ++pad) {
      ASSERT_EQ(y[r * (n_out + 2) + n_out + pad], kUntouched) << "wrote past row " << r;
    }
  }
}

/// A Matmul with its pool and scratch.
struct Engine {
  Engine(MatmulConfig config, uint32_t n_threads)
      : pool(ThreadPool::create(n_threads).take()),
        bytes(Matmul::scratch_bytes(config, n_threads, 4096, 128)),
        scratch(bytes),
        matmul(config, pool.get(), scratch.p.get(), bytes) {}
  std::unique_ptr<ThreadPool> pool;
  uint64_t bytes;
  Aligned scratch;
  Matmul matmul;
};

class MatmulOn : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    const auto isa = resolve_isa(GetParam());
    if (!isa.is_ok()) GTEST_SKIP() << isa.status().text();
  }
  MatmulConfig config(bool exact, bool deterministic) const {
    return {&kernels_of(GetParam()), exact, deterministic};
  }
};

TEST_P(MatmulOn, FastProductsMatchTheReference) {
  const Engine e(config(false, false), 2);
  for (const TypeCase& c : type_cases()) {
    for (const uint32_t n_rows : {1u, 2u, 3u, 7u, 8u, 9u, 17u, 64u}) {
      Product p(c, 37, n_rows, 1000 + n_rows);
      p.run(e.matmul);
      p.check(e.matmul);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(MatmulOn, ExactProductsMatchTheReference) {
  const Engine e(config(true, false), 2);
  for (const TypeCase& c : type_cases()) {
    for (const uint32_t n_rows : {1u, 2u, 3u, 7u, 9u, 65u}) {
      Product p(c, 37, n_rows, 2000 + n_rows);
      p.run(e.matmul);
      p.check(e.matmul);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(MatmulOn, ForcedF32ProductsMatchTheReference) {
  const Engine e(config(false, false), 1);
  for (const TypeCase& c : type_cases()) {
    for (const uint32_t n_rows : {1u, 40u}) {
      Product p(c, 5, n_rows, 3000 + n_rows);
      p.force_f32 = true;
      p.run(e.matmul);
      p.check(e.matmul);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(MatmulOn, GatheredRowsMatchTheReference) {
  for (const bool exact : {false, true}) {
    const Engine e(config(exact, false), 2);
    for (const TypeCase& c : type_cases()) {
      for (const uint32_t n_rows : {3u, 33u}) {
        Product p(c, 65, n_rows, 4000 + n_rows);
        p.gathered = true;
        p.run(e.matmul);
        p.check(e.matmul);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Experts: several matrices read subsets of one input, of very different sizes, in one region.
TEST_P(MatmulOn, SubsetsOfOneInputInOneRunMatchTheReference) {
  const Engine e(config(false, false), 2);
  const TypeCase c{GgmlType::kQ4_K, {0, 2}, 512};
  Product shared(c, 48, 70, 7);
  shared.prepare(e.matmul);
  std::vector<std::unique_ptr<Product>> parts;
  std::vector<MatmulTask> tasks;
  for (const uint32_t n_rows : {1u, 0u, 5u, 70u, 2u, 31u}) {
    auto part = std::make_unique<Product>(c, 20 + n_rows, std::max(n_rows, 1u), 50 + n_rows);
    for (uint32_t r = 0; r < n_rows; ++r) {
      part->ids[r] = (r * 3 + n_rows) % 70;
      std::memcpy(part->x.as<float>() + r * part->x_stride,
                  shared.x.as<float>() + part->ids[r] * shared.x_stride, c.n_in * sizeof(float));
    }
    tasks.push_back(part->task());
    tasks.back().in = &shared.in;
    tasks.back().row_ids = part->ids.data();
    tasks.back().n_rows = n_rows;
    parts.push_back(std::move(part));
  }
  e.matmul.run(tasks);
  for (size_t i = 0; i < parts.size(); ++i) {
    if (tasks[i].n_rows != 0) parts[i]->check(e.matmul);
    if (HasFatalFailure()) return;
  }
}

// With gathered = false, each part's x holds its rows in order, as the gather put them.
TEST_P(MatmulOn, DeterministicRowsDoNotDependOnTheOtherRows) {
  for (const bool exact : {false, true}) {
    const Engine e(config(exact, true), 2);
    for (const TypeCase& c : type_cases()) {
      Product all(c, 37, 41, 5000);
      const std::vector<float> y = all.run(e.matmul);
      all.check(e.matmul);
      if (HasFatalFailure()) return;
      for (const uint32_t row : {0u, 7u, 8u, 40u}) {
        for (const uint32_t count : {1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u, 9u, 10u}) {
          if (row + count > 41) continue;
          std::vector<float> some(count * 37);
          std::vector<uint32_t> ids;
          for (uint32_t r = 0; r < count; ++r) ids.push_back(row + r);
          MatmulTask t = all.task();
          t.row_ids = ids.data();
          t.n_rows = count;
          t.y = some.data();
          t.y_stride = 37;
          e.matmul.run({&t, 1});
          for (uint32_t r = 0; r < count; ++r) {
            ASSERT_EQ(std::memcmp(&some[r * 37], &y[(row + r) * 39], 37 * sizeof(float)), 0)
                << ggml_traits(c.type).name << " row " << row + r << " of a batch of " << count;
          }
        }
      }
    }
  }
}

// Who asks for a number may get any set that has it.
TEST_P(MatmulOn, SetsOfOneNumberGiveTheSameBits) {
  for (const TypeCase& c : type_cases()) {
    for (const uint32_t n_rows : {1u, 3u, 40u}) {
      Product p(c, 37, n_rows, 9100);
      std::vector<float> first;
      for (const InstructionSet& set : processor().sets) {
        if (set.isa != GetParam() || !set.present()) continue;
        const Engine e({&kernel_set(set), false, false}, 1);
        std::fill(p.y.begin(), p.y.end(), Product::kUntouched);
        const std::vector<float> y = p.run(e.matmul);
        if (first.empty()) first = y;
        ASSERT_EQ(std::memcmp(y.data(), first.data(), y.size() * sizeof(float)), 0)
            << ggml_traits(c.type).name << " with " << n_rows << " rows on " << set.name;
      }
    }
  }
}

TEST_P(MatmulOn, ResultsDoNotDependOnTheNumberOfThreads) {
  for (const bool exact : {false, true}) {
    const Engine one(config(exact, false), 1), three(config(exact, false), 3);
    for (const TypeCase& c : type_cases()) {
      for (const uint32_t n_rows : {1u, 6u, 48u}) {
        Product p(c, 301, n_rows, 6000);
        const std::vector<float> a = p.run(one.matmul);
        std::fill(p.y.begin(), p.y.end(), Product::kUntouched);
        const std::vector<float> b = p.run(three.matmul);
        ASSERT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0)
            << ggml_traits(c.type).name << " with " << n_rows << " rows";
      }
    }
  }
}

/// How far a product of rows of 4096, n_groups of which have a large element, lies from the
/// reference's: root of the mean square.
double error_of_peaked_rows(const Matmul& m, uint32_t n_rows, uint64_t n_groups) {
  Product p({GgmlType::kQ8_0, {0}, 4096}, 64, n_rows, 9000);
  for (uint32_t r = 0; r < n_rows; ++r) {
    float* x = p.x.as<float>() + r * p.x_stride;
    for (uint64_t i = 0; i < p.c.n_in; ++i) x[i] = std::sin(static_cast<float>(i * (r + 1)));
    for (uint64_t g = 0; g < n_groups; ++g) x[96 * g + 5 + r] = g % 2 == 0 ? 200.0f : -100.0f;
  }
  p.run(m);
  double squares = 0;
  std::vector<float> w(p.c.n_in);
  for (uint64_t o = 0; o < p.n_out; ++o) {
    dequantize_row(p.c.type, p.w.data() + o * p.row_bytes, w.data(), p.c.n_in);
    for (uint32_t r = 0; r < n_rows; ++r) {
      const ReferenceSum want({w.data(), p.c.n_in, false},
                              {p.x.as<float>() + r * p.x_stride, p.c.n_in, false});
      const double off = p.y[r * (p.n_out + 2) + o] - want.value;
      squares += off * off;
    }
  }
  return std::sqrt(squares / static_cast<double>(p.n_out * n_rows));
}

// A row of 4096 has two elements apart: groups that have one of them are as exact as the others.
TEST_P(MatmulOn, LargeElementsDoNotCoarsenTheirGroups) {
  ASSERT_EQ(peaks_of_row(4096), 2u);
  const Engine e(config(false, false), 2);
  for (const uint32_t n_rows : {1u, 6u}) {
    const std::string path = e.matmul.path(GgmlType::kQ8_0, n_rows, false);
    if (!path.starts_with("int8")) GTEST_SKIP() << "products are made in f32 here";
    const double plain = error_of_peaked_rows(e.matmul, n_rows, 0);
    EXPECT_LT(error_of_peaked_rows(e.matmul, n_rows, 1), 1.1 * plain) << path;
    EXPECT_LT(error_of_peaked_rows(e.matmul, n_rows, 2), 1.1 * plain) << path;
    EXPECT_GT(error_of_peaked_rows(e.matmul, n_rows, 3), 4 * plain) << path;
  }
}

// The one element of a row is apart, so its products are the weights themselves: every place of a
// block, by products of few rows and by panels.
TEST_P(MatmulOn, ARowOfOneElementGivesItsWeights) {
  const Engine e(config(false, false), 1);
  const auto is_int8 = [&](GgmlType type) {
    return std::string(e.matmul.path(type, 1, false)).starts_with("int8");
  };
  if (!is_int8(GgmlType::kQ8_0)) GTEST_SKIP() << "products are made in f32 here";
  for (const TypeCase& c : type_cases()) {
    for (const uint32_t n_rows : {1u, 6u}) {
      if (!is_int8(c.type)) continue;
      Product p(c, 37, n_rows, 9100);
      std::vector<float> w(c.n_in);
      for (uint64_t first = 0; first < c.n_in; first += n_rows) {
        std::fill_n(p.x.as<float>(), (n_rows - 1) * p.x_stride + c.n_in, 0.0f);
        const auto place = [&](uint64_t r) { return (first + r) % c.n_in; };
        for (uint64_t r = 0; r < n_rows; ++r) p.x.as<float>()[r * p.x_stride + place(r)] = 1;
        p.run(e.matmul);
        for (uint64_t o = 0; o < p.n_out; ++o) {
          dequantize_row(c.type, p.w.data() + o * p.row_bytes, w.data(), c.n_in);
          float most = 0;
          for (const float v : w) most = std::max(most, std::fabs(v));
          for (uint64_t r = 0; r < n_rows; ++r) {
            ASSERT_NEAR(p.y[r * (p.n_out + 2) + o], w[place(r)], 0x1p-17f * most)
                << ggml_traits(c.type).name << " element " << place(r) << " of " << c.n_in;
          }
        }
      }
    }
  }
}

TEST_P(MatmulOn, ZeroRowsGiveZero) {
  const Engine e(config(false, false), 1);
  for (const TypeCase& c : type_cases()) {
    for (const uint32_t n_rows : {1u, 40u}) {
      Product p(c, 5, n_rows, 7000);
      std::fill_n(p.x.as<float>(), uint64_t{n_rows - 1} * p.x_stride + c.n_in, 0.0f);
      p.run(e.matmul);
      for (uint32_t r = 0; r < n_rows; ++r) {
        for (uint32_t o = 0; o < 5; ++o) ASSERT_EQ(p.y[r * 7 + o], 0.0f);
      }
    }
  }
}

TEST_P(MatmulOn, NotANumberStaysInItsRow) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const Engine e(config(false, false), 1);
    for (const TypeCase& c : type_cases()) {
      for (const uint32_t n_rows : {3u, 40u}) {
        Product p(c, 5, n_rows, 8000);
        p.x.as<float>()[p.x_stride + c.n_in / 2] = bad;
        p.run(e.matmul);
        for (uint32_t r = 0; r < n_rows; ++r) {
          for (uint32_t o = 0; o < 5; ++o) {
            ASSERT_EQ(std::isfinite(p.y[r * 7 + o]), r != 1)
                << ggml_traits(c.type).name << " row " << r << " of " << n_rows;
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, MatmulOn, testing::ValuesIn(known_isas()),
                         [](const auto& info) { return std::string(isa_name(info.param)); });

}  // namespace
}  // namespace sharpi::cpu
