// SPDX-License-Identifier: MIT
// What calls of a random sequence are made of: a session's state, a draw, callbacks that stop or
// refuse. Thread rule: one thread.
#pragma once

#include <array>
#include <cmath>
#include <functional>
#include <span>
#include <vector>

#include "replay_sequence.h"

namespace sharpi::testing {

constexpr uint32_t kWords = kReplayVocab / 32;

/// What a call may not change unless it says so.
struct State {
  explicit State(const Chat& c) : blob(saved(c)), lengths(reachable(c)), info(c.info()) {}
  std::vector<char> blob;
  std::vector<uint32_t> lengths;
  sharpi_session_summary info;
};

using Call = std::function<sharpi_status(sharpi_session*, sharpi_error*)>;

/// What one draw takes besides the sampler, for each of `rows` draws a mask, and what it tells.
struct Draw {
  std::vector<uint32_t> mask;  // rows * kWords, or none
  std::vector<int32_t> bias_tokens;
  std::vector<float> bias_values;
  uint32_t n_logprobs = 0;
  /// For the i-th of these draws; `out` takes the log-probabilities of `n` draws.
  sharpi_sample_params params(size_t row, size_t n, std::vector<sharpi_logprob>* out) const {
    sharpi_sample_params p;
    sharpi_sample_params_init(&p, sizeof p);
    if (!mask.empty()) p.allowed_mask = mask.data() + row * kWords, p.mask_words = kWords;
    p.n_bias = static_cast<uint32_t>(bias_tokens.size());
    p.bias_tokens = bias_tokens.data(), p.bias_values = bias_values.data();
    p.n_logprobs = n_logprobs;
    out->assign(n * n_logprobs, {});
    p.logprobs = out->data();
    return p;
  }
};

/// Settings of a sampler; `token` and `value` are what its bias points to.
inline sharpi_sampler_params make_sampler(const Below& below, int32_t* token, float* value) {
  const auto chance = [&](uint32_t percent) { return below(100) < percent; };
  sharpi_sampler_params p;
  sharpi_sampler_params_init(&p, sizeof p);
  p.seed = below(1000);
  p.temperature = chance(30) ? 0.0f : 0.9f;
  p.repeat_penalty = chance(50) ? 1.3f : 1.0f;
  *token = static_cast<int32_t>(below(kReplayVocab));
  *value = 2.0f;
  if (chance(20)) p.bias_tokens = token, p.bias_values = value, p.n_bias = 1;
  return p;
}

/// A request for a compaction of a session with so many rows.
class Compaction {
 public:
  Compaction(const Below& below, uint32_t n_rows) {
    const auto chance = [&](uint32_t percent) { return below(100) < percent; };
    sharpi_compact_params_init(&p_, sizeof p_);
    p_.policy = below(8);
    p_.budget = 1 + below(40);
    p_.recency = below(6);
    p_.sinks = below(3);
    p_.headroom = below(40);
    p_.layer_budget = p_.policy == SHARPI_POLICY_GLOBAL ? 0 : below(4);
    probe_.resize(1 + below(kReplayChunk));
    for (int32_t& t : probe_) t = static_cast<int32_t>(below(kReplayVocab));
    p_.n_probe = chance(40) ? static_cast<uint32_t>(probe_.size()) : 0;
    if (p_.policy != SHARPI_POLICY_KEEP) return;
    for (uint32_t i = below(3); i < n_rows; i += 1 + below(3)) keep_.push_back(i);
    sharpi_compact_params_init(&p_, sizeof p_);
    p_.policy = SHARPI_POLICY_KEEP;
    p_.n_keep = static_cast<uint32_t>(keep_.size());
  }
  sharpi_compact_params params() const {
    sharpi_compact_params p = p_;
    if (p.n_probe != 0) p.probe = probe_.data();
    if (p.policy == SHARPI_POLICY_KEEP) p.keep = keep_.data();
    return p;
  }

