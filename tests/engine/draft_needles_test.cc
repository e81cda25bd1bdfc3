// SPDX-License-Identifier: MIT
// Trained models answer from prompts that hide a code with drafts on what they answer without, from
// the whole cache and from a compacted one, with every drafter that a file has.
#include <array>

#include "engine_case.h"
#include "support/needle.h"

namespace sharpi::testing {
namespace {

constexpr size_t kNeedles = 4;

/// Steps until n tokens or one that ends the answer are there, in calls that may give several.
std::vector<int32_t> stepped(const sharpi_model* model, const Chat& chat, size_t n) {
  std::vector<int32_t> out;
  while (out.size() < n && (out.empty() || sharpi_token_is_end(model, out.back()) == 0)) {
    std::array<int32_t, 16> tokens{};
    uint32_t got = 0;
    sharpi_error e = SHARPI_ERROR_INIT;
    const auto cap = static_cast<uint32_t>(std::min<size_t>(tokens.size(), n - out.size()));
    if (sharpi_session_step(chat.get(), nullptr, tokens.data(), cap, &got, &e) != SHARPI_OK) {
      ADD_FAILURE() << e.text;
      break;
    }
    out.insert(out.end(), tokens.begin(), tokens.begin() + got);
  }
  return out;
}

class DraftNeedles : public ModelTest {};

TEST_P(DraftNeedles, AreAnsweredAsWithoutDrafts) {
  ASSERT_GE(golden_.needles.size(), kNeedles);
  const Loaded loaded =
      load(path(), setup_with([&](sharpi_plan_params* p, sharpi_session_params* s) {
             p->deterministic = 1, p->n_gpu_layers = 0, p->n_sessions = 2;
             p->draft_path = path().c_str();
             s->n_ctx = 2304, s->capture_window = 32, s->n_checkpoints = 1;
             s->n_draft = 8, s->drafters = SHARPI_DRAFT_AUTO;
           }));
  ASSERT_TRUE(loaded.model);
  sharpi_session_params without;
  sharpi_session_params_init(&without, sizeof without);
  without.n_ctx = 2304, without.capture_window = 32;
  sharpi_sampler_params greedy;
  sharpi_sampler_params_init(&greedy, sizeof greedy);
  greedy.temperature = 0;
  uint64_t n_drafted = 0;
  for (const uint32_t budget : {0u, 256u}) {
    size_t right = 0;
    for (size_t i = 0; i < kNeedles; ++i) {
      const GoldenNeedle& needle = golden_.needles[i];
      Chat plain(loaded.model.get(), &without);
      Chat drafting(loaded.model.get());
      sharpi_error e = SHARPI_ERROR_INIT;
      for (Chat* c : {&plain, &drafting}) {
        c->prefill(needle.prompt);
        ASSERT_EQ(sharpi_session_set_sampler(c->get(), &greedy, &e), SHARPI_OK) << e.text;
        if (budget == 0) continue;
        const sharpi_compact_params p = compact_params(SHARPI_POLICY_AUTO, budget);
        ASSERT_EQ(sharpi_session_compact(c->get(), &p, nullptr, &e), SHARPI_OK) << e.text;
      }
      const std::vector<int32_t> want = stepped(loaded.model.get(), plain, needle.answer.size());
      EXPECT_EQ(stepped(loaded.model.get(), drafting, needle.answer.size()), want)
          << "needle " << i << ", budget " << budget;
      right += digits_of(loaded.model.get(), want) == digits_of(loaded.model.get(), needle.answer);
      sharpi_draft_stats stats{};
      stats.struct_size = sizeof stats;
      ASSERT_EQ(sharpi_session_drafts(drafting.get(), &stats, &e), SHARPI_OK) << e.text;
      n_drafted += stats.n_drafted;
    }
    EXPECT_GE(right, kNeedles - 1) << "budget " << budget;
  }
  EXPECT_GT(n_drafted, 0u);
}

INSTANTIATE_TEST_SUITE_P(Models, DraftNeedles, ::testing::ValuesIn(trained_models()), model_name);

}  // namespace
}  // namespace sharpi::testing
