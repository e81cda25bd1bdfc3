// SPDX-License-Identifier: MIT
// A second model of the same vocabulary as the drafter: whatever it drafts, sessions end up where
// decoding alone leaves them; a model that drafts for itself is always right; its text follows the
// session's wherever that goes; every byte of it is planned.
#include "api/api_handles.h"
#include "draft_case.h"

namespace sharpi::testing {
namespace {

constexpr uint32_t kPrompt = 21, kTokens = 40;

Edit drafting(const std::string& path, uint32_t drafters = SHARPI_DRAFT_MODEL,
              std::function<void(sharpi_session_params*)> edit = {}) {
  return [=](sharpi_plan_params* p, sharpi_session_params* s) {
    p->deterministic = 1;
    p->n_chunk = 48;
    p->n_sessions = 4;
    p->draft_path = path.empty() ? nullptr : path.c_str();
    s->n_ctx = 160;
    s->n_checkpoints = 2;
    s->n_draft = 8;
    s->drafters = drafters;
    if (edit) edit(s);
  };
}

/// A session of the same model that does not draft.
Chat plain_chat(const Loaded& l, const std::function<void(sharpi_session_params*)>& edit = {}) {
  sharpi_session_params s;
  sharpi_session_params_init(&s, sizeof s);
  s.n_ctx = 160, s.n_checkpoints = 2;
  if (edit) edit(&s);
  return Chat(l.model.get(), &s);
}

void use_temperature(const Chat& chat, float temperature) {
  sharpi_sampler_params p;
  sharpi_sampler_params_init(&p, sizeof p);
  p.temperature = temperature;
  p.seed = 7;
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(sharpi_session_set_sampler(chat.get(), &p, &e), SHARPI_OK) << e.text;
}

std::vector<int32_t> decoded(Chat& chat, size_t n) {
  std::vector<int32_t> out;
  while (out.size() < n) {
    out.push_back(drawn(chat));
    chat.decode(out.back());
  }
  return out;
}

/// What the drafter takes to follow `next`.
std::vector<int32_t> drafts_of(const Chat& chat, int32_t next, uint32_t n) {
  Session& s = *chat.get()->p;
  std::vector<int32_t> out(n);
  Drafted drafted;
  const Status done =
      s.draft_model()->propose(s.tokens(), s.first_position(), next, n, out.data(), &drafted);
  EXPECT_TRUE(done.is_ok()) << done.text();
  out.resize(drafted.n);
  return out;
}

struct Tally {
  size_t drafted = 0, accepted = 0;
};

/// Passes over n drafts of the model until `stop` tokens are read.
std::vector<int32_t> drafted(const Chat& chat, uint32_t n, size_t stop, Tally* tally) {
  std::vector<int32_t> got;
  while (got.size() < stop && !::testing::Test::HasFailure()) {
    std::vector<int32_t> tokens = {drawn(chat)};
    const auto left = static_cast<uint32_t>(std::min<size_t>(n, stop - got.size() - 1));
    if (left != 0) {
      for (const int32_t t : drafts_of(chat, tokens[0], left)) tokens.push_back(t);
    }
    const std::vector<int32_t> read = verified(chat, tokens);
    tally->drafted += tokens.size() - 1;
    tally->accepted += read.size() - 1;
    got.insert(got.end(), read.begin(), read.end());
  }
  return got;
}

/// By the recipe of a model whose weights have nothing to do with those of the model it drafts for.
test::ModelRecipe other(test::ModelRecipe recipe) {
  recipe.seed += 1000;
  return recipe;
}

struct Two {
  std::string what;
  test::ModelRecipe model, drafter;
  bool same;  // one file for both
};

std::vector<Two> pairs() {
  const auto q3 = test::tiny_qwen3(), q35 = test::tiny_qwen35(), g3 = test::tiny_gemma3();
  return {{"qwen3 for itself", q3, q3, true},
          {"qwen35 for itself", q35, q35, true},
          {"gemma3 for itself", g3, g3, true},
          {"another qwen3", q3, other(q3), false},
          {"another qwen35", q35, other(q35), false}};
}

TEST(DraftModel, LeavesTheSessionThatDecodingLeaves) {
  for (const Two& two : pairs()) {
    const MadeModel file(two.model), drafter(two.drafter);
    const Loaded loaded =
        load(file.path(), setup_with(drafting(two.same ? file.path() : drafter.path())));
    ASSERT_TRUE(loaded.model);
    for (const float temperature : {0.0f, 0.9f}) {
      Chat plain = plain_chat(loaded);
      plain.prefill(file.tokens(kPrompt));
      use_temperature(plain, temperature);
      const std::vector<int32_t> want = decoded(plain, kTokens);
      for (const uint32_t n : {1u, 2u, 4u, 8u}) {
        SCOPED_TRACE(two.what + ", temperature " + std::to_string(temperature) + ", " +
                     std::to_string(n) + " drafts");
        Chat chat(loaded.model.get());
        chat.prefill(file.tokens(kPrompt));
        use_temperature(chat, temperature);
        Tally tally;
        ASSERT_EQ(drafted(chat, n, kTokens, &tally), want);
        expect_same(chat, plain, "at the end");
        EXPECT_GT(tally.drafted, 0u);
        EXPECT_TRUE(!two.same || temperature != 0 || tally.accepted == tally.drafted);
        EXPECT_TRUE(two.same || tally.accepted < tally.drafted);
        if (HasFailure()) return;
      }
    }
  }
}

/// Fixtures with one vocabulary, the second of each pair drafting for the first.
TEST(DraftModel, TrainedModelsOfOneVocabularyDraftForEachOther) {
  for (const auto& [model, drafter] :
       {std::pair<const char*, const char*>{"tiny-qwen3", "tiny-qwen3"},
        {"tiny-qwen3moe", "tiny-qwen3"},
        {"tiny-qwen35", "tiny-qwen35moe"},
        {"tiny-gemma4kv", "tiny-gemma4"}}) {
    const std::optional<Fixture> f = find_fixture(model), d = find_fixture(drafter);
    if (!f || !d) GTEST_SKIP() << missing_fixtures_text(list_fixtures());
    SCOPED_TRACE(std::string(drafter) + " drafts for " + model);
    auto golden = load_golden(f->golden_path);
    ASSERT_TRUE(golden.is_ok()) << golden.status().text();
    const std::vector<int32_t> prompt = slice(golden.value().cases.back().tokens, 0, kPrompt);
    const Loaded loaded = load(f->gguf_path, setup_with(drafting(d->gguf_path)));
    ASSERT_TRUE(loaded.model);
    Chat plain = plain_chat(loaded), chat(loaded.model.get());
    for (Chat* c : {&plain, &chat}) {
      c->prefill(prompt);
      use_temperature(*c, 0);
    }
    Tally tally;
    ASSERT_EQ(drafted(chat, 4, kTokens, &tally), decoded(plain, kTokens));
    expect_same(chat, plain, "at the end");
    const bool same = f->gguf_path == d->gguf_path;
    EXPECT_TRUE(!same || tally.accepted == tally.drafted);
    EXPECT_GT(tally.drafted, 0u);
  }
}

/// A drafter that drafts for itself is right wherever it has the session's text.
void expect_in_step(Chat& chat, Chat& plain, const std::string& what) {
  SCOPED_TRACE(what);
  Tally tally;
  ASSERT_EQ(drafted(chat, 4, 12, &tally), decoded(plain, 12));
  EXPECT_EQ(tally.accepted, tally.drafted);
  EXPECT_GT(tally.drafted, 0u);
  expect_same(chat, plain, what);
}

TEST(DraftModel, ItsTextFollowsTheSession) {
  for (const auto& recipe : {test::tiny_qwen3(), test::tiny_qwen35(), test::tiny_gemma3()}) {
    SCOPED_TRACE(recipe.arch);
    const MadeModel file(recipe);
    const Loaded loaded = load(file.path(), setup_with(drafting(file.path())));
    ASSERT_TRUE(loaded.model);
    Chat plain = plain_chat(loaded), chat(loaded.model.get());
    sharpi_error e = SHARPI_ERROR_INIT;
    for (Chat* s : {&plain, &chat}) {
      s->prefill(file.tokens(kPrompt));
      use_temperature(*s, 0);
    }
    expect_in_step(chat, plain, "behind the prompt");
    const uint32_t mark = chat.info().n_tokens;
    if (recipe.arch == "qwen35") {
      for (Chat* s : {&plain, &chat})
        ASSERT_EQ(sharpi_session_checkpoint(s->get(), 0, &e), SHARPI_OK) << e.text;
    }
    const std::vector<char> blob = saved(chat);
    sharpi_session* twin = nullptr;
    ASSERT_EQ(sharpi_session_fork(chat.get(), &twin, &e), SHARPI_OK) << e.text;
    Chat fork(SessionPtr(twin), chat.n_vocab());
    expect_in_step(chat, plain, "further on");
    for (Chat* s : {&plain, &chat}) {
      ASSERT_EQ(sharpi_session_truncate(s->get(), mark, &e), SHARPI_OK) << e.text;
      s->decode(7);
    }
    expect_in_step(chat, plain, "cut back and on by another token");
    ASSERT_EQ(sharpi_session_restore(plain.get(), blob.data(), blob.size(), &e), SHARPI_OK);
    for (Chat* s : {&plain, &fork}) s->decode(9);
    expect_in_step(fork, plain, "a fork");
    for (Chat* s : {&plain, &chat}) {
      ASSERT_EQ(sharpi_session_restore(s->get(), blob.data(), blob.size(), &e), SHARPI_OK);
      for (int32_t t = 0; t < 40; ++t) s->decode(t + 1);
    }
    expect_in_step(chat, plain, "restored, and many tokens that nobody drafted behind");
    for (Chat* s : {&plain, &chat}) {
      ASSERT_EQ(sharpi_session_truncate(s->get(), 0, &e), SHARPI_OK) << e.text;
      s->prefill(file.tokens(70, 3));
    }
    expect_in_step(chat, plain, "from the beginning");
  }
}

TEST(DraftModel, BoundedSessionsGoOnAndCompactedOnesToo) {
  const auto bounded = [](sharpi_session_params* s) {
    s->n_ctx = 96, s->kv_budget = 32, s->capture_window = 6, s->recency = 4;
  };
  const auto captures = [](sharpi_session_params* s) { s->capture_window = 6; };
  for (const auto& recipe : {test::tiny_qwen3(), test::tiny_qwen35()}) {
    SCOPED_TRACE(recipe.arch);
    const MadeModel file(recipe);
    const Loaded small =
        load(file.path(), setup_with(drafting(file.path(), SHARPI_DRAFT_MODEL, bounded)));
    Chat plain = plain_chat(small, bounded), chat(small.model.get());
    for (Chat* s : {&plain, &chat}) {
      s->prefill(file.tokens(130));
      use_temperature(*s, 0);
    }
    Tally tally;
    ASSERT_EQ(drafted(chat, 4, 300, &tally), decoded(plain, 300));
    expect_same(chat, plain, "far past the context");
    EXPECT_GT(tally.drafted, 0u);
    EXPECT_LE(chat.get()->p->draft_model()->session().tokens().size(), 80u);

    const Loaded large =
        load(file.path(), setup_with(drafting(file.path(), SHARPI_DRAFT_MODEL, captures)));
    Chat whole = plain_chat(large, captures), cut(large.model.get());
    sharpi_compact_params p;
    sharpi_compact_params_init(&p, sizeof p);
    p.budget = 24, p.recency = 8, p.headroom = 100;
    sharpi_error e = SHARPI_ERROR_INIT;
    for (Chat* s : {&whole, &cut}) {
      s->prefill(file.tokens(60));
      use_temperature(*s, 0);
      ASSERT_EQ(sharpi_session_compact(s->get(), &p, nullptr, &e), SHARPI_OK) << e.text;
    }
    ASSERT_EQ(drafted(cut, 4, kTokens, &tally), decoded(whole, kTokens));
    expect_same(cut, whole, "compacted");
  }
}

/// A step gives what the other session's decoding gives.
void expect_step_of(Chat& chat, Chat& plain) {
  std::array<int32_t, 9> tokens{};
  uint32_t n = 0;
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(sharpi_session_step(chat.get(), nullptr, tokens.data(), 9, &n, &e), SHARPI_OK)
      << e.text;
  EXPECT_EQ(std::vector<int32_t>(tokens.begin(), tokens.begin() + n), decoded(plain, n));
}

/// Both read the same prompt and draw the likeliest tokens.
void begin(const MadeModel& file, std::initializer_list<Chat*> chats) {
  for (Chat* s : chats) {
    s->prefill(file.tokens(kPrompt));
    use_temperature(*s, 0);
  }
}

TEST(DraftModel, ACancelledStepChangesNothing) {
  const MadeModel file(test::tiny_qwen3());
  const Loaded loaded = load(file.path(), setup_with(drafting(file.path())));
  Chat plain = plain_chat(loaded), chat(loaded.model.get());
  begin(file, {&plain, &chat});
  sharpi_error e = SHARPI_ERROR_INIT;
  std::array<int32_t, 9> tokens{};
  uint32_t n = 0;
  for (int i = 0; i < 4; ++i) {  // with and without drafts: the first step has none
    const std::vector<char> before = saved(chat);
    sharpi_session_cancel(chat.get());
    EXPECT_EQ(sharpi_session_step(chat.get(), nullptr, tokens.data(), 9, &n, &e),
              SHARPI_E_CANCELLED);
    EXPECT_TRUE(saved(chat) == before);
    // A cancel that comes while the drafter reads ends the step, and the drafter's part in it.
    chat.get()->p->draft_model()->cancel();
    std::array<int32_t, 4> drafts{};
    Drafted drafted{.n = 1};
    Session& s = *chat.get()->p;
    EXPECT_EQ(s.draft_model()
                  ->propose(s.tokens(), s.first_position(), drawn(chat), 4, drafts.data(), &drafted)
                  .code(),
              Code::kCancelled);
    EXPECT_EQ(drafted.n, 0u);
    expect_step_of(chat, plain);
  }
  expect_same(chat, plain, "at the end");
}

/// A call that answers a cancel between the session's and its drafter's part of it has answered it.
TEST(DraftModel, ACancelThatOnlyTheDrafterSeesIsNoCancel) {
  const MadeModel file(test::tiny_qwen3());
  const Loaded loaded = load(file.path(), setup_with(drafting(file.path())));
  Chat plain = plain_chat(loaded), chat(loaded.model.get());
  begin(file, {&plain, &chat});
  for (int i = 0; i < 6; ++i) {
    chat.get()->p->draft_model()->cancel();
    expect_step_of(chat, plain);
  }
  expect_same(chat, plain, "at the end");
}

/// Its weights are no numbers: it drafts nothing, and the session is none the worse.
TEST(DraftModel, ADamagedOneDraftsNothing) {
  const MadeModel file(test::tiny_qwen3());
  test::ModelRecipe other = test::tiny_qwen3();
  other.seed = 9;
  const MadeModel damaged(other);
  spoil(damaged.path(), other.n_embd);
  const Loaded loaded = load(file.path(), setup_with(drafting(damaged.path())));
  Chat plain = plain_chat(loaded), chat(loaded.model.get());
  begin(file, {&plain, &chat});
  EXPECT_TRUE(drafts_of(chat, 3, 4).empty());
  for (int i = 0; i < 6; ++i) expect_step_of(chat, plain);
}

TEST(DraftModel, StepsAskItLast) {
  const MadeModel file(test::tiny_qwen35());
  for (const uint32_t drafters :
       {SHARPI_DRAFT_MODEL, SHARPI_DRAFT_MODEL | SHARPI_DRAFT_NGRAM,
        SHARPI_DRAFT_MODEL | SHARPI_DRAFT_MTP | SHARPI_DRAFT_NGRAM, SHARPI_DRAFT_AUTO}) {
    SCOPED_TRACE("drafters " + std::to_string(drafters));
    const Loaded loaded = load(file.path(), setup_with(drafting(file.path(), drafters)));
    ASSERT_TRUE(loaded.model);
    EXPECT_EQ(loaded.plan_info.n_fallbacks, 0u);
    Chat plain = plain_chat(loaded), chat(loaded.model.get());
    for (Chat* s : {&plain, &chat}) {
      s->prefill(file.tokens(40));
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
    sharpi_draft_stats stats{};
    stats.struct_size = sizeof stats;
    ASSERT_EQ(sharpi_session_drafts(chat.get(), &stats, &e), SHARPI_OK);
    const uint32_t all = SHARPI_DRAFT_NGRAM | SHARPI_DRAFT_MTP | SHARPI_DRAFT_MODEL;
    EXPECT_EQ(stats.drafters, drafters == SHARPI_DRAFT_AUTO ? all : drafters);
    EXPECT_TRUE(drafters != SHARPI_DRAFT_MODEL || stats.n_accepted == stats.n_drafted);
  }
}

TEST(DraftModel, EveryByteIsPlanned) {
  const auto bounded = [](sharpi_session_params* s) {
    s->n_ctx = 96, s->kv_budget = 32, s->capture_window = 6, s->recency = 4;
  };
  const MadeModel file(test::tiny_qwen3());
  for (const auto& recipe : {test::tiny_qwen3(), test::tiny_qwen3moe(), test::tiny_gemma3()}) {
    const MadeModel drafter(recipe);
    for (const sharpi_load_mode mode : {SHARPI_LOAD_MAP, SHARPI_LOAD_COPY}) {
      for (const bool is_bounded : {false, true}) {
        SCOPED_TRACE(recipe.arch + (is_bounded ? ", bounded" : "") + ", load mode " +
                     std::to_string(mode));
        const Loaded loaded =
            load(file.path(), setup_with([&](sharpi_plan_params* p, sharpi_session_params* s) {
                   drafting("")(p, s);
                   p->draft_path = drafter.path().c_str();
                   if (is_bounded) bounded(s);
                   p->load_mode = mode;
                 }));
        ASSERT_TRUE(loaded.model);
        Chat chat(loaded.model.get());
        const auto [planned, model, session] = AllRows(loaded, chat);
        for (const char* word : {"", "drafter"}) {
          EXPECT_EQ(sum_of(planned, word, false), sum_of(model, word, false)) << word;
          EXPECT_EQ(sum_of(planned, word, true), sum_of(session, word, true)) << word;
          EXPECT_GT(sum_of(model, word, false), 0u);
          EXPECT_GT(sum_of(session, word, true), 0u);
        }
        sharpi_plan* raw = nullptr;
        sharpi_error e = SHARPI_ERROR_INIT;
        ASSERT_EQ(sharpi_plan_session(loaded.model.get(), nullptr, &raw, &e), SHARPI_OK) << e.text;
        const PlanPtr one(raw);
        const auto priced = rows_of_handle(sharpi_plan_rows, one.get());
        EXPECT_EQ(sum_of(priced, "", true), sum_of(session, "", true));
        chat.prefill(std::vector<int32_t>(60, 5));
        EXPECT_EQ(drafts_of(chat, 5, 2).size(), 2u);
        EXPECT_EQ(sum_of(rows_of_handle(sharpi_session_memory, chat.get()), "", true),
                  sum_of(planned, "", true))
            << "drafting takes no more";
      }
    }
  }
}

void expect_refused(const std::string& path, Edit edit, sharpi_status status, const char* text) {
  const ContextPtr context = make_context({});
  PlanPtr plan;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(try_plan(context.get(), path, setup_with(std::move(edit)), &plan, &e), status) << text;
  EXPECT_NE(std::string(e.text).find(text), std::string::npos) << e.text;
}

std::string fallbacks_of(const Loaded& l) {
  std::string all;
  for (uint32_t i = 0; i < l.plan_info.n_fallbacks; ++i) {
    char text[600] = "";
    size_t n = 0;
    sharpi_plan_fallback(l.plan.get(), i, text, sizeof text, &n, nullptr);
    all += std::string(text) + "\n";
  }
  return all;
}

TEST(DraftModel, AnotherVocabularyIsRefusedByItsContent) {
  const MadeModel file(test::tiny_qwen3());
  test::TempFile changed, larger, none;
  const auto recipe = test::tiny_qwen3();
  test::ModelFile one(recipe);
  std::vector<std::string> tokens;
  for (uint32_t i = 0; i < recipe.n_vocab; ++i) tokens.push_back("word " + std::to_string(i));
  ASSERT_TRUE(one.set_array("tokenizer.ggml.tokens", tokens).write(changed.path()));
  auto wide = recipe;
  wide.n_vocab += 32;
  ASSERT_TRUE(test::ModelFile(wide).write(larger.path()));
  auto mute = recipe;
  mute.tokenizer = false;
  ASSERT_TRUE(test::ModelFile(mute).write(none.path()));
  for (const uint32_t drafters : {SHARPI_DRAFT_MODEL, SHARPI_DRAFT_AUTO}) {
    expect_refused(file.path(), drafting(changed.path(), drafters), SHARPI_E_MISMATCH,
                   "the draft model has another vocabulary: its token 0 is \"word 0\"");
    expect_refused(file.path(), drafting(larger.path(), drafters), SHARPI_E_MISMATCH,
                   "the draft model has another vocabulary: ");
    expect_refused(file.path(), drafting(none.path(), drafters), SHARPI_E_UNSUPPORTED,
                   "has no tokenizer.ggml.tokens");
  }
  expect_refused(file.path(), drafting("/no/such.gguf"), SHARPI_E_NOT_FOUND, "such.gguf");
  expect_refused(file.path(), drafting(""), SHARPI_E_INVALID_ARGUMENT,
                 "drafters has MODEL, but draft_path is null");
  expect_refused(file.path(), drafting(file.path(), SHARPI_DRAFT_NGRAM), SHARPI_E_INVALID_ARGUMENT,
                 "draft_path is given, but drafters is 1");
}

TEST(DraftModel, ABudgetThatHoldsTheModelAlone) {
  const MadeModel file(test::tiny_qwen3()), drafter(other(test::tiny_qwen3()));
  const auto within = [&](uint32_t drafters, uint64_t budget) {
    return [&drafter, drafters, budget](sharpi_plan_params* p, sharpi_session_params* s) {
      const bool has_file = (drafters & (SHARPI_DRAFT_MODEL | SHARPI_DRAFT_AUTO)) != 0;
      drafting("", drafters)(p, s);
      p->n_gpu_layers = 0;  // budgets of a device: plan_test
      p->draft_path = has_file ? drafter.path().c_str() : nullptr;
      p->host_budget = budget;
      s->k_dtype = s->v_dtype = SHARPI_KV_BF16;
    };
  };
  const uint32_t both = SHARPI_DRAFT_MODEL | SHARPI_DRAFT_NGRAM;
  const Loaded full = load(file.path(), setup_with(within(both, SHARPI_ALL_FREE)));
  const Loaded plain = load(file.path(), setup_with(within(SHARPI_DRAFT_NGRAM, SHARPI_ALL_FREE)));
  const uint64_t most = full.plan_info.host_peak_bytes;
  ASSERT_LT(plain.plan_info.host_peak_bytes, most);
  expect_refused(file.path(), within(both, most - 1), SHARPI_E_DOES_NOT_FIT,
                 "more than the host_budget");
  const Loaded left = load(file.path(), setup_with(within(SHARPI_DRAFT_AUTO, most - 1)));
  ASSERT_TRUE(left.model);
  EXPECT_NE(fallbacks_of(left).find("the MODEL drafter is left out: the plan takes"),
            std::string::npos)
      << fallbacks_of(left);
  EXPECT_EQ(Chat(left.model.get()).get()->p->draft_model(), nullptr);
  const Loaded fits = load(file.path(), setup_with(within(SHARPI_DRAFT_AUTO, most)));
  EXPECT_EQ(fallbacks_of(fits).find("MODEL"), std::string::npos) << fallbacks_of(fits);
  EXPECT_NE(Chat(fits.model.get()).get()->p->draft_model(), nullptr);

  sharpi_session_params more;
  sharpi_session_params_init(&more, sizeof more);
  more.n_ctx = 64, more.n_draft = 4, more.drafters = SHARPI_DRAFT_MODEL;
  sharpi_session* raw = nullptr;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_session_create(plain.model.get(), &more, &raw, &e), SHARPI_E_DOES_NOT_FIT);
  EXPECT_NE(std::string(e.text).find("the draft model is not loaded"), std::string::npos) << e.text;
}

}  // namespace
}  // namespace sharpi::testing
