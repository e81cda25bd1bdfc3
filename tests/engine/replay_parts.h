// SPDX-License-Identifier: MIT
// What calls of a random sequence are made of: a session's state, a draw, callbacks that stop or
// refuse. Thread rule: one thread.
#pragma once

#include <cmath>
#include <functional>
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

inline void expect_same(const State& x, const State& y, const std::string& what) {
  EXPECT_TRUE(x.blob == y.blob) << what << ": the saved form changed";
  EXPECT_EQ(x.lengths, y.lengths) << what;
  EXPECT_EQ(std::memcmp(&x.info, &y.info, sizeof x.info), 0) << what << ": the summary changed";
}

}  // namespace sharpi::testing
