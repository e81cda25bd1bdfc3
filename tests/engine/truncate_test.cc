// SPDX-License-Identifier: MIT
// Going back: which lengths a session can be cut to, what it then computes, and how it refuses the
// others. Also what happens when it is full.
#include "engine_case.h"

namespace sharpi::testing {
namespace {

using test::ModelRecipe;

constexpr uint32_t kWindow = 16, kRewind = 8;

ModelRecipe windowed() {
  ModelRecipe r = test::tiny_gemma4kv();
  r.window = kWindow;
  return r;
}

Edit deterministic(uint32_t n_checkpoints = 0) {
  return [=](sharpi_plan_params* p, sharpi_session_params* s) {
    p->deterministic = 1;
    p->n_chunk = 32;
    s->n_ctx = 128;
    s->rewind = kRewind;
    s->n_checkpoints = n_checkpoints;
  };
}

struct Answer {
  sharpi_status status;
  std::string text;
};
Answer truncate(const Chat& chat, uint32_t n) {
  sharpi_error e = SHARPI_ERROR_INIT;
  const sharpi_status s = sharpi_session_truncate(chat.get(), n, &e);
  return {s, e.text};
}
Answer checkpoint(const Chat& chat, bool pin = false) {
  sharpi_error e = SHARPI_ERROR_INIT;
  const sharpi_status s = sharpi_session_checkpoint(chat.get(), pin, &e);
  return {s, e.text};
}
bool has(const Answer& a, const std::string& part) {
  return a.text.find(part) != std::string::npos;
}

class Truncate : public ::testing::Test {
 protected:
  void use(const ModelRecipe& recipe, Edit edit) {
    file_.emplace(recipe);
    loaded_ = load(file_->path(), setup_with(std::move(edit)));
    ASSERT_TRUE(loaded_.model);
    tokens_ = file_->tokens(128);
  }
  Chat read(uint32_t n) {
    Chat chat(loaded_.model.get());
    chat.prefill(tokens_.data(), n);
    return chat;
  }
  /// What a session that never was longer says after n tokens and then `next`.
  Logits fresh(uint32_t n, int32_t next) {
    Chat chat(loaded_.model.get());
    if (n != 0) chat.prefill(tokens_.data(), n);
    chat.decode(next);
    return chat.logits();
  }
  void expect_continues_as_fresh(const Chat& at, uint32_t n) {
    Chat& chat = const_cast<Chat&>(at);
    ASSERT_EQ(chat.info().n_tokens, n);
    const int32_t next = tokens_[(n + 77) % 128];  // not the token that was there before
    chat.decode(next);
    EXPECT_TRUE(same_bits(chat.logits(), fresh(n, next))) << "after a cut to " << n;
  }
  std::optional<MadeModel> file_;
  Loaded loaded_;
  std::vector<int32_t> tokens_;
};

TEST_F(Truncate, AttentionOnlyModelsGoBackToAnyLength) {
  for (const ModelRecipe& recipe :
       {test::tiny_qwen3(), test::tiny_qwen3moe(), test::tiny_olmoe()}) {
    use(recipe, deterministic());
    for (uint32_t n = 0; n < 100; n += n < 4 ? 1 : 19) {
      const Chat chat = read(100);
      ASSERT_EQ(truncate(chat, n).status, SHARPI_OK) << n;
      expect_continues_as_fresh(chat, n);
    }
  }
}

TEST_F(Truncate, ManyCutsInARowLeaveNoTrace) {
  use(test::tiny_qwen3(), deterministic());
  Chat chat = read(100);
  for (const uint32_t n : {90u, 40u, 39u, 7u}) {
    ASSERT_EQ(truncate(chat, n).status, SHARPI_OK);
    chat.prefill(file_->tokens(5, n));
    ASSERT_EQ(truncate(chat, n).status, SHARPI_OK);
  }
  expect_continues_as_fresh(chat, 7);
}

TEST_F(Truncate, LogitsAreDiscardedUnlessNothingIsCut) {
  use(test::tiny_qwen3(), deterministic());
  const Chat chat = read(20);
  ASSERT_EQ(truncate(chat, 20).status, SHARPI_OK);
  EXPECT_EQ(chat.info().n_logit_rows, 1u);
  ASSERT_EQ(truncate(chat, 19).status, SHARPI_OK);
  EXPECT_EQ(chat.info().n_logit_rows, 0u);
  float row[4096];
  uint32_t n = 0;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_session_logits(chat.get(), 0, row, 4096, &n, &e), SHARPI_E_STATE);
}

TEST_F(Truncate, LongerThanTheSessionIsRefused) {
  use(test::tiny_qwen3(), deterministic());
  const Chat chat = read(20);
  const Answer a = truncate(chat, 21);
  EXPECT_EQ(a.status, SHARPI_E_INVALID_ARGUMENT);
  EXPECT_TRUE(has(a, "21") && has(a, "20")) << a.text;
  expect_continues_as_fresh(chat, 20);
}

TEST_F(Truncate, AttentionOnlyReachesEverything) {
  use(test::tiny_qwen3(), deterministic());
  const Chat chat = read(20);
  EXPECT_EQ(reachable(chat), (std::vector<uint32_t>{0, 20}));
}

TEST_F(Truncate, WindowedModelsGoAnywhereBeforeTheRingWraps) {
  use(windowed(), deterministic());
  for (const uint32_t n : {0u, 1u, 5u, 23u}) {
    const Chat chat = read(kWindow + kRewind);
    ASSERT_EQ(truncate(chat, n).status, SHARPI_OK) << n;
    expect_continues_as_fresh(chat, n);
  }
}

TEST_F(Truncate, WindowedModelsGoBackByTheRewind) {
  use(windowed(), deterministic());
  for (uint32_t back = 1; back <= kRewind; ++back) {
    const Chat chat = read(100);
    EXPECT_EQ(reachable(chat), (std::vector<uint32_t>{100 - kRewind, 100}));
    ASSERT_EQ(truncate(chat, 100 - back).status, SHARPI_OK) << back;
    expect_continues_as_fresh(chat, 100 - back);
  }
}

TEST_F(Truncate, WindowedModelsRefuseMoreAndStayAsTheyAre) {
  use(windowed(), deterministic());
  for (const uint32_t n : {100 - kRewind - 1, 50u, 1u}) {
    const Chat chat = read(100);
    const Answer a = truncate(chat, n);
    EXPECT_EQ(a.status, SHARPI_E_STATE) << n;
    EXPECT_TRUE(has(a, "sliding-window") && has(a, "by 8 tokens") && has(a, "92")) << a.text;
    expect_continues_as_fresh(chat, 100);
  }
}

TEST_F(Truncate, TheRewindIsSpentOnce) {
  use(windowed(), deterministic());
  Chat chat = read(100);
  ASSERT_EQ(truncate(chat, 95).status, SHARPI_OK);
  EXPECT_EQ(reachable(chat), (std::vector<uint32_t>{92, 95}));
  EXPECT_EQ(truncate(chat, 91).status, SHARPI_E_STATE);
  chat.prefill(file_->tokens(20, 5));
  EXPECT_EQ(reachable(chat), (std::vector<uint32_t>{107, 115}));
}

TEST_F(Truncate, ZeroIsAlwaysReachable) {
  for (const ModelRecipe& recipe : test::tiny_recipes()) {
    use(recipe, deterministic());
    const Chat chat = read(100);
    ASSERT_EQ(truncate(chat, 0).status, SHARPI_OK) << recipe.arch;
    EXPECT_EQ(reachable(chat), (std::vector<uint32_t>{0}));
    expect_continues_as_fresh(chat, 0);
  }
}

TEST_F(Truncate, HybridsGoBackToCheckpointsOnly) {
  for (const ModelRecipe& recipe :
       test::with_newer_kinds({test::tiny_qwen35(), test::tiny_qwen35moe()})) {
    if (!recipe.is_hybrid()) continue;
    use(recipe, deterministic(3));
    Chat chat(loaded_.model.get());
    for (const uint32_t n : {20u, 45u}) {
      const uint32_t at = chat.info().n_tokens;
      chat.prefill(tokens_.data() + at, n - at);
      ASSERT_EQ(checkpoint(chat).status, SHARPI_OK);
    }
    chat.prefill(tokens_.data() + 45, 15);
    EXPECT_EQ(reachable(chat), (std::vector<uint32_t>{20, 45, 60}));
    const Answer between = truncate(chat, 30);
    EXPECT_EQ(between.status, SHARPI_E_STATE);
    EXPECT_TRUE(has(between, "20 and 45")) << between.text;
    const Answer above = truncate(chat, 59);
    EXPECT_EQ(above.status, SHARPI_E_STATE);
    EXPECT_TRUE(has(above, "45 and 60")) << above.text;
    const Answer below = truncate(chat, 3);
    EXPECT_TRUE(has(below, "0 and 20")) << below.text;
    ASSERT_EQ(truncate(chat, 45).status, SHARPI_OK);
    expect_continues_as_fresh(chat, 45);
    ASSERT_EQ(truncate(chat, 20).status, SHARPI_OK);
    EXPECT_EQ(reachable(chat), (std::vector<uint32_t>{20}));
    expect_continues_as_fresh(chat, 20);
    ASSERT_EQ(truncate(chat, 20).status, SHARPI_OK);  // a checkpoint can be used again
    expect_continues_as_fresh(chat, 20);
  }
}

TEST_F(Truncate, ACheckpointKeepsItsLogitsSoThatAnotherAnswerCanBeDrawn) {
  use(test::tiny_qwen35(), deterministic(2));
  Chat chat = read(40);
  const Logits turn = chat.logits();
  ASSERT_EQ(checkpoint(chat).status, SHARPI_OK);
  for (int32_t t = 1; t < 9; ++t) chat.decode(t);
  const std::vector<char> blob = saved(chat);
  ASSERT_EQ(truncate(chat, 40).status, SHARPI_OK);
  EXPECT_EQ(chat.info().n_logit_rows, 1u);
  EXPECT_TRUE(same_bits(chat.logits(), turn));
  // Of a saved session and of a fork, too.
  Chat other(loaded_.model.get());
  ASSERT_EQ(sharpi_session_restore(other.get(), blob.data(), blob.size(), nullptr), SHARPI_OK);
  sharpi_session* raw = nullptr;
  ASSERT_EQ(sharpi_session_fork(other.get(), &raw, nullptr), SHARPI_OK);
  for (const Chat& one : {Chat(SessionPtr(raw), chat.n_vocab()), std::move(other)}) {
    ASSERT_EQ(truncate(one, 40).status, SHARPI_OK);
    EXPECT_TRUE(same_bits(one.logits(), turn));
  }
  // One that was taken without logits has none to bring back.
  Chat silent(loaded_.model.get());
  silent.prefill(tokens_.data(), 30, 0);
  ASSERT_EQ(checkpoint(silent).status, SHARPI_OK);
  silent.decode(1);
  ASSERT_EQ(truncate(silent, 30).status, SHARPI_OK);
  EXPECT_EQ(silent.info().n_logit_rows, 0u);
}

TEST_F(Truncate, ARefusedCutOfAHybridChangesNothing) {
  use(test::tiny_qwen35(), deterministic(2));
  const Chat chat = read(60);
  ASSERT_EQ(truncate(chat, 59).status, SHARPI_E_STATE);
  EXPECT_EQ(chat.info().n_logit_rows, 1u);
  expect_continues_as_fresh(chat, 60);
}

TEST_F(Truncate, TheOldestUnpinnedCheckpointIsDropped) {
  use(test::tiny_qwen35(), deterministic(2));
  Chat chat(loaded_.model.get());
  chat.prefill(tokens_.data(), 10);
  ASSERT_EQ(checkpoint(chat, true).status, SHARPI_OK);
  for (uint32_t n = 10; n < 40; n += 10) {
    chat.prefill(tokens_.data() + n, 10);
    ASSERT_EQ(checkpoint(chat).status, SHARPI_OK);
    EXPECT_EQ(chat.info().n_checkpoints, 2u);
  }
  chat.decode(1);
  EXPECT_EQ(reachable(chat), (std::vector<uint32_t>{10, 40, 41}));
  ASSERT_EQ(truncate(chat, 10).status, SHARPI_OK);
  expect_continues_as_fresh(chat, 10);
}

TEST_F(Truncate, WhenAllCheckpointsArePinnedAnotherIsRefused) {
  use(test::tiny_qwen35(), deterministic(1));
  Chat chat = read(10);
  ASSERT_EQ(checkpoint(chat, true).status, SHARPI_OK);
  ASSERT_EQ(checkpoint(chat, true).status, SHARPI_OK);  // the same length replaces itself
  chat.decode(1);
  const Answer a = checkpoint(chat);
  EXPECT_EQ(a.status, SHARPI_E_STATE);
  EXPECT_TRUE(has(a, "pinned")) << a.text;
  EXPECT_EQ(reachable(chat), (std::vector<uint32_t>{10, 11}));
}

TEST_F(Truncate, ThePrefillFlagTakesACheckpoint) {
  use(test::tiny_qwen35(), deterministic(2));
  Chat chat(loaded_.model.get());
  sharpi_prefill_params p;
  sharpi_prefill_params_init(&p, sizeof p);
  p.flags = SHARPI_PREFILL_CHECKPOINT;
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(sharpi_session_prefill(chat.get(), tokens_.data(), 40, &p, nullptr, &e), SHARPI_OK)
      << text_of(e);
  chat.decode(3);
  EXPECT_EQ(reachable(chat), (std::vector<uint32_t>{40, 41}));
  ASSERT_EQ(truncate(chat, 40).status, SHARPI_OK);
  expect_continues_as_fresh(chat, 40);
}

TEST_F(Truncate, CheckpointsNeedAHybridAndASessionThatHasThem) {
  const auto refused = [&](const char* why) {
    EXPECT_EQ(checkpoint(read(5)).status, SHARPI_E_UNSUPPORTED);
    const Chat chat(loaded_.model.get());
    sharpi_prefill_params p;
    sharpi_prefill_params_init(&p, sizeof p);
    p.flags = SHARPI_PREFILL_CHECKPOINT;
    sharpi_error e = SHARPI_ERROR_INIT;
    EXPECT_EQ(sharpi_session_prefill(chat.get(), tokens_.data(), 5, &p, nullptr, &e),
              SHARPI_E_UNSUPPORTED);
    EXPECT_NE(std::string(e.text).find(why), std::string::npos) << e.text;
    EXPECT_EQ(chat.info().n_tokens, 0u) << "nothing was read";
  };
  use(test::tiny_qwen3(), deterministic(2));
  refused("no recurrent layers");
  use(test::tiny_qwen35(), deterministic(0));
  refused("without checkpoints");
}

TEST_F(Truncate, AFullSessionRefusesAndGoesOnAfterACut) {
  use(test::tiny_qwen3(), deterministic());
  const Chat chat = read(128);
  Chat& c = const_cast<Chat&>(chat);
  const Logits before = chat.logits();
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_session_decode(chat.get(), 1, &e), SHARPI_E_KV_FULL);
  uint32_t committed = 7;
  EXPECT_EQ(sharpi_session_prefill(chat.get(), tokens_.data(), 1, nullptr, &committed, &e),
            SHARPI_E_KV_FULL);
  EXPECT_EQ(committed, 0u);
  EXPECT_TRUE(same_bits(chat.logits(), before));
  ASSERT_EQ(truncate(chat, 127).status, SHARPI_OK);
  c.decode(5);
  EXPECT_TRUE(same_bits(chat.logits(), fresh(127, 5)));
}

