// SPDX-License-Identifier: MIT
#include "engine/row_memory.h"

#include <algorithm>
#include <vector>

#include "base/no_throw.h"

namespace sharpi {

KvTotals RowMemory::totals() const {
  KvTotals t;
  for (const auto& tier : core_.tiers) {
    const KvStore& kv = tier->store();
    for (uint32_t g = 0; g < kv.layout().groups.size(); ++g) {
      const KvGroup& group = kv.layout().groups[g];
      t.held += kv.held_bytes(g);
      t.shared += kv.shared_bytes(g);
      for (const KvLayerLayout& l : group.layers) {
        const uint64_t row = uint64_t{l.k_row_bytes} + l.v_row_bytes;
        t.payload += group.ring ? std::min(core_.ledger().n_tokens(), group.ring_slots) * row
                                : core_.ledger().rows_of_heads(l.layer) * (row / l.n_heads);
      }
    }
  }
  return t;
}

/// What the session alone holds.
HeldBytes RowMemory::held() const {
  HeldBytes b;
  for (size_t t = 0; t < core_.tiers.size(); ++t) {
    uint64_t& to = b.at(core_.model->devices()[t]);
    const KvStore& kv = core_.tiers[t]->store();
    for (uint32_t g = 0; g < kv.layout().groups.size(); ++g) to += kv.own_bytes(g);
  }
  return b;
}

/// What growing every full-attention group to n_slots adds.
HeldBytes RowMemory::growth(uint32_t n_slots) const {
  HeldBytes b;
  for (size_t t = 0; t < core_.tiers.size(); ++t) {
    uint64_t& to = b.at(core_.model->devices()[t]);
    const KvStore& kv = core_.tiers[t]->store();
    for (uint32_t g = 0; g < kv.layout().groups.size(); ++g) {
      if (kv.layout().groups[g].ring || kv.capacity(g) >= n_slots) continue;
      to += kv.held_bytes_of(g, n_slots) - kv.held_bytes(g);
    }
  }
  return b;
}

Status RowMemory::reserve(uint32_t n_slots) {
  if (n_slots > core_.priced_slots()) {
    return Status::error(Code::kDoesNotFit,
                         "%u slots are asked for, but the session was priced for %u", n_slots,
                         core_.priced_slots());
  }
  const HeldBytes share = core_.share.held();
  SHARPI_TRY(core_.share.take(growth(n_slots)));
  struct Grown {
    KvStore* store;
    uint32_t group, before;
  };
  std::vector<Grown> grown;
  for (const auto& tier : core_.tiers) {
    KvStore& kv = tier->store();
    for (uint32_t g = 0; g < kv.layout().groups.size(); ++g) {
      if (kv.layout().groups[g].ring || kv.capacity(g) >= n_slots) continue;
      grown.push_back({&kv, g, kv.capacity(g)});
      const Status got = kv.reserve(g, n_slots);
      if (got.is_ok()) continue;
      for (const Grown& one : grown) one.store->shrink(one.group, one.before);
      core_.share.settle(share);
      return got;
    }
  }
  return Status::ok();
}

void RowMemory::shrink_to(uint32_t headroom) noexcept {
  const HeldBytes before = held();
  for (const auto& tier : core_.tiers) {
    KvStore& kv = tier->store();
    for (uint32_t g = 0; g < kv.layout().groups.size(); ++g) {
      const KvGroup& group = kv.layout().groups[g];
      if (group.ring) continue;
      const auto want =
          std::min<uint64_t>(core_.shape.n_ctx, uint64_t{core_.ledger().fullest(group)} + headroom);
      kv.shrink(g, static_cast<uint32_t>(want));
    }
  }
  const HeldBytes now = held(), &all = core_.share.held();
  core_.share.settle(all - before + now);
}

/// What a tier's tables of rows by head take.
HeldBytes RowMemory::tables_of(size_t tier) const {
  const KvStore& kv = core_.tiers[tier]->store();
  HeldBytes b = HeldBytes::of_host(kv.head_table_host_bytes());
  b.at(core_.model->devices()[tier]) += kv.head_table_bytes();
  return b;
}

Status RowMemory::take_head_tables() {
  for (size_t t = 0; t < core_.tiers.size(); ++t) {
    KvStore& kv = core_.tiers[t]->store();
    if (kv.has_head_tables() || kv.head_table_bytes() == 0) continue;
    Lease lease(core_.share);
    SHARPI_TRY(lease.take(tables_of(t)));
    const Status taken = kv.take_head_tables();
    if (!taken.is_ok()) {
      lease.end();
      drop_head_tables();
      return taken;
    }
    lease.keep();
  }
  return Status::ok();
}

void RowMemory::drop_head_tables() noexcept {
  if (score_queries(core_.shape) != 0 || core_.ledger().is_by_head()) return;
  for (size_t t = 0; t < core_.tiers.size(); ++t) {
    KvStore& kv = core_.tiers[t]->store();
    if (!kv.has_head_tables()) continue;
    kv.drop_head_tables();
    core_.share.give(tables_of(t));
  }
}

void RowMemory::begin_again() noexcept {
  for (const auto& tier : core_.tiers) {
    KvStore& kv = tier->store();
    for (uint32_t g = 0; g < kv.layout().groups.size(); ++g) kv.lay_out_empty(g, {});
  }
  drop_head_tables();
}

/// Rows of a group that are complete in all of its layers, in whole blocks; by head, those of the
/// fullest head, of whose blocks the store shares the full ones. A bounded session moves
/// its rows whenever it makes room, and must not need memory for it.
uint32_t RowMemory::shareable_slots(const KvGroup& group) const {
  if (group.ring || core_.shape.kv_budget != 0) return 0;
  if (core_.ledger().is_by_head()) return core_.ledger().fullest(group);
  uint32_t least = UINT32_MAX;
  for (const KvLayerLayout& l : group.layers)
    least = std::min(least, core_.ledger().n_slots(l.layer));
  return least / kKvBlockSlots * kKvBlockSlots;
}

Status RowMemory::share_rows() const {
  const HeldBytes before = held();
  Status done = Status::ok();
  for (size_t t = 0; t < core_.tiers.size() && done.is_ok(); ++t) {
    const DeviceIndex id = core_.model->devices()[t];
    const auto on_free = [of = core_.model->allowance(), id](uint64_t bytes) {
      HeldBytes back;
      back.at(id) = bytes;
      of->give(back);
    };
    const KvStore& kv = core_.tiers[t]->store();
    for (uint32_t g = 0; g < kv.layout().groups.size() && done.is_ok(); ++g) {
      const uint32_t n = shareable_slots(kv.layout().groups[g]);
      // What was shared before a refusal stays so, and is counted below.
      if (n != 0) done = no_throw([&] { return kv.share_rows(g, n, on_free); });
    }
  }
  const HeldBytes now = held();
  core_.share.lend(before - now);
  return done;
}

HeldBytes RowMemory::fork_share() const {
  HeldBytes b = core_.share.held();
  for (size_t t = 0; t < core_.tiers.size(); ++t) {
    uint64_t& to = b.at(core_.model->devices()[t]);
    const KvStore& kv = core_.tiers[t]->store();
    for (uint32_t g = 0; g < kv.layout().groups.size(); ++g)
      to += kv.held_bytes(g) - kv.read_only_bytes(g) - kv.own_bytes(g);
  }
  return b;
}

Status RowMemory::take_shared(const RowMemory& from) {
  if (from.core_.ledger().is_by_head()) {  // what fork_share() counted
    for (const auto& tier : core_.tiers) SHARPI_TRY(tier->store().take_head_tables());
  }
  for (size_t t = 0; t < core_.tiers.size(); ++t) {
    const KvStore& theirs = from.core_.tiers[t]->store();
    KvStore& kv = core_.tiers[t]->store();
    for (uint32_t g = 0; g < theirs.layout().groups.size(); ++g) {
      const KvGroup& group = theirs.layout().groups[g];
      if (!group.ring) SHARPI_TRY(kv.take_shared(theirs, g, from.shareable_slots(group)));
      SHARPI_TRY(kv.reserve(g, theirs.capacity(g)));
    }
  }
  return Status::ok();
}

Status RowMemory::own_rows(const std::function<uint32_t(uint32_t layer)>& first_written) {
  struct Part {
    KvStore* store;
    uint32_t group, slot;
  };
  std::vector<Part> parts;
  HeldBytes cost;
  for (size_t t = 0; t < core_.tiers.size(); ++t) {
    KvStore& kv = core_.tiers[t]->store();
    for (uint32_t g = 0; g < kv.layout().groups.size(); ++g) {
      if (kv.read_only_slots(g) == 0) continue;
      uint32_t slot = UINT32_MAX;
      const KvGroup& group = kv.layout().groups[g];
      for (const KvLayerLayout& l : group.layers) {
        const uint32_t behind =
            kv.is_by_head(g) ? core_.ledger().fullest(group) - core_.ledger().n_slots(l.layer) : 0;
        slot = std::min(slot, first_written(l.layer) + behind);
      }
      if (slot >= kv.read_only_slots(g)) continue;
      parts.push_back({&kv, g, slot});
      cost.at(core_.model->devices()[t]) += kv.own_rows_bytes(g, slot);
    }
  }
  if (parts.empty()) return Status::ok();
  const HeldBytes share = core_.share.held(), before = held();
  SHARPI_TRY(core_.share.take(cost));
  Status done = Status::ok();
  for (const Part& p : parts) {
    if (!done.is_ok()) break;
    done = p.store->own_rows(p.group, p.slot,
                             core_.ledger().fullest(p.store->layout().groups[p.group]));
  }
  const HeldBytes now = held();
  core_.share.settle(share - before + now);
  return done;
}

}  // namespace sharpi
