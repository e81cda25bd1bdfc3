// SPDX-License-Identifier: MIT
// The block for multi-token prediction as a drafter: it predicts what the reference's block
// predicts, its rows are those of the tokens that were read however they were read, and a session
// that drafts by it ends up where decoding token by token leaves it.
#include "api/api_handles.h"
#include "draft_case.h"

namespace sharpi::testing {
namespace {

constexpr uint32_t kPrompt = 21, kTokens = 40;
std::vector<Fixture> models_with_mtp() {
  std::vector<Fixture> out;
  for (const char* name : {"tiny-qwen35", "tiny-qwen35moe"}) {
    const std::optional<Fixture> f = find_fixture(name);
    if (f) out.push_back(*f);
  }
  return out;
}

Golden golden_of(const Fixture& f) {
  auto golden = load_golden(f.golden_path);
  EXPECT_TRUE(golden.is_ok()) << golden.status().text();
  return golden.take();
}

Edit drafting(uint32_t drafters, std::function<void(sharpi_session_params*)> edit = {}) {
  return [=](sharpi_plan_params* p, sharpi_session_params* s) {
    p->deterministic = 1;
    p->n_chunk = 48;
    p->n_sessions = 4;
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

/// What the block drafts behind `next`; where logits is given, those of the last draft.
std::vector<int32_t> drafts_of(const Chat& chat, int32_t next, uint32_t n,
                               Logits* logits = nullptr) {
  Session& s = *chat.get()->p;
  std::vector<int32_t> out(n);
  Logits scratch(chat.n_vocab());
  uint32_t got = 0;
  const Status done =
      s.mtp()->propose(s.tokens(), s.first_position(), next, n, scratch.data(), out.data(), &got);
  EXPECT_TRUE(done.is_ok()) << done.text();
  out.resize(got);
  if (logits == nullptr) return out;
  logits->resize(chat.n_vocab());  // a tier that finds the best one itself brings no others
  EXPECT_TRUE(s.mtp()->tier().read_logits(0, logits->data()).is_ok());
  return out;
}

struct Tally {
  size_t drafted = 0, accepted = 0;
};

/// Passes over n drafts of the block until at least `stop` tokens are read.
std::vector<int32_t> drafted(const Chat& chat, uint32_t n, size_t stop, Tally* tally) {
  std::vector<int32_t> got;
  while (got.size() < stop && !::testing::Test::HasFailure()) {
    std::vector<int32_t> tokens = {drawn(chat)};
    const auto left = static_cast<uint32_t>(std::min<size_t>(n, stop - got.size() - 1));
    for (const int32_t t : drafts_of(chat, tokens[0], left)) tokens.push_back(t);
    const std::vector<int32_t> read = verified(chat, tokens);
    tally->drafted += tokens.size() - 1;
    tally->accepted += read.size() - 1;
    got.insert(got.end(), read.begin(), read.end());
  }
  return got;
}

std::vector<std::byte> rows_of_block(const Chat& chat) {
  Session& s = *chat.get()->p;
  EXPECT_TRUE(s.mtp()->catch_up(s.tokens(), s.first_position()).is_ok());
  const KvStore& kv = s.mtp()->tier().store();
  const KvLayerLayout& one = *kv.layout().find(0);
  const uint32_t n = s.mtp()->rows().n_tokens();
  const size_t k = size_t{n} * one.k_row_bytes, v = size_t{n} * one.v_row_bytes;
  std::vector<std::byte> out(k + v);
  EXPECT_TRUE(kv.read_rows(0, false, 0, n, out.data()).is_ok());
  EXPECT_TRUE(kv.read_rows(0, true, 0, n, out.data() + k).is_ok());
  return out;
}

/// They are those of a session that reads the same tokens as a prompt.
void expect_rows_of_a_prompt(const Loaded& loaded, const Chat& chat, const std::string& what) {
  const std::span<const int32_t> tokens = chat.get()->p->tokens();
  Chat fresh(loaded.model.get());
  fresh.prefill({tokens.begin(), tokens.end()});
  const std::vector<std::byte> want = rows_of_block(fresh), got = rows_of_block(chat);
  EXPECT_EQ(chat.get()->p->mtp()->rows().next_position() + 1, tokens.size()) << what;
  EXPECT_TRUE(got == want) << what;
}

std::vector<int32_t> first_tokens(const Golden& g, size_t n) {
  return slice(g.cases.back().tokens, 0, n);
}

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

uint64_t sum_of(const std::vector<sharpi_memory_row>& rows, const char* word, bool session) {
  uint64_t n = 0;
  for (const sharpi_memory_row& r : rows) {
    if (std::string(r.label).find(word) != std::string::npos && (r.per_session != 0) == session &&
        r.transient == 0)
      n += r.held_bytes;
  }
  return n;
}

template <class Ask>
std::vector<sharpi_memory_row> rows_by(const Ask& ask) {
  std::vector<sharpi_memory_row> rows(64);
  uint32_t n = 0;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(ask(rows.data(), static_cast<uint32_t>(sizeof rows[0]), 64u, &n, &e), SHARPI_OK)
      << e.text;
  rows.resize(n);
  return rows;
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
        const auto planned =
            rows_by([&](auto... a) { return sharpi_plan_rows(loaded.plan.get(), a...); });
        const auto model =
            rows_by([&](auto... a) { return sharpi_model_memory(loaded.model.get(), a...); });
        const auto session =
            rows_by([&](auto... a) { return sharpi_session_memory(chat.get(), a...); });
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

/// Budgets here are the host's; those of a device: plan_test.
Edit on_host(Edit edit) {
  return [=](sharpi_plan_params* p, sharpi_session_params* s) {
    edit(p, s);
    p->n_gpu_layers = 0;
  };
}

void expect_refused(const std::string& path, Edit edit, sharpi_status status, const char* text) {
  const ContextPtr context = make_context({});
  PlanPtr plan;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(try_plan(context.get(), path, setup_with(std::move(edit)), &plan, &e), status) << text;
  EXPECT_NE(std::string(e.text).find(text), std::string::npos) << e.text;
}

std::string fallback_of(const Loaded& l) {
  char text[400] = "";
  size_t n = 0;
  sharpi_error e = SHARPI_ERROR_INIT;
  sharpi_plan_fallback(l.plan.get(), 0, text, sizeof text, &n, &e);
  return text;
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
