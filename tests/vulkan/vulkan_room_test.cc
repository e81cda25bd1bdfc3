// SPDX-License-Identifier: MIT
// The Vulkan tier computes what another implementation does: every fixture, with every KV codec,
// against its goldens, over a prompt of more than a chunk and steps behind it.
#include <cmath>

#include "support/golden.h"
#include "vulkan/vulkan_tier.h"

namespace sharpi::testing {
namespace {

/// Tokens of a prompt: more than a chunk, and how many of them are read one by one.
constexpr size_t kTokens = 84, kSteps = 4;

class OnVulkan : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    SHARPI_NEEDS_VULKAN();
    fixture_ = find_fixture(GetParam());
    if (!fixture_) GTEST_SKIP() << missing_fixtures_text(list_fixtures());
    auto golden = load_golden(fixture_->golden_path);
    ASSERT_TRUE(golden.is_ok()) << golden.status().text();
    golden_ = golden.take();
    auto engine = InnerEngine::open(fixture_->gguf_path, &host_and_vulkan);
    ASSERT_TRUE(engine.is_ok()) << engine.status().text();
    engine_ = engine.take();
  }
  std::shared_ptr<Model> open(uint32_t dtype) const {
    auto plan = engine_.plan([&](sharpi_plan_params* p, sharpi_session_params* s) {
      s->k_dtype = s->v_dtype = dtype;
      s->n_ctx = 1024;
      p->arithmetic = SHARPI_ARITHMETIC_EXACT;
      p->n_chunk = 64;
      p->stream_rows = SHARPI_UNSET;
      p->n_gpu_layers = dtype == 0 ? 0 : -1;
      p->device = dtype == 0 ? 0 : 1;
      if (dtype == 0) s->k_dtype = s->v_dtype = SHARPI_KV_F32;
    });
    EXPECT_TRUE(plan.is_ok()) << plan.status().text();
    if (!plan.is_ok()) return nullptr;
    auto model = Model::load(engine_.context, plan.value(), nullptr);
    EXPECT_TRUE(model.is_ok()) << model.status().text();
    return model.is_ok() ? model.take() : nullptr;
  }
  std::vector<Logits> talk(const std::shared_ptr<Model>& model, const GoldenCase& g) const {
    const auto s = make_session(model, model->plan().session);
    const size_t n = std::min(g.tokens.size(), kTokens), first = n - std::min(n - 1, kSteps);
    prefill(s.get(), slice(g.tokens, 0, first));
    std::vector<Logits> out;
    for (size_t p = first; p <= n; ++p) {
      out.push_back(logits_of(*s, *engine_.spec));
      if (p < n) decode(s.get(), g.tokens[p]);
    }
    return out;
  }
  std::optional<Fixture> fixture_;
  Golden golden_;
  InnerEngine engine_;
};

TEST_P(OnVulkan, LogitsAreTheGoldens) {
  const auto model = open(SHARPI_KV_F32);
  ASSERT_TRUE(model);
  const GoldenCase& g = golden_.cases[0];
  const size_t n = std::min(g.tokens.size(), kTokens), first = n - std::min(n - 1, kSteps);
  const std::vector<Logits> got = talk(model, g);
  for (size_t i = 0; i < got.size(); ++i) {
    const size_t p = first + i;
    EXPECT_EQ(best_of(got[i]), static_cast<size_t>(g.top5[p - 1][0])) << "token " << p;
    for (size_t j = 0; j < 5; ++j) {
      EXPECT_NEAR(got[i][static_cast<size_t>(g.top5[p - 1][j])], g.top5_logits[p - 1][j], kNear)
          << "token " << p;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, OnVulkan, ::testing::ValuesIn(all_models()), model_name);

}  // namespace
}  // namespace sharpi::testing
