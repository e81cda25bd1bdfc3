// SPDX-License-Identifier: MIT
// Replay scores on devices, whatever tier these are of: they are those of the plain form over the
// rows and queries that a session saves, they are there whenever a row is, and rows that are chosen
// by them are those that the CPU keeps. Thread rule: as sharpi.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "engine/by_head_case.h"
#include "support/device_ladders.h"
#include "support/plain_policies.h"
#include "support/session_rows.h"

namespace sharpi::testing {

inline Edit capturing(uint32_t window, uint32_t every = 1, sharpi_kv_dtype kv = SHARPI_KV_F32) {
  return [=](sharpi_plan_params* p, sharpi_session_params* s) {
    p->n_chunk = 512;
    p->arithmetic = SHARPI_ARITHMETIC_EXACT;
    s->n_ctx = 640;
    s->k_dtype = s->v_dtype = s->tail_k_dtype = s->tail_v_dtype = kv;
    s->capture_window = window;
    s->replay = 1;
    s->replay_every = every;
    s->n_checkpoints = 0;
  };
}

inline sharpi_compact_params by_replay(uint32_t budget,
                                       sharpi_policy policy = SHARPI_POLICY_REPLAY) {
  sharpi_compact_params p = compact_params(policy, budget);
  p.recency = 8;
  return p;
}

/// A compaction that keeps all rows: those that wait for their scores get them.
inline void settle(Chat& chat) {
  std::vector<uint32_t> all(chat.info().n_slots_max);
  for (uint32_t i = 0; i < all.size(); ++i) all[i] = i;
  sharpi_compact_params p = compact_params(SHARPI_POLICY_KEEP, SHARPI_UNSET);
  p.keep = all.data();
  p.n_keep = static_cast<uint32_t>(all.size());
  compact(chat, p);
}

/// The last n rows have been given their scores together, by queries that the session has.
inline void expect_plain(const ModelSpec& spec, const SessionRows& rows, uint32_t n, uint32_t every,
                         const std::string& what) {
  double most = 0;
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    const OwnerRows& own = rows.layers[l];
    if (own.n_rows == 0) continue;
    const auto want = plain_replay_scores(spec, rows, l, n, every);
    ASSERT_EQ(own.replay.size(), want.size()) << what;
    for (size_t h = 0; h < want.size(); ++h) {
      for (uint32_t i = 0; i < n; ++i) {
        const auto got = static_cast<double>(own.replay[h][own.n_rows - n + i]);
        most = std::max(most, got);
        ASSERT_NEAR(got, want[h][i], 2e-3 * want[h][i] + 1e-6)
            << what << ": layer " << l << ", head " << h << ", row " << own.n_rows - n + i;
      }
    }
  }
  EXPECT_GT(most, 0.05) << what;
}

/// The largest difference between the scores of two sessions that have read the same.
inline double apart(const SessionRows& a, const SessionRows& b) {
  double most = 0;
  for (size_t l = 0; l < a.layers.size(); ++l) {
    EXPECT_EQ(a.layers[l].replay.size(), b.layers[l].replay.size());
    for (size_t h = 0; h < a.layers[l].replay.size(); ++h) {
      for (size_t i = 0; i < a.layers[l].replay[h].size(); ++i) {
        const double d = static_cast<double>(a.layers[l].replay[h][i]) -
                         static_cast<double>(b.layers[l].replay[h].at(i));
        most = std::max(most, std::isfinite(d) ? std::fabs(d) : INFINITY);
      }
    }
  }
  return most;
}

/// What queries of a pass give, and what captured ones give when the rows have waited.
inline void check_scores(const LadderMachine& machine, const std::string& path,
                         const Ladder& ladder, const std::vector<int32_t>& text, sharpi_kv_dtype kv,
                         uint32_t every, const std::string& what) {
  const auto spec = spec_of(path);
  ASSERT_TRUE(spec);
  const Loaded now = machine.load(path, ladder, capturing(64, every, kv)),
               later = machine.load(path, ladder, capturing(512, every, kv));
  ASSERT_TRUE(now.model && later.model) << what;
  Chat a(now.model.get()), b(later.model.get());
  for (Chat* c : {&a, &b}) c->prefill(text);  // a chunk of 256 positions and a part of the next
  EXPECT_EQ(session_rows(*spec, saved(b)).n_scored, 0u) << what;
  settle(b);
  const SessionRows passed = session_rows(*spec, saved(a)), waited = session_rows(*spec, saved(b));
  EXPECT_EQ(passed.n_scored, passed.n_tokens) << what;
  expect_plain(*spec, waited, static_cast<uint32_t>(text.size()), every, what);
  EXPECT_LE(apart(passed, waited), 1e-4) << what;
}

