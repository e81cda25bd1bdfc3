// SPDX-License-Identifier: MIT
// sharpi_step_batch(): sessions with drafters of different kinds and numbers of drafts step in one
// pass and are where steps alone leave them; what is refused or cancelled changes none and undoes
// all draws.
#include "draft_case.h"

namespace sharpi::testing {
namespace {

constexpr uint32_t kSessions = 6, kTokens = 56;

/// How a session drafts, and how many tokens it takes of a step.
struct Kind {
  uint32_t n_draft, drafters, cap;
};
constexpr Kind kKinds[kSessions] = {
    {0, 0, 1},
    {6, SHARPI_DRAFT_NGRAM, 16},
    {3, SHARPI_DRAFT_MTP, 4},
    {8, SHARPI_DRAFT_NGRAM | SHARPI_DRAFT_MTP, 3},
    {8, SHARPI_DRAFT_MODEL, 9},
    {4, SHARPI_DRAFT_NGRAM | SHARPI_DRAFT_MTP | SHARPI_DRAFT_MODEL, 5},
};

Edit setting(const std::string& path) {
  return [=](sharpi_plan_params* p, sharpi_session_params* s) {
    p->deterministic = 1;
    p->n_chunk = 32;
    p->n_sessions = 2 * kSessions;
    p->max_batch = kSessions;
    p->max_logit_rows = 24;
    p->n_gpu_layers = 0;
    p->draft_path = path.c_str();
    s->n_ctx = 256;
    s->n_draft = 8;
    s->drafters = SHARPI_DRAFT_NGRAM | SHARPI_DRAFT_MTP | SHARPI_DRAFT_MODEL;
  };
}

Chat chat_of(const Loaded& l, const Kind& kind) {
  sharpi_session_params s;
  sharpi_session_params_init(&s, sizeof s);
  s.n_ctx = 256;
  s.n_draft = kind.n_draft;
  s.drafters = kind.drafters;
  return Chat(l.model.get(), &s);
}

/// One session that steps alone, without drafts, and one in batches.
struct Pair {
  Chat alone, together;
  std::vector<int32_t> want, got;
};

/// A trained model with an MTP block, which drafts for itself, too; texts that repeat themselves.
class StepBatch : public ModelTest {
 protected:
  void SetUp() override {
    open("tiny-qwen35");
    if (!IsSkipped()) loaded_ = load(path(), setup_with(setting(path())));
  }
  std::vector<Pair> make_pairs() const {
    std::vector<Pair> out;
    for (uint32_t i = 0; i < kSessions; ++i) {
      Pair p{chat_of(loaded_, {}), chat_of(loaded_, kKinds[i]), {}, {}};
      const std::vector<int32_t> once = tokens(19 + 2 * i);
      std::vector<int32_t> prompt = once;
      for (int k = 0; k < 2; ++k) prompt.insert(prompt.end(), once.begin(), once.end());
      for (Chat* c : {&p.alone, &p.together}) {
        c->prefill(prompt);
        use_endless_sampler(*c, loaded_.model.get(), i % 3 == 2 ? 0.6f : 0.0f);
      }
      while (p.want.size() < kTokens) {
        p.want.push_back(drawn(p.alone));
        p.alone.decode(p.want.back());
      }
      out.push_back(std::move(p));
    }
    return out;
  }
  Loaded loaded_;
};

struct Outputs {
  std::vector<sharpi_batch_step> steps;
  std::vector<std::vector<int32_t>> tokens;

