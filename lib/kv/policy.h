// SPDX-License-Identifier: MIT
// Compaction policies, known as KV cache eviction: attention scores in, the rows to keep out. A
// policy gets, for one full-attention layer, the softmax weights that the observed queries give
// every live row, and says which rows of each KV head stay. The first rows of a prompt always stay
// (attention sinks, arXiv 2309.17453), and so do the last ones (recency). Sources: SnapKV arXiv
// 2404.14469; DefensiveKV arXiv 2510.13334; CriticalKV arXiv 2502.03805; PyramidKV arXiv
// 2406.02069; `global` is the rule of the engine our requirements come from; `span` is ours.
// tools/compaction_oracle.py is an independent reference. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/limits.h"
#include "base/status.h"
#include "sharpi.h"

namespace sharpi {

/// Scores of one layer over its n_slots live rows, slot ascending = position ascending.
struct LayerScores {
  uint32_t n_kv_heads = 0, n_slots = 0;
  uint32_t n_observed = 0;     // query heads of a group times queries: terms in `sum`
  const float* sum = nullptr;  // [n_kv_heads][n_slots] softmax mass, summed over the terms
  const float* max = nullptr;  // [n_kv_heads][n_slots] largest term, faded by its age
  const float* value_norm =
      nullptr;  // [n_kv_heads][n_slots] L1 of W_o v (kNormOutputs), mean of a group
  const float* shared = nullptr;  // [n_slots] largest term in any layer and head at the positions
                                  // of the KV head that is asked for, or null
  const float* replay = nullptr;  // [n_kv_heads][replay_stride] replay scores
  uint64_t replay_stride = 0;
};

struct PolicyParams {
  sharpi_policy policy = SHARPI_POLICY_RETRIEVAL;  // resolved, never AUTO or KEEP
  uint32_t budget = 0;                             // rows of this layer, <= n_slots
  uint32_t recency = kDefaultRecency, sinks = 0;
  uint32_t pool_kernel = kDefaultPoolKernel;  // odd
  uint32_t span = kDefaultSpan;
  uint32_t replay_span = kReplaySpan;
  /// The same by replay scores.
  PolicyParams by_replay() const {
    PolicyParams p = *this;
    p.policy = SHARPI_POLICY_REPLAY;
    p.span = replay_span;
    return p;
  }
};

/// What AUTO means without replay scores: the policy that docs/performance.md's needle tables
/// favour.
inline constexpr sharpi_policy kDefaultPolicy = SHARPI_POLICY_RETRIEVAL;

/// Outputs of the output projection over which the norm of a value is taken: enough for an order of
/// rows, and a small part of a prefill's arithmetic whatever the width of a model.
inline constexpr uint32_t kNormOutputs = 128;
/// Where replay scores choose and heads share their rows: the last rows that stay, which every head
/// pays for, and the rows that a hit marks (docs/compaction.md, "One count for every head").
inline constexpr uint32_t kSharedReplayRecency = 16;
inline constexpr uint32_t kSharedReplaySpan = 12;
/// Floor that keeps rows without mass comparable by their values (the constant of CriticalKV).
inline constexpr float kValueFloor = 1e-4f;
/// Rows that a known question gets of any budget: less loses answers that it alone would keep.
inline constexpr uint32_t kFirstRows = 64;
/// Decay a row of `span`, forwards and backwards, and how far it reaches back.
inline constexpr float kForwardDecay = 0.999f;
inline constexpr float kBackwardDecay = 0.99f;
inline constexpr uint32_t kBackward = 2;

/// What one observed row of a KV head counts before its neighbours are looked at.
enum class PolicyTerm : uint8_t {
  kSum,          // the softmax mass of all observed terms
  kMean,         // the mean of them
  kTop,          // the largest, faded by its age
  kTopOrMean,    // the largest, and at least the mean of the head's rows
  kMeanByValue,  // the mean times what the row's value adds to the layer's output
  kReplay,       // replay scores of all layers and heads at its position, added up; no query of the
                 // compaction counts
};
/// How terms become scores.
enum class PolicySmoothing : uint8_t {
  kNone,
  kPool,    // average over neighbours
  kSpread,  // a hit marks the rows that follow it, and a little before it
};
/// For what one keep set holds.
enum class PolicyScope : uint8_t { kHead, kModel };

/// A policy. Everything that depends on which one it is reads this, on every tier.
struct PolicyRow {
  sharpi_policy policy = 0;
  const char* name = nullptr;  // as in SHARPI_POLICY_*
  PolicyTerm term{};
  PolicySmoothing smoothing{};
  /// A row counts what it counts in any layer and head at the same position. Costs no pass of its
  /// own, but lists can be made when all layers are scored only.
  bool shares_hits = false;
  /// Queries after which a term counts half in LayerScores::max; 0 = all count the same. What comes
  /// next resembles the last queries more than those before them.
  float half_life = 0.0f;
  PolicyScope scope{};
  /// Needs replay scores: they are the term, or they choose among the rows that the term leaves: it
  /// chooses kFirstRows, and `first_share` of what the budget has beyond.
  bool reads_replay = false;
  float first_share = 1.0f;
};
/// All of them, in the order of their numbers.
std::span<const PolicyRow> policy_rows();
/// The policy's row. AUTO is the default's. KEEP, which scores nothing, and numbers outside the
/// enumeration have a row without a name that reads nothing.
const PolicyRow& policy_row(sharpi_policy policy);
inline bool policy_needs_values(sharpi_policy policy) {
  return policy_row(policy).term == PolicyTerm::kMeanByValue;
}
inline bool policy_shares_hits(sharpi_policy policy) {
  return policy_row(policy).shares_hits;
}

inline bool policy_needs_queries(sharpi_policy policy) {
  return policy_row(policy).term != PolicyTerm::kReplay;
}

/// The policy's terms of one KV head: out[n_slots], and as much scratch.
void policy_terms(sharpi_policy policy, const LayerScores& s, uint32_t kv_head, float* out,
                  float* scratch);
/// Scores out[n] from terms[n]; they do not overlap.
void smooth_terms(const PolicyParams& p, const float* terms, uint32_t n, float* out);
/// Both, with LayerScores::shared between them where it is not null: out[n_slots].
void policy_scores(const PolicyParams& p, const LayerScores& s, uint32_t kv_head, float* out,
                   float* scratch);

/// The rows that stay without being scored.
struct FixedRows {
  uint32_t recency = 0, sinks = 0;
};
/// Of a budget of rows. SHARPI_UNSET is the default, which leaves the larger part of a small budget
/// to the scores: recency `usual` and at most half of it, sinks at most half of what recency
/// leaves.
/// @return kInvalidArgument where given ones are more than the budget.
Result<FixedRows> resolve_fixed_rows(uint32_t recency, uint32_t sinks, uint32_t budget,
                                     uint32_t usual = kDefaultRecency);

/// Slots below `first` and from `last` on stay, and `take` of those between.
struct KeepParts {
  uint32_t first = 0, last = 0, take = 0;
};
/// Sinks and recency are cut to fit the budget, recency first served.
KeepParts keep_parts(const PolicyParams& p, uint32_t n_slots);

/// The `budget` rows to keep: the first `sinks`, the last `recency`, then by score descending, ties
/// to the lower slot (keep_parts()). Ascending.
/// `keys` holds n_slots uint32 of scratch, `keep` has room for the budget. @return rows kept.
uint32_t select_rows(const PolicyParams& p, const float* scores, uint32_t n_slots, uint32_t* keys,
                     uint32_t* keep);

/// Finds the `take` largest scores of several lists, of equal ones the earlier: three passes, in
/// each of which count() sees all lists in one order, then take() in the same order.
class ScoreThreshold {
 public:
  explicit ScoreThreshold(uint64_t take) : take_(take), n_equal_(take) {}
  /// Begins a pass; false = the threshold is known.
  bool next_pass();
  void count(std::span<const float> scores);
  /// Writes the indices of the scores that are among the largest, ascending. @return how many.
  uint32_t take(std::span<const float> scores, uint32_t* out);

