// SPDX-License-Identifier: MIT
#include "tier/shared_budget.h"

#include <algorithm>
#include <limits>

namespace sharpi {
namespace {

constexpr float kAlways = std::numeric_limits<float>::infinity();
constexpr float kNever = -kAlways;

/// One KV head: its rows, and its part of the tables.
struct HeadOf {
  uint32_t layer = 0, head = 0, n = 0;
  float* scores = nullptr;  // [n], the terms at first
  uint32_t* keep = nullptr;
  const float* replay = nullptr;  // [n]
};

class SharedChoice {
 public:
  SharedChoice(const KvLedger& ledger, const PolicyParams& policy, uint32_t most,
               CompactTables& tables)
      : ledger_(ledger),
        policy_(policy),
        row_(policy_row(policy.policy)),
        most_(most),
        t_(tables) {}

  void run(std::span<const uint32_t> layers) {
    uint64_t rows = 0, heads = 0;
    each_head(layers, [&](const HeadOf& h) {
      score(h);
      settle_fixed(h);
      rows += std::min(h.n, most_);
      ++heads;
    });
    const uint64_t take = std::min(rows, heads * policy_.budget);
    ScoreThreshold threshold(take);
    while (threshold.next_pass()) {
      each_head(layers, [&](const HeadOf& h) { threshold.count({h.scores, h.n}); });
    }
    each_head(layers, [&](const HeadOf& h) {
      t_.counts(h.layer)[h.head] = threshold.take({h.scores, h.n}, h.keep);
    });
  }

 private:
  template <class Visit>
  void each_head(std::span<const uint32_t> layers, Visit&& visit) {
    for (const uint32_t l : layers) {
      const OwnReplay own = t_.own_replay(l);
      for (uint32_t h = 0; h < t_.n_heads(l); ++h) {
        visit(HeadOf{l, h, ledger_.n_slots(l, h), t_.terms(l) + uint64_t{h} * ledger_.n_slots(l),
                     t_.keep(l) + uint64_t{h} * t_.stride(),
                     own.scores == nullptr ? nullptr : own.scores + h * own.stride});
      }
    }
  }

  /// The policy's scores of the head take the place of its terms.
  void score(const HeadOf& h) {
    float* out = t_.row();
    if (!policy_needs_queries(policy_.policy)) {
      score_by_replay(h, out, t_.scratch());
    } else {
      for (uint32_t t = 0; row_.shares_hits && t < h.n; ++t) {
        const float hit = t_.shared()[ledger_.position(h.layer, h.head, t)];
        h.scores[t] = std::max(h.scores[t], hit);
      }
      smooth_terms(policy_, h.scores, h.n, out);
      if (row_.reads_replay) out = score_mixed(h, out);
    }
    for (uint32_t t = 0; t < h.n; ++t) h.scores[t] = out[t] >= kNever ? out[t] : kNever;  // no NaN
  }

  /// The head's own scores times what all heads together give the rows' positions: which heads look
  /// rows up, and which rows many of them look up. `spare`: [n], as the head's terms are.
  void score_by_replay(const HeadOf& h, float* out, float* spare) {
    smooth_terms(policy_.by_replay(), h.replay, h.n, out);
    for (uint32_t t = 0; t < h.n; ++t)
      h.scores[t] = t_.replay()[ledger_.position(h.layer, h.head, t)];
    smooth_terms(policy_.by_replay(), h.scores, h.n, spare);
    for (uint32_t t = 0; t < h.n; ++t) out[t] *= spare[t];
  }

  /// The rows that the policy's own term chooses, as many in each head; then replay scores.
  float* score_mixed(const HeadOf& h, const float* scores) {
    const auto [first, last, take] = keep_parts(policy_, h.n);
    PolicyParams own = policy_;
    own.budget = h.n - (last - first) + first_rows(policy_.policy, take);
    const uint32_t n = select_rows(own, scores, h.n, t_.order(), h.keep);
    float* out = t_.scratch();
    score_by_replay(h, out, t_.row());
    for (uint32_t i = 0; i < n; ++i) out[h.keep[i]] = kAlways;
    return out;
  }

  /// The first rows, the last ones and the head's best few stay; no more than `most` can.
  void settle_fixed(const HeadOf& h) {
    PolicyParams p = policy_;
    if (h.n > most_) {
      p.budget = most_;
      std::copy_n(h.scores, h.n, t_.row());
      std::fill_n(h.scores, h.n, kNever);
      const uint32_t n = select_rows(p, t_.row(), h.n, t_.order(), h.keep);
      for (uint32_t i = 0; i < n; ++i) h.scores[h.keep[i]] = t_.row()[h.keep[i]];
    }
    p.budget = std::min({policy_.budget, most_, p.recency + p.sinks + kFewestScored});
    const uint32_t n = select_rows(p, h.scores, h.n, t_.order(), h.keep);
    for (uint32_t i = 0; i < n; ++i) h.scores[h.keep[i]] = kAlways;
  }

  const KvLedger& ledger_;
  const PolicyParams& policy_;
  const PolicyRow& row_;
  const uint32_t most_;
  CompactTables& t_;
};

}  // namespace

void choose_shared(const KvLedger& ledger, std::span<const uint32_t> layers,
                   const PolicyParams& policy, uint32_t most, CompactTables& tables) {
  SharedChoice(ledger, policy, most, tables).run(layers);
}

}  // namespace sharpi
