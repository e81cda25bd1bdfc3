// SPDX-License-Identifier: MIT
// What the sessions of every tier have in common: layouts and sizes, which follow from the plan and
// the template; buffers in the kind of memory that the tier chooses; the addresses in them; and the
// checks of arguments against the sizes. Each tier adds how bytes are copied in and out.
// Owned through the tier's session.
// Thread rule: one owner (the session).
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "tier/session_layout.h"
#include "tier/stored_rows.h"
#include "tier/tier.h"

namespace sharpi {

/// Buffer: memory that the tier's kernels use. CheckpointBuffer: memory that the host can use too.
/// Range: addresses of which a prefix is committed; what is new in it reads as zero.
template <class Buffer, class CheckpointBuffer, class Range>
class StoredSession : public StoredRows<Range> {
 public:
  using Rows = StoredRows<Range>;
  using Rows::capacity;
  using Rows::group_base;
  using Rows::layout_;
  using Rows::ranges_;
  using Rows::view;

  KvStore& store() final { return *this; }
  uint32_t format() const final { return format_index; }
  uint32_t query_rows(Capture which) const final {
    const uint64_t row = query_layout_.bytes(1);
    return row == 0 ? 0 : static_cast<uint32_t>(query_memory(which).bytes() / row);
  }
  void release_observer() noexcept final { call_observer_ = Buffer(); }
  /// [query_rows][dim] of one layer; ring rows at position % query_rows. Null if there is none.
  float* queries(uint32_t layer, Capture which) const {
    const uint32_t rows = query_rows(which);
    const int64_t offset = query_layout_.offset_of_layer[layer];
    if (rows == 0 || offset < 0) return nullptr;
    return query_base(which) + static_cast<uint64_t>(offset) * rows;
  }
  /// The queries of all layers; null if there are none.
  float* query_base(Capture which) const { return query_memory(which).template as<float>(); }

  bool has_replay_scores(uint32_t layer) const final { return replay_layout_.has(layer); }
  /// [n_kv_heads][*stride] by slot, in the tier's memory; null where there are none.
  float* replay_scores(uint32_t layer, uint64_t* stride) const {
    return replay_layout_.scores_of(layer, scores_.template as<float>(), stride);
  }

  uint64_t state_bytes(uint32_t layer, StatePart part) const final {
    const StateLayout::Layer* l = state_layout_.find(layer);
    return l == nullptr ? 0 : l->bytes(part);
  }
  void commit_state() noexcept final {
    current_ ^= 1;
    pending_ = 0;
  }
  void commit_rows(uint32_t n_rows) noexcept final {
    if (pending_ != 0) current_ ^= 1;  // the pass applied them; its own rows wait now
    kept_ ^= 1;
    pending_ = draft_layout_.n_rows == 0 ? 0 : n_rows;
  }
  /// Rows that were accepted, but that the committed state does not contain yet.
  uint32_t pending() const { return pending_; }
  /// What the last pass with drafts kept of a recurrent layer (DraftLayout), or, with `working`,
  /// where the present pass puts it.
  float* draft_plane(uint64_t offset, bool working) const {
    const uint64_t copy = working ? kept_ ^ 1u : kept_;
    return drafts_.template as<float>() + copy * draft_layout_.copy_floats + offset;
  }
  float* draft_scratch() const {
    return drafts_.template as<float>() + 2 * draft_layout_.copy_floats;
  }
  const DraftLayout& draft_layout() const { return draft_layout_; }
  const DraftLayout::Layer& draft_layer(uint32_t layer) const {
    return draft_layout_.layers[static_cast<size_t>(state_layout_.index_of_layer[layer])];
  }
  /// Committed (input) and working (output) state of a recurrent layer, in the tier's memory.
  float* state(uint32_t layer, StatePart part, bool working) const {
    return reinterpret_cast<float*>(state_base(working) + state_layout_.find(layer)->offset(part));
  }
  /// The same without the layer: base of the committed (false) or working (true) copy.
  std::byte* state_base(bool working) const {
    const uint32_t which = working ? current_ ^ 1u : current_;
    return state_.data() + which * state_layout_.bytes;
  }
  uint64_t checkpoint_bytes() const { return state_layout_.bytes; }
  Status read_checkpoint(uint32_t index, uint32_t layer, StatePart part, void* out) const final {
    SHARPI_TRY(check_state(layer, part));
    SHARPI_TRY_ASSIGN(const std::byte* from, checkpoint_at(index));
    const StateLayout::Layer& l = *state_layout_.find(layer);
    std::memcpy(out, from + l.offset(part), l.bytes(part));
    return Status::ok();
  }
  Status write_checkpoint(uint32_t index, uint32_t layer, StatePart part, const void* in) final {
    SHARPI_TRY(check_state(layer, part));
    SHARPI_TRY_ASSIGN(std::byte * to, checkpoint_at(index));
    const StateLayout::Layer& l = *state_layout_.find(layer);
    std::memcpy(to + l.offset(part), in, l.bytes(part));
    return Status::ok();
  }

