// SPDX-License-Identifier: MIT
// The weights that queries give stored rows, against plain loops in double, with and without sinks.
#include "cpu/score.h"

#include "attention_cases.h"
#include "cpu/value_norms.h"

namespace sharpi::cpu {
namespace {

constexpr uint32_t kSlots = 700, kQueries = 3;  // over two spans

struct Masses {
  std::vector<double> sum, max;
};

Masses plain(const Sequence& s, const std::vector<uint32_t>& visible,
             const std::vector<float>& weight) {
  const Shape& h = s.shape;
  Masses m{std::vector<double>(h.n_kv * kSlots), std::vector<double>(h.n_kv * kSlots)};
  for (uint32_t head = 0; head < h.n_heads; ++head) {
    const uint32_t kv = head / (h.n_heads / h.n_kv);
    for (uint32_t i = 0; i < kQueries; ++i) {
      std::vector<double> p(visible[kv * kQueries + i]);
      double total = s.sinks.empty() ? 0 : std::exp(double{s.sinks[head]});
      for (uint32_t t = 0; t < p.size(); ++t) {
        for (uint32_t e = 0; e < h.dim; ++e)
          p[t] += double{s.q[i][head * h.dim + e]} * s.k_row(t).back[kv * h.dim + e] * s.scale;
        total += p[t] = std::exp(p[t]);
      }
      for (uint32_t t = 0; t < p.size(); ++t) {
        double& top = m.max[kv * kSlots + t];
        m.sum[kv * kSlots + t] += p[t] / total;
        top = std::max(top, p[t] / total * weight[i]);
      }
    }
  }
  return m;
}

class Scores : public testing::TestWithParam<Isa> {};
INSTANTIATE_TEST_SUITE_P(Isas, Scores, testing::ValuesIn(runnable_isas()),
                         [](const auto& p) { return std::string(isa_name(p.param)); });

TEST_P(Scores, AreSharesOfTheSoftmaxAndSinksHaveTheirs) {
  const std::vector<uint32_t> visible = {1, 600, kSlots, 64, 65, kSlots};
  const std::vector<float> weight = {1.0f, 0.5f, 0.25f};
  for (const KvDtype dtype : kCodecs) {
    for (const bool sinks : {false, true}) {
      Sequence s({.n_heads = 4, .n_kv = 2, .dim = 64, .k = dtype, .v = dtype}, kSlots, 7);
      if (sinks) s.sinks = {-3.0f, 2.0f, 6.0f, 9.0f};
      Store store(s.shape, kSlots);
      for (uint32_t i = 0; i < kSlots; ++i) store.put(i, s, i);
      std::vector<float> q, sum(2 * kSlots), max(2 * kSlots);
      for (uint32_t i = 0; i < kQueries; ++i) q.insert(q.end(), s.q[i].begin(), s.q[i].end());
      ScoreTask t;
      t.kv = store.view();
      t.n_slots = kSlots;
      t.q = q.data();
      t.q_stride = 4 * 64;
      t.n_queries = kQueries;
      t.n_heads = 4;
      t.scale = s.scale;
      t.sinks = sinks ? s.sinks.data() : nullptr;
      t.visible = visible.data();
      t.sum = sum.data();
      t.max = max.data();
      t.weight = weight.data();
      std::vector<std::byte> scratch(score_scratch_bytes(2, kQueries, 4, 64, kSlots));
      ASSERT_TRUE(score_rows(pool_of(2), kernels_of(GetParam()), t, scratch.data(), scratch.size())
                      .is_ok());
      const Masses want = plain(s, visible, weight);
      for (size_t i = 0; i < want.sum.size(); ++i) {
        ASSERT_NEAR(sum[i], want.sum[i], 1e-5 * want.sum[i] + 1e-9) << i << sinks;
        ASSERT_NEAR(max[i], want.max[i], 1e-5 * want.max[i] + 1e-9) << i << sinks;
      }
    }
  }
}

/// Of values as they are, and of values that a matrix of each query head makes of a row's end.
TEST_P(Scores, NormsOfValuesAreThoseBehindTheOutputProjection) {
  constexpr uint32_t kRows = 70, kHeads = 4, kFirst = 16, kIn = 48, kOut = 24, kEmbd = 5;
  for (const bool mapped : {false, true}) {
    Shape shape{.n_heads = kHeads, .n_kv = 1, .dim = 64, .k = KvDtype::kQ4, .v = KvDtype::kQ4};
    shape.one_row = mapped;
    const Sequence s(shape, kRows, 11);
    Store store(s.shape, kRows);
    for (uint32_t i = 0; i < kRows; ++i) store.put(i, s, i);
    const uint64_t d = mapped ? kOut : shape.dim;
    std::mt19937 rng(3);
    const std::vector<float> map = random_row(kHeads * kOut * kIn, rng);
    const std::vector<float> o = random_row(kEmbd * kHeads * d, rng);
    std::vector<float> norms(kRows);
    ValueNormTask t;
    t.kv = store.view();
    t.n_slots = kRows;
    t.n_heads = t.group = kHeads;
    t.o_data = reinterpret_cast<const std::byte*>(o.data());
    t.o_row_bytes = kHeads * d * sizeof(float);
    t.n_outputs = kEmbd;
    t.norms = norms.data();
    if (mapped)
      t.map = {GgmlType::kF32, reinterpret_cast<const std::byte*>(map.data()), kIn, kOut, kFirst};
    std::vector<std::byte> scratch(value_norm_scratch_bytes(2, kHeads, 64));
    ASSERT_TRUE(
        value_norms(pool_of(2), kernels_of(GetParam()), t, scratch.data(), scratch.size()).is_ok());
    for (uint32_t row = 0; row < kRows; ++row) {
      const std::vector<float>& back = s.v_row(row).back;
      double want = 0;
      for (uint32_t h = 0; h < kHeads; ++h) {
        std::vector<double> value(back.begin(), back.end());
        for (uint32_t j = 0; mapped && j < kOut; ++j) {
          value[j] = 0;
          for (uint32_t i = 0; i < kIn; ++i)
            value[j] += double{map[(h * kOut + j) * kIn + i]} * back[kFirst + i];
        }
        for (uint32_t e = 0; e < kEmbd; ++e) {
          double sum = 0;
          for (uint64_t j = 0; j < d; ++j) sum += o[(e * kHeads + h) * d + j] * value[j];
          want += std::fabs(sum) / kHeads;
        }
      }
      ASSERT_NEAR(norms[row], want, 1e-4 * want) << row << mapped;
    }
  }
}

}  // namespace
}  // namespace sharpi::cpu
