// SPDX-License-Identifier: MIT
// The numbers are right: logits and greedy continuations against goldens that another
// implementation computed in f32, all through the C ABI.
#include <cmath>
#include <string>

#include "engine_case.h"
#include "support/golden.h"

namespace sharpi::testing {
namespace {

constexpr uint32_t kRows = 64;  // logit rows readable after one call

struct Variant {
  std::string fixture;
  sharpi_arithmetic arithmetic = SHARPI_ARITHMETIC_EXACT;
  sharpi_kv_dtype kv = SHARPI_KV_F32;
};

std::string name_of(const ::testing::TestParamInfo<Variant>& v) {
  std::string name = v.param.fixture.substr(5);
  std::replace(name.begin(), name.end(), '-', '_');
  name += v.param.arithmetic == SHARPI_ARITHMETIC_EXACT ? "_exact_" : "_fast_";
  return name + dtype_text(v.param.kv);
}

class OnFixture : public ::testing::TestWithParam<Variant> {
 protected:
  void SetUp() override {
    fixture_ = find_fixture(GetParam().fixture);
    if (!fixture_) GTEST_SKIP() << missing_fixtures_text(list_fixtures());
    auto golden = load_golden(fixture_->golden_path);
    ASSERT_TRUE(golden.is_ok()) << golden.status().text();
    golden_ = golden.take();
    ModelSetup setup;
    setup.edit = [](sharpi_plan_params* p, sharpi_session_params* s) {
      p->arithmetic = GetParam().arithmetic;
      p->max_logit_rows = kRows;
      p->n_chunk = 512;
      s->k_dtype = s->v_dtype = GetParam().kv;
    };
    loaded_ = load(fixture_->gguf_path, setup);
    ASSERT_TRUE(loaded_.model);
    ASSERT_EQ(loaded_.plan_info.k_dtype, GetParam().kv);
  }

  std::optional<Fixture> fixture_;
  Golden golden_;
  Loaded loaded_;
};

class Goldens : public OnFixture {};

TEST_P(Goldens, ExactLogitsAgreeAtEveryPosition) {
  for (size_t c = 0; c < golden_.cases.size(); ++c) {
    const GoldenCase& g = golden_.cases[c];
    Chat chat(loaded_.model.get());
    const auto logits = chat.all_logits(g.tokens, kRows);
    ASSERT_EQ(logits.size(), g.tokens.size());
    double worst = 0;
    for (size_t p = 0; p < logits.size(); ++p) {
      for (size_t i = 0; i < 5; ++i) {
        const double d =
            std::fabs(logits[p][static_cast<size_t>(g.top5[p][i])] - g.top5_logits[p][i]);
        worst = std::max(worst, d);
        ASSERT_LE(d, 2e-3) << "case " << c << " position " << p << " token " << g.top5[p][i];
      }
    }
    RecordProperty("worst_case_" + std::to_string(c), std::to_string(worst));
  }
}

TEST_P(Goldens, ExactGreedyContinuationIsTheGoldens) {
  for (const GoldenCase& g : golden_.cases) {
    Chat chat(loaded_.model.get());
    chat.prefill(g.tokens);
    EXPECT_EQ(chat.greedy(static_cast<uint32_t>(g.greedy.size())), g.greedy);
  }
}

class FastGoldens : public OnFixture {};

TEST_P(FastGoldens, ArgmaxFollowsTheGoldens) {
  size_t all = 0, all_equal = 0, wide = 0, wide_equal = 0;
  for (const GoldenCase& g : golden_.cases) {
    Chat chat(loaded_.model.get());
    const auto logits = chat.all_logits(g.tokens, kRows);
    for (size_t p = 0; p < logits.size(); ++p) {
      const auto best = std::max_element(logits[p].begin(), logits[p].end()) - logits[p].begin();
      const bool equal = best == g.top5[p][0];
      const bool clear = g.top5_logits[p][0] - g.top5_logits[p][1] > 0.25f;
      ++all;
      all_equal += equal ? 1 : 0;
      wide += clear ? 1 : 0;
      wide_equal += clear && equal ? 1 : 0;
    }
  }
  RecordProperty("share_all",
                 std::to_string(static_cast<double>(all_equal) / static_cast<double>(all)));
  RecordProperty("share_wide",
                 std::to_string(static_cast<double>(wide_equal) / static_cast<double>(wide)));
  EXPECT_GE(static_cast<double>(all_equal), 0.95 * static_cast<double>(all));
  EXPECT_GE(static_cast<double>(wide_equal), 0.995 * static_cast<double>(wide));
}

std::vector<Variant> variants(const std::vector<std::string>& models, sharpi_arithmetic arithmetic,
                              std::vector<sharpi_kv_dtype> dtypes) {
  std::vector<Variant> out;
  for (const std::string& model : models) {
    for (const sharpi_kv_dtype kv : dtypes) out.push_back({model, arithmetic, kv});
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(Parity, Goldens,
                         ::testing::ValuesIn(variants(all_models(), SHARPI_ARITHMETIC_EXACT,
                                                      {SHARPI_KV_F32})),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Parity, FastGoldens,
                         ::testing::ValuesIn(variants(trained_models(), SHARPI_ARITHMETIC_FAST,
                                                      {SHARPI_KV_F32})),
                         name_of);
}  // namespace
}  // namespace sharpi::testing
