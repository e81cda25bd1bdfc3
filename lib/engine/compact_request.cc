// SPDX-License-Identifier: MIT
#include "engine/compact_request.h"

#include <algorithm>
#include <cstdint>

namespace sharpi {
namespace {

/// Policy KEEP: the host's rows.
Status check_keep(const sharpi_compact_params& p, const KvLedger& ledger) {
  const uint32_t n_slots = ledger.max_slots();
  if (ledger.min_slots() != n_slots) {
    return Status::error(Code::kState,
                         "policy KEEP needs layers of equal length, but they hold %u to %u rows",
                         ledger.min_slots(), n_slots);
  }
  for (uint32_t i = 0; i < p.n_keep; ++i) {
    if (p.keep[i] < n_slots) continue;
    return Status::error(Code::kInvalidArgument, "keep[%u] is slot %u, but the session has %u rows",
                         i, p.keep[i], n_slots);
  }
  return Status::ok();
}

/// What AUTO means in a session of this shape. `asked`: the queries are those of a question.
sharpi_policy resolve_policy(sharpi_policy policy, const SessionShape& shape, bool asked) {
  if (policy != SHARPI_POLICY_AUTO) return policy;
  if (shape.replay_every == 0) return kDefaultPolicy;
  return asked ? SHARPI_POLICY_MIXED : SHARPI_POLICY_REPLAY;
}

/// One count of rows a head: only where every tier with such layers keeps rows so.
Status check_by_head(const SessionCore& session, sharpi_layer_budget budget) {
  if (budget != SHARPI_LAYER_BUDGET_SHARED) return Status::ok();
  for (const uint32_t l : session.compactable_layers()) {
    if (session.store(l).can_keep_by_head()) continue;
    return Status::error(Code::kUnsupported,
                         "layer_budget 3 (SHARED) keeps rows by head, which the device of layer %u "
                         "does not do; 0 (EQUAL) works",
                         l);
  }
  return Status::ok();
}

}  // namespace

Result<CompactRequest> resolve_compaction(const SessionCore& session,
                                          const sharpi_compact_params& p) {
  const SessionShape& shape = session.shape;
  CompactRequest r;
  r.policy = resolve_policy(p.policy, shape, p.n_probe != 0 || p.window != SHARPI_UNSET);
  if (policy_row(r.policy).reads_replay && shape.replay_every == 0) {
    return Status::error(Code::kUnsupported,
                         "policy %u (%s) chooses by replay scores, which this session does not "
                         "capture: replay is 0",
                         r.policy, policy_row(r.policy).name);
  }
  SHARPI_TRY(check_by_head(session, p.layer_budget));
  r.headroom = p.headroom;
  r.pool_kernel = p.pool_kernel;
  r.span = p.span;
  r.layer_budget = p.layer_budget;
  r.progress = p.progress;
  r.user_data = p.user_data;
  r.shrink = shape.kv_budget == 0;  // a bounded session keeps what it was priced for
  if (r.policy == SHARPI_POLICY_KEEP) {
    SHARPI_TRY(check_keep(p, session.ledger()));
    r.keep = {p.keep, p.n_keep};
    return r;
  }
  r.budget = p.budget;
  if (p.budget == SHARPI_BUDGET_AUTO) {
    const uint32_t rows = auto_budget(shape.n_ctx, session.full_cache_bytes());
    r.budget = rows == 0 ? UINT32_MAX : rows;  // a small cache is kept whole
  }
  if (shape.kv_budget != 0) r.budget = std::min(r.budget, shape.kv_budget);
  const bool by_head_replay =
      r.layer_budget == SHARPI_LAYER_BUDGET_SHARED && !policy_needs_queries(r.policy);
  SHARPI_TRY_ASSIGN(const FixedRows fixed,
                    resolve_fixed_rows(p.recency, p.sinks, r.budget,
                                       by_head_replay ? kSharedReplayRecency : kDefaultRecency));
  r.recency = fixed.recency;
  r.sinks = fixed.sinks;
  return r;
}

Result<CompactRequest> standing_compaction(const SessionShape& shape, uint32_t budget) {
  CompactRequest r;
  r.policy = resolve_policy(shape.policy, shape, true);
  r.budget = budget;
  SHARPI_TRY_ASSIGN(const FixedRows fixed, resolve_fixed_rows(shape.recency, shape.sinks, budget));
  r.recency = fixed.recency;
  r.sinks = fixed.sinks;
  return r;
}

}  // namespace sharpi
