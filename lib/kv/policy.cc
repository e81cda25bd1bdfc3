// SPDX-License-Identifier: MIT
#include "kv/policy.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>

namespace sharpi {
namespace {

constexpr PolicyRow kPolicies[] = {
    {SHARPI_POLICY_GLOBAL, "GLOBAL", PolicyTerm::kSum, PolicySmoothing::kNone, false, 0,
     PolicyScope::kModel},
    {SHARPI_POLICY_SNAPKV, "SNAPKV", PolicyTerm::kMean, PolicySmoothing::kPool, false, 0,
     PolicyScope::kHead},
    {SHARPI_POLICY_DEFENSIVE, "DEFENSIVE", PolicyTerm::kTopOrMean, PolicySmoothing::kPool, false, 0,
     PolicyScope::kHead},
    {SHARPI_POLICY_VALUE, "VALUE", PolicyTerm::kMeanByValue, PolicySmoothing::kPool, false, 0,
     PolicyScope::kHead},
    {SHARPI_POLICY_SPAN, "SPAN", PolicyTerm::kMean, PolicySmoothing::kSpread, false, 0,
     PolicyScope::kHead},
    {SHARPI_POLICY_RETRIEVAL, "RETRIEVAL", PolicyTerm::kTop, PolicySmoothing::kSpread, true, 32,
     PolicyScope::kHead},
    {SHARPI_POLICY_REPLAY, "REPLAY", PolicyTerm::kReplay, PolicySmoothing::kSpread, false, 0,
     PolicyScope::kHead, true},
    {SHARPI_POLICY_MIXED, "MIXED", PolicyTerm::kTop, PolicySmoothing::kSpread, true, 32,
     PolicyScope::kHead, true, 0.5f},
};
constexpr PolicyRow kNoPolicy{};

void mean_scores(const LayerScores& s, uint32_t head, float* out) {
  const float* sum = s.sum + uint64_t{head} * s.n_slots;
  const float scale = 1.0f / static_cast<float>(s.n_observed);
  for (uint32_t i = 0; i < s.n_slots; ++i) out[i] = sum[i] * scale;
}

/// Average over `kernel` neighbours, edges repeated. Double sums in one order: equal windows give
/// equal averages.
void pool_mean(const float* in, uint32_t n, uint32_t kernel, float* out) {
  constexpr int64_t kBatch = 512;
  const int64_t half = kernel / 2, all = n;
  double sums[kBatch];
  for (int64_t i0 = 0; i0 < all; i0 += kBatch) {
    const int64_t count = std::min(kBatch, all - i0);
    std::fill(sums, sums + count, 0.0);
    const bool inside = i0 >= half && i0 + count + half <= all;
    for (int64_t j = -half; j <= half; ++j) {
      const float* from = inside ? in + i0 + j : in;
      if (inside) {
        for (int64_t i = 0; i < count; ++i) sums[i] += static_cast<double>(from[i]);
      } else {
        for (int64_t i = 0; i < count; ++i)
          sums[i] += static_cast<double>(in[std::clamp<int64_t>(i0 + i + j, 0, all - 1)]);
      }
    }
    for (int64_t i = 0; i < count; ++i) out[i0 + i] = static_cast<float>(sums[i] / kernel);
  }
}

/// A number that orders like the float; zeros of both signs are one.
uint32_t order_bits(float f) {
  const auto u = std::bit_cast<uint32_t>(f + 0.0f);
  return (u >> 31) != 0 ? ~u : u | 0x80000000u;
}

/// The `take`-th largest of n keys (1 <= take <= n), and how many equal to it are among the first
/// `take`: digits of 11 bits, counted from the top.
struct Threshold {
  uint32_t key = 0, n_equal = 0;
};
Threshold find_threshold(const uint32_t* keys, uint32_t n, uint32_t take) {
  constexpr uint32_t kBits = 11, kBuckets = 1u << kBits;
  Threshold t;
  t.n_equal = take;
  uint32_t counts[kBuckets], mask = 0;
  for (const uint32_t shift : {21u, 10u, 0u}) {
    std::fill(counts, counts + kBuckets, 0u);
    const uint32_t digit = shift == 0 ? 0x3FFu : kBuckets - 1;
    for (uint32_t i = 0; i < n; ++i) {
      if ((keys[i] & mask) == t.key) ++counts[keys[i] >> shift & digit];
    }
    uint32_t at = digit;
    while (counts[at] < t.n_equal) t.n_equal -= counts[at--];
    t.key |= at << shift;
    mask |= digit << shift;
  }
  return t;
}

void defensive(const LayerScores& s, uint32_t head, float* mean, float* out) {
  mean_scores(s, head, mean);
  const float floor = static_cast<float>(std::accumulate(mean, mean + s.n_slots, 0.0) / s.n_slots);
  const float* top = s.max + uint64_t{head} * s.n_slots;
  for (uint32_t i = 0; i < s.n_slots; ++i) out[i] = std::max(top[i], floor);
}

/// A hit marks what follows it: out[i] = max over j of mean[i - j] * decay^j, and a little before
/// it.
void spread(const float* mean, uint32_t n, uint32_t span, float* out) {
  std::copy(mean, mean + n, out);
  double decay = 1.0;
  for (uint32_t j = 1; j <= span && j < n; ++j) {
    decay *= static_cast<double>(kForwardDecay);
    for (uint32_t i = j; i < n; ++i)
      out[i] = std::max(out[i], mean[i - j] * static_cast<float>(decay));
  }
  decay = 1.0;
  for (uint32_t j = 1; j <= kBackward && j < n; ++j) {
    decay *= static_cast<double>(kBackwardDecay);
    for (uint32_t i = 0; i + j < n; ++i)
      out[i] = std::max(out[i], mean[i + j] * static_cast<float>(decay));
  }
}

}  // namespace

std::span<const PolicyRow> policy_rows() {
  return kPolicies;
}

const PolicyRow& policy_row(sharpi_policy policy) {
  if (policy == SHARPI_POLICY_AUTO) policy = kDefaultPolicy;
  for (const PolicyRow& row : kPolicies) {
    if (row.policy == policy) return row;
  }
  return kNoPolicy;
}

void policy_terms(sharpi_policy policy, const LayerScores& s, uint32_t kv_head, float* out,
                  float* scratch) {
  const uint64_t first = uint64_t{kv_head} * s.n_slots;
  switch (policy_row(policy).term) {
    case PolicyTerm::kSum:
      std::copy_n(s.sum + first, s.n_slots, out);
      return;
    case PolicyTerm::kMean:
      mean_scores(s, kv_head, out);
      return;
    case PolicyTerm::kTop:
      std::copy_n(s.max + first, s.n_slots, out);
      return;
    case PolicyTerm::kTopOrMean:
      defensive(s, kv_head, scratch, out);
      return;
    case PolicyTerm::kMeanByValue:
      mean_scores(s, kv_head, out);
      for (uint32_t i = 0; i < s.n_slots; ++i)
        out[i] = (out[i] + kValueFloor) * s.value_norm[first + i];
      return;
    case PolicyTerm::kReplay:  // not of one layer (tier/choose_rows.cc)
      return;
  }
}

void smooth_terms(const PolicyParams& p, const float* terms, uint32_t n, float* out) {
  switch (policy_row(p.policy).smoothing) {
    case PolicySmoothing::kNone:
      std::copy_n(terms, n, out);
      return;
    case PolicySmoothing::kPool:
      pool_mean(terms, n, p.pool_kernel, out);
      return;
    case PolicySmoothing::kSpread:
      spread(terms, n, p.span, out);
      return;
  }
}

void policy_scores(const PolicyParams& p, const LayerScores& s, uint32_t kv_head, float* out,
                   float* scratch) {
  policy_terms(p.policy, s, kv_head, scratch, out);
  for (uint32_t i = 0; s.shared != nullptr && i < s.n_slots; ++i)
    scratch[i] = std::max(scratch[i], s.shared[i]);
  smooth_terms(p, scratch, s.n_slots, out);
}

Result<FixedRows> resolve_fixed_rows(uint32_t recency, uint32_t sinks, uint32_t budget,
                                     uint32_t usual) {
  FixedRows r{recency, sinks};
  if (recency == SHARPI_UNSET) {
    const uint32_t taken = sinks == SHARPI_UNSET ? 0 : std::min(sinks, budget);
    r.recency = std::min({usual, budget / 2, budget - taken});
  }
  if (sinks == SHARPI_UNSET) {
    r.sinks = std::min(kDefaultSinks, (budget - std::min(r.recency, budget)) / 2);
  }
  if (uint64_t{r.recency} + r.sinks <= budget) return r;
  return Status::error(Code::kInvalidArgument,
                       "recency %u and sinks %u are more than the budget of %u rows", r.recency,
                       r.sinks, budget);
}

KeepParts keep_parts(const PolicyParams& p, uint32_t n_slots) {
  const uint32_t budget = std::min(p.budget, n_slots);
  const uint32_t recent = std::min(p.recency, budget);
  const uint32_t sinks = std::min(p.sinks, budget - recent);
  const uint32_t first = std::min(sinks, n_slots - recent), last = n_slots - recent;
  return {first, last, std::min(budget - recent - first, last - first)};
}

uint32_t select_rows(const PolicyParams& p, const float* scores, uint32_t n_slots, uint32_t* keys,
                     uint32_t* keep) {
  const auto [first, last, take] = keep_parts(p, n_slots);
  const uint32_t n = last - first;
  uint32_t* at = keep;
  for (uint32_t i = 0; i < first; ++i) *at++ = i;
  if (take == n) {
    for (uint32_t i = first; i < last; ++i) *at++ = i;
  } else if (take != 0) {
    for (uint32_t i = 0; i < n; ++i) keys[i] = order_bits(scores[first + i]);
    const Threshold t = find_threshold(keys, n, take);
    uint32_t n_equal = t.n_equal;  // of equal rows the earlier ones stay
    for (uint32_t i = 0; i < n; ++i) {
      const bool equal = keys[i] == t.key && n_equal != 0;
      if (equal) --n_equal;
      if (equal || keys[i] > t.key) *at++ = first + i;
    }
  }
  for (uint32_t i = last; i < n_slots; ++i) *at++ = i;
  return static_cast<uint32_t>(at - keep);
}

namespace {

/// Digits of a key, from the top: as find_threshold() has them.
constexpr uint32_t kDigitShift[] = {21, 10, 0}, kDigitMask[] = {2047, 2047, 1023};

}  // namespace

void ScoreThreshold::end_pass() {
  uint32_t at = kDigitMask[pass_ - 1];
  while (at != 0 && counts_[at] < n_equal_) n_equal_ -= counts_[at--];
  key_ |= at << kDigitShift[pass_ - 1];
  mask_ |= kDigitMask[pass_ - 1] << kDigitShift[pass_ - 1];
}

bool ScoreThreshold::next_pass() {
  if (take_ == 0) return false;
  if (pass_ != 0) end_pass();
  std::fill(counts_, counts_ + kBuckets, uint64_t{0});
  return ++pass_ <= std::size(kDigitShift);
}

void ScoreThreshold::count(std::span<const float> scores) {
  for (const float f : scores) {
    const uint32_t bits = order_bits(f);
    if ((bits & mask_) == key_) ++counts_[bits >> kDigitShift[pass_ - 1] & kDigitMask[pass_ - 1]];
  }
}

uint32_t ScoreThreshold::take(std::span<const float> scores, uint32_t* out) {
  uint32_t n = 0;
  for (uint32_t i = 0; take_ != 0 && i < scores.size(); ++i) {
    const uint32_t bits = order_bits(scores[i]);
    const bool equal = bits == key_ && n_equal_ != 0;
    if (equal) --n_equal_;
    if (equal || bits > key_) out[n++] = i;
  }
  return n;
}

uint32_t first_rows(sharpi_policy policy, uint32_t take) {
  if (take <= kFirstRows) return take;
  const float rest = static_cast<float>(take - kFirstRows) * policy_row(policy).first_share;
  return kFirstRows + static_cast<uint32_t>(std::ceil(rest));
}

uint32_t select_mixed(const PolicyParams& p, const float* scores, float* replay, uint32_t n_slots,
                      uint32_t* keys, uint32_t* keep) {
  const auto [first, last, take] = keep_parts(p, n_slots);
  PolicyParams own = p;  // what the policy's own term takes, beside the rows that stay anyway
  own.budget = n_slots - (last - first) + first_rows(p.policy, take);
  const uint32_t n = select_rows(own, scores, n_slots, keys, keep);
  for (uint32_t i = 0; i < n; ++i) replay[keep[i]] = std::numeric_limits<float>::infinity();
  return select_rows(p, replay, n_slots, keys, keep);
}

std::vector<uint32_t> split_budget(sharpi_layer_budget mode, uint32_t budget, uint32_t least,
                                   uint32_t most, std::span<const uint32_t> n_slots,
                                   std::span<const float> entropy) {
  const size_t n = n_slots.size();
  std::vector<uint32_t> out(n), high(n), low(n);
  for (size_t i = 0; i < n; ++i) {
    high[i] = std::min(n_slots[i], most);
    low[i] = std::min(least, high[i]);
    out[i] = std::min(budget, high[i]);
  }
  if (mode == SHARPI_LAYER_BUDGET_EQUAL || mode == SHARPI_LAYER_BUDGET_SHARED) return out;
  std::vector<double> weight(n, 1.0);
  if (mode == SHARPI_LAYER_BUDGET_PYRAMID && n > 1) {
    for (size_t i = 0; i < n; ++i)
      weight[i] = 1.5 - static_cast<double>(i) / static_cast<double>(n - 1);
  } else if (mode == SHARPI_LAYER_BUDGET_ENTROPY) {
    for (size_t i = 0; i < n; ++i) weight[i] = std::exp(static_cast<double>(entropy[i]));
  }
  const double all = std::accumulate(weight.begin(), weight.end(), 0.0);
  const uint64_t wanted = uint64_t{budget} * n;
  uint64_t given = 0, possible = 0;
  for (size_t i = 0; i < n; ++i) {
    const auto want = static_cast<uint64_t>(static_cast<double>(wanted) * weight[i] / all);
    out[i] = static_cast<uint32_t>(std::clamp<uint64_t>(want, low[i], high[i]));
    given += out[i];
    possible += high[i];
  }
  const uint64_t total = std::min(wanted, possible);
  for (bool moved = true;
       given != total && moved;) {  // rounding and clamps: one row at a time, in order
    moved = false;
    for (size_t i = 0; i < n && given != total; ++i) {
      if (given < total && out[i] < high[i])
        ++out[i], ++given, moved = true;
      else if (given > total && out[i] > low[i])
        --out[i], --given, moved = true;
    }
  }
  return out;
}

uint32_t auto_budget(uint32_t n_ctx, uint64_t full_cache_bytes) {
  constexpr uint64_t kWorthwhile = 256ull << 20;
  if (full_cache_bytes > 0 && full_cache_bytes < kWorthwhile) return 0;
  return std::clamp(n_ctx / 4, std::min<uint32_t>(1024, n_ctx), 4096u);
}

}  // namespace sharpi