 private:
  static constexpr uint32_t kBuckets = 2048;
  void end_pass();
  const uint64_t take_;
  uint64_t n_equal_;  // of those that equal the key, how many more are taken
  uint32_t key_ = 0, mask_ = 0;
  uint32_t pass_ = 0;  // 1 to 3; 4 = done
  uint64_t counts_[kBuckets] = {};
};

/// Of `take` rows, those that the term of a policy with a first_share chooses.
uint32_t first_rows(sharpi_policy policy, uint32_t take);
/// The same for a policy with a first_share: the first rows by scores[n_slots], the rest by
/// replay[n_slots], which becomes scratch. Both are smoothed.
uint32_t select_mixed(const PolicyParams& p, const float* scores, float* replay, uint32_t n_slots,
                      uint32_t* keys, uint32_t* keep);

/// Shares of a budget by layer, none above `most` or n_slots[i]. EQUAL: `budget` for each. The
/// others give n_layers * budget rows in all as far as there are rows, at least `least` to each
/// layer that has them. PYRAMID: falling linearly from 1.5x in the first layer to 0.5x in the last.
/// ENTROPY: proportional to exp(entropy) of the layer's score distribution, `entropy` in nats, one
/// per layer.
std::vector<uint32_t> split_budget(sharpi_layer_budget mode, uint32_t budget, uint32_t least,
                                   uint32_t most, std::span<const uint32_t> n_slots,
                                   std::span<const float> entropy);

/// The original engine's automatic budget: 0 (off) when the full cache is 0 < bytes < 256 MiB, else
/// clamp(n_ctx / 4, min(1024, n_ctx), 4096).
uint32_t auto_budget(uint32_t n_ctx, uint64_t full_cache_bytes);

}  // namespace sharpi
