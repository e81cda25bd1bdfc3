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
#include "kv/head_blocks.h"
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
    SHARPI_TRY(ranges_[group].commit(bytes_of(group, n_slots)));
    wanted_[group] = std::max(wanted_[group], n_slots);
    set_capacity(group, std::max(capacity_[group], n_slots));
    return Status::ok();
  }
  void shrink(uint32_t group, uint32_t n_slots) noexcept final {
    wanted_[group] = std::min(wanted_[group], n_slots);
    if (n_slots >= capacity_[group]) return;
    ranges_[group].decommit(bytes_of(group, n_slots));
    set_capacity(group, n_slots);
  }

  bool is_by_head(uint32_t group) const final { return by_head_[group] != 0; }
  uint32_t slots_by_head(uint32_t group, std::span<const uint32_t> lags) const final {
    const uint64_t held = ranges_[group].committed();
    const uint32_t most = wanted_[group];
    if (!lags.empty()) return heads_[group].slots_in(lags, held, most);
    const uint64_t blocks = held / layout_.groups[group].block_stride;
    return static_cast<uint32_t>(std::min<uint64_t>(most, blocks * kKvBlockSlots));
  }
  void lay_out_empty(uint32_t group, std::span<const uint32_t> lags) noexcept final {
    if (lags.empty() && !is_by_head(group)) return;
    const uint32_t n_slots = slots_by_head(group, lags);
    by_head_[group] = lags.empty() ? 0 : 1;
    if (!lags.empty()) heads_[group].set_lags(lags);
    set_capacity(group, n_slots);
  }
  /// Of a layer whose rows are in blocks of one head.
  KvView head_view(uint32_t layer, uint32_t head) const {
    const auto group = static_cast<size_t>(layout_.group_of_layer[layer]);
    return heads_[group].view(static_cast<size_t>(layout_.index_in_group[layer]), head,
                              ranges_[group].data());
  }
  bool is_layer_by_head(uint32_t layer) const {
    return is_by_head(static_cast<uint32_t>(layout_.group_of_layer[layer]));
  }

  uint32_t read_only_slots(uint32_t group) const final {
    if constexpr (Range::kShares) {
      const uint64_t stride = layout_.groups[group].block_stride,
                     from = ranges_[group].writable_from();
      if (is_by_head(group)) return heads_[group].slots_behind(from, capacity_[group]);
      return static_cast<uint32_t>(div_up(from, stride) * kKvBlockSlots);
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
      return ranges_[group].make_shared(first_byte(group, n_slots), on_free);
    }
    return Status::ok();
  }
  Status take_shared(const KvStore& from, uint32_t group, uint32_t n_slots) final {
    const auto& other = static_cast<const StoredRows&>(from);
    if (other.is_by_head(group)) {
      std::vector<uint32_t> lags;
      for (uint32_t h = 0; h < other.heads_[group].n_heads(); ++h)
        lags.push_back(other.heads_[group].lag(h));
      lay_out_empty(group, lags);
    }
    if constexpr (Range::kShares) {
      return ranges_[group].share_from(other.ranges_[group], other.first_byte(group, n_slots));
    }
    return Status::ok();
  }
  uint64_t own_rows_bytes(uint32_t group, uint32_t slot) const final {
    if constexpr (Range::kShares) return ranges_[group].own_bytes_of(first_byte(group, slot));
    return 0;
  }
  Status own_rows(uint32_t group, uint32_t slot, uint32_t n_live) final {
    if constexpr (Range::kShares) {
      return ranges_[group].own(first_byte(group, slot), bytes_of(group, n_live));
    }
    return Status::ok();
  }

 protected:
  explicit StoredRows(KvLayout layout)
      : layout_(std::move(layout)),
        capacity_(layout_.groups.size(), 0),
        wanted_(layout_.groups.size(), 0),
        by_head_(layout_.groups.size(), 0),
        heads_(layout_.groups.size()) {}

  /// For a tier that keeps rows by head: what it needs to do so. May throw std::bad_alloc.
  void prepare_heads() {
    size_t most = 0;
    for (size_t g = 0; g < layout_.groups.size(); ++g) {
      if (layout_.groups[g].ring) continue;
      heads_[g] = HeadBlocks(layout_.groups[g], layout_.groups[g].capacity);
      most = std::max<size_t>(most, heads_[g].n_heads());
    }
    counts_.reserve(most);
  }
  /// kInternal unless a head of a layer that is by head has room for so many rows.
  Status check_head_rows(uint32_t layer, uint32_t head, uint32_t first, uint32_t n) const {
    if (!is_layer_by_head(layer)) return no_heads(layer);
    const HeadBlocks& heads = heads_[static_cast<size_t>(layout_.group_of_layer[layer])];
    const auto index = static_cast<size_t>(layout_.index_in_group[layer]);
    return check_rows(layer, heads.lag(heads.first_head(index) + head) + first, n);
  }
  /// kInternal of a layer that is by head.
  Status check_together(uint32_t layer) const {
    if (!is_layer_by_head(layer)) return Status::ok();
    return Status::error(Code::kInternal, "the rows of layer %u are in blocks of one head", layer);
  }

  uint64_t bytes_of(uint32_t group, uint32_t n_slots) const {
    return is_by_head(group) ? heads_[group].bytes(n_slots)
                             : layout_.groups[group].block_bytes(n_slots);
  }
  void set_capacity(uint32_t group, uint32_t n_slots) noexcept {
    capacity_[group] = n_slots;
    if (is_by_head(group)) heads_[group].name_blocks(n_slots);
    guard_tail(group);
  }

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
      const uint64_t end = bytes_of(group, slots);
      unpoison(group_base(group), end);
      poison(group_base(group) + end, ranges_[group].committed() - end);
      if (is_by_head(group)) return guard_heads(group);
      for (const KvLayerLayout& l : g.layers) {
        if (past == 0) break;
        const KvView v = view(l.layer);
        poison(v.k_row(slots), uint64_t{kKvBlockSlots - past} * v.k_row_bytes);
        poison(v.v_row(slots), uint64_t{kKvBlockSlots - past} * v.v_row_bytes);
      }
    }
  }

  /// The same in the last block of every head.
  void guard_heads(uint32_t group) const {
    const HeadBlocks& heads = heads_[group];
    for (size_t i = 0; i < layout_.groups[group].layers.size(); ++i) {
      for (uint32_t h = 0; h < layout_.groups[group].layers[i].n_heads; ++h) {
        const uint32_t n = heads.rows(heads.first_head(i) + h, capacity_[group]);
        const uint32_t past = n % kKvBlockSlots;
        if (past == 0) continue;
        const KvView v = heads.view(i, h, group_base(group));
        poison(v.k_row(n), uint64_t{kKvBlockSlots - past} * v.k_row_bytes);
        poison(v.v_row(n), uint64_t{kKvBlockSlots - past} * v.v_row_bytes);
      }
    }
  }

  /// First byte of the block that holds a slot. The rows of this slot of all layers lie behind it,
  /// and by head those of all heads.
  uint64_t first_byte(uint32_t group, uint32_t slot) const {
    if (is_by_head(group)) return heads_[group].full_bytes(slot);
    return slot / kKvBlockSlots * layout_.groups[group].block_stride;
  }

  KvLayout layout_;
  mutable std::vector<Range> ranges_;  // per group; mutable: sharing changes no row
  std::vector<uint32_t> capacity_;     // slots per group
  std::vector<uint32_t> wanted_;       // the same as asked for: other lags have room for fewer
  std::vector<uint8_t> by_head_;       // per group: 1 = rows are in blocks of one head
  std::vector<HeadBlocks> heads_;      // per group; without heads where rows are never so
  std::vector<uint32_t> counts_;       // rows of each head of a group, room for the largest
};

}  // namespace sharpi
