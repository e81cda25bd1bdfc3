// SPDX-License-Identifier: MIT
// The KV rows of one session on one tier: the address range of each group of layers, how many of
// its rows have memory, and how many are shared copy-on-write with forks, on tiers whose memory can
// be.
// Owned through the tier's session.
// Thread rule: one owner (the session), except that sharing may run beside reads, as it changes no
// row.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "base/poison.h"
#include "tier/session_layout.h"
#include "tier/tier.h"

namespace sharpi {

/// Range: addresses of which a prefix is committed; what is new in it reads as zero.
template <class Range>
class StoredRows : public TierSession, public KvStore {
 public:
  const KvLayout& layout() const final { return layout_; }
  KvView view(uint32_t layer) const final {
    return layout_.view(layer, group_base(static_cast<uint32_t>(layout_.group_of_layer[layer])));
  }
  /// First byte of a group's rows.
  std::byte* group_base(uint32_t group) const { return ranges_[group].data(); }
  uint32_t capacity(uint32_t group) const final { return capacity_[group]; }
  uint64_t held_bytes(uint32_t group) const final { return ranges_[group].committed(); }
  Status reserve(uint32_t group, uint32_t n_slots) final {
    SHARPI_TRY(ranges_[group].commit(layout_.groups[group].block_bytes(n_slots)));
    capacity_[group] = std::max(capacity_[group], n_slots);
    guard_tail(group);
    return Status::ok();
  }
  void shrink(uint32_t group, uint32_t n_slots) noexcept final {
    if (n_slots >= capacity_[group]) return;
    ranges_[group].decommit(layout_.groups[group].block_bytes(n_slots));
    capacity_[group] = n_slots;
    guard_tail(group);
  }

  uint32_t read_only_slots(uint32_t group) const final {
    if constexpr (Range::kShares) {
      const uint64_t stride = layout_.groups[group].block_stride;
      return static_cast<uint32_t>(div_up(ranges_[group].writable_from(), stride) * kKvBlockSlots);
    }
    return 0;
  }
  uint64_t read_only_bytes(uint32_t group) const final {
    if constexpr (Range::kShares) return ranges_[group].writable_from();
    return 0;
  }
  uint64_t own_bytes(uint32_t group) const final {
    if constexpr (Range::kShares) return ranges_[group].private_bytes();
    return held_bytes(group);
  }
  uint64_t shared_bytes(uint32_t group) const final {
    if constexpr (Range::kShares) return ranges_[group].shared_bytes();
    return 0;
  }
  Status share_rows(uint32_t group, uint32_t n_slots,
                    const std::function<void(uint64_t)>& on_free) const final {
    if constexpr (Range::kShares) {
      return ranges_[group].make_shared(layout_.groups[group].block_bytes(n_slots), on_free);
    }
    return Status::ok();
  }
  Status take_shared(const KvStore& from, uint32_t group, uint32_t n_slots) final {
    if constexpr (Range::kShares) {
      const auto& other = static_cast<const StoredRows&>(from);
      return ranges_[group].share_from(other.ranges_[group],
                                       layout_.groups[group].block_bytes(n_slots));
    }
    return Status::ok();
  }
  uint64_t own_rows_bytes(uint32_t group, uint32_t slot) const final {
    if constexpr (Range::kShares) return ranges_[group].own_bytes_of(first_byte(group, slot));
    return 0;
  }
  Status own_rows(uint32_t group, uint32_t slot, uint32_t n_live) final {
    if constexpr (Range::kShares) {
      const uint64_t live = layout_.groups[group].block_bytes(n_live);
      return ranges_[group].own(first_byte(group, slot), live);
    }
    return Status::ok();
  }

 protected:
  explicit StoredRows(KvLayout layout)
      : layout_(std::move(layout)), capacity_(layout_.groups.size(), 0) {}

  /// Commits the rows that the template wants, in ranges that range_of_bytes(n) reserves.
  template <class RangeOfBytes>
  Status reserve_groups(const RangeOfBytes& range_of_bytes, uint32_t n_ctx, uint32_t first_slots) {
    for (uint32_t g = 0; g < layout_.groups.size(); ++g) {
      SHARPI_TRY_ASSIGN(Range range, range_of_bytes(range_bytes(layout_.groups[g], n_ctx)));
      ranges_.push_back(std::move(range));
      const KvGroup& group = layout_.groups[g];
      SHARPI_TRY(reserve(g, group.ring ? group.capacity : std::min(group.capacity, first_slots)));
    }
    return Status::ok();
  }

  /// Under AddressSanitizer, what is mapped behind a group's capacity may not be touched: whole
  /// blocks, and in the last one the rows of every layer from the capacity on.
  void guard_tail(uint32_t group) const {
    if constexpr (kPoisons && Range::kOfHost) {
      const KvGroup& g = layout_.groups[group];
      const uint32_t slots = capacity_[group], past = slots % kKvBlockSlots;
      const uint64_t end = g.block_bytes(slots);
      unpoison(group_base(group), end);
      poison(group_base(group) + end, ranges_[group].committed() - end);
      for (const KvLayerLayout& l : g.layers) {
        if (past == 0) break;
        const KvView v = view(l.layer);
        poison(v.k_row(slots), uint64_t{kKvBlockSlots - past} * v.k_row_bytes);
        poison(v.v_row(slots), uint64_t{kKvBlockSlots - past} * v.v_row_bytes);
      }
    }
  }

  /// First byte of the block that holds a slot. The rows of this slot of all layers lie behind it.
  uint64_t first_byte(uint32_t group, uint32_t slot) const {
    return slot / kKvBlockSlots * layout_.groups[group].block_stride;
  }

  KvLayout layout_;
  mutable std::vector<Range> ranges_;  // per group; mutable: sharing changes no row
  std::vector<uint32_t> capacity_;     // slots per group
};

}  // namespace sharpi
