// SPDX-License-Identifier: MIT
#include "engine/compactor.h"

#include <algorithm>
#include <chrono>

#include "base/no_throw.h"
#include "engine/head_rows.h"

namespace sharpi {
namespace {

double since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

/// The first slot that a move writes, or that is free after it.
uint32_t first_moved(const KvMove& m) {
  uint32_t first = UINT32_MAX;
  for (size_t h = 0; h < m.keep.size(); ++h) {
    const std::span<const uint32_t> keep = m.keep[h];
    uint32_t i = 0;
    while (i < keep.size() && keep[i] == i) ++i;
    first = std::min(first, i);
  }
  return first;
}

/// The KV head that keeps most rows.
struct FullestHead {
  uint32_t before = 0, kept = 0;
};
FullestHead fullest_head(const std::vector<KvMove>& moves, const KvLedger& ledger) {
  FullestHead out;
  for (const KvMove& m : moves) {
    for (uint32_t h = 0; h < m.keep.size(); ++h) {
      const auto kept = static_cast<uint32_t>(m.keep[h].size());
      if (kept > out.kept) out = {ledger.n_slots(m.layer, h), kept};
    }
  }
  return out;
}

/// Fills in the report's kept_* counts: for which reason the rows stay that the fullest head keeps.
/// Pre: before the moves.
void say_why_kept(const CompactRequest& r, const std::vector<KvMove>& moves, const KvLedger& ledger,
                  sharpi_compact_report* report) {
  if (moves.empty() || r.policy == SHARPI_POLICY_KEEP) {
    const size_t listed = r.keep.size();  // of KEEP
    report->kept_unranked = moves.empty() ? ledger.max_slots() : static_cast<uint32_t>(listed);
    return;
  }
  const auto [before, kept] = fullest_head(moves, ledger);
  const KeepParts parts = keep_parts(r.for_layer(kept), before);
  report->kept_sinks = parts.first;
  report->kept_recent = before - parts.last;
  report->kept_scored = parts.take;
  const PolicyRow& policy = policy_row(r.policy);
  if (!policy.reads_replay) return;
  const bool shared = r.layer_budget == SHARPI_LAYER_BUDGET_SHARED;
  const uint32_t share = shared ? keep_parts(r.for_layer(r.budget), before).take : parts.take;
  const uint32_t by_term = policy_needs_queries(r.policy) ? first_rows(r.policy, share) : 0;
  report->kept_replayed = parts.take - std::min(parts.take, by_term);
}

}  // namespace

KvTotals Compactor::totals() const {
  KvTotals t = memory_.totals();
  drafters_.add_totals(&t);
  return t;
}

Status Compactor::compact(const sharpi_compact_params& p, sharpi_compact_report* report) {
  const bool held_probe = observer_.holds_probe();
  const Status done = no_throw([&] { return compact_now(p, report); });
  observer_.end_probe();
  // Nothing has changed but the observer rows, and those depend on nothing but the probe.
  if (!done.is_ok() && held_probe && !observer_.holds_probe()) observer_.look_again();
  return done;
}

Status Compactor::compact_now(const sharpi_compact_params& p, sharpi_compact_report* report) {
  SHARPI_TRY(core_.begin_call());
  if (core_.compactable_layers().empty()) {
    return Status::error(Code::kUnsupported, "this model has no full-attention layers to compact");
  }
  if (core_.ledger().n_tokens() == 0) return Status::error(Code::kState, "the session is empty");
  SHARPI_TRY_ASSIGN(CompactRequest r, resolve_compaction(core_, p));
  if (r.policy != SHARPI_POLICY_KEEP && policy_needs_queries(r.policy)) {
    SHARPI_TRY(p.n_probe != 0 ? observer_.use_probe({p.probe, p.n_probe}, &r)
                              : observer_.use_captured(p.window, &r));
  }
  return run(r, report);
}

Status Compactor::move_rows(const CompactRequest& r, const std::vector<KvMove>& moves) {
  const bool by_head = !moves.empty() && (core_.ledger().is_by_head() || moves.front().by_head);
  const struct EndOfMoves {
    RowMemory& memory;
    ~EndOfMoves() { memory.drop_head_tables(); }
  } end{memory_};
  if (by_head) SHARPI_TRY(no_throw([&] { return memory_.take_head_tables(); }));
  std::vector<std::vector<KvMove>> by_tier(core_.tiers.size());
  for (const KvMove& m : moves) {
    by_tier[core_.tier_index(m.layer)].push_back(m);
  }
  HeldBytes staging;
  for (size_t t = 0; t < core_.tiers.size(); ++t) {
    staging.at(core_.model->devices()[t]) += core_.tiers[t]->store().stage_bytes(by_tier[t]);
  }
  Lease lease(core_.share);
  SHARPI_TRY(lease.take(staging));
  for (size_t t = 0; t < core_.tiers.size(); ++t) {
    const Status staged = core_.tiers[t]->store().stage_moves(by_tier[t]);
    if (staged.is_ok()) continue;
    for (size_t u = 0; u <= t; ++u) core_.tiers[u]->store().discard_moves();
    return staged;
  }
  const auto first_written = [&](uint32_t layer) {
    if (by_head) return 0u;  // blocks go where others were
    const auto m = std::find_if(moves.begin(), moves.end(),
                                [&](const KvMove& one) { return one.layer == layer; });
    return m == moves.end() ? core_.ledger().n_slots(layer) : first_moved(*m);
  };
  const Status owned = no_throw([&] { return memory_.own_rows(first_written); });
  if (!owned.is_ok()) {
    for (const auto& tier : core_.tiers) tier->store().discard_moves();
    return owned;
  }
  if (core_.archive.is_reserved()) {
    const Status archived = archive_evicted(core_, moves);
    if (!archived.is_ok()) {  // a device that has failed, with the session's rows
      core_.archive.clear();
      for (const auto& tier : core_.tiers) tier->store().discard_moves();
      return archived;
    }
  }
  for (const auto& tier : core_.tiers) tier->store().apply_moves();
  if (core_.shape.replay_every != 0) core_.transcript.mark_scored();
  core_.transcript.compact(moves);
  if (r.shrink) memory_.shrink_to(r.headroom);
  return Status::ok();
}

Status Compactor::run(const CompactRequest& r, sharpi_compact_report* report) {
  const KvTotals before = totals();
  const uint32_t rows_before = core_.ledger().max_slots();
  const auto start = std::chrono::steady_clock::now();
  const struct EndOfChoice {
    RowSelector& selector;
    ~EndOfChoice() { selector.give_tables_back(); }
  } end{selector_};
  std::vector<KvMove> moves;
  const Status selected = no_throw([&]() -> Status {
    if (core_.shape.replay_every != 0) SHARPI_TRY(selector_.score_waiting());
    SHARPI_TRY(selector_.take_tables(r));
    return selector_.select(r, &moves);
  });
  selector_.finish();
  SHARPI_TRY(selected);
  const double score_ms = since(start);
  const auto n_layers = static_cast<uint32_t>(core_.compactable_layers().size());
  if (report != nullptr) say_why_kept(r, moves, core_.ledger(), report);
  const auto moving = std::chrono::steady_clock::now();
  SHARPI_TRY(move_rows(r, moves));
  if (report == nullptr) return Status::ok();
  const KvTotals after = totals();
  report->policy = r.policy;
  report->rows_before = rows_before;
  report->rows_after = core_.ledger().max_slots();
  report->n_layers = n_layers;
  report->capacity = core_.full_capacity();
  report->payload_before = before.payload;
  report->payload_after = after.payload;
  report->held_before = before.held;
  report->held_after = after.held;
  report->score_ms = score_ms;
  report->move_ms = since(moving);
  return Status::ok();
}

}  // namespace sharpi
