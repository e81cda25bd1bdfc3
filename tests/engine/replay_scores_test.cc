// SPDX-License-Identifier: MIT
// Replay scores: what they are, that they follow their rows wherever those go, and that who has
// none is told so.
#include <functional>

#include "engine_case.h"
#include "support/needle.h"
#include "support/plain_policies.h"
#include "support/session_rows.h"

namespace sharpi::testing {
namespace {

constexpr uint32_t kCtx = 640;

Edit replaying(uint32_t window, uint32_t every = 1, sharpi_kv_dtype kv = SHARPI_KV_F32) {
  return [=](sharpi_plan_params* p, sharpi_session_params* s) {
    p->n_chunk = 512;
    p->deterministic = 1;
    if (on_gpu()) p->arithmetic = SHARPI_ARITHMETIC_EXACT;  // scores are held to 2 in 1000
    s->n_ctx = kCtx;
    s->k_dtype = s->v_dtype = kv;
    s->capture_window = window;
    s->replay = 1;
    s->replay_every = every;
  };
}

sharpi_status compact(Chat& chat, const sharpi_compact_params& p, std::string* why = nullptr,
                      sharpi_compact_report* report = nullptr) {
  sharpi_error e = SHARPI_ERROR_INIT;
  const sharpi_status s = sharpi_session_compact(chat.get(), &p, report, &e);
  if (why != nullptr) *why = e.text;
  return s;
}

/// A compaction that keeps all rows: rows that wait for their scores get them.
void settle(Chat& chat) {
  std::vector<uint32_t> all(chat.info().n_slots_max);
  for (uint32_t i = 0; i < all.size(); ++i) all[i] = i;
  sharpi_compact_params p = compact_params(SHARPI_POLICY_KEEP, SHARPI_UNSET);
  p.keep = all.data();
  p.n_keep = static_cast<uint32_t>(all.size());
  std::string why;
  ASSERT_EQ(compact(chat, p, &why), SHARPI_OK) << why;
}

sharpi_compact_params by_replay(uint32_t budget, sharpi_policy policy = SHARPI_POLICY_REPLAY) {
  sharpi_compact_params p = compact_params(policy, budget);
  p.recency = 8;
  return p;
}

class ReplayScores : public ModelTest {
 protected:
  /// The last n rows, read in one pass.
  void expect_plain(const Chat& chat, uint32_t n, uint32_t every) {
    const auto spec = spec_of(path());
    ASSERT_TRUE(spec);
    const SessionRows rows = session_rows(*spec, saved(chat));
    EXPECT_EQ(rows.n_scored, rows.n_tokens);
    double most = 0;
    for (uint32_t l = 0; l < spec->n_layers(); ++l) {
      const OwnerRows& own = rows.layers[l];
      if (own.n_rows == 0) continue;
      const auto want = plain_replay_scores(*spec, rows, l, n, every);
      ASSERT_EQ(own.replay.size(), want.size());
      for (size_t h = 0; h < want.size(); ++h) {
        for (uint32_t i = 0; i < n; ++i) {
          const double got = static_cast<double>(own.replay[h][own.n_rows - n + i]);
          most = std::max(most, got);
          ASSERT_NEAR(got, want[h][i], 2e-3 * want[h][i] + 1e-6)
              << "layer " << l << ", head " << h << ", row " << own.n_rows - n + i;
        }
      }
    }
    EXPECT_GT(most, 0.05);
  }
};

TEST_P(ReplayScores, AreThoseOfThePlainForm) {
  for (const sharpi_kv_dtype kv : stored_dtypes()) {
    for (const uint32_t every : {1u, 4u}) {
      const Loaded l = load(path(), setup_with(replaying(512, every, kv)));
      Chat chat(l.model.get());
      chat.prefill(tokens(300));  // a chunk and a part of the next
      settle(chat);
      expect_plain(chat, 300, every);
    }
  }
}

/// Behind compacted rows, across the border of a chunk, one token at a time.
TEST_P(ReplayScores, OfDecodedRowsSeeTheChunkSinceTheCompaction) {
  const Loaded l = load(path(), setup_with(replaying(64)));
  Chat chat(l.model.get());
  chat.prefill(tokens(240));
  ASSERT_EQ(compact(chat, by_replay(60)), SHARPI_OK);
  for (const int32_t t : tokens(40)) chat.decode(t);
  settle(chat);
  expect_plain(chat, 40, 1);
}

/// The rows of a long pass have theirs with it; those of a short one wait. Both are the same bits.
TEST_P(ReplayScores, DoNotDependOnWhenTheyAreMade) {
  const Loaded now = load(path(), setup_with(replaying(64))),
               later = load(path(), setup_with(replaying(512)));
  const auto spec = spec_of(path());
  Chat a(now.model.get()), b(later.model.get());
  for (Chat* c : {&a, &b}) c->prefill(tokens(300));
  SessionRows rows = session_rows(*spec, saved(a)), waiting = session_rows(*spec, saved(b));
  EXPECT_EQ(rows.n_scored, 300u);
  EXPECT_EQ(waiting.n_scored, 0u);
  settle(b);
  waiting = session_rows(*spec, saved(b));
  for (uint32_t layer = 0; layer < spec->n_layers(); ++layer)
    EXPECT_TRUE(rows.layers[layer].replay == waiting.layers[layer].replay) << "layer " << layer;
}

/// Of everything that may have happened to a session, its twins keep what it keeps.
TEST_P(ReplayScores, FollowTheirRows) {
  const Loaded l = load(path(), setup_with(replaying(64)));
  Chat chat(l.model.get());
  chat.prefill(tokens(200));
  for (const int32_t t : tokens(30)) chat.decode(t);  // these wait
  Chat twin = chat.fork(), restored(l.model.get());
  restored.prefill(tokens(400));  // must not shine through
  const std::vector<char> blob = saved(chat);
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(sharpi_session_restore(restored.get(), blob.data(), blob.size(), &e), SHARPI_OK)
      << text_of(e);
  for (int round = 0; round < 2; ++round) {
    for (Chat* c : {&chat, &twin, &restored})
      ASSERT_EQ(compact(*c, by_replay(round == 0 ? 120 : 60)), SHARPI_OK);
    const std::vector<char> want = saved(chat);
    EXPECT_TRUE(saved(twin) == want);
    EXPECT_TRUE(saved(restored) == want);
    for (Chat* c : {&chat, &twin, &restored}) {
      c->prefill(tokens(100));
      for (const int32_t t : tokens(70)) c->decode(t);  // more than may wait
    }
  }
}

TEST_P(ReplayScores, OfRowsThatWereTakenBackAreMadeAgain) {
  const Loaded l = load(path(), setup_with(replaying(64)));
  if (l.info.is_hybrid != 0) return;
  Chat chat(l.model.get()), straight(l.model.get());
  const auto all = tokens(400);
  chat.prefill({all.begin(), all.begin() + 100});
  chat.prefill({all.begin() + 300, all.begin() + 400});
  for (int i = 0; i < 10; ++i) chat.decode(all[static_cast<size_t>(i)]);
  sharpi_error e = SHARPI_ERROR_INIT;
  if (sharpi_session_truncate(chat.get(), 100, &e) != SHARPI_OK) return;  // a window's ring is full
  straight.prefill({all.begin(), all.begin() + 100});
  for (Chat* c : {&chat, &straight}) c->prefill({all.begin() + 100, all.begin() + 260});
  EXPECT_TRUE(saved(chat) == saved(straight));
}

INSTANTIATE_TEST_SUITE_P(Engine, ReplayScores, ::testing::ValuesIn(compactable_models()),
                         model_name);

TEST(Replay, PlanIsAllocationAndAnUnplannedSessionIsRefused) {
  const MadeModel file(test::tiny_gemma4kv());
  const Loaded with = load(file.path(), setup_with(replaying(64))),
               without = load(file.path(), setup_with([](auto*p, sharpi_session_params*s) {
                                p->n_chunk = 512;
                                s->n_ctx = kCtx;
                                s->capture_window = 512;
                              }));
  Chat chat(with.model.get());
  const auto held = [](const MemoryRows& rows, const std::string& label) {
    uint64_t sum = 0;
    for (const sharpi_memory_row& r : rows)
      sum += label.empty() || label == r.label ? r.held_bytes : 0;
    return sum;
  };
  const MemoryRows rows = rows_of_handle(sharpi_session_memory, chat.get());
  EXPECT_EQ(held(rows, ""), with.plan_info.session_held_bytes);
  EXPECT_GT(held(rows, "replay scores"), 0u);
  for (const sharpi_memory_row& r : rows) {
    if (std::string(r.label) == "replay scores") {
      EXPECT_EQ(r.payload_bytes % (kCtx * sizeof(float)), 0u);
    }
  }
  sharpi_session_params s;
  sharpi_session_params_init(&s, sizeof s);
  s.n_ctx = kCtx;
  s.replay = 1;
  sharpi_session* out = nullptr;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_session_create(without.model.get(), &s, &out, &e), SHARPI_E_DOES_NOT_FIT);
  EXPECT_NE(std::string(e.text).find("priced sessions without it"), std::string::npos) << e.text;
}

TEST(Replay, WhatHasNoScoresIsRefusedByName) {
  const MadeModel file(test::tiny_qwen3());
  const Loaded with = load(file.path(), setup_with(replaying(64))),
               without = load(file.path(), setup_with([](auto*, sharpi_session_params*s) {
                                s->n_ctx = kCtx;
                                s->capture_window = 64;
                              }));
  Chat plain(without.model.get()), chat(with.model.get());
  for (Chat* c : {&plain, &chat}) c->prefill(file.tokens(100));
  const std::vector<char> before = saved(plain), has = saved(chat);
  std::string why;
  for (const sharpi_policy policy : {SHARPI_POLICY_REPLAY, SHARPI_POLICY_MIXED}) {
    EXPECT_EQ(compact(plain, by_replay(50, policy), &why), SHARPI_E_UNSUPPORTED);
    EXPECT_NE(why.find("replay is 0"), std::string::npos) << why;
  }
  EXPECT_TRUE(saved(plain) == before);
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_session_restore(chat.get(), before.data(), before.size(), &e),
            SHARPI_E_MISMATCH);
  EXPECT_NE(std::string(e.text).find("without replay scores"), std::string::npos) << e.text;
  EXPECT_TRUE(saved(chat) == has);
  // One that captures none reads over them.
  ASSERT_EQ(sharpi_session_restore(plain.get(), has.data(), has.size(), &e), SHARPI_OK)
      << text_of(e);
  EXPECT_TRUE(same_bits(plain.logits(), chat.logits()));
}

