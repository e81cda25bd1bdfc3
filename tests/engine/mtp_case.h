// SPDX-License-Identifier: MIT
// What tests of the block for multi-token prediction share: models that have one, sessions that
// draft by it and that do not, what it drafts, its rows and its bytes. Thread rule: one thread.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "api/api_handles.h"
#include "draft_case.h"

namespace sharpi::testing {

inline std::vector<Fixture> models_with_mtp() {
  std::vector<Fixture> out;
  for (const char* name : {"tiny-qwen35", "tiny-qwen35moe"}) {
    const std::optional<Fixture> f = find_fixture(name);
    if (f) out.push_back(*f);
  }
  return out;
}

inline Golden golden_of(const Fixture& f) {
  auto golden = load_golden(f.golden_path);
  EXPECT_TRUE(golden.is_ok()) << golden.status().text();
  return golden.take();
}

inline Edit drafting(uint32_t drafters, std::function<void(sharpi_session_params*)> edit = {}) {
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
inline Chat plain_chat(const Loaded& l,
                       const std::function<void(sharpi_session_params*)>& edit = {}) {
  sharpi_session_params s;
  sharpi_session_params_init(&s, sizeof s);
  s.n_ctx = 160, s.n_checkpoints = 2;
  if (edit) edit(&s);
  return Chat(l.model.get(), &s);
}

inline void use_temperature(const Chat& chat, float temperature) {
  sharpi_sampler_params p;
  sharpi_sampler_params_init(&p, sizeof p);
  p.temperature = temperature;
  p.seed = 7;
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(sharpi_session_set_sampler(chat.get(), &p, &e), SHARPI_OK) << e.text;
}

inline std::vector<int32_t> decoded(Chat& chat, size_t n) {
  std::vector<int32_t> out;
  while (out.size() < n) {
    out.push_back(drawn(chat));
    chat.decode(out.back());
  }
  return out;
}

/// What the block drafts behind `next`; where logits is given, those of the last draft.
inline std::vector<int32_t> drafts_of(const Chat& chat, int32_t next, uint32_t n,
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
  int32_t largest = -1;  // id of a draft
};

/// Passes over n drafts of the block until at least `stop` tokens are read.
inline std::vector<int32_t> drafted(const Chat& chat, uint32_t n, size_t stop, Tally* tally) {
  std::vector<int32_t> got;
  while (got.size() < stop && !::testing::Test::HasFailure()) {
    std::vector<int32_t> tokens = {drawn(chat)};
    const auto left = static_cast<uint32_t>(std::min<size_t>(n, stop - got.size() - 1));
    for (const int32_t t : drafts_of(chat, tokens[0], left)) {
      tokens.push_back(t);
      tally->largest = std::max(tally->largest, t);
    }
    const std::vector<int32_t> read = verified(chat, tokens);
    tally->drafted += tokens.size() - 1;
    tally->accepted += read.size() - 1;
    got.insert(got.end(), read.begin(), read.end());
  }
  return got;
}

inline std::vector<std::byte> rows_of_block(const Chat& chat) {
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
inline void expect_rows_of_a_prompt(const Loaded& loaded, const Chat& chat,
                                    const std::string& what) {
  const std::span<const int32_t> tokens = chat.get()->p->tokens();
  Chat fresh(loaded.model.get());
  fresh.prefill({tokens.begin(), tokens.end()});
  const std::vector<std::byte> want = rows_of_block(fresh), got = rows_of_block(chat);
  EXPECT_EQ(chat.get()->p->mtp()->rows().next_position() + 1, tokens.size()) << what;
  EXPECT_TRUE(got == want) << what;
}

inline std::vector<int32_t> first_tokens(const Golden& g, size_t n) {
  return slice(g.cases.back().tokens, 0, n);
}

/// Budgets here are the host's; those of a device: plan_test.
inline Edit on_host(Edit edit) {
  return [=](sharpi_plan_params* p, sharpi_session_params* s) {
    edit(p, s);
    p->n_gpu_layers = 0;
  };
}

inline void expect_refused(const std::string& path, Edit edit, sharpi_status status,
                           const char* text) {
  const ContextPtr context = make_context({});
  PlanPtr plan;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(try_plan(context.get(), path, setup_with(std::move(edit)), &plan, &e), status) << text;
  EXPECT_NE(std::string(e.text).find(text), std::string::npos) << e.text;
}

inline std::string fallback_of(const Loaded& l) {
  char text[400] = "";
  size_t n = 0;
  sharpi_error e = SHARPI_ERROR_INIT;
  sharpi_plan_fallback(l.plan.get(), 0, text, sizeof text, &n, &e);
  return text;
}

}  // namespace sharpi::testing
