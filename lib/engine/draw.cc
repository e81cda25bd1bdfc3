// SPDX-License-Identifier: MIT
#include "engine/draw.h"

#include <algorithm>
#include <cmath>

namespace sharpi {
namespace {

/// A logit as the softmax counts it: no number is nothing, +inf the largest number.
float counted(float logit) {
  if (logit != logit) return kForbiddenLogit;
  return std::min(logit, kLargestLogit);
}

}  // namespace

sharpi_sample_params default_sample_params() noexcept {
  sharpi_sample_params p{};
  p.struct_size = sizeof p;
  return p;
}

Status check_bias(std::span<const int32_t> tokens, std::span<const float> values,
                  uint32_t n_vocab) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || static_cast<uint32_t>(tokens[i]) >= n_vocab) {
      return Status::error(Code::kInvalidArgument,
                           "bias_tokens[%zu] is %d, which is outside the vocabulary of %u tokens",
                           i, tokens[i], n_vocab);
    }
    if (!(values[i] <= kLargestLogit)) {  // NaN and +inf; -inf forbids the token
      return Status::error(Code::kInvalidArgument,
                           "bias_values[%zu] is %g, which is neither finite nor -inf", i,
                           static_cast<double>(values[i]));
    }
  }
  return Status::ok();
}

Status read_draw(const sharpi_sample_params& p, uint32_t n_vocab, Draw* out) {
  *out = Draw{};
  if ((p.allowed_mask == nullptr) != (p.mask_words == 0)) {
    return Status::error(Code::kInvalidArgument, "allowed_mask is %s but mask_words is %u",
                         p.allowed_mask == nullptr ? "null" : "set", p.mask_words);
  }
  if (p.n_bias != 0 && (p.bias_tokens == nullptr || p.bias_values == nullptr)) {
    return Status::error(Code::kInvalidArgument, "%s is null but n_bias is %u",
                         p.bias_tokens == nullptr ? "bias_tokens" : "bias_values", p.n_bias);
  }
  if ((p.logprobs == nullptr) != (p.n_logprobs == 0)) {
    return Status::error(Code::kInvalidArgument, "logprobs is %s but n_logprobs is %u",
                         p.logprobs == nullptr ? "null" : "set", p.n_logprobs);
  }
  if (p.n_logprobs > n_vocab) {
    return Status::error(Code::kInvalidArgument,
                         "n_logprobs is %u, which is more than the %u tokens", p.n_logprobs,
                         n_vocab);
  }
  if (p.n_bias != 0) {
    out->bias_tokens = {p.bias_tokens, p.n_bias};
    out->bias_values = {p.bias_values, p.n_bias};
    SHARPI_TRY(check_bias(out->bias_tokens, out->bias_values, n_vocab));
  }
  out->has_mask = p.allowed_mask != nullptr;
  // Words behind the vocabulary say nothing.
  if (out->has_mask) out->allowed = {p.allowed_mask, std::min(p.mask_words, (n_vocab + 31) / 32)};
  return Status::ok();
}

void apply_mask(const Draw& draw, std::span<float> logits) {
  if (!draw.has_mask) return;
  for (size_t first = 0; first < logits.size(); first += 32) {
    const size_t word = first / 32, n = std::min<size_t>(32, logits.size() - first);
    const uint32_t bits = word < draw.allowed.size() ? draw.allowed[word] : 0;
    if (bits == ~0u) continue;
    for (size_t i = 0; i < n; ++i) {
      if ((bits >> i & 1u) == 0) logits[first + i] = kForbiddenLogit;
    }
  }
}

void write_logprobs(std::span<const float> logits, int32_t token, std::span<sharpi_logprob> out) {
  if (out.empty()) return;
  const auto best = out.subspan(1);  // a sorted list that grows until it is full
  size_t n = 0;
  const auto better = [](const sharpi_logprob& a, const sharpi_logprob& b) {
    return a.logprob > b.logprob || (a.logprob == b.logprob && a.token < b.token);
  };
  float top = kForbiddenLogit;
  for (size_t i = 0; i < logits.size(); ++i) {
    const sharpi_logprob mine{static_cast<int32_t>(i), counted(logits[i])};
    top = std::max(top, mine.logprob);
    if (best.empty() || (n == best.size() && !better(mine, best[n - 1]))) continue;
    if (n < best.size()) ++n;
    size_t at = n - 1;
    for (; at > 0 && better(mine, best[at - 1]); --at) best[at] = best[at - 1];
    best[at] = mine;
  }
  double sum = 0.0;
  for (const float x : logits) {
    sum += std::exp(static_cast<double>(counted(x)) - static_cast<double>(top));
  }
  const double whole = static_cast<double>(top) + std::log(sum);
  out[0] = {token, counted(logits[static_cast<size_t>(token)])};
  for (sharpi_logprob& x : out) {
    x.logprob = static_cast<float>(static_cast<double>(x.logprob) - whole);
  }
}

}  // namespace sharpi