TEST(Replay, AutomaticAsksWhetherAQuestionIsKnownAndTheReportSaysWhatReplayChose) {
  const MadeModel file(test::tiny_qwen3());
  const Loaded l = load(file.path(), setup_with(replaying(64)));
  Chat chat(l.model.get());
  chat.prefill(file.tokens(300));
  Chat other = chat.fork();
  sharpi_compact_report r{};
  r.struct_size = sizeof r;
  sharpi_compact_params p = by_replay(100, SHARPI_POLICY_AUTO);
  p.sinks = 3;
  p.window = 20;
  ASSERT_EQ(compact(chat, p, nullptr, &r), SHARPI_OK);
  EXPECT_EQ(r.policy, SHARPI_POLICY_MIXED);
  EXPECT_EQ(r.kept_scored, 89u);
  EXPECT_EQ(r.kept_replayed, 12u);  // of the 25 beyond 64
  p.window = SHARPI_UNSET;          // no question is known
  ASSERT_EQ(compact(other, p, nullptr, &r), SHARPI_OK);
  EXPECT_EQ(r.policy, SHARPI_POLICY_REPLAY);
  EXPECT_EQ(r.kept_replayed, 89u);
}

/// One count of rows a head: the last rows and the marks of a hit have defaults of their own.
TEST(Replay, HeadsThatShareRowsKeepFewerLastOnesAndMarkMore) {
  const MadeModel file(test::tiny_qwen3());
  const Loaded l = load(file.path(), setup_with(replaying(64)));
  Chat chat(l.model.get());
  chat.prefill(file.tokens(300));
  const auto kept_by = [&](sharpi_layer_budget mode, uint32_t span, uint32_t* recent) {
    Chat one = chat.fork();
    sharpi_compact_params p = compact_params(SHARPI_POLICY_REPLAY, 100);
    p.layer_budget = mode;
    p.span = span;
    sharpi_compact_report r{};
    r.struct_size = sizeof r;
    EXPECT_EQ(compact(one, p, nullptr, &r), SHARPI_OK);
    *recent = r.kept_recent;
    return saved(one);
  };
  uint32_t equal = 0, shared = 0, n = 0;
  const auto alike = kept_by(SHARPI_LAYER_BUDGET_EQUAL, SHARPI_UNSET, &equal);
  const auto apart = kept_by(SHARPI_LAYER_BUDGET_SHARED, SHARPI_UNSET, &shared);
  EXPECT_EQ(equal, 50u) << "64, and at most half of the budget";
  EXPECT_EQ(shared, 16u);
  EXPECT_TRUE(alike == kept_by(SHARPI_LAYER_BUDGET_EQUAL, 4, &n));
  EXPECT_TRUE(apart == kept_by(SHARPI_LAYER_BUDGET_SHARED, 12, &n));
  EXPECT_FALSE(apart == kept_by(SHARPI_LAYER_BUDGET_SHARED, 4, &n));
}

