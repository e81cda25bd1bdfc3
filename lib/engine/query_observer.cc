// SPDX-License-Identifier: MIT
#include "engine/query_observer.h"

#include <algorithm>

#include "base/no_throw.h"
#include "engine/kept_state.h"
#include "plan/token_checks.h"

namespace sharpi {

Status QueryObserver::check_sight(size_t n_tokens) const {
  const uint32_t room = core_.free_slots(), capacity = core_.full_capacity();
  if (n_tokens <= room) return Status::ok();
  return Status::error(Code::kState,
                       "%zu tokens cannot be observed: %u of %u slots are in use; reserve more, or "
                       "truncate as many tokens first",
                       n_tokens, capacity - room, capacity);
}

/// A pass that leaves nothing but its queries.
Status QueryObserver::look(std::span<const int32_t> tokens, SequenceRows q, Submission rows) {
  q.ledger = &core_.ledger();
  q.n_rows = static_cast<uint32_t>(tokens.size());
  q.first_logit_row = q.n_rows;
  q.adapters = core_.adapters.uses();
  rows.tokens = tokens.data();
  rows.n_rows = q.n_rows;
  rows.sequences = {&q, 1};
  rows.cancel = core_.changed ? nullptr : &core_.cancelled;
  rows.transient = true;
  const std::span<TierSession* const> list(core_.tier_list);
  probe_seen_ = false;  // the observer rows are of these tokens from now on
  return core_.model->run(rows, {&list, 1});
}

Status QueryObserver::observe(std::span<const int32_t> tokens, uint64_t position, bool no_context) {
  SHARPI_TRY(check_sight(tokens.size()));
  SequenceRows q;
  q.position = position;
  Submission rows;
  rows.no_context = no_context;
  rows.capture = Capture::kObserver;
  return look(tokens, q, rows);
}

/// Passes of a chunk each. Those behind the first see the rows of the others: of full attention
/// behind the session's rows, of windows in their rings, and what a recurrent layer made of them.
Status QueryObserver::observe_chunks(std::span<const int32_t> tokens) {
  const uint32_t n_chunk = core_.limits().n_chunk;
  SequenceRows q;
  q.position = core_.ledger().next_position();
  Submission rows;
  rows.capture = Capture::kObserverByPosition;
  rows.stores_rings = true;
  while (!tokens.empty()) {
    const size_t n = std::min<size_t>(tokens.size(), n_chunk);
    SHARPI_TRY(look(tokens.first(n), q, rows));
    for (const auto& tier : core_.tiers) tier->store().commit_state();
    q.position += n;
    q.rows_ahead += static_cast<uint32_t>(n);
    tokens = tokens.subspan(n);
  }
  return Status::ok();
}

Status QueryObserver::observe_long(std::span<const int32_t> tokens) {
  SHARPI_TRY(check_sight(tokens.size()));
  KeptState kept(core_);
  Lease copy(core_.share);
  SHARPI_TRY(copy.take(HeldBytes::of_host(kept.bytes())));
  SHARPI_TRY(kept.save());
  const Status seen = no_throw([&] { return observe_chunks(tokens); });
  SHARPI_TRY(kept.restore());
  return seen;
}

Status QueryObserver::use_captured(uint32_t window, CompactRequest* r) const {
  const KvLedger& ledger = core_.ledger();
  const uint32_t captured = ledger.n_tokens() - ledger.capture_low();
  const uint32_t most = core_.shape.capture_window;
  if (most == 0) {
    return Status::error(
        Code::kState, "the session captures no queries (capture_window 0) and no probe is given");
  }
  if (captured == 0) {
    return Status::error(
        Code::kState,
        "there are no captured queries: none came since a chunk failed, or none were saved");
  }
  if (window != SHARPI_UNSET && window > most) {
    return Status::error(Code::kInvalidArgument,
                         "window is %u, but the session captures %u queries", window, most);
  }
  if (window != SHARPI_UNSET && window > captured) {
    return Status::error(Code::kState, "window is %u, but only %u queries were captured so far",
                         window, captured);
  }
  r->source = Capture::kRing;
  r->n_queries = std::min(window, captured);
  r->first_position = ledger.next_position() - r->n_queries;
  return Status::ok();
}

Status QueryObserver::use_probe(std::span<const int32_t> probe, CompactRequest* r) {
  if (probe.size() > core_.shape.n_ctx) {
    return Status::error(Code::kInvalidArgument,
                         "the probe has %zu tokens, which is more than the context of %u",
                         probe.size(), core_.shape.n_ctx);
  }
  SHARPI_TRY(core_.check_tokens(probe));
  SHARPI_TRY(check_sight(probe.size()));
  const bool is_long = probe.size() > core_.limits().n_chunk;
  // The template's probe is looked at again if this compaction fails.
  if (probe_seen_) SHARPI_TRY(check_sight(core_.shape.probe.size()));
  SHARPI_TRY(take_rows(static_cast<uint32_t>(probe.size())));
  SHARPI_TRY(is_long ? observe_long(probe) : observe(probe, core_.ledger().next_position(), false));
  r->source = is_long ? Capture::kObserverByPosition : Capture::kObserver;
  r->n_queries = static_cast<uint32_t>(probe.size());
  r->first_position = core_.ledger().next_position();
  return Status::ok();
}

Status QueryObserver::take_rows(uint32_t n) {
  HeldBytes more;
  for (size_t t = 0; t < core_.tiers.size(); ++t)
    more.at(core_.model->devices()[t]) += core_.tiers[t]->observer_bytes(n);
  SHARPI_TRY(rows_of_call_.take(more));
  for (const auto& tier : core_.tiers) SHARPI_TRY(tier->reserve_observer(n));
  return Status::ok();
}

void QueryObserver::end_probe() noexcept {
  for (const auto& tier : core_.tiers) tier->release_observer();
  rows_of_call_.end();
}

void QueryObserver::set_probe_seen(uint64_t position) {
  probe_seen_ = !core_.shape.probe.empty();
  probe_position_ = position;
}

void QueryObserver::look_again() {
  core_.changed = true;
  probe_seen_ = observe(core_.shape.probe, probe_position_, true).is_ok();
}

void QueryObserver::copy_from(const QueryObserver& from) {
  probe_seen_ = from.probe_seen_;
  probe_position_ = from.probe_position_;
}

}  // namespace sharpi