  Status copy_from(const TierSession& other, uint32_t n_slots) final {
    const auto& from = static_cast<const StoredSession&>(other);
    for (uint32_t g = 0; g < layout_.groups.size(); ++g) {
      const uint32_t held = from.capacity(g),
                     n = layout_.groups[g].ring ? held : std::min(held, n_slots);
      SHARPI_TRY(copy_slots(g, from, n));
    }
    SHARPI_TRY(copy_within(state_base(false), from.state_base(false), state_layout_.bytes));
    SHARPI_TRY(copy_within(draft_plane(0, false), from.draft_plane(0, false),
                           draft_layout_.copy_floats * sizeof(float)));
    pending_ = from.pending_;
    SHARPI_TRY(copy_within(logits_.data(), from.logits_.data(), logits_.bytes()));
    SHARPI_TRY(copy_within(ring_.data(), from.ring_.data(), ring_.bytes()));
    SHARPI_TRY(copy_within(observer_.data(), from.observer_.data(), from.observer_.bytes()));
    SHARPI_TRY(copy_within(scores_.data(), from.scores_.data(), scores_.bytes()));
    const uint64_t kept = shape_.n_checkpoints * state_layout_.bytes;
    if (kept != 0) std::memcpy(checkpoints_.data(), from.checkpoints_.data(), kept);
    return Status::ok();
  }

  /// [max_logit_rows][n_vocab]; null where the head is elsewhere.
  float* logits() const { return logits_.template as<float>(); }
  /// Index of how its rows are stored in the model's list of KV formats.
  uint32_t format_index = 0;

 protected:
  StoredSession(DeviceIndex device, std::shared_ptr<const Plan> plan, const SessionShape& shape)
      : Rows(make_tier_kv_layout(*plan->spec, plan->placement, device, plan->model, shape)),
        plan_(std::move(plan)),
        shape_(shape),
        state_layout_(make_state_layout(*plan_->spec, plan_->placement, device)),
        query_layout_(make_query_layout(*plan_->spec, plan_->placement, device)),
        replay_layout_(
            make_replay_layout(*plan_->spec, plan_->placement, device, plan_->model, shape)),
        draft_layout_(make_draft_layout(*plan_->spec, plan_->placement, device, shape.n_draft)) {}

  template <class RangeOfBytes>
  Status reserve_groups(const RangeOfBytes& range_of_bytes) {
    return Rows::reserve_groups(range_of_bytes, shape_.n_ctx, shape_.first_slots);
  }

  /// Copies the first n slots of a group, except those that are shared already. On the host the
  /// last block is copied row by row, because the rest of it may be guarded.
  Status copy_slots(uint32_t group, const StoredSession& from, uint32_t n) const {
    if (from.is_by_head(group)) return copy_heads(group, from, n);
    const KvGroup& g = layout_.groups[group];
    const uint32_t rest = Range::kOfHost ? n % kKvBlockSlots : 0, first = n - rest;
    const uint64_t shared = this->read_only_bytes(group);
    SHARPI_TRY(copy_within(group_base(group) + shared, from.group_base(group) + shared,
                           g.block_bytes(first) - shared));
    for (const KvLayerLayout& l : g.layers) {
      if (rest == 0) break;
      const KvView to = view(l.layer), own = from.view(l.layer);
      for (const bool value : l.sides())
        SHARPI_TRY(copy_within(to.row(value, first), own.row(value, first),
                               uint64_t{rest} * to.row_bytes(value)));
    }
    return Status::ok();
  }

