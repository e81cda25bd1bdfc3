// SPDX-License-Identifier: MIT
// What tests of drafts share, whoever drafts: a token that is drawn, a pass over drafts behind it,
// and two sessions that must not differ. Thread rule: one thread.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "engine/engine_case.h"

namespace sharpi::testing {

inline int32_t drawn(const Chat& chat) {
  int32_t t = -1;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_session_sample(chat.get(), nullptr, &t, &e), SHARPI_OK) << e.text;
  return t;
}

/// One pass over a token and the drafts behind it. Returns what was read of them.
inline std::vector<int32_t> verified(const Chat& chat, std::vector<int32_t> tokens) {
  uint32_t read = 0;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_session_verify(chat.get(), tokens.data(), static_cast<uint32_t>(tokens.size()),
                                  nullptr, &read, &e),
            SHARPI_OK)
      << e.text;
  EXPECT_GE(read, 1u);
  tokens.resize(read);
  return tokens;
}

/// No token ends these texts: steps return such a token without reading it.
inline void use_endless_sampler(const Chat& chat, const sharpi_model* model, float temperature,
                                float penalty = 1.0f) {
  std::vector<int32_t> ends;
  for (int32_t t = 0; t < static_cast<int32_t>(chat.n_vocab()); ++t) {
    if (sharpi_token_is_end(model, t) != 0) ends.push_back(t);
  }
  const std::vector<float> never(ends.size(), -INFINITY);
  sharpi_sampler_params p;
  sharpi_sampler_params_init(&p, sizeof p);
  p.temperature = temperature;
  p.seed = 7;
  p.repeat_penalty = penalty;
  p.n_bias = static_cast<uint32_t>(ends.size());
  p.bias_tokens = ends.data();
  p.bias_values = never.data();
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(sharpi_session_set_sampler(chat.get(), &p, &e), SHARPI_OK) << e.text;
}

/// Reads `want` by passes over up to n drafts, of which the host gets every `wrong`-th wrong.
/// Ends after at least `stop` tokens; the tokens that were read.
inline std::vector<int32_t> with_drafts(const Chat& chat, const std::vector<int32_t>& want,
                                        uint32_t n, uint32_t wrong, size_t stop) {
  std::vector<int32_t> got;
  uint32_t count = 0;
  while (got.size() < stop && !::testing::Test::HasFailure()) {
    std::vector<int32_t> tokens = {drawn(chat)};
    for (size_t i = got.size() + 1; i < want.size() && tokens.size() <= n; ++i) {
      const bool bad = ++count % wrong == 0;
      tokens.push_back(bad ? (want[i] + 1) % 300 : want[i]);
    }
    const std::vector<int32_t> read = verified(chat, tokens);
    got.insert(got.end(), read.begin(), read.end());
  }
  return got;
}

inline void expect_same(const Chat& got, const Chat& want, const std::string& what) {
  EXPECT_TRUE(same_bits(got.logits(), want.logits())) << what;
  EXPECT_EQ(reachable(got), reachable(want)) << what;
  EXPECT_EQ(got.info().n_slots_max, want.info().n_slots_max) << what;
  EXPECT_TRUE(saved(got) == saved(want)) << what << ": the saved forms differ";
}

/// Bytes that rows hold whose label has the word, of sessions or of all else, and to stay.
inline uint64_t sum_of(const std::vector<sharpi_memory_row>& rows, const char* word, bool session) {
  uint64_t n = 0;
  for (const sharpi_memory_row& r : rows) {
    if (std::string(r.label).find(word) != std::string::npos && (r.per_session != 0) == session &&
        r.transient == 0)
      n += r.held_bytes;
  }
  return n;
}

/// Rows of a plan, of the model that was loaded by it, and of a session.
struct AllRows {
  AllRows(const Loaded& l, const Chat& chat)
      : planned(rows_of_handle(sharpi_plan_rows, l.plan.get())),
        model(rows_of_handle(sharpi_model_memory, l.model.get())),
        session(rows_of_handle(sharpi_session_memory, chat.get())) {}
  std::vector<sharpi_memory_row> planned, model, session;
};

}  // namespace sharpi::testing
