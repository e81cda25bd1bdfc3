// SPDX-License-Identifier: MIT
// Choosing rows in host memory, for tiers that only score: the sums, and their order, are those of
// device/choosing.cc, so a split model keeps the rows that either tier alone would keep.
#include <algorithm>

#include "kv/ledger.h"
#include "tier/compact_tables.h"
#include "tier/tier.h"

namespace sharpi {
namespace {

/// The scores of one head alone, which may have fewer rows than the layer's fullest.
LayerScores of_head(const LayerScores& s, uint32_t head, uint32_t n_rows) {
  const uint64_t first = uint64_t{head} * s.n_slots;
  LayerScores one = s;
  one.n_kv_heads = 1;
  one.n_slots = n_rows;
  one.sum += first;
  one.max += first;
  if (one.value_norm != nullptr) one.value_norm += first;
  return one;
}

/// To what other layers and heads score at the same positions.
void add_replay(const LayerScores& s, const ScoreRequest& request, uint32_t head,
                std::span<float> sums) {
  const float* score = s.replay + head * s.replay_stride;
  const uint32_t n = request.ledger->n_slots(request.layer, head);
  for (uint32_t t = 0; t < n; ++t)
    sums[request.ledger->position(request.layer, head, t)] += score[t];
}

void choose_of_head(const KvLedger& ledger, const ChooseRequest& r, uint32_t head,
                    CompactTables& tables) {
  const uint32_t n = ledger.n_slots(r.layer, head);
  const PolicyRow& policy = policy_row(r.policy.policy);
  uint32_t* keep = tables.keep(r.layer) + uint64_t{head} * tables.stride();
  float* terms = tables.terms(r.layer) + uint64_t{head} * ledger.n_slots(r.layer);
  const auto at = [&](uint32_t t) { return ledger.position(r.layer, head, t); };
  const auto smooth_replay = [&](float* out) {  // `terms` are its scratch
    for (uint32_t t = 0; t < n; ++t) terms[t] = tables.replay()[at(t)];
    smooth_terms(r.policy.by_replay(), terms, n, out);
  };
  if (!policy_needs_queries(r.policy.policy)) {
    smooth_replay(tables.row());
    select_rows(r.policy, tables.row(), n, tables.order(), keep);
    return;
  }
  for (uint32_t t = 0; policy.shares_hits && t < n; ++t)
    terms[t] = std::max(terms[t], tables.shared()[at(t)]);
  smooth_terms(r.policy, terms, n, tables.row());
  if (!policy.reads_replay) {
    select_rows(r.policy, tables.row(), n, tables.order(), keep);
    return;
  }
  smooth_replay(tables.scratch());
  select_mixed(r.policy, tables.row(), tables.scratch(), n, tables.order(), keep);
}

}  // namespace

Status TierModel::hold_terms(TierSession& session, const ScoreRequest& request,
                             sharpi_policy policy, ScoreScratch& scratch,
                             CompactTables& tables) const {
  LayerScores s;
  SHARPI_TRY(score(session, request, scratch, &s));
  tables.own_replay(request.layer) = {s.replay, s.replay_stride};
  for (uint32_t h = 0; h < s.n_kv_heads; ++h) {
    if (request.replay) add_replay(s, request, h, tables.replay());
    if (!policy_needs_queries(policy)) continue;
    policy_terms(policy, of_head(s, h, request.ledger->n_slots(request.layer, h)), 0,
                 tables.terms(request.layer) + uint64_t{h} * s.n_slots, tables.scratch());
  }
  return Status::ok();
}

Status TierModel::share_hits(const KvLedger& ledger, std::span<const uint32_t> layers,
                             ScoreScratch&, CompactTables& tables) const {
  const std::span<float> shared = tables.shared();
  for (const uint32_t l : layers) {
    for (uint32_t h = 0; h < tables.n_heads(l); ++h) {
      const float* term = tables.terms(l) + uint64_t{h} * ledger.n_slots(l);
      for (uint32_t t = 0; t < ledger.n_slots(l, h); ++t) {
        float& at = shared[ledger.position(l, h, t)];
        at = std::max(at, term[t]);
      }
    }
  }
  return Status::ok();
}

Status TierModel::choose(const KvLedger& ledger, std::span<const ChooseRequest> layers,
                         ScoreScratch&, CompactTables& tables) const {
  for (const ChooseRequest& r : layers) {
    for (uint32_t h = 0; h < tables.n_heads(r.layer); ++h) choose_of_head(ledger, r, h, tables);
  }
  return Status::ok();
}

}  // namespace sharpi
