// SPDX-License-Identifier: MIT
// The weights that queries give stored rows, against plain loops in double, with and without sinks.
#include "cpu/score.h"

#include "attention_cases.h"

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

}  // namespace
}  // namespace sharpi::cpu
