// SPDX-License-Identifier: MIT
// Drafts: whatever they say, a session ends up where decoding token by token leaves it, in tokens,
// logits, saved bytes, reachable lengths and random numbers; and what cannot be had is refused.
#include "draft_case.h"
#include "support/watched_new.h"

namespace sharpi::testing {
namespace {

using test::ModelRecipe;

constexpr uint32_t kPrompt = 21, kTokens = 48, kDrafts = 8;

struct Case {
  const char* name;
  ModelRecipe recipe;
  std::function<void(sharpi_session_params*)> edit;
  int32_t n_gpu_layers = -1;  // of a run on the GPU
};

std::vector<Case> cases() {
  using P = sharpi_session_params*;
  const auto plain = [](P) {};
  const auto captures = [](P s) { s->capture_window = 6; };
  const auto bounded = [](P s) { s->kv_budget = 32, s->capture_window = 6, s->recency = 4; };
  const auto narrow = [](P s) { s->k_dtype = s->v_dtype = SHARPI_KV_Q8_0; };
  std::vector<Case> out = {
      {"qwen3", test::tiny_qwen3(), captures},
      {"qwen3 q8_0", test::tiny_qwen3(), narrow},
      {"qwen3 bounded", test::tiny_qwen3(), bounded},
      {"llama", test::tiny_llama(), plain},
      {"qwen3moe", test::tiny_qwen3moe(), plain},
      {"olmoe", test::tiny_olmoe(), plain},
      {"gemma3", test::tiny_gemma3(), captures},
      {"gemma4", test::tiny_gemma4(), plain},
      {"gemma4kv bounded", test::tiny_gemma4kv(), bounded},
      {"gemma4kv q4", test::tiny_gemma4kv(), [](P s) { s->k_dtype = s->v_dtype = SHARPI_KV_Q4; }},
      {"qwen35", test::tiny_qwen35(), captures},
      {"qwen35 bounded", test::tiny_qwen35(), bounded},
      {"qwen35moe", test::tiny_qwen35moe(), plain},
  };
  if (!on_gpu()) {
    out.push_back({"granite", test::tiny_granite(), captures});
    out.push_back({"granite bounded", test::tiny_granite(), bounded});
    out.push_back({"nemotron", test::tiny_nemotron(), captures});
    ModelRecipe no_rows = test::tiny_granite();
    no_rows.attention_every = no_rows.n_layers + 1;
    out.push_back({"granite without attention", no_rows, plain});
  }
  if (on_gpu()) {  // the first layers there, the rest on the CPU
    out.push_back({"qwen35 split", test::tiny_qwen35(), captures, 2});
    out.push_back({"qwen35moe split", test::tiny_qwen35moe(), plain, 1});
    out.push_back({"gemma3 split", test::tiny_gemma3(), captures, 2});
  }
  return out;
}

ModelSetup setup_for(const Case& c, uint32_t n_draft, uint32_t drafters = 0) {
  return setup_with(
      [=, edit = c.edit, layers = c.n_gpu_layers](sharpi_plan_params* p, sharpi_session_params* s) {
        p->deterministic = 1;
        p->n_chunk = 48;
        p->n_sessions = 3;
        s->n_ctx = 128;
        s->rewind = 5;
        s->n_checkpoints = 2;
        s->n_draft = n_draft;
        s->drafters = drafters;
        edit(s);
        if (on_gpu()) p->n_gpu_layers = layers;
      });
}

std::vector<int32_t> step_by_step(const Chat& chat, uint32_t n) {
  std::vector<int32_t> out(n);
  for (int32_t& t : out) {
    uint32_t one = 0;
    sharpi_error e = SHARPI_ERROR_INIT;
    EXPECT_EQ(sharpi_session_step(chat.get(), nullptr, &t, 1, &one, &e), SHARPI_OK) << e.text;
  }
  return out;
}

TEST(Drafts, LeaveTheSessionThatDecodingLeaves) {
  for (const Case& c : cases()) {
    const MadeModel file(c.recipe);
    const Loaded loaded = load(file.path(), setup_for(c, kDrafts));
    ASSERT_TRUE(loaded.model) << c.name;
    for (const float temperature : {0.0f, 0.9f}) {
      Chat plain(loaded.model.get());
      plain.prefill(file.tokens(kPrompt));
      use_endless_sampler(plain, loaded.model.get(), temperature, 1.1f);
      const std::vector<int32_t> want = step_by_step(plain, kTokens);
      for (const uint32_t n : {1u, 2u, 4u, kDrafts}) {
        for (const uint32_t wrong : {1u, 3u, 5u, 1000u}) {
          SCOPED_TRACE(std::string(c.name) + ", temperature " + std::to_string(temperature) + ", " +
                       std::to_string(n) + " drafts, every " + std::to_string(wrong) + "th wrong");
          Chat chat(loaded.model.get());
          chat.prefill(file.tokens(kPrompt));
          use_endless_sampler(chat, loaded.model.get(), temperature, 1.1f);
          const auto got = with_drafts(chat, want, n, wrong, kTokens);
          ASSERT_EQ(got, want);
          expect_same(chat, plain, "at the end");
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST(Drafts, RejectedRowsLeaveNoTraceInForksCheckpointsAndLengths) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const MadeModel file(c.recipe);
    const Loaded loaded = load(file.path(), setup_for(c, 4));
    ASSERT_TRUE(loaded.model);
    Chat plain(loaded.model.get()), chat(loaded.model.get());
    for (Chat* s : {&plain, &chat}) s->prefill(file.tokens(kPrompt));
    use_endless_sampler(plain, loaded.model.get(), 0);
    use_endless_sampler(chat, loaded.model.get(), 0);
    Chat ahead(loaded.model.get());
    ahead.prefill(file.tokens(kPrompt));
    use_endless_sampler(ahead, loaded.model.get(), 0);
    const std::vector<int32_t> want = step_by_step(ahead, 16);
    ASSERT_EQ(step_by_step(plain, 8), slice(want, 0, 8));
    // Passes of five rows, of which three are read: the last one rejects two rows.
    const auto got = with_drafts(chat, want, 4, 4, 8);
    ASSERT_EQ(got, slice(want, 0, 8));
    expect_same(chat, plain, "after rows were rejected");
    sharpi_session* twin = nullptr;
    sharpi_error e = SHARPI_ERROR_INIT;
    ASSERT_EQ(sharpi_session_fork(chat.get(), &twin, &e), SHARPI_OK) << e.text;
    Chat fork(SessionPtr(twin), chat.n_vocab());
    expect_same(fork, plain, "a fork");
    const bool hybrid = sharpi_session_checkpoint(chat.get(), 0, &e) == SHARPI_OK;
    if (hybrid) {
      ASSERT_EQ(sharpi_session_checkpoint(plain.get(), 0, &e), SHARPI_OK);
    }
    for (Chat* s : {&plain, &chat}) s->prefill(file.tokens(13, 5));
    expect_same(chat, plain, "a prompt behind it");
    const uint32_t back = reachable(chat).front();
    for (Chat* s : {&plain, &chat}) {
      ASSERT_EQ(sharpi_session_truncate(s->get(), back, &e), SHARPI_OK) << e.text;
      s->decode(3);
    }
    expect_same(chat, plain, "cut back");
    for (Chat* s : {&plain, &fork}) {  // what others did left the fork alone
      ASSERT_EQ(sharpi_session_truncate(s->get(), 0, &e), SHARPI_OK) << e.text;
      s->prefill(file.tokens(7, 2));
    }
    EXPECT_TRUE(same_bits(fork.logits(), plain.logits()));
  }
}

TEST(Drafts, AreFoundInTheSessionsOwnText) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const MadeModel file(c.recipe);
    const Loaded loaded = load(file.path(), setup_for(c, 16, SHARPI_DRAFT_NGRAM));
    ASSERT_TRUE(loaded.model);
    sharpi_session_params none;
    sharpi_session_params_init(&none, sizeof none);
    none.n_ctx = 128, none.rewind = 5, none.n_checkpoints = 2;
    c.edit(&none);
    Chat plain(loaded.model.get(), &none), chat(loaded.model.get());
    // A text that repeats itself makes most of these models go on repeating.
    std::vector<int32_t> text = file.tokens(7);
    for (int i = 0; i < 14; ++i) text.push_back(text[text.size() - 7]);
    for (Chat* s : {&plain, &chat}) {
      s->prefill(text);
      use_endless_sampler(*s, loaded.model.get(), 0);
    }
    const std::vector<int32_t> want = step_by_step(plain, 90);
    std::vector<int32_t> got;
    while (got.size() < 90) {
      std::array<int32_t, 17> tokens{};
      uint32_t n = 0;
      sharpi_error e = SHARPI_ERROR_INIT;
      const auto cap = static_cast<uint32_t>(std::min<size_t>(17, 90 - got.size()));
      ASSERT_EQ(sharpi_session_step(chat.get(), nullptr, tokens.data(), cap, &n, &e), SHARPI_OK)
          << e.text;
      ASSERT_LE(n, cap);
      got.insert(got.end(), tokens.begin(), tokens.begin() + n);
    }
    EXPECT_EQ(got, want);
    EXPECT_TRUE(same_bits(chat.logits(), plain.logits()));
    sharpi_draft_stats stats{};
    stats.struct_size = sizeof stats;
    ASSERT_EQ(sharpi_session_drafts(chat.get(), &stats, nullptr), SHARPI_OK);
    std::array<uint64_t, 16> drafted{}, accepted{};
    uint32_t n_places = 0;
    ASSERT_EQ(sharpi_session_draft_places(chat.get(), drafted.data(), accepted.data(), 16,
                                          &n_places, nullptr),
              SHARPI_OK);
    ASSERT_EQ(n_places, 16u);
    uint64_t n_drafted = 0, n_accepted = 0;
    for (uint32_t i = 0; i < 16; ++i) {
      n_drafted += drafted[i];
      n_accepted += accepted[i];
      EXPECT_LE(accepted[i], drafted[i]);
    }
    EXPECT_EQ(n_drafted, stats.n_drafted);
    EXPECT_EQ(n_accepted, stats.n_accepted);
    EXPECT_LE(stats.n_accepted, stats.n_drafted);
    std::printf("%s: %llu of %llu drafts accepted in %llu passes\n", c.name,
                static_cast<unsigned long long>(stats.n_accepted),
                static_cast<unsigned long long>(stats.n_drafted),
                static_cast<unsigned long long>(stats.n_passes));
  }
}

TEST(Drafts, MasksAndLogProbabilitiesAreThoseOfTheirRow) {
  const Case c{"qwen3", test::tiny_qwen3(), [](sharpi_session_params*) {}};
  const MadeModel file(c.recipe);
  const Loaded loaded = load(file.path(), setup_for(c, 4));
  Chat plain(loaded.model.get()), chat(loaded.model.get());
  for (Chat* s : {&plain, &chat}) {
    s->prefill(file.tokens(kPrompt));
    use_endless_sampler(*s, loaded.model.get(), 0);
  }
  const std::vector<int32_t> want = step_by_step(plain, 4);
  constexpr uint32_t kWords = 10;
  std::vector<uint32_t> masks(3 * kWords, ~0u);
  masks[kWords + static_cast<uint32_t>(want[2]) / 32] ^= 1u << (want[2] % 32);  // of the 2nd draw
  std::array<sharpi_logprob, 3> logprobs{};
  sharpi_sample_params p;
  sharpi_sample_params_init(&p, sizeof p);
  p.allowed_mask = masks.data();
  p.mask_words = kWords;
  p.logprobs = logprobs.data();
  p.n_logprobs = 1;
  uint32_t read = 0;
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(sharpi_session_verify(chat.get(), want.data(), 4, &p, &read, &e), SHARPI_OK) << e.text;
  EXPECT_EQ(read, 2u) << "the mask forbids the third token";
  EXPECT_EQ(logprobs[0].token, want[1]);
  EXPECT_LT(logprobs[0].logprob, 0.0f);
  EXPECT_EQ(drawn(chat), want[2]) << "no mask is kept";
}

TEST(Drafts, ATokenThatEndsTheGenerationIsNotRead) {
  const Case c{"qwen3", test::tiny_qwen3(), [](sharpi_session_params*) {}};
  const MadeModel file(c.recipe);
  const Loaded loaded = load(file.path(), setup_for(c, 4));
  int32_t end = 0;
  while (sharpi_token_is_end(loaded.model.get(), end) == 0) ASSERT_LT(++end, 320);
  Chat chat(loaded.model.get());
  chat.prefill(file.tokens(kPrompt));
  sharpi_sampler_params p;
  sharpi_sampler_params_init(&p, sizeof p);
  const float always = 1e6f;
  p.temperature = 0, p.n_bias = 1, p.bias_tokens = &end, p.bias_values = &always;
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(sharpi_session_set_sampler(chat.get(), &p, &e), SHARPI_OK) << e.text;
  const std::array<int32_t, 3> tokens = {5, end, end};
  uint32_t read = 0;
  ASSERT_EQ(sharpi_session_verify(chat.get(), tokens.data(), 3, nullptr, &read, &e), SHARPI_OK);
  EXPECT_EQ(read, 1u);
  EXPECT_EQ(chat.info().n_tokens, kPrompt + 1);
  EXPECT_EQ(drawn(chat), end);
}

/// A draw that has no token says so in a sentence, for which there may be no memory either.
TEST(Drafts, ADrawWithoutMemoryEndsWhatIsRead) {
  const Case c{"qwen3", test::tiny_qwen3(), [](sharpi_session_params*) {}};
  const MadeModel file(c.recipe);
  const Loaded loaded = load(file.path(), setup_for(c, 4));
  Chat plain(loaded.model.get());
  plain.prefill(file.tokens(kPrompt));
  use_endless_sampler(plain, loaded.model.get(), 0);
  const std::vector<char> start = saved(plain);
  const std::vector<int32_t> want = step_by_step(plain, 4);
  constexpr uint32_t kWords = 10;
  std::vector<uint32_t> masks(3 * kWords, ~0u);
  std::fill_n(masks.begin() + kWords, kWords, 0u);  // nothing is allowed behind the second token
  sharpi_sample_params p;
  sharpi_sample_params_init(&p, sizeof p);
  p.allowed_mask = masks.data();
  p.mask_words = kWords;
  bool failed = true;
  for (int nth = 1; failed && !HasFailure(); ++nth) {
    Chat chat(loaded.model.get()), one_by_one(loaded.model.get());
    uint32_t read = 0;
    sharpi_error e = SHARPI_ERROR_INIT;
    for (const Chat* s : {&chat, &one_by_one}) {
      ASSERT_EQ(sharpi_session_restore(s->get(), start.data(), start.size(), &e), SHARPI_OK);
    }
    fail_new(nth);
    const sharpi_status status = sharpi_session_verify(chat.get(), want.data(), 4, &p, &read, &e);
    failed = !new_pending();
    fail_new(0);
    SCOPED_TRACE(nth);
    EXPECT_TRUE(status == SHARPI_OK || (failed && status == SHARPI_E_OUT_OF_MEMORY)) << e.text;
    if (status == SHARPI_OK) {
      EXPECT_EQ(read, 2u);
      for (uint32_t i = 0; i < read; ++i) one_by_one.decode(want[i]);
    }
    EXPECT_EQ(chat.info().n_tokens, one_by_one.info().n_tokens);
    // A pass that a tier could not finish costs the logits, as the header says.
    if (status != SHARPI_OK && chat.info().n_logit_rows == 0) continue;
    expect_same(chat, one_by_one, "after a failed allocation");
  }
}

TEST(Drafts, RefusalsNameWhatIsWrong) {
  const Case c{"qwen35", test::tiny_qwen35(), [](sharpi_session_params*) {}};
  const MadeModel file(c.recipe);
  const Loaded loaded = load(file.path(), setup_for(c, 2));
  Chat chat(loaded.model.get());
  chat.prefill(file.tokens(5));
  const std::vector<char> before = saved(chat);
  const auto refused = [&](std::vector<int32_t> tokens, sharpi_status status, const char* text) {
    uint32_t read = 9;
    sharpi_error e = SHARPI_ERROR_INIT;
    EXPECT_EQ(sharpi_session_verify(chat.get(), tokens.data(), static_cast<uint32_t>(tokens.size()),
                                    nullptr, &read, &e),
              status);
    EXPECT_NE(std::string(e.text).find(text), std::string::npos) << e.text;
    EXPECT_EQ(read, 0u);
    EXPECT_TRUE(before == saved(chat));
  };
  refused({1, 2, 3, 4}, SHARPI_E_INVALID_ARGUMENT,
          "3 drafts behind the first token, but the session was made for n_draft 2");
  refused({1, 320}, SHARPI_E_INVALID_ARGUMENT, "token 1 is 320");
  refused({-1, 2}, SHARPI_E_INVALID_ARGUMENT, "token 0 is -1");
  sharpi_session_cancel(chat.get());
  refused({1, 2}, SHARPI_E_CANCELLED, "cancelled before it began");

  sharpi_session_params more;
  sharpi_session_params_init(&more, sizeof more);
  more.n_ctx = 64, more.n_draft = 3;
  sharpi_session* raw = nullptr;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_session_create(loaded.model.get(), &more, &raw, &e), SHARPI_E_DOES_NOT_FIT);
  EXPECT_NE(std::string(e.text).find("n_draft is 3, which is more than the 2 that the plan priced"),
            std::string::npos)
      << e.text;

  const ContextPtr context = make_context({});
  const auto plan_refused = [&](Edit edit, sharpi_status status, const char* text) {
    PlanPtr plan;
    sharpi_error err = SHARPI_ERROR_INIT;
    EXPECT_EQ(try_plan(context.get(), file.path(), setup_with(std::move(edit)), &plan, &err),
              status);
    EXPECT_NE(std::string(err.text).find(text), std::string::npos) << err.text;
  };
  plan_refused(
      [](sharpi_plan_params* p, sharpi_session_params* s) {
        p->n_chunk = 4, p->max_logit_rows = 4, s->n_draft = 4;
      },
      SHARPI_E_INVALID_ARGUMENT, "n_draft is 4, but a chunk has only 4 rows");
  plan_refused([](sharpi_plan_params*, sharpi_session_params* s) { s->drafters = 1; },
               SHARPI_E_INVALID_ARGUMENT, "drafters is 1 but n_draft is 0");
}

TEST(Drafts, EveryByteIsPlanned) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const MadeModel file(c.recipe);
    const Loaded loaded = load(file.path(), setup_for(c, 32, SHARPI_DRAFT_NGRAM));
    ASSERT_TRUE(loaded.model);
    Chat chat(loaded.model.get());
    std::array<sharpi_memory_row, 64> planned{}, held{};
    uint32_t n_planned = 0, n_held = 0;
    sharpi_error e = SHARPI_ERROR_INIT;
    ASSERT_EQ(
        sharpi_plan_rows(loaded.plan.get(), planned.data(), sizeof planned[0], 64, &n_planned, &e),
        SHARPI_OK);
    ASSERT_EQ(sharpi_session_memory(chat.get(), held.data(), sizeof held[0], 64, &n_held, &e),
              SHARPI_OK);
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_planned; ++i) {
      if (planned[i].per_session == 0) continue;
      bool found = false;
      for (uint32_t k = 0; k < n_held; ++k) {
        found = found || (std::strcmp(planned[i].label, held[k].label) == 0 &&
                          planned[i].held_bytes == held[k].held_bytes &&
                          planned[i].first_layer == held[k].first_layer);
      }
      EXPECT_TRUE(found) << planned[i].label;
      ++n;
    }
    EXPECT_EQ(n, n_held);
  }
}

}  // namespace
}  // namespace sharpi::testing