using Kept = std::vector<std::vector<std::vector<uint32_t>>>;
inline std::vector<std::vector<uint32_t>> all_heads(const Chat& chat) {
  std::vector<std::vector<uint32_t>> out;
  for (uint32_t l = 0; l < 8; ++l) {
    for (uint32_t h = 0; h < 4; ++h) out.push_back(kept(chat, l, h));
  }
  return out;
}

/// What a session keeps in the course of its life, in which it is forked, saved, restored by a
/// session of `other`, cut and compacted by every policy that reads replay scores.
inline Kept live_by_replay(const Loaded& l, const Loaded& other, const std::vector<int32_t>& text,
                           sharpi_layer_budget budget) {
  Kept out;
  Chat chat(l.model.get());
  chat.prefill(slice(text, 0, 200));
  chat.prefill(slice(text, 200, 230));  // these wait
  if (l.info.is_hybrid == 0 && sharpi_session_truncate(chat.get(), 215, nullptr) == SHARPI_OK)
    chat.prefill(slice(text, 215, 230));
  Chat twin = chat.fork(), back(l.model.get()), there(other.model.get());
  sharpi_error e = SHARPI_ERROR_INIT;
  for (const auto& [from, to] : {std::pair{&chat, &there}, std::pair{&there, &back}}) {
    const std::vector<char> blob = saved(*from);
    EXPECT_EQ(sharpi_session_restore(to->get(), blob.data(), blob.size(), &e), SHARPI_OK)
        << text_of(e);
  }
  // The automatic policy is REPLAY, and MIXED where a window is given.
  int round = 0;
  for (const uint32_t window : {SHARPI_UNSET, 20u, SHARPI_UNSET}) {
    const sharpi_policy by_window =
        window == SHARPI_UNSET ? SHARPI_POLICY_REPLAY : SHARPI_POLICY_MIXED;
    sharpi_compact_params p = by_replay(120, round == 2 ? by_window : SHARPI_POLICY_AUTO);
    p.layer_budget = budget;
    p.window = window;
    for (Chat* c : {&chat, &twin, &back}) compact(*c, p);
    out.push_back(all_heads(chat));
    EXPECT_EQ(all_heads(twin), out.back()) << "a fork, round " << round;
    EXPECT_EQ(all_heads(back), out.back()) << "restored, round " << round;
    const auto at = static_cast<size_t>(230 + 110 * round++);
    for (Chat* c : {&chat, &twin, &back}) {
      c->prefill(slice(text, at, at + 80));
      for (size_t i = at + 80; i < at + 110; ++i) c->decode(text[i]);
    }
  }
  return out;
}

/// A session of bounded rows makes room by MIXED while it reads and decodes.
inline Kept live_bounded(const Loaded& l, const std::vector<int32_t>& text) {
  Kept out;
  Chat chat(l.model.get());
  chat.prefill(slice(text, 0, 300));
  out.push_back(all_heads(chat));
  for (size_t i = 300; i < 420; ++i) chat.decode(text[i]);
  out.push_back(all_heads(chat));
  return out;
}

inline Edit bounded(const Edit& of) {
  return [=](sharpi_plan_params* p, sharpi_session_params* s) {
    of(p, s);
    p->n_chunk = 100;
    s->kv_budget = 160;
    s->recency = 8;
  };
}

/// Both on the CPU and on `ladder`.
inline void check_lives(const LadderMachine& machine, const std::string& path, const Ladder& ladder,
                        const std::vector<int32_t>& text,
                        const std::vector<sharpi_layer_budget>& budgets, const std::string& what) {
  const Edit edit = capturing(64);
  const Loaded cpu = machine.load(path, {}, edit), gpu = machine.load(path, ladder, edit);
  ASSERT_TRUE(cpu.model && gpu.model) << what;
  for (const sharpi_layer_budget budget : budgets)
    EXPECT_TRUE(live_by_replay(cpu, gpu, text, budget) == live_by_replay(gpu, cpu, text, budget))
        << what << ", layer_budget " << budget;
  EXPECT_TRUE(live_bounded(machine.load(path, {}, bounded(edit)), text) ==
              live_bounded(machine.load(path, ladder, bounded(edit)), text))
      << what << ", bounded";
}

}  // namespace sharpi::testing