std::vector<double> spread(const std::vector<double>& x) {
  std::vector<double> out = x;
  for (size_t i = 0; i < x.size(); ++i) {
    for (size_t j = 1; j <= 12 && j <= i; ++j)
      out[i] = std::max(out[i], x[i - j] * std::pow(0.999, j));
    for (size_t j = 1; j <= 2 && i + j < x.size(); ++j)
      out[i] = std::max(out[i], x[i + j] * std::pow(0.99, j));
  }
  return out;
}

/// One threshold over all heads, by each head's own scores times the sum of all at the position.
TEST(Replay, HeadsThatShareRowsCountWhatAllHeadsGiveAPositionToo) {
  constexpr uint32_t kRows = 300, kBudget = 60, kFixed = 4 + 16 + 8;
  const MadeModel file(test::tiny_qwen3());
  const auto spec = spec_of(file.path());
  ASSERT_TRUE(spec);
  const Loaded l = load(file.path(), setup_with(replaying(64)));
  Chat chat(l.model.get());
  chat.prefill(file.tokens(kRows));
  settle(chat);
  std::vector<std::vector<double>> own;
  std::vector<double> sums(kRows);
  for (const OwnerRows& layer : session_rows(*spec, saved(chat)).layers) {
    for (const auto& head : layer.replay) {
      own.emplace_back(head.begin(), head.end());
      for (uint32_t i = 0; i < kRows; ++i) sums[i] += own.back()[i];
    }
  }
  sums = spread(sums);
  std::vector<double> all;
  for (auto& head : own) {
    head = spread(head);
    for (uint32_t i = 0; i < kRows; ++i) head[i] *= sums[i];
    for (uint32_t i = 0; i < 4; ++i) head[i] = 1e9;
    for (uint32_t i = kRows - 16; i < kRows; ++i) head[i] = 1e9;
    std::vector<double> best = head;
    std::nth_element(best.begin(), best.begin() + kFixed - 1, best.end(), std::greater<>());
    for (double& x : head) x = x >= best[kFixed - 1] ? 1e9 : x;
    all.insert(all.end(), head.begin(), head.end());
  }
  const auto last = static_cast<std::ptrdiff_t>(own.size() * kBudget - 1);
  std::nth_element(all.begin(), all.begin() + last, all.end(), std::greater<>());
  sharpi_compact_params p = compact_params(SHARPI_POLICY_REPLAY, kBudget);
  p.layer_budget = SHARPI_LAYER_BUDGET_SHARED;
  ASSERT_EQ(compact(chat, p), SHARPI_OK);
  size_t at = 0, others = 0;
  for (uint32_t layer = 0; at < own.size(); ++layer) {
    for (uint32_t h = 0; h < spec->layers[layer].attention.n_kv_heads; ++h, ++at) {
      uint32_t n = 0;
      std::vector<uint32_t> kept(kRows);
      sharpi_error e = SHARPI_ERROR_INIT;
      ASSERT_EQ(sharpi_session_kept(chat.get(), layer, h, kept.data(), kRows, &n, &e), SHARPI_OK)
          << text_of(e);
      for (uint32_t i = 0; i < kRows; ++i) {
        const bool wanted = own[at][i] >= all[static_cast<size_t>(last)];
        others += wanted != std::binary_search(kept.begin(), kept.begin() + n, i);
      }
    }
  }
  EXPECT_LE(others, 2u) << "but for rows that are nearly equal";
}

TEST(Replay, ACancelledCallLeavesThoseOfTheChunksThatItRead) {
  const MadeModel file(test::tiny_qwen3());
  const Loaded l = load(file.path(), setup_with(replaying(64)));
  Chat chat(l.model.get()), straight(l.model.get());
  for (Chat* c : {&chat, &straight}) c->prefill(file.tokens(90));
  sharpi_prefill_params p;
  sharpi_prefill_params_init(&p, sizeof p);
  p.n_chunk = 100;
  p.progress = [](void*, uint32_t, uint64_t, uint64_t) { return 1; };
  const auto lost = file.tokens(200, 7);
  uint32_t n = 0;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_session_prefill(chat.get(), lost.data(), 200, &p, &n, &e), SHARPI_E_CANCELLED);
  EXPECT_EQ(n, 100u);
  straight.prefill({lost.begin(), lost.begin() + 100});
  for (Chat* c : {&chat, &straight}) c->prefill(file.tokens(100, 3));
  EXPECT_TRUE(saved(chat) == saved(straight));
}

}  // namespace
}  // namespace sharpi::testing