 private:
  sharpi_compact_params p_;
  std::vector<int32_t> probe_;
  std::vector<uint32_t> keep_;
};

struct Stopper {
  sharpi_session* session = nullptr;
  uint32_t at = 0, n_calls = 0;
  bool by_cancel = false;
};
inline int32_t stop(void* user, uint32_t, uint64_t, uint64_t) {
  auto* s = static_cast<Stopper*>(user);
  if (++s->n_calls != s->at) return 0;
  if (s->by_cancel) sharpi_session_cancel(s->session);
  return s->by_cancel ? 0 : 1;
}

/// A blob that is read in pieces; the read with number `fails_at` is refused.
struct Source {
  const std::vector<char>* blob;
  uint32_t fails_at = UINT32_MAX, n_reads = 0, pass = 0;
  static int32_t read(void* user, uint64_t offset, void* out, uint64_t bytes) {
    auto* s = static_cast<Source*>(user);
    if (offset == 0) ++s->pass;
    if (s->n_reads++ == s->fails_at) return 5;
    if (offset + bytes > s->blob->size()) return 6;
    std::memcpy(out, s->blob->data() + offset, bytes);
    return 0;
  }
};

inline std::vector<int32_t> history(const Chat& c) {
  std::vector<int32_t> out(c.info().n_tokens);
  uint32_t n = 0;
  EXPECT_EQ(sharpi_session_tokens(c.get(), out.data(), c.info().n_tokens, &n, nullptr), SHARPI_OK);
  EXPECT_EQ(n, out.size());
  return out;
}

/// Any; one in ten masks forbids all.
inline Draw make_draw(const Below& below, size_t rows) {
  const auto chance = [&](uint32_t percent) { return below(100) < percent; };
  const auto any = [&] { return static_cast<int32_t>(below(kReplayVocab)); };
  Draw d;
  if (chance(35)) {
    for (size_t i = 0; i < rows * kWords; ++i) d.mask.push_back(below(1u << 31) | below(256));
    if (chance(10)) std::fill(d.mask.begin(), d.mask.end(), 0u);  // nothing is allowed
  }
  if (chance(25)) {
    d.bias_tokens.resize(1 + below(3));
    for (int32_t& t : d.bias_tokens) t = any();
    for (size_t i = 0; i < d.bias_tokens.size(); ++i)
      d.bias_values.push_back(chance(20) ? -INFINITY : static_cast<float>(below(9)));
  }
  if (chance(25)) d.n_logprobs = 1 + below(4);
  return d;
}
inline void expect_same_logprobs(const std::vector<sharpi_logprob>& got,
                                 const std::vector<sharpi_logprob>& want) {
  ASSERT_LE(want.size(), got.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(got[i].token, want[i].token) << i;
    EXPECT_EQ(got[i].logprob, want[i].logprob) << i;
  }
}
/// A session draws and reads one by one what a step of another one gave and told; a token that ends
/// a generation is not read.
inline sharpi_status read_again(sharpi_session* session, const sharpi_model* model,
                                std::span<const int32_t> tokens, const Draw& d,
                                const std::vector<sharpi_logprob>& told, sharpi_error* e) {
  std::vector<sharpi_logprob> again;
  for (size_t k = 0; k < tokens.size(); ++k) {
    const sharpi_sample_params p = d.params(0, 1, &again);
    int32_t token = -1;
    const sharpi_status drew = sharpi_session_sample(session, &p, &token, e);
    if (drew != SHARPI_OK) return drew;
    EXPECT_EQ(token, tokens[k]);
    const auto from = told.begin() + static_cast<std::ptrdiff_t>(k * d.n_logprobs);
    expect_same_logprobs({from, from + d.n_logprobs}, again);
    if (sharpi_token_is_end(model, token) != 0) continue;
    if (sharpi_session_decode(session, token, e) != SHARPI_OK) return e->status;
  }
  return SHARPI_OK;
}

/// A session and its mate step in one call; another session and its mate read what those gave.
class StepsTogether {
 public:
  using Call = std::function<sharpi_status(sharpi_session*, sharpi_error*)>;
  StepsTogether(const Below& below, sharpi_session* mate, sharpi_session* other,
                const sharpi_model* model)
      : draw_(make_draw(below, 1)), other_(other), model_(model) {
    for (size_t i = 0; i < 2; ++i) {
      tokens_[i].assign(1 + below(6), -1);
      const auto cap = static_cast<uint32_t>(tokens_[i].size());
      params_[i] = draw_.params(0, cap, &told_[i]);
      steps_[i] = {mate, &params_[i], tokens_[i].data(), cap, 0};
    }
  }
  Call give() {
    return [this](sharpi_session* s, sharpi_error* e) {
      steps_[0].session = s;
      return sharpi_step_batch(steps_.data(), sizeof steps_[0], 2, e);
    };
  }
  Call read() {
    return [this](sharpi_session* s, sharpi_error* e) {
      const sharpi_status one = read_one(0, s, e);
      return one != SHARPI_OK ? one : read_one(1, other_, e);
    };
  }

 private:
  sharpi_status read_one(size_t i, sharpi_session* s, sharpi_error* e) const {
    return read_again(s, model_, {tokens_[i].data(), steps_[i].n_tokens}, draw_, told_[i], e);
  }
  Draw draw_;
  sharpi_session* other_;
  const sharpi_model* model_;
  std::array<std::vector<int32_t>, 2> tokens_;
  std::array<std::vector<sharpi_logprob>, 2> told_;
  std::array<sharpi_sample_params, 2> params_{};
  std::array<sharpi_batch_step, 2> steps_{};
};

inline void expect_same(const State& x, const State& y, const std::string& what) {
  EXPECT_TRUE(x.blob == y.blob) << what << ": the saved form changed";
  EXPECT_EQ(x.lengths, y.lengths) << what;
  EXPECT_EQ(std::memcmp(&x.info, &y.info, sizeof x.info), 0) << what << ": the summary changed";
}

}  // namespace sharpi::testing
