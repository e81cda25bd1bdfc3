// SPDX-License-Identifier: MIT
// What one draw takes besides the sampler's own settings: a mask of allowed tokens, a bias for this
// draw, and the log-probabilities that are wanted of it. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "base/status.h"
#include "sharpi.h"

namespace sharpi {

constexpr float kForbiddenLogit = -std::numeric_limits<float>::infinity();
constexpr float kLargestLogit = std::numeric_limits<float>::max();

/// What sharpi_sample_params_init() writes: the sampler alone decides.
sharpi_sample_params default_sample_params() noexcept;

/// Which tokens one draw may give, and what is added to their logits. Views of the caller's arrays.
struct Draw {
  bool has_mask = false;
  std::span<const uint32_t> allowed;  // bit t % 32 of word t / 32; without it for tokens behind
  std::span<const int32_t> bias_tokens;
  std::span<const float> bias_values;

  bool allows(uint32_t token) const {
    return !has_mask ||
           (token / 32 < allowed.size() && (allowed[token / 32] >> (token % 32) & 1u) != 0);
  }
};

/// kInvalidArgument names the field that is wrong.
Status check_bias(std::span<const int32_t> tokens, std::span<const float> values, uint32_t n_vocab);
Status read_draw(const sharpi_sample_params& params, uint32_t n_vocab, Draw* out);

/// Logits of tokens that are not allowed become -inf.
void apply_mask(const Draw& draw, std::span<float> logits);

/// Fills out[0] with the token and its log-probability under the softmax of `logits`, and the rest
/// with the most probable tokens, descending, equal ones by id. A logit that is no number has the
/// probability 0. Pre: out.size() <= logits.size() + 1.
void write_logprobs(std::span<const float> logits, int32_t token, std::span<sharpi_logprob> out);

}  // namespace sharpi