  /// The same of rows in blocks of one head: they lie at the same places in both.
  Status copy_heads(uint32_t group, const StoredSession& from, uint32_t n_slots) const {
    const HeadBlocks& heads = from.heads_[group];
    const uint64_t shared = this->read_only_bytes(group);
    std::byte *const base = group_base(group), *const other = from.group_base(group);
    if (!Range::kOfHost) return copy_behind(group, shared, base, other, heads.bytes(n_slots));
    for (size_t i = 0; i < layout_.groups[group].layers.size(); ++i) {
      const uint32_t layer = layout_.groups[group].layers[i].layer;
      for (uint32_t h = 0; h < layout_.groups[group].layers[i].n_heads; ++h) {
        const KvView to = this->head_view(layer, h), own = from.head_view(layer, h);
        const uint32_t n = heads.rows(heads.first_head(i) + h, n_slots);
        for (uint32_t slot = 0; slot < n; slot += kKvBlockSlots) {
          const uint32_t rows = std::min(kKvBlockSlots, n - slot);
          // A granule that is shared may end within a block.
          for (const bool value : layout_.groups[group].layers[i].sides())
            SHARPI_TRY(copy_behind(group, shared, to.row(value, slot), own.row(value, slot),
                                   uint64_t{rows} * to.row_bytes(value)));
        }
      }
    }
    return Status::ok();
  }
  /// What of it lies behind the group's first `shared` bytes.
  Status copy_behind(uint32_t group, uint64_t shared, std::byte* to, const std::byte* from,
                     uint64_t bytes) const {
    const auto at = static_cast<uint64_t>(to - group_base(group));
    const uint64_t skip = at >= shared ? 0 : std::min(bytes, shared - at);
    return copy_within(to + skip, from + skip, bytes - skip);
  }

  /// Copies between sessions, in the memory that the tier's kernels use; done on return. 0 bytes =
  /// nothing to do.
  virtual Status copy_within(void* to, const void* from, uint64_t bytes) const = 0;

  uint64_t logit_row_bytes() const { return uint64_t{plan_->spec->n_vocab} * sizeof(float); }
  Status check_logits_row(uint32_t row) const {
    if (logits_.bytes() >= (row + 1ull) * logit_row_bytes()) return Status::ok();
    return Status::error(Code::kInternal, "row %u of the logits is not on this tier", row);
  }
  Status check_queries(uint32_t layer, uint32_t n) const {
    const bool here = queries(layer, Capture::kRing) != nullptr && n <= query_rows(Capture::kRing);
    if (here) return Status::ok();
    return Status::error(Code::kInternal, "%u captured queries of layer %u are not on this tier", n,
                         layer);
  }
  Status check_state(uint32_t layer, StatePart part) const {
    if (state_bytes(layer, part) != 0) return Status::ok();
    return Status::error(Code::kInternal, "layer %u has no recurrent state on this tier", layer);
  }
  Result<std::byte*> checkpoint_at(uint32_t index) const {
    if (index < shape_.n_checkpoints) return checkpoints_.data() + index * state_layout_.bytes;
    return Status::error(Code::kInternal, "checkpoint slot %u does not exist; the session has %u",
                         index, shape_.n_checkpoints);
  }
  /// The committed state was replaced, so that accepted rows no longer have to be applied to it.
  void drop_pending() noexcept { pending_ = 0; }
  const Buffer& query_memory(Capture which) const {
    if (which == Capture::kRing) return ring_;
    return call_observer_.bytes() != 0 ? call_observer_ : observer_;
  }

  std::shared_ptr<const Plan> plan_;
  SessionShape shape_;
  StateLayout state_layout_;
  QueryLayout query_layout_;
  ReplayLayout replay_layout_;
  DraftLayout draft_layout_;
  Buffer state_;  // two copies
  CheckpointBuffer checkpoints_;
  Buffer logits_;
  Buffer ring_, observer_;  // queries
  Buffer call_observer_;    // in place of observer_ for a call that has more than was priced
  Buffer scores_;           // see ReplayLayout
  Buffer drafts_;           // see DraftLayout

 private:
  uint32_t current_ = 0;  // the committed copy of state_
  uint32_t kept_ = 0;     // the copy of drafts_ that pending rows are in
  uint32_t pending_ = 0;
};

}  // namespace sharpi
