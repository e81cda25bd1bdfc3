// SPDX-License-Identifier: MIT
// Rows in blocks of one KV head on devices, whatever tier these are of: heads keep what they keep
// on the CPU, what reads and writes such rows has the bits that rows of all heads together have,
// and saved sessions go from tier to tier. Thread rule: as sharpi.h.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/by_head_case.h"
#include "support/device_ladders.h"

namespace sharpi::testing {

/// How far logits may be from the CPU's where rows are f32, and where they are not.
inline constexpr double kNearTheCpu = 2e-3, kNearInFewBits = 0.05;

inline Edit exact_rows(sharpi_kv_dtype kv) {
  return [=](sharpi_plan_params* p, sharpi_session_params* s) {
    watching(kv, true, true)(p, s);
    s->tail_k_dtype = s->tail_v_dtype = kv;
    s->n_ctx = 400;
  };
}

inline std::vector<std::vector<uint32_t>> all_kept(const Chat& chat) {
  std::vector<std::vector<uint32_t>> out;
  for (uint32_t l = 0; l < 8; ++l) {
    for (uint32_t h = 0; h < 4; ++h) out.push_back(kept(chat, l, h));
  }
  return out;
}

inline void restore(const Chat& chat, const std::vector<char>& blob) {
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(sharpi_session_restore(chat.get(), blob.data(), blob.size(), &e), SHARPI_OK)
      << text_of(e);
}

/// What a session keeps and says from its compaction on.
struct Life {
  std::vector<std::vector<std::vector<uint32_t>>> kept;
  std::vector<Logits> logits;
};
inline Life live(const Loaded& l, const std::vector<int32_t>& text) {
  Life life;
  Chat chat(l.model.get());
  chat.prefill(slice(text, 0, 180));
  compact(chat, params(SHARPI_LAYER_BUDGET_SHARED, SHARPI_POLICY_SNAPKV, 60));
  life.kept.push_back(all_kept(chat));
  for (const auto& [from, to] : {std::pair<size_t, size_t>{180, 250}, {250, 253}}) {
    chat.prefill(slice(text, from, to));  // a chunk and a rest, few rows
    life.logits.push_back(chat.logits());
  }
  for (size_t i = 253; i < 257; ++i) {
    chat.decode(text[i]);
    life.logits.push_back(chat.logits());
  }
  compact(chat, params(SHARPI_LAYER_BUDGET_EQUAL, SHARPI_POLICY_VALUE, 50));
  life.kept.push_back(all_kept(chat));
  chat.decode(text[257]);
  life.logits.push_back(chat.logits());
  compact(chat, params(SHARPI_LAYER_BUDGET_SHARED, SHARPI_POLICY_RETRIEVAL, 40));
  life.kept.push_back(all_kept(chat));
  chat.decode(text[258]);
  life.logits.push_back(chat.logits());
  return life;
}

/// On `ladder` as on the host.
inline void check_keeping(const LadderMachine& machine, const MadeModel& file, const Ladder& ladder,
                          const std::string& what) {
  const std::vector<int32_t> text = file.tokens(260);
  const Edit edit = exact_rows(SHARPI_KV_F32);
  const Loaded host = machine.load(file.path(), {}, edit),
               there = machine.load(file.path(), ladder, edit);
  ASSERT_TRUE(host.model && there.model) << what;
  const Life want = live(host, text), got = live(there, text);
  EXPECT_TRUE(got.kept == want.kept) << what;
  for (size_t i = 0; i < want.logits.size(); ++i)
    EXPECT_LE(distance(got.logits[i], want.logits[i]), kNearTheCpu) << what << i;
}

/// By this policy one threshold leaves every head as many rows as EQUAL does.
inline void check_bits(const LadderMachine& machine, const MadeModel& file, const Ladder& ladder,
                       sharpi_kv_dtype kv, const std::string& what) {
  const std::vector<int32_t> text = file.tokens(260);
  const Loaded l = machine.load(file.path(), ladder, exact_rows(kv));
  ASSERT_TRUE(l.model) << what;
  Chat a(l.model.get()), b(l.model.get());
  const auto both = [&](const std::function<void(Chat&)>& f) {
    for (Chat* chat : {&a, &b}) f(*chat);
    EXPECT_TRUE(same_bits(a.logits(), b.logits())) << what;
  };
  both([&](Chat& chat) { chat.prefill(slice(text, 0, 200)); });
  compact(a, params(SHARPI_LAYER_BUDGET_EQUAL, SHARPI_POLICY_RETRIEVAL, 70));
  compact(b, params(SHARPI_LAYER_BUDGET_SHARED, SHARPI_POLICY_RETRIEVAL, 70));
  ASSERT_TRUE(all_kept(a) == all_kept(b)) << what;
  both([&](Chat& chat) { chat.prefill(slice(text, 200, 250)); });
  both([&](Chat& chat) { chat.decode(text[250]); });
  both([&](Chat& chat) { chat.decode(text[251]); });
  for (const Chat* chat : {&a, &b})
    compact(*chat, params(SHARPI_LAYER_BUDGET_EQUAL, SHARPI_POLICY_VALUE, 50));
  ASSERT_TRUE(all_kept(a) == all_kept(b)) << what;
  both([&](Chat& chat) { chat.prefill(slice(text, 252, 255)); });
  sharpi_session* two[] = {a.get(), b.get()};
  const int32_t tokens[] = {text[255], text[255]};
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(sharpi_decode_batch(two, tokens, 2, &e), SHARPI_OK) << text_of(e);
  EXPECT_TRUE(same_bits(a.logits(), b.logits())) << what << ", a batch";
}

/// Sessions that make room by themselves, past their context.
inline void check_bounded(const LadderMachine& machine, const MadeModel& file,
                          const Ladder& ladder) {
  const std::vector<int32_t> text = file.tokens(330);
  const Loaded l = machine.load(file.path(), ladder, [](auto* p, auto* s) {
    exact_rows(SHARPI_KV_Q8_0)(p, s);
    p->n_chunk = 16;
    s->n_ctx = 192;
    s->kv_budget = 80;
  });
  ASSERT_TRUE(l.model);
  Chat a(l.model.get()), b(l.model.get());
  for (Chat* chat : {&a, &b}) chat->prefill(slice(text, 0, 90));
  compact(a, params(SHARPI_LAYER_BUDGET_EQUAL, SHARPI_POLICY_RETRIEVAL, 60));
  compact(b, params(SHARPI_LAYER_BUDGET_SHARED, SHARPI_POLICY_RETRIEVAL, 60));
  const uint64_t held = b.info().kv_held_bytes;
  for (size_t i = 90; i < text.size(); ++i) {
    for (Chat* chat : {&a, &b}) chat->decode(text[i]);
    ASSERT_TRUE(same_bits(a.logits(), b.logits())) << "token " << i;
  }
  EXPECT_EQ(b.info().kv_held_bytes, held) << "a bounded session took memory";
  EXPECT_LT(b.info().n_tokens, 193u);
}

/// What one tier saved is what another one saves, and goes on there; forks of it, too.
inline void check_saved_forms(const LadderMachine& machine, const MadeModel& file,
                              const Ladder& ladder, sharpi_kv_dtype kv, const std::string& what) {
  const std::vector<int32_t> text = file.tokens(260);
  const Loaded host = machine.load(file.path(), {}, exact_rows(kv)),
               there = machine.load(file.path(), ladder, exact_rows(kv));
  ASSERT_TRUE(host.model && there.model) << what;
  Chat a(host.model.get());
  a.prefill(slice(text, 0, 200));
  compact(a, params(SHARPI_LAYER_BUDGET_SHARED, SHARPI_POLICY_SNAPKV, 70));
  a.prefill(slice(text, 200, 230));
  const std::vector<char> blob = saved(a);
  Chat b(there.model.get());
  restore(b, blob);
  EXPECT_TRUE(saved(b) == blob) << what;
  EXPECT_TRUE(all_kept(b) == all_kept(a)) << what;
  for (Chat* chat : {&a, &b}) chat->decode(text[230]);
  EXPECT_LE(distance(a.logits(), b.logits()), kv == SHARPI_KV_F32 ? kNearTheCpu : kNearInFewBits)
      << what;
  // Forks: one that is compacted again leaves the other alone, an empty one begins anew.
  restore(b, blob);
  Chat twin = b.fork();
  const Chat third = twin.fork();
  EXPECT_TRUE(saved(third) == blob) << what;
  compact(third, params(SHARPI_LAYER_BUDGET_SHARED, SHARPI_POLICY_SPAN, 40, 0));
  EXPECT_TRUE(saved(twin) == blob) << what;
  for (size_t i = 230; i < 233; ++i) {
    for (Chat* chat : {&b, &twin}) chat->decode(text[i]);
    EXPECT_TRUE(same_bits(b.logits(), twin.logits())) << what << ", token " << i;
  }
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(sharpi_session_truncate(twin.get(), 0, &e), SHARPI_OK) << text_of(e);
  Chat fresh(there.model.get());
  twin.prefill(slice(text, 0, 100));
  fresh.prefill(slice(text, 0, 100));
  EXPECT_TRUE(saved(twin) == saved(fresh)) << what;
}

}  // namespace sharpi::testing
