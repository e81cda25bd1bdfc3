// SPDX-License-Identifier: MIT
// Every way to store rows with every arithmetic, deterministic and not, on every trained model: the
// goldens, read in batches and token by token.
#include <algorithm>
#include <cmath>
#include <sstream>

#include "recorded_codecs.h"
#include "setting_case.h"

namespace sharpi::testing {
namespace {

constexpr uint32_t kRows = 64;

class Settings : public ::testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    const auto& [model, kv, arithmetic, deterministic] = GetParam();
    const auto fixture = find_fixture(model);
    if (!fixture) GTEST_SKIP() << missing_fixtures_text(list_fixtures());
    auto golden = load_golden(fixture->golden_path);
    ASSERT_TRUE(golden.is_ok()) << golden.status().text();
    case_ = golden.value().cases.front();
    exact_ = kv == SHARPI_KV_F32 && arithmetic == SHARPI_ARITHMETIC_EXACT;
    const auto trained = trained_models();
    coarse_ =
        kv == SHARPI_KV_Q4 && std::find(trained.begin(), trained.end(), model) == trained.end();
    loaded_ =
        load(fixture->gguf_path, setup_with([&](sharpi_plan_params* p, sharpi_session_params* s) {
               p->arithmetic = std::get<2>(GetParam());
               p->deterministic = std::get<3>(GetParam());
               p->n_chunk = p->max_logit_rows = kRows;
               s->n_ctx = 1024;
               s->k_dtype = s->v_dtype = std::get<1>(GetParam());
             }));
    ASSERT_TRUE(loaded_.model);
    EXPECT_EQ(loaded_.plan_info.k_dtype, kv);
    EXPECT_EQ(loaded_.plan_info.arithmetic, arithmetic);
    EXPECT_EQ(loaded_.plan_info.deterministic, deterministic);
  }
  /// Against the golden's five best tokens of each position: their logits where nothing is rounded,
  /// else its choice, which must be the same where it is clear and near the top everywhere. Models
  /// with random weights choose among logits that are nearly equal, by less than what four bits
  /// leave of a row: there it must be the same at half of the clear positions (1 of 300 by chance).
  void expect_golden(const std::vector<Logits>& got, const std::string& what) const {
    ASSERT_EQ(got.size(), case_.tokens.size()) << what;
    size_t clear = 0, equal = 0;
    std::ostringstream others;
    for (size_t p = 0; p < got.size(); ++p) {
      const auto best = static_cast<size_t>(case_.top5[p][0]);
      EXPECT_TRUE(coarse_ || in_best_five(got[p], best)) << what << " position " << p;
      for (size_t i = 0; exact_ && i < 5; ++i) {
        const auto token = static_cast<size_t>(case_.top5[p][i]);
        ASSERT_NEAR(got[p][token], case_.top5_logits[p][i], 2e-3) << what << " position " << p;
      }
      if (case_.top5_logits[p][0] - case_.top5_logits[p][1] <= 0.25f) continue;
      ++clear;
      if (best_of(got[p]) == best) {
        ++equal;
      } else {
        others << " " << p << " (by " << case_.top5_logits[p][0] - case_.top5_logits[p][1] << ")";
      }
    }
    EXPECT_GT(clear, got.size() / 4) << "the prompt says too little";
    const size_t wrong = coarse_ ? clear / 2 : exact_ ? 0 : std::max<size_t>(1, clear / 50);
    EXPECT_GE(equal + wrong, clear)
        << what << ": others at" << others.str()
        << "; the golden's best are off by (root mean square) " << error_of(got);
  }
  double error_of(const std::vector<Logits>& got) const {
    double sum = 0.0;
    for (size_t p = 0; p < got.size(); ++p) {
      for (size_t i = 0; i < 5; ++i) {
        const double off = got[p][static_cast<size_t>(case_.top5[p][i])] - case_.top5_logits[p][i];
        sum += off * off;
      }
    }
    return std::sqrt(sum / (5.0 * static_cast<double>(got.size())));
  }
  std::vector<Logits> in_batches() const {
    return Chat(loaded_.model.get()).all_logits(case_.tokens, kRows);
  }
  std::vector<Logits> one_by_one() const {
    Chat chat(loaded_.model.get());
    std::vector<Logits> out;
    for (const int32_t t : case_.tokens) {
      chat.decode(t);
      out.push_back(chat.logits());
    }
    return out;
  }
  GoldenCase case_;
  bool exact_ = false, coarse_ = false;
  Loaded loaded_;
};

TEST_P(Settings, GiveTheGoldens) {
  const auto batches = in_batches(), steps = one_by_one();
  expect_golden(batches, "in batches");
  expect_golden(steps, "one by one");
  if (std::get<3>(GetParam()) == 0) return;
  expect_same_rows(steps, batches, "one by one and in batches");
  expect_same_rows(in_batches(), batches, "again");
}

INSTANTIATE_TEST_SUITE_P(Engine, Settings, all_settings(), setting_name);

}  // namespace
}  // namespace sharpi::testing
