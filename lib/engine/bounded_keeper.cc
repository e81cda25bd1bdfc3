// SPDX-License-Identifier: MIT
#include "engine/bounded_keeper.h"

#include <algorithm>

#include "plan/context_shift.h"

namespace sharpi {

void BoundedKeeper::create() {
  if (why_it_ends().empty()) shifter_.reserve(core_.spec(), core_.shape.n_ctx);
}

Status BoundedKeeper::check_room(uint64_t n) const {
  const SessionShape& shape = core_.shape;
  if (core_.ledger().n_tokens() + n > shape.n_ctx) {
    const std::string why = why_it_ends();
    if (why.empty()) return Status::ok();
    return Status::native_error(Code::kKvFull, SHARPI_KV_FULL_CONTEXT,
                                "%llu tokens after %u exceed the session's context of %u: truncate "
                                "it, or take a larger n_ctx%s",
                                static_cast<unsigned long long>(n), core_.ledger().n_tokens(),
                                shape.n_ctx, why.c_str());
  }
  return shape.kv_budget == 0 && n > core_.free_slots() ? core_.no_room(n) : Status::ok();
}

Status BoundedKeeper::compact_after_prompt() {
  const SessionShape& shape = core_.shape;
  uint32_t budget = shape.prompt_budget;
  if (budget == SHARPI_BUDGET_AUTO) budget = auto_budget(shape.n_ctx, core_.full_cache_bytes());
  if (budget == 0 || core_.ledger().max_slots() <= budget || core_.compactable_layers().empty())
    return Status::ok();
  SHARPI_TRY_ASSIGN(CompactRequest r, standing_compaction(shape, budget));
  SHARPI_TRY(observer_.use_captured(SHARPI_UNSET, &r));
  return compactor_.run(r, nullptr);
}

Status BoundedKeeper::begin_prompt(std::span<const int32_t> prompt) {
  SHARPI_TRY(look_ahead(prompt));
  prompt_end_ = core_.ledger().next_position() + prompt.size();
  return Status::ok();
}

void BoundedKeeper::end_prompt() noexcept {
  look_ahead_ = 0;
  prompt_end_ = 0;
}

Status BoundedKeeper::look_ahead(std::span<const int32_t> prompt) {
  const SessionShape& shape = core_.shape;
  if (shape.kv_budget == 0 || prompt.size() <= core_.free_slots()) return Status::ok();
  std::span<const int32_t> watch(shape.probe);
  uint64_t position = core_.ledger().next_position() + prompt.size();  // a probe follows the prompt
  if (watch.empty()) {
    if (!shape.lookahead) return Status::ok();
    const uint32_t most = std::min(shape.capture_window, core_.limits().n_chunk);
    watch = prompt.last(std::min<size_t>(most, prompt.size()));
    position -= watch.size();
  }
  if (watch.empty()) return Status::ok();
  if (watch.size() > core_.free_slots()) {
    if (observer_.holds_probe()) {  // its queries of an earlier call, not those of the text before
      look_ahead_ = static_cast<uint32_t>(watch.size());
      look_ahead_position_ = core_.ledger().next_position();
    }
    SHARPI_TRY(compact_to_budget());
  }
  core_.changed = true;
  SHARPI_TRY(observer_.observe(watch, position, true));
  observer_.set_probe_seen(position);
  look_ahead_ = static_cast<uint32_t>(watch.size());
  look_ahead_position_ = position;
  return Status::ok();
}

Status BoundedKeeper::compact_to_budget() {
  SHARPI_TRY_ASSIGN(CompactRequest r, standing_compaction(core_.shape, core_.shape.kv_budget));
  r.shrink = false;
  // The last rows that stay are the prompt's, not those of a chunk in its middle.
  const uint64_t now = core_.ledger().next_position(),
                 unread = prompt_end_ > now ? prompt_end_ - now : 0;
  r.recency = r.recency > unread ? static_cast<uint32_t>(r.recency - unread) : 0;
  if (look_ahead_ != 0) {
    r.source = Capture::kObserver;
    r.n_queries = look_ahead_;
    r.first_position = look_ahead_position_;
  } else {
    SHARPI_TRY(observer_.use_captured(SHARPI_UNSET, &r));
  }
  SHARPI_TRY(compactor_.run(r, nullptr));
  core_.changed = true;
  return Status::ok();
}

std::string BoundedKeeper::why_it_ends() const {
  return why_context_ends(core_.spec(), core_.shape, core_.limits().n_chunk);
}

/// The context shift, which makes room for n more tokens: the last tokens of the context become its
/// first. Recent rows stay as they are, because the base that positions count from moves instead;
/// only rows whose positions would fall before the new base have their keys rotated to positions
/// behind it.
Status BoundedKeeper::shift_context(uint64_t n) {
  SHARPI_TRY(drafters_.catch_up());  // the MTP block needs tokens that may go
  const KvLedger& ledger = core_.ledger();
  const uint32_t n_ctx = core_.shape.n_ctx;
  uint64_t stay = std::min<uint64_t>(n_ctx / 2, n_ctx - n);
  for (const auto& tier : core_.tiers) {
    for (const KvGroup& g : tier->store().layout().groups) {
      if (g.ring) stay = std::max<uint64_t>(stay, g.ring_slots);
    }
  }
  // Layers that have evicted nothing hold a row for every token.
  if (ledger.max_slots() + n > n_ctx) SHARPI_TRY(compact_to_budget());
  stay = std::max<uint64_t>(stay, ledger.max_slots());
  if (stay + n > n_ctx) return core_.no_room(n);
  const auto shift = static_cast<uint32_t>(ledger.n_tokens() - stay);
  core_.changed = true;
  for (const uint32_t l : core_.compactable_layers()) {
    SHARPI_TRY(shifter_.shift_rows(&core_.store(l), l, ledger, shift));
  }
  core_.transcript.shift_context(shift);
  // The session's own rows in front of the new base have their slots as positions now.
  core_.archive.shift(shift, core_.ledger().max_slots());
  drafters_.rebased();
  checkpoints_.clear();
  return Status::ok();
}

Status BoundedKeeper::make_room(uint64_t n) {
  if (core_.ledger().n_tokens() + n > core_.shape.n_ctx) SHARPI_TRY(shift_context(n));
  if (n <= core_.free_slots()) return Status::ok();
  if (core_.shape.kv_budget != 0) SHARPI_TRY(compact_to_budget());
  return n <= core_.free_slots() ? Status::ok() : core_.no_room(n);
}

}  // namespace sharpi
