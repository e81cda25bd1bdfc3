// SPDX-License-Identifier: MIT
// The block for multi-token prediction with a part of the head (n_draft_vocab): it drafts the best
// of the tokens below, whatever it reads; sessions are left as without drafts; no byte is
// unplanned; what nothing would use, and another value than the plan's, is refused.
#include "mtp_case.h"

namespace sharpi::testing {
namespace {

constexpr uint32_t kPrompt = 21, kTokens = 40;

Edit trimmed(uint32_t n_draft_vocab, std::function<void(sharpi_session_params*)> edit = {},
             uint32_t drafters = SHARPI_DRAFT_MTP) {
  return drafting(drafters, [=](sharpi_session_params* s) {
    s->n_draft_vocab = n_draft_vocab;
    if (edit) edit(s);
  });
}

/// A file with a block, and a text that has tokens of all kinds.
struct Case {
  std::string name, path;
  std::vector<int32_t> text;
};

/// Besides the fixtures: a tied head, a head and an embedding of the block's own, and heads whose
/// rows a GPU does not store in panels, as they are no multiple of 16.
class Cases {
 public:
  Cases() {
    for (const Fixture& f : models_with_mtp()) {
      const Golden golden = golden_of(f);
      all_.push_back({f.name, f.gguf_path, first_tokens(golden, 60)});
    }
    EXPECT_FALSE(all_.empty());
    if (on_gpu()) return;  // it takes none of the others, whose heads have 32 elements
    for (const bool own : {false, true}) {
      for (const bool tied : {false, true}) {
        for (const uint32_t n_vocab : {320u, 312u}) add(own, tied, n_vocab);
      }
    }
  }
  const std::vector<Case>& all() const { return all_; }

