// SPDX-License-Identifier: MIT
// The block for multi-token prediction as a drafter: it predicts what the reference's block
// predicts, its rows are those of the tokens that were read however they were read, and a session
// that drafts by it ends up where decoding token by token leaves it.
#include "mtp_case.h"

namespace sharpi::testing {
namespace {

constexpr uint32_t kPrompt = 21, kTokens = 40;

TEST(Mtp, PredictsWhatTheReferencePredicts) {
  if (models_with_mtp().empty()) GTEST_SKIP() << missing_fixtures_text(list_fixtures());
  for (const Fixture& f : models_with_mtp()) {
    const Golden golden = golden_of(f);
    const Loaded loaded =
        load(f.gguf_path, setup_with([](sharpi_plan_params* p, sharpi_session_params* s) {
               drafting(SHARPI_DRAFT_MTP)(p, s);
               p->arithmetic = SHARPI_ARITHMETIC_EXACT;
               s->k_dtype = s->v_dtype = SHARPI_KV_F32;
               s->n_ctx = 256;
             }));
    for (const GoldenCase& c : golden.cases) {
      if (c.tokens.size() > 200) continue;
      SCOPED_TRACE(f.name + ", " + std::to_string(c.tokens.size()) + " tokens");
      Chat chat(loaded.model.get());
      size_t agree = 0;
      int32_t drafted = -1;
      Logits last;
      for (size_t i = 0; i + 1 < c.tokens.size(); ++i) {
        chat.decode(c.tokens[i]);
        if (drafted >= 0 && drafted == chat.argmax()) ++agree;
        drafted = drafts_of(chat, c.tokens[i + 1], 1, &last).at(0);
      }
      for (size_t k = 0; k < 5; ++k) {
        const auto id = static_cast<size_t>(c.mtp_top5_last[k]);
        EXPECT_NEAR(last[id], c.mtp_top5_logits_last[k], 0.02) << k;
        EXPECT_EQ(std::count_if(last.begin(), last.end(), [&](float x) { return x > last[id]; }),
                  static_cast<std::ptrdiff_t>(k));
      }
      const auto n = static_cast<double>(c.tokens.size() - 2);
      EXPECT_GE(static_cast<double>(agree) / n, c.mtp_agrees.value()) << "see mtp_agrees_test";
    }
  }
}

TEST(Mtp, LeavesTheSessionThatDecodingLeaves) {
  for (const Fixture& f : models_with_mtp()) {
    const Golden golden = golden_of(f);
    for (const sharpi_kv_dtype dtype : stored_dtypes()) {
      const auto stores = [=](sharpi_session_params* s) { s->k_dtype = s->v_dtype = dtype; };
      const Loaded loaded = load(f.gguf_path, setup_with(drafting(SHARPI_DRAFT_MTP, stores)));
      ASSERT_TRUE(loaded.model);
      for (const float temperature : {0.0f, 0.9f}) {
        Chat plain = plain_chat(loaded, stores);
        plain.prefill(first_tokens(golden, kPrompt));
        use_temperature(plain, temperature);
        const std::vector<int32_t> want = decoded(plain, kTokens);
        for (const uint32_t n : {1u, 2u, 4u, 8u}) {
          SCOPED_TRACE(f.name + ", " + dtype_text(dtype) + ", temperature " +
                       std::to_string(temperature) + ", " + std::to_string(n) + " drafts");
          Chat chat(loaded.model.get());
          chat.prefill(first_tokens(golden, kPrompt));
          use_temperature(chat, temperature);
          Tally tally;
          ASSERT_EQ(drafted(chat, n, kTokens, &tally), want);
          expect_same(chat, plain, "at the end");
          expect_rows_of_a_prompt(loaded, chat, "the block's rows");
          EXPECT_TRUE(temperature != 0 || tally.accepted * 4 > tally.drafted / n);
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST(Mtp, ItsRowsFollowTheSession) {
  for (const Fixture& f : models_with_mtp()) {
    SCOPED_TRACE(f.name);
    const Golden golden = golden_of(f);
    const Loaded loaded = load(f.gguf_path, setup_with(drafting(SHARPI_DRAFT_MTP)));
    Chat plain = plain_chat(loaded), chat(loaded.model.get());
    sharpi_error e = SHARPI_ERROR_INIT;
    Tally tally;
    for (Chat* s : {&plain, &chat}) {
      s->prefill(first_tokens(golden, kPrompt));
      use_temperature(*s, 0);
    }
    ASSERT_EQ(drafted(chat, 4, 11, &tally), decoded(plain, 11));
    for (Chat* s : {&plain, &chat})
      ASSERT_EQ(sharpi_session_checkpoint(s->get(), 0, &e), SHARPI_OK) << e.text;
    sharpi_session* twin = nullptr;
    ASSERT_EQ(sharpi_session_fork(chat.get(), &twin, &e), SHARPI_OK) << e.text;
    Chat fork(SessionPtr(twin), chat.n_vocab());
    expect_rows_of_a_prompt(loaded, fork, "a fork");
    ASSERT_EQ(drafted(chat, 8, 20, &tally), decoded(plain, 20));
    expect_same(chat, plain, "behind the checkpoint");
    for (Chat* s : {&plain, &chat})
      ASSERT_EQ(sharpi_session_truncate(s->get(), kPrompt + 11, &e), SHARPI_OK) << e.text;
    expect_rows_of_a_prompt(loaded, chat, "cut back");
    const std::vector<int32_t> want = decoded(plain, 20);
    ASSERT_EQ(drafted(chat, 2, 20, &tally), want);
    expect_same(chat, plain, "cut back and on");
    expect_rows_of_a_prompt(loaded, chat, "cut back and on");
    ASSERT_EQ(drafted(fork, 4, 20, &tally), want) << "what others did left the fork alone";
    expect_rows_of_a_prompt(loaded, fork, "the fork's own");
    // Many tokens that nobody drafts behind, one by one and in a batch.
    for (int32_t t = 0; t < 40; ++t) chat.decode(t + 1);
    sharpi_session* both[] = {chat.get(), fork.get()};
    const int32_t next[] = {9, 8};
    ASSERT_EQ(sharpi_decode_batch(both, next, 2, &e), SHARPI_OK) << e.text;
    expect_rows_of_a_prompt(loaded, chat, "decoded");
    expect_rows_of_a_prompt(loaded, fork, "decoded in a batch");
    ASSERT_EQ(sharpi_session_truncate(chat.get(), 0, &e), SHARPI_OK) << e.text;
    chat.prefill(first_tokens(golden, 70));
    expect_rows_of_a_prompt(loaded, chat, "from the beginning");
  }
}

TEST(Mtp, ASavedSessionDraftsFromItsNextTokenOn) {
  for (const Fixture& f : models_with_mtp()) {
    const Golden golden = golden_of(f);
    const Loaded loaded = load(f.gguf_path, setup_with(drafting(SHARPI_DRAFT_MTP)));
    Chat plain = plain_chat(loaded), chat(loaded.model.get());
    plain.prefill(first_tokens(golden, kPrompt));
    use_temperature(plain, 0);
    chat.prefill(first_tokens(golden, 50));
    const std::vector<char> blob = saved(plain);
    sharpi_error e = SHARPI_ERROR_INIT;
    ASSERT_EQ(sharpi_session_restore(chat.get(), blob.data(), blob.size(), &e), SHARPI_OK);
    EXPECT_TRUE(drafts_of(chat, drawn(chat), 4).empty())
        << "no hidden row of the last token is known";
    Tally tally;
    ASSERT_EQ(drafted(chat, 4, kTokens, &tally), decoded(plain, kTokens));
    expect_same(chat, plain, "restored");
    EXPECT_GT(tally.accepted, 0u);
    EXPECT_EQ(chat.get()->p->mtp()->rows().base(), kPrompt);
  }
}

TEST(Mtp, BoundedSessionsGoOnAndCompactedOnesToo) {
  const auto bounded = [](sharpi_session_params* s) {
    s->n_ctx = 96, s->kv_budget = 32, s->capture_window = 6, s->recency = 4;
  };
  const auto captures = [](sharpi_session_params* s) { s->capture_window = 6; };
  for (const Fixture& f : models_with_mtp()) {
    SCOPED_TRACE(f.name);
    const Golden golden = golden_of(f);
    const Loaded small = load(f.gguf_path, setup_with(drafting(SHARPI_DRAFT_MTP, bounded)));
    Chat plain = plain_chat(small, bounded), chat(small.model.get());
    for (Chat* s : {&plain, &chat}) {
      s->prefill(first_tokens(golden, 130));
      use_temperature(*s, 0);
    }
    Tally tally;
    ASSERT_EQ(drafted(chat, 4, 300, &tally), decoded(plain, 300));
    expect_same(chat, plain, "far past the context");
    EXPECT_GT(tally.accepted, 0u);
    EXPECT_LE(chat.get()->p->mtp()->rows().n_tokens(), 32u + 48u);
    EXPECT_GE(chat.get()->p->mtp()->rows().n_tokens(), 24u);

    const Loaded large = load(f.gguf_path, setup_with(drafting(SHARPI_DRAFT_MTP, captures)));
    Chat whole = plain_chat(large, captures), cut(large.model.get());
    sharpi_compact_params p;
    sharpi_compact_params_init(&p, sizeof p);
    p.budget = 24, p.recency = 8, p.headroom = 100;
    sharpi_error e = SHARPI_ERROR_INIT;
    for (Chat* s : {&whole, &cut}) {
      s->prefill(first_tokens(golden, 60));
      use_temperature(*s, 0);
      ASSERT_EQ(sharpi_session_compact(s->get(), &p, nullptr, &e), SHARPI_OK) << e.text;
    }
    ASSERT_EQ(drafted(cut, 4, kTokens, &tally), decoded(whole, kTokens));
    expect_same(cut, whole, "compacted");
  }
}

/// Hidden rows of a batch were put where they belonged before the session made room.
TEST(Mtp, BoundedSessionsOfABatchKeepTheRowsOfSingleCalls) {
  const auto bounded = [](sharpi_session_params* s) {
    s->n_ctx = 64, s->kv_budget = 24, s->capture_window = 6, s->recency = 4;
  };
  for (const Fixture& f : models_with_mtp()) {
    SCOPED_TRACE(f.name);
    const Golden golden = golden_of(f);
    const Loaded loaded = load(f.gguf_path, setup_with([&](auto* p, auto* s) {
                                 drafting(SHARPI_DRAFT_MTP, bounded)(p, s);
                                 p->n_chunk = 16;
                               }));
    Chat one(loaded.model.get()), many(loaded.model.get());
    for (Chat* s : {&one, &many}) s->prefill(first_tokens(golden, 20));
    for (int32_t i = 0; i < 90; ++i) {
      const int32_t token = 100 + i;
      one.decode(token);
      sharpi_session* session = many.get();
      sharpi_error e = SHARPI_ERROR_INIT;
      ASSERT_EQ(sharpi_decode_batch(&session, &token, 1, &e), SHARPI_OK) << e.text;
      // Looking at the rows makes the block catch up; between two looks rows wait.
      if (i % 30 != 29) continue;
      ASSERT_TRUE(rows_of_block(many) == rows_of_block(one)) << "behind token " << i;
    }
  }
}

TEST(Mtp, ACallThatEndsEarlyLeavesItsRowsAlone) {
  for (const Fixture& f : models_with_mtp()) {
    SCOPED_TRACE(f.name);
    const Golden golden = golden_of(f);
    const Loaded loaded = load(f.gguf_path, setup_with(drafting(SHARPI_DRAFT_MTP)));
    Chat plain = plain_chat(loaded), chat(loaded.model.get());
    for (Chat* s : {&plain, &chat}) {
      s->prefill(first_tokens(golden, kPrompt));
      use_temperature(*s, 0);
    }
    const int32_t next = drawn(chat);
    const std::vector<int32_t> drafts = drafts_of(chat, next, 3);
    const std::vector<int32_t> tokens = {next, drafts.at(0), drafts.at(1)};
    uint32_t read = 0;
    sharpi_error e = SHARPI_ERROR_INIT;
    sharpi_session_cancel(chat.get());
    EXPECT_EQ(sharpi_session_verify(chat.get(), tokens.data(), 3, nullptr, &read, &e),
              SHARPI_E_CANCELLED);
    expect_rows_of_a_prompt(loaded, chat, "cancelled");
    EXPECT_EQ(drafts_of(chat, next, 3), drafts) << "the same is drafted again";
    // The host goes on with another token than the one that was drafted behind.
    const int32_t other = (next + 1) % 300;
    for (Chat* s : {&plain, &chat}) s->decode(other);
    expect_rows_of_a_prompt(loaded, chat, "another token");
    Tally tally;
    ASSERT_EQ(drafted(chat, 3, 12, &tally), decoded(plain, 12));
    expect_same(chat, plain, "at the end");
  }
}

TEST(Mtp, StepsDraftByItBehindNgrams) {
  for (const Fixture& f : models_with_mtp()) {
    for (const uint32_t drafters :
         {SHARPI_DRAFT_MTP, SHARPI_DRAFT_MTP | SHARPI_DRAFT_NGRAM, SHARPI_DRAFT_AUTO}) {
      SCOPED_TRACE(f.name + ", drafters " + std::to_string(drafters));
      const Golden golden = golden_of(f);
      const Loaded loaded = load(f.gguf_path, setup_with(drafting(drafters)));
      EXPECT_EQ(loaded.plan_info.n_fallbacks, 0u);
      Chat plain = plain_chat(loaded), chat(loaded.model.get());
      for (Chat* s : {&plain, &chat}) {
        s->prefill(first_tokens(golden, 40));
        use_temperature(*s, 0);
      }
      std::vector<int32_t> got;
      sharpi_error e = SHARPI_ERROR_INIT;
      while (got.size() < 100) {
        std::array<int32_t, 9> tokens{};
        uint32_t n = 0;
        const auto cap = static_cast<uint32_t>(std::min<size_t>(9, 100 - got.size()));
        ASSERT_EQ(sharpi_session_step(chat.get(), nullptr, tokens.data(), cap, &n, &e), SHARPI_OK)
            << e.text;
        if (sharpi_token_is_end(loaded.model.get(), tokens[n - 1]) != 0) break;
        got.insert(got.end(), tokens.begin(), tokens.begin() + n);
      }
      EXPECT_EQ(got, decoded(plain, got.size()));
      expect_rows_of_a_prompt(loaded, chat, "after steps");
      sharpi_draft_stats stats{};
      stats.struct_size = sizeof stats;
      ASSERT_EQ(sharpi_session_drafts(chat.get(), &stats, &e), SHARPI_OK);
      EXPECT_EQ(stats.drafters,
                drafters == SHARPI_DRAFT_AUTO ? SHARPI_DRAFT_MTP | SHARPI_DRAFT_NGRAM : drafters);
    }
  }
}

TEST(Mtp, EveryByteIsPlanned) {
  const auto bounded = [](sharpi_session_params* s) {
    s->n_ctx = 96, s->kv_budget = 32, s->capture_window = 6, s->recency = 4;
  };
  for (const Fixture& f : models_with_mtp()) {
    for (const sharpi_load_mode mode : {SHARPI_LOAD_MAP, SHARPI_LOAD_COPY}) {
      for (const bool is_bounded : {false, true}) {
        SCOPED_TRACE(f.name + (is_bounded ? ", bounded" : "") + ", load mode " +
                     std::to_string(mode));
        const Loaded loaded =
            load(f.gguf_path, setup_with([=](sharpi_plan_params* p, sharpi_session_params* s) {
                   drafting(SHARPI_DRAFT_MTP)(p, s);
                   if (is_bounded) bounded(s);
                   p->load_mode = mode;
                 }));
        ASSERT_TRUE(loaded.model);
        Chat chat(loaded.model.get());
        const auto [planned, model, session] = AllRows(loaded, chat);
        EXPECT_EQ(sum_of(planned, "", false), sum_of(model, "", false));
        EXPECT_EQ(sum_of(planned, "", true), sum_of(session, "", true));
        for (const char* label : {on_gpu() ? "MTP mixers" : "MTP block", "MTP activations"})
          EXPECT_GT(sum_of(model, label, false), 0u) << label;
        for (const char* label : {"MTP KV rows", "MTP logits", "MTP hidden rows"})
          EXPECT_GT(sum_of(session, label, true), 0u) << label;
        chat.prefill(std::vector<int32_t>(60, 5));
        EXPECT_EQ(drafts_of(chat, 5, 2).size(), 2u);
        EXPECT_EQ(chat.info().kv_held_bytes, sum_of(session, "KV rows", true));
      }
    }
  }
}

TEST(Mtp, RefusalsAndWhatAutoLeavesOut) {
  const MadeModel without(test::tiny_qwen3());
  const char* no_block = "the file has no block for multi-token prediction";
  expect_refused(without.path(), drafting(SHARPI_DRAFT_MTP), SHARPI_E_UNSUPPORTED, no_block);
  expect_refused(without.path(), drafting(5), SHARPI_E_INVALID_ARGUMENT, "drafters 5 is unknown");
  expect_refused(without.path(),
                 drafting(SHARPI_DRAFT_MTP, [](sharpi_session_params* s) { s->n_draft = 0; }),
                 SHARPI_E_INVALID_ARGUMENT, "drafters is 2 but n_draft is 0");
  const Loaded ngram = load(without.path(), setup_with(drafting(SHARPI_DRAFT_AUTO)));
  EXPECT_NE(fallback_of(ngram).find(no_block), std::string::npos) << fallback_of(ngram);

  const MadeModel file(test::tiny_qwen35());
  const Loaded plain = load(file.path(), setup_with(on_host(drafting(SHARPI_DRAFT_NGRAM))));
  EXPECT_EQ(plain.plan_info.n_fallbacks, 0u);
  sharpi_session_params more;
  sharpi_session_params_init(&more, sizeof more);
  more.n_ctx = 64, more.n_draft = 4, more.drafters = SHARPI_DRAFT_MTP;
  sharpi_session* raw = nullptr;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_session_create(plain.model.get(), &more, &raw, &e), SHARPI_E_DOES_NOT_FIT);
  EXPECT_NE(std::string(e.text).find("its block is not loaded"), std::string::npos) << e.text;
  more.drafters = SHARPI_DRAFT_AUTO;
  const Chat chat(plain.model.get(), &more);
  EXPECT_EQ(chat.get()->p->mtp(), nullptr);

  const uint32_t both = SHARPI_DRAFT_MTP | SHARPI_DRAFT_NGRAM;
  const Loaded full = load(file.path(), setup_with(on_host(drafting(both))));
  const uint64_t most = full.plan_info.host_peak_bytes;
  ASSERT_LT(plain.plan_info.host_peak_bytes, most);
  const auto within = [](uint32_t drafters, uint64_t budget) {
    return [=](sharpi_plan_params* p, sharpi_session_params* s) {
      on_host(drafting(drafters))(p, s);
      p->host_budget = budget;
      s->k_dtype = s->v_dtype = SHARPI_KV_BF16;
    };
  };
  expect_refused(file.path(), within(both, most - 1), SHARPI_E_DOES_NOT_FIT,
                 "more than the host_budget");
  const Loaded left = load(file.path(), setup_with(within(SHARPI_DRAFT_AUTO, most - 1)));
  ASSERT_TRUE(left.model);
  EXPECT_NE(fallback_of(left).find("the MTP drafter is left out: the plan takes"),
            std::string::npos)
      << fallback_of(left);
  const Loaded fits = load(file.path(), setup_with(within(SHARPI_DRAFT_AUTO, most)));
  EXPECT_EQ(fits.plan_info.n_fallbacks, 0u) << fallback_of(fits);
}

}  // namespace
}  // namespace sharpi::testing