  void add(const Chat& chat, uint32_t cap, const sharpi_sample_params* params = nullptr) {
    tokens.emplace_back(std::max(cap, 1u), -7);
    sharpi_batch_step s{};
    s.session = chat.get(), s.params = params, s.cap = cap, s.n_tokens = 77;
    s.out_tokens = tokens.back().data();
    steps.push_back(s);
  }
  sharpi_status run(sharpi_error* e) {
    return sharpi_step_batch(steps.data(), sizeof steps[0], static_cast<uint32_t>(steps.size()), e);
  }
  std::vector<int32_t> read(size_t i) const {
    return {tokens[i].begin(), tokens[i].begin() + steps[i].n_tokens};
  }
};

sharpi_draft_stats drafts_of(const Chat& chat) {
  sharpi_draft_stats stats{};
  stats.struct_size = sizeof stats;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_session_drafts(chat.get(), &stats, &e), SHARPI_OK) << e.text;
  return stats;
}

TEST_F(StepBatch, LeavesEverySessionWhereStepsAloneLeaveIt) {
  ASSERT_TRUE(loaded_.model);
  std::vector<Pair> pairs = make_pairs();
  uint32_t most_drafting = 0;  // sessions with more than one token of a step
  while (true) {
    Outputs all;
    std::vector<size_t> who;
    for (size_t i = 0; i < kSessions; ++i) {
      const size_t left = kTokens - pairs[i].got.size();
      if (left == 0) continue;
      all.add(pairs[i].together, std::min(kKinds[i].cap, static_cast<uint32_t>(left)));
      who.push_back(i);
    }
    if (who.empty()) break;
    sharpi_error e = SHARPI_ERROR_INIT;
    ASSERT_EQ(all.run(&e), SHARPI_OK) << e.text;
    uint32_t drafting = 0;
    for (size_t k = 0; k < who.size(); ++k) {
      ASSERT_GE(all.steps[k].n_tokens, 1u);
      ASSERT_LE(all.steps[k].n_tokens, all.steps[k].cap);
      if (all.steps[k].n_tokens > 1) ++drafting;
      const std::vector<int32_t> read = all.read(k);
      pairs[who[k]].got.insert(pairs[who[k]].got.end(), read.begin(), read.end());
    }
    most_drafting = std::max(most_drafting, drafting);
  }
  // How many drafts a session tries follows the measured time: of the four that have drafters, how
  // many bring tokens in the same step depends on what else the machine does.
  EXPECT_GE(most_drafting, 2u);
  for (size_t i = 0; i < kSessions; ++i) {
    EXPECT_EQ(pairs[i].got, pairs[i].want) << i;
    EXPECT_TRUE(same_bits(pairs[i].together.logits(), pairs[i].alone.logits())) << i;
    EXPECT_EQ(drafts_of(pairs[i].together).n_drafted != 0, kKinds[i].drafters != 0) << i;
  }
}

TEST_F(StepBatch, ATokenThatEndsAGenerationIsGivenAndNotRead) {
  ASSERT_TRUE(loaded_.model);
  std::vector<Pair> pairs = make_pairs();
  int32_t end = 0;
  while (sharpi_token_is_end(loaded_.model.get(), end) == 0) ++end;
  sharpi_sample_params params;
  sharpi_sample_params_init(&params, sizeof params);
  const float most = 1e30f;
  params.bias_tokens = &end, params.bias_values = &most, params.n_bias = 1;
  sharpi_sampler_params plain;
  sharpi_sampler_params_init(&plain, sizeof plain);
  plain.temperature = 0;
  sharpi_error e = SHARPI_ERROR_INIT;
  for (const size_t i : {size_t{0}, size_t{3}}) {
    ASSERT_EQ(sharpi_session_set_sampler(pairs[i].together.get(), &plain, &e), SHARPI_OK) << e.text;
  }
  Outputs all;
  all.add(pairs[0].together, 4, &params);
  all.add(pairs[1].together, 4);
  all.add(pairs[3].together, 4, &params);
  const uint32_t before = pairs[0].together.info().n_tokens;
  ASSERT_EQ(all.run(&e), SHARPI_OK) << e.text;
  for (const size_t k : {size_t{0}, size_t{2}}) EXPECT_EQ(all.read(k), std::vector<int32_t>{end});
  EXPECT_EQ(pairs[0].together.info().n_tokens, before);
  EXPECT_EQ(all.read(1)[0], pairs[1].want[0]);
  Outputs ends;  // no session is left to read
  ends.add(pairs[0].together, 1, &params);
  ASSERT_EQ(ends.run(&e), SHARPI_OK) << e.text;
  EXPECT_EQ(ends.read(0), std::vector<int32_t>{end});
}

TEST_F(StepBatch, MasksAndLogProbabilitiesAreEachSessionsOwn) {
  ASSERT_TRUE(loaded_.model);
  std::vector<Pair> pairs = make_pairs();
  std::vector<uint32_t> mask((pairs[0].alone.n_vocab() + 31) / 32);
  mask[2] = 1u << 5;  // token 69 alone
  std::vector<sharpi_logprob> probabilities(2 * 4);
  sharpi_sample_params masked, counted;
  sharpi_sample_params_init(&masked, sizeof masked);
  sharpi_sample_params_init(&counted, sizeof counted);
  masked.allowed_mask = mask.data(), masked.mask_words = static_cast<uint32_t>(mask.size());
  counted.logprobs = probabilities.data(), counted.n_logprobs = 2;
  for (int step = 0; step < 8; ++step) {
    Outputs all;
    all.add(pairs[1].together, 4, &masked);
    all.add(pairs[3].together, 4, &counted);
    sharpi_error e = SHARPI_ERROR_INIT;
    ASSERT_EQ(all.run(&e), SHARPI_OK) << e.text;
    EXPECT_EQ(all.read(0), std::vector<int32_t>{69});
    const std::vector<int32_t> read = all.read(1);
    for (size_t i = 0; i < read.size(); ++i) EXPECT_EQ(probabilities[2 * i].token, read[i]) << i;
    pairs[3].got.insert(pairs[3].got.end(), read.begin(), read.end());
  }
  EXPECT_GT(pairs[3].got.size(), 8u);
  EXPECT_EQ(pairs[3].got, slice(pairs[3].want, 0, pairs[3].got.size()));
}

/// The next tokens of a session that samples are those of its twin: its random state is as it was.
void expect_untouched(Pair* p, const std::string& what) {
  Outputs one;
  one.add(p->together, 1);
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(one.run(&e), SHARPI_OK) << what << ": " << e.text;
  EXPECT_EQ(one.read(0)[0], p->want[p->got.size()]) << what;
  p->got.push_back(one.read(0)[0]);
}

TEST_F(StepBatch, WhatIsRefusedChangesNoSessionAndUndoesItsDraws) {
  ASSERT_TRUE(loaded_.model);
  const Loaded elsewhere = load(path(), setup_with(setting(path())));
  std::vector<Pair> pairs = make_pairs();
  Pair& first = pairs[2];  // one that samples
  const auto refused = [&](Outputs all, sharpi_status status, const std::string& text) {
    const std::vector<char> before = saved(first.together);
    sharpi_error e = SHARPI_ERROR_INIT;
    EXPECT_EQ(all.run(&e), status) << text;
    EXPECT_NE(std::string(e.text).find(text), std::string::npos) << e.text;
    for (const sharpi_batch_step& s : all.steps) EXPECT_EQ(s.n_tokens, 0u) << text;
    EXPECT_TRUE(saved(first.together) == before) << text;
    expect_untouched(&first, text);
    return e.native_code;
  };
  const auto with = [&](const Chat& second, uint32_t cap = 4,
                        const sharpi_sample_params* params = nullptr) {
    Outputs all;
    all.add(first.together, 4);
    all.add(second, cap, params);
    return all;
  };
  const sharpi_status bad = SHARPI_E_INVALID_ARGUMENT;
  const Chat stranger = chat_of(elsewhere, {}), empty = chat_of(loaded_, kKinds[3]);
  Chat full = chat_of(loaded_, kKinds[3]);
  for (int i = 0; i < 8; ++i) full.prefill(tokens(32));
  refused(with(stranger), bad, "belong to different models");
  refused(with(first.together), bad, "sessions[0] and sessions[1] are the same");
  refused(with(pairs[1].together, 0), SHARPI_E_BUFFER_TOO_SMALL, "steps[1]: cap is 0, but a step");
  refused(with(empty), SHARPI_E_STATE, "steps[1]: ");
  refused(with(full), SHARPI_E_KV_FULL, "");
  Outputs null = with(pairs[1].together);
  null.steps[1].session = nullptr;
  refused(null, bad, "sessions[1] is null");
  null = with(pairs[1].together), null.steps[1].out_tokens = nullptr;
  refused(null, bad, "out_tokens");
  sharpi_sample_params params;
  sharpi_sample_params_init(&params, sizeof params);
  params.meanwhile = [](void*, int32_t) {};
  refused(with(pairs[1].together, 4, &params), bad, "steps[1].params has a meanwhile");
  sharpi_session_cancel(pairs[1].together.get());
  EXPECT_EQ(refused(with(pairs[1].together), SHARPI_E_CANCELLED, "steps[1] was cancelled"), 1);
  Outputs many = with(pairs[1].together);
  for (size_t i = 3; i < kSessions; ++i) many.add(pairs[i].together, 1);
  many.add(pairs[0].together, 1), many.add(pairs[0].alone, 1);
  refused(many, bad, "max_batch is 6");
  many.steps.pop_back();
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(many.run(&e), SHARPI_OK) << e.text;
  EXPECT_EQ(sharpi_step_batch(many.steps.data(), 8, 1, &e), bad);
  EXPECT_EQ(sharpi_step_batch(many.steps.data(), sizeof many.steps[0], 0, &e), bad);
  EXPECT_NE(std::string(e.text).find("1 to max_batch"), std::string::npos) << e.text;
  struct {
    sharpi_batch_step known;
    uint64_t more;
  } wide{many.steps[0], 1};
  EXPECT_EQ(sharpi_step_batch(&wide.known, sizeof wide, 1, &e), SHARPI_E_UNSUPPORTED);
  std::vector<sharpi_batch_step> crowd(65, many.steps[0]);
  for (sharpi_batch_step& s : crowd) s.n_tokens = 7;
  EXPECT_EQ(sharpi_step_batch(crowd.data(), sizeof crowd[0], 65, &e), bad);
  for (const sharpi_batch_step& s : crowd) EXPECT_EQ(s.n_tokens, 0u);
}

}  // namespace
}  // namespace sharpi::testing
