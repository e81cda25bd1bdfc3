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

/// The session when it has read the prompt and takes the best token of each row.
Chat asked(Chat chat, const GoldenNeedle& needle) {
  sharpi_sampler_params greedy;
  sharpi_sampler_params_init(&greedy, sizeof greedy);
  greedy.temperature = 0;
  sharpi_error e = SHARPI_ERROR_INIT;
  chat.prefill(needle.prompt);
  EXPECT_EQ(sharpi_session_set_sampler(chat.get(), &greedy, &e), SHARPI_OK) << e.text;
  return chat;
}

Chat compacted_fork(const Chat& chat) {
  Chat fork = chat.fork();
  sharpi_error e = SHARPI_ERROR_INIT;
  const sharpi_compact_params p = compact_params(SHARPI_POLICY_AUTO, 256);
  EXPECT_EQ(sharpi_session_compact(fork.get(), &p, nullptr, &e), SHARPI_OK) << e.text;
  return fork;
}

uint64_t drafted(const Chat& chat) {
  sharpi_draft_stats stats{};
  stats.struct_size = sizeof stats;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_session_drafts(chat.get(), &stats, &e), SHARPI_OK) << e.text;
  return stats.n_drafted;
}

class DraftNeedles : public ModelTest {};

TEST_P(DraftNeedles, AreAnsweredAsWithoutDrafts) {
  ASSERT_GE(golden_.needles.size(), kNeedles);
  const Loaded loaded =
      load(path(), setup_with(
                       [&](sharpi_plan_params* p, sharpi_session_params* s) {
                         p->deterministic = 1, p->n_gpu_layers = 0, p->n_sessions = 4;
                         p->draft_path = path().c_str();
                         s->n_ctx = 2304, s->capture_window = 32, s->n_checkpoints = 1;
                         s->n_draft = 8, s->drafters = SHARPI_DRAFT_AUTO;
                       },
                       kThreadsOfNeedles));
  ASSERT_TRUE(loaded.model);
  sharpi_session_params without;
  sharpi_session_params_init(&without, sizeof without);
  without.n_ctx = 2304, without.capture_window = 32;
  std::array<size_t, 2> right{};
  uint64_t n_drafted = 0;
  for (size_t i = 0; i < kNeedles; ++i) {
    const GoldenNeedle& needle = golden_.needles[i];
    Chat plain = asked(Chat(loaded.model.get(), &without), needle);
    Chat drafting = asked(Chat(loaded.model.get()), needle);
    // The second time, with what forks compacted.
    Chat plain_fork = compacted_fork(plain), drafting_fork = compacted_fork(drafting);
    for (size_t pass = 0; pass < right.size(); ++pass) {
      Chat& with = pass == 0 ? drafting : drafting_fork;
      const std::vector<int32_t> want =
          stepped(loaded.model.get(), pass == 0 ? plain : plain_fork, needle.answer.size());
      EXPECT_EQ(stepped(loaded.model.get(), with, needle.answer.size()), want)
          << "needle " << i << (pass == 0 ? "" : ", compacted");
      right[pass] +=
          digits_of(loaded.model.get(), want) == digits_of(loaded.model.get(), needle.answer);
      n_drafted += drafted(with);
    }
  }
  EXPECT_GE(right[0], kNeedles - 1);
  EXPECT_GE(right[1], kNeedles - 1) << "compacted";
  EXPECT_GT(n_drafted, 0u);
}

INSTANTIATE_TEST_SUITE_P(Models, DraftNeedles, ::testing::ValuesIn(trained_models()), model_name);

}  // namespace
}  // namespace sharpi::testing
