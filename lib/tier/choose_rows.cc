// SPDX-License-Identifier: MIT
// Choosing rows in host memory, for tiers that only score: the sums, and their order, are those of
// device/choosing.cc, so a split model keeps the rows that either tier alone would keep.
#include <algorithm>

#include "kv/ledger.h"
#include "tier/compact_tables.h"
#include "tier/tier.h"

namespace sharpi {

Status TierModel::hold_terms(TierSession& session, const ScoreRequest& request,
                             sharpi_policy policy, ScoreScratch& scratch,
                             CompactTables& tables) const {
  LayerScores s;
  SHARPI_TRY(score(session, request, scratch, &s));
  for (uint32_t h = 0; h < s.n_kv_heads; ++h) {
    policy_terms(policy, s, h, tables.terms(request.layer) + uint64_t{h} * s.n_slots,
                 tables.scratch());
  }
  return Status::ok();
}

Status TierModel::share_hits(const KvLedger& ledger, std::span<const uint32_t> layers,
                             ScoreScratch&, CompactTables& tables) const {
  const std::span<float> shared = tables.shared();
  for (const uint32_t l : layers) {
    const uint32_t n = ledger.n_slots(l);
    const float* term = tables.terms(l);
    for (uint32_t h = 0; h < tables.n_heads(l); ++h) {
      for (uint32_t t = 0; t < n; ++t, ++term) {
        float& at = shared[ledger.position(l, h, t)];
        at = std::max(at, *term);
      }
    }
  }
  return Status::ok();
}

Status TierModel::choose(const KvLedger& ledger, std::span<const ChooseRequest> layers,
                         ScoreScratch&, CompactTables& tables) const {
  for (const ChooseRequest& r : layers) {
    const uint32_t n = ledger.n_slots(r.layer);
    const bool shares = policy_row(r.policy.policy).shares_hits;
    for (uint32_t h = 0; h < tables.n_heads(r.layer); ++h) {
      float* terms = tables.terms(r.layer) + uint64_t{h} * n;
      for (uint32_t t = 0; shares && t < n; ++t)
        terms[t] = std::max(terms[t], tables.shared()[ledger.position(r.layer, h, t)]);
      smooth_terms(r.policy, terms, n, tables.row());
      select_rows(r.policy, tables.row(), n, tables.order(),
                  tables.keep(r.layer) + uint64_t{h} * tables.stride());
    }
  }
  return Status::ok();
}

}  // namespace sharpi