TEST_F(Truncate, APromptThatDoesNotFitIsNotBegun) {
  use(test::tiny_qwen3(), deterministic());
  const Chat chat = read(100);
  uint32_t committed = 7;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_session_prefill(chat.get(), tokens_.data(), 29, nullptr, &committed, &e),
            SHARPI_E_KV_FULL);
  EXPECT_EQ(committed, 0u);
  expect_continues_as_fresh(chat, 100);
}

TEST_F(Truncate, AFullSessionInABatchChangesNoSession) {
  use(test::tiny_qwen3(), deterministic());
  const Chat full = read(128), other = read(50);
  sharpi_session* both[] = {other.get(), full.get()};
  const int32_t next[] = {1, 2};
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_decode_batch(both, next, 2, &e), SHARPI_E_KV_FULL);
  expect_continues_as_fresh(other, 50);
}

TEST_F(Truncate, AStepOnAFullSessionUndoesItsDraw) {
  use(test::tiny_qwen3(), deterministic());
  const Chat full = read(128), twin = read(128);
  sharpi_error e = SHARPI_ERROR_INIT;
  int32_t token = -1, first = -2, again = -3;
  uint32_t n = 9;
  ASSERT_EQ(sharpi_session_sample(twin.get(), nullptr, &first, &e), SHARPI_OK) << text_of(e);
  ASSERT_EQ(sharpi_session_step(full.get(), nullptr, &token, 1, &n, &e), SHARPI_E_KV_FULL);
  EXPECT_EQ(n, 0u);
  ASSERT_EQ(sharpi_session_sample(full.get(), nullptr, &again, &e), SHARPI_OK) << text_of(e);
  EXPECT_EQ(again, first);
}

TEST_F(Truncate, ReserveGivesWhatWasPricedAndRefusesMore) {
  use(test::tiny_qwen3(), deterministic());
  const Chat chat = read(10);
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(chat.info().capacity, 128u);
  EXPECT_EQ(sharpi_session_reserve(chat.get(), 128, &e), SHARPI_OK) << text_of(e);
  EXPECT_EQ(sharpi_session_reserve(chat.get(), 129, &e), SHARPI_E_DOES_NOT_FIT);
  EXPECT_NE(std::string(e.text).find("128"), std::string::npos) << e.text;
  expect_continues_as_fresh(chat, 10);
}

}  // namespace
}  // namespace sharpi::testing
