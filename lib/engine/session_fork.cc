// SPDX-License-Identifier: MIT
// Forks: full blocks of rows are shared where a tier can, each in memory once; whoever is about to
// write such rows takes memory of its own for them first. Blocks behind the last full one are each
// session's own from the start, so appending never needs memory.
#include <algorithm>

#include "base/no_throw.h"
#include "engine/session.h"

namespace sharpi {

/// Rows of a group that are complete in all of its layers, in whole blocks. A bounded session moves
/// its rows whenever it makes room, and must not need memory for it.
uint32_t Session::shareable_slots(const KvGroup& group) const {
  if (group.ring || shape_.kv_budget != 0) return 0;
  uint32_t least = UINT32_MAX;
  for (const KvLayerLayout& l : group.layers) least = std::min(least, ledger_.n_slots(l.layer));
  return least / kKvBlockSlots * kKvBlockSlots;
}

/// Makes what forks can share pages that they can map. What the session counted as its own is then
/// counted by those pages, until the last one who maps them gives them back.
Status Session::share_rows() const {
  const HeldBytes before = kv_held();
  Status done = Status::ok();
  for (size_t t = 0; t < tiers_.size() && done.is_ok(); ++t) {
    const bool host = model_->tier_ids()[t] == TierId::kCpu;
    const auto on_free = [of = model_->allowance(), host](uint64_t bytes) {
      of->give(host ? HeldBytes{0, bytes} : HeldBytes{bytes, 0});
    };
    const KvStore& kv = tiers_[t]->store();
    for (uint32_t g = 0; g < kv.layout().groups.size() && done.is_ok(); ++g) {
      const uint32_t n = shareable_slots(kv.layout().groups[g]);
      // What was shared before a refusal stays so, and is counted below.
      if (n != 0) done = no_throw([&] { return kv.share_rows(g, n, on_free); });
    }
  }
  const HeldBytes now = kv_held();
  share_.lend({before.device - now.device, before.host - now.host});
  return done;
}

/// What a fork takes: what this one holds, with memory of its own only for what cannot be shared.
HeldBytes Session::fork_share() const {
  HeldBytes b = share_.held();
  for (size_t t = 0; t < tiers_.size(); ++t) {
    uint64_t& to = model_->tier_ids()[t] == TierId::kCpu ? b.host : b.device;
    const KvStore& kv = tiers_[t]->store();
    for (uint32_t g = 0; g < kv.layout().groups.size(); ++g)
      to += kv.held_bytes(g) - kv.read_only_bytes(g) - kv.own_bytes(g);
  }
  return b;
}

/// Makes the rows of every layer from first_written(layer) on the session's own. Either all are
/// afterwards, or nothing that anybody sees changed.
Status Session::own_rows(const std::function<uint32_t(uint32_t layer)>& first_written) {
  struct Part {
    KvStore* store;
    uint32_t group, slot;
  };
  std::vector<Part> parts;
  HeldBytes cost;
  for (size_t t = 0; t < tiers_.size(); ++t) {
    KvStore& kv = tiers_[t]->store();
    for (uint32_t g = 0; g < kv.layout().groups.size(); ++g) {
      if (kv.read_only_slots(g) == 0) continue;
      uint32_t slot = UINT32_MAX;
      for (const KvLayerLayout& l : kv.layout().groups[g].layers)
        slot = std::min(slot, first_written(l.layer));
      if (slot >= kv.read_only_slots(g)) continue;
      parts.push_back({&kv, g, slot});
      (model_->tier_ids()[t] == TierId::kCpu ? cost.host : cost.device) +=
          kv.own_rows_bytes(g, slot);
    }
  }
  if (parts.empty()) return Status::ok();
  const HeldBytes share = share_.held(), before = kv_held();
  SHARPI_TRY(share_.take(cost));
  Status done = Status::ok();
  for (const Part& p : parts) {
    if (!done.is_ok()) break;
    done = p.store->own_rows(p.group, p.slot, ledger_.fullest(p.store->layout().groups[p.group]));
  }
  const HeldBytes now = kv_held();
  share_.settle({share.device - before.device + now.device, share.host - before.host + now.host});
  return done;
}

Result<std::unique_ptr<Session>> Session::fork() const {
  const std::lock_guard<std::mutex> lock(fork_mutex_);
  SHARPI_TRY(share_rows());
  SessionShape shape = shape_;
  shape.first_slots =
      0;  // what it does not share it takes below: this one may hold less than a new one
  const HeldBytes share = fork_share();
  SHARPI_TRY_ASSIGN(std::unique_ptr<Session> to, create(model_, std::move(shape), &share));
  to->shape_.first_slots = SHARPI_UNSET;
  for (size_t t = 0; t < tiers_.size(); ++t) {
    const KvStore& from = tiers_[t]->store();
    KvStore& kv = to->tiers_[t]->store();
    for (uint32_t g = 0; g < from.layout().groups.size(); ++g) {
      const KvGroup& group = from.layout().groups[g];
      if (!group.ring) SHARPI_TRY(kv.take_shared(from, g, shareable_slots(group)));
      SHARPI_TRY(kv.reserve(g, from.capacity(g)));
    }
  }
  for (size_t t = 0; t < tiers_.size(); ++t)
    SHARPI_TRY(to->tiers_[t]->copy_from(*tiers_[t], ledger_.max_slots()));
  if (mtp_ != nullptr) SHARPI_TRY(to->mtp_->copy_from(*mtp_));
  if (tables_.is_reserved()) to->take_tables();
  to->ledger_ = ledger_;
  to->history_.assign(history_.begin(), history_.end());
  to->n_logit_rows_ = n_logit_rows_;
  to->first_logit_row_ = first_logit_row_;
  to->checkpoints_ = checkpoints_;
  to->checkpoint_logits_.assign(checkpoint_logits_.begin(), checkpoint_logits_.end());
  to->checkpoint_clock_ = checkpoint_clock_;
  to->sampler_.copy_from(sampler_);
  to->probe_seen_ = probe_seen_;
  to->probe_position_ = probe_position_;
  return to;
}

}  // namespace sharpi