 private:
  void add(bool own, bool tied, uint32_t n_vocab) {
    test::ModelRecipe r = test::tiny_qwen35();
    r.tied = tied;
    r.n_vocab = n_vocab;
    test::ModelFile file(r);
    const std::string block = "blk." + std::to_string(r.n_layers) + ".nextn.";
    if (own) {
      for (const char* name : {"embed_tokens.weight", "shared_head_head.weight"})
        file.add_tensor(block + name, GgmlType::kF32, {r.n_embd, n_vocab});
    }
    files_.push_back(std::make_unique<test::TempFile>());
    EXPECT_TRUE(file.write(files_.back()->path()));
    Case c{std::string(own ? "own head, " : "") + (tied ? "tied, " : "") + std::to_string(n_vocab),
           files_.back()->path(),
           {}};
    for (uint32_t i = 0; i < 60; ++i)
      c.text.push_back(static_cast<int32_t>((i * 37 + 11) % (n_vocab - 8)));
    all_.push_back(c);
  }
  std::vector<std::unique_ptr<test::TempFile>> files_;
  std::vector<Case> all_;
};

/// Products of other numbers of outputs are cut otherwise on a GPU.
float tolerance() {
  return on_gpu() ? 0.02f : 0.0f;
}

TEST(MtpVocab, DraftsTheBestOfTheTokensBelow) {
  const Cases cases;
  for (const Case& c : cases.all()) {
    const Loaded whole = load(c.path, setup_with(drafting(SHARPI_DRAFT_MTP)));
    for (const uint32_t n : {16u, 144u}) {
      SCOPED_TRACE(c.name + ", " + std::to_string(n) + " tokens");
      const Loaded part = load(c.path, setup_with(trimmed(n)));
      ASSERT_TRUE(whole.model && part.model);
      Chat of_all(whole.model.get()), of_few(part.model.get());
      size_t n_above = 0, n_other = 0;
      for (size_t i = 0; i + 1 < c.text.size(); ++i) {
        for (Chat* s : {&of_all, &of_few}) s->decode(c.text[i]);
        Logits want, got;
        const int32_t best = drafts_of(of_all, c.text[i + 1], 1, &want).at(0);
        const int32_t draft = drafts_of(of_few, c.text[i + 1], 1, &got).at(0);
        ASSERT_LT(static_cast<uint32_t>(draft), n);
        ASSERT_GE(draft, 0);
        for (uint32_t t = 0; t < n; ++t) ASSERT_NEAR(got[t], want[t], tolerance()) << t;
        ASSERT_EQ(std::max_element(got.begin(), got.begin() + n) - got.begin(), draft);
        n_above += static_cast<uint32_t>(c.text[i + 1]) >= n ? 1 : 0;
        n_other += best != draft ? 1 : 0;
      }
      EXPECT_GT(n_above, 9u) << "tokens above are read";
      EXPECT_GT(n_other, 9u) << "the whole head drafts others";
    }
  }
}

TEST(MtpVocab, LeavesTheSessionThatDecodingLeaves) {
  const Cases cases;
  for (const Case& c : cases.all()) {
    const std::vector<int32_t> prompt(c.text.begin(), c.text.begin() + kPrompt);
    // With few tokens next to nothing is right; the last is as without a part.
    for (const uint32_t n_vocab : {16u, 144u, 1u << 20}) {
      const Loaded loaded = load(c.path, setup_with(trimmed(n_vocab)));
      ASSERT_TRUE(loaded.model);
      for (const float temperature : {0.0f, 0.9f}) {
        Chat plain = plain_chat(loaded);
        plain.prefill(prompt);
        use_temperature(plain, temperature);
        const std::vector<int32_t> want = decoded(plain, kTokens);
        for (const uint32_t n : {1u, 4u}) {
          SCOPED_TRACE(c.name + ", " + std::to_string(n_vocab) + " tokens, temperature " +
                       std::to_string(temperature) + ", " + std::to_string(n) + " drafts");
          Chat chat(loaded.model.get());
          chat.prefill(prompt);
          use_temperature(chat, temperature);
          Tally tally;
          ASSERT_EQ(drafted(chat, n, kTokens, &tally), want);
          expect_same(chat, plain, "at the end");
          expect_rows_of_a_prompt(loaded, chat, "the block's rows");
          EXPECT_GT(tally.drafted, 0u);
          EXPECT_LT(tally.largest, static_cast<int32_t>(n_vocab));
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST(MtpVocab, StepsForksAndRestoredSessionsDraftWithIt) {
  for (const Fixture& f : models_with_mtp()) {
    SCOPED_TRACE(f.name);
    const Golden golden = golden_of(f);
    const Loaded loaded = load(f.gguf_path, setup_with(trimmed(256)));
    Chat plain = plain_chat(loaded), chat(loaded.model.get());
    for (Chat* s : {&plain, &chat}) {
      s->prefill(first_tokens(golden, kPrompt));
      use_endless_sampler(*s, loaded.model.get(), 0);
    }
    const std::vector<char> blob = saved(plain);
    Chat fork = chat.fork(), restored(loaded.model.get());
    sharpi_error e = SHARPI_ERROR_INIT;
    ASSERT_EQ(sharpi_session_restore(restored.get(), blob.data(), blob.size(), &e), SHARPI_OK);
    const std::vector<int32_t> want = decoded(plain, kTokens);
    for (Chat* s : {&chat, &fork, &restored}) {
      std::vector<int32_t> got;
      while (got.size() < kTokens) {
        std::array<int32_t, 9> tokens{};
        uint32_t n = 0;
        const auto cap = static_cast<uint32_t>(std::min<size_t>(9, kTokens - got.size()));
        ASSERT_EQ(sharpi_session_step(s->get(), nullptr, tokens.data(), cap, &n, &e), SHARPI_OK)
            << e.text;
        got.insert(got.end(), tokens.begin(), tokens.begin() + n);
      }
      EXPECT_EQ(got, want);
      expect_same(*s, plain, "after steps");
      sharpi_draft_stats stats{};
      stats.struct_size = sizeof stats;
      ASSERT_EQ(sharpi_session_drafts(s->get(), &stats, &e), SHARPI_OK);
      EXPECT_GT(stats.n_drafted, 0u);
    }
  }
}

TEST(MtpVocab, EveryByteIsPlanned) {
  const Cases cases;
  for (const Case& c : cases.all()) {
    for (const sharpi_load_mode mode : {SHARPI_LOAD_MAP, SHARPI_LOAD_COPY}) {
      uint64_t logits_of_all = 0, model_of_all = 0;
      for (const uint32_t n_vocab : {0u, 144u, 16u}) {
        SCOPED_TRACE(c.name + ", " + std::to_string(n_vocab) + " tokens, load mode " +
                     std::to_string(mode));
        const Loaded loaded =
            load(c.path, setup_with([=](sharpi_plan_params* p, sharpi_session_params* s) {
                   trimmed(n_vocab)(p, s);
                   p->load_mode = mode;
                 }));
        ASSERT_TRUE(loaded.model);
        Chat chat(loaded.model.get());
        const auto [planned, model, session] = AllRows(loaded, chat);
        EXPECT_EQ(sum_of(planned, "", false), sum_of(model, "", false));
        EXPECT_EQ(sum_of(planned, "", true), sum_of(session, "", true));
        const uint64_t logits = sum_of(session, "MTP logits", true);
        if (n_vocab == 0) {
          logits_of_all = logits, model_of_all = sum_of(model, "", false);
          continue;
        }
        if (!on_gpu()) {
          EXPECT_EQ(logits, n_vocab * sizeof(float));
        }
        EXPECT_LE(logits, logits_of_all);
        EXPECT_LE(sum_of(model, "", false), model_of_all);
      }
    }
  }
}

uint64_t json_number(const sharpi_plan* plan, const std::string& key) {
  std::string text(1 << 16, '\0');
  size_t n = 0;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_plan_json(plan, text.data(), text.size(), &n, &e), SHARPI_OK) << e.text;
  const size_t at = text.find("\"" + key + "\": ");
  EXPECT_NE(at, std::string::npos);
  return at == std::string::npos ? 0
                                 : std::strtoull(text.c_str() + at + key.size() + 4, nullptr, 10);
}

TEST(MtpVocab, WhatNothingWouldUseIsRefused) {
  const MadeModel file(test::tiny_qwen35());
  for (const uint32_t n : {1u, 8u, 100u, SHARPI_UNSET}) {
    const std::string text =
        "n_draft_vocab " + std::to_string(n) + " is no multiple of 16; 0 = all tokens";
    expect_refused(file.path(), trimmed(n), SHARPI_E_INVALID_ARGUMENT, text.c_str());
  }
  expect_refused(file.path(), trimmed(32, {}, SHARPI_DRAFT_NGRAM), SHARPI_E_INVALID_ARGUMENT,
                 "n_draft_vocab is 32, but drafters is 1: only 2 (MTP) and 4 (AUTO) use it");
  expect_refused(file.path(),
                 trimmed(
                     32, [](sharpi_session_params* s) { s->n_draft = 0; }, 0),
                 SHARPI_E_INVALID_ARGUMENT, "n_draft_vocab is 32, but drafters is 0: only 2 (MTP)");
  // Where AUTO has no block to draft with, the fallback says so.
  const MadeModel without(test::tiny_qwen3());
  const Loaded left = load(without.path(), setup_with(trimmed(32, {}, SHARPI_DRAFT_AUTO)));
  ASSERT_TRUE(left.model);
  EXPECT_NE(fallback_of(left).find("the MTP drafter is left out"), std::string::npos);
  EXPECT_EQ(json_number(left.plan.get(), "n_draft_vocab"), 0u);
  const Loaded there = load(file.path(), setup_with(trimmed(32, {}, SHARPI_DRAFT_AUTO)));
  EXPECT_EQ(json_number(there.plan.get(), "n_draft_vocab"), 32u);
}

/// Bytes of the logits of a session's block; 0 = it has none.
uint64_t logits_of_block(const sharpi_session* session) {
  return sum_of(rows_of_handle(sharpi_session_memory, session), "MTP logits", true);
}

/// A session of parameters of its own, and why not.
struct Asked {
  SessionPtr session;
  sharpi_status status = SHARPI_OK;
  std::string text;
};

Asked ask_for(const Loaded& l, uint32_t n_draft_vocab, uint32_t drafters) {
  sharpi_session_params p;
  sharpi_session_params_init(&p, sizeof p);
  p.n_ctx = 64, p.n_draft = 4, p.drafters = drafters, p.n_draft_vocab = n_draft_vocab;
  sharpi_session* session = nullptr;
  sharpi_error e = SHARPI_ERROR_INIT;
  const sharpi_status status = sharpi_session_create(l.model.get(), &p, &session, &e);
  return {SessionPtr(session), status, e.text};
}

TEST(MtpVocab, SessionsTakeWhatThePlanHas) {
  test::ModelRecipe recipe = test::tiny_qwen35();
  recipe.n_vocab = 4096;  // logits of all of them are more than a step of a GPU's memory
  const MadeModel file(recipe);
  const Loaded part = load(file.path(), setup_with(trimmed(32)));
  const Loaded all = load(file.path(), setup_with(trimmed(0)));
  const uint32_t n_vocab = part.info.n_vocab;
  const uint64_t of_part = logits_of_block(Chat(part.model.get()).get());
  const uint64_t of_all = logits_of_block(Chat(all.model.get()).get());
  EXPECT_LT(of_part, of_all);
  for (const uint32_t drafters : {SHARPI_DRAFT_MTP, SHARPI_DRAFT_AUTO}) {
    for (const uint32_t n : {0u, 32u})
      EXPECT_EQ(logits_of_block(ask_for(part, n, drafters).session.get()), of_part) << n;
    for (const uint32_t n : {0u, n_vocab, n_vocab + 16})
      EXPECT_EQ(logits_of_block(ask_for(all, n, drafters).session.get()), of_all) << n;
    for (const uint32_t n : {16u, 48u, n_vocab, n_vocab + 16}) {
      const Asked other = ask_for(part, n, drafters);
      EXPECT_EQ(other.status, SHARPI_E_DOES_NOT_FIT) << n;
      EXPECT_EQ(other.text, "n_draft_vocab is " + std::to_string(std::min(n, n_vocab)) +
                                ", but the plan's MTP block drafts tokens below 32");
    }
    EXPECT_EQ(ask_for(all, 16, drafters).status, SHARPI_E_DOES_NOT_FIT);
  }
  EXPECT_EQ(ask_for(part, 32, SHARPI_DRAFT_NGRAM).status, SHARPI_E_INVALID_ARGUMENT);
  // AUTO takes what is loaded, which is no block here.
  const Loaded ngram = load(file.path(), setup_with(drafting(SHARPI_DRAFT_NGRAM)));
  const Asked none = ask_for(ngram, 32, SHARPI_DRAFT_AUTO);
  EXPECT_EQ(none.status, SHARPI_E_DOES_NOT_FIT);
  EXPECT_EQ(none.text, "n_draft_vocab is 32, but the plan has no MTP block that drafts");
  EXPECT_EQ(logits_of_block(ask_for(ngram, 0, SHARPI_DRAFT_AUTO).session.get()), 0u);
}

}  // namespace
}  // namespace sharpi::testing
