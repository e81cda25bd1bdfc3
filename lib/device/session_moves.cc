// SPDX-License-Identifier: MIT
// A session's compaction on the device, and its rows that are in blocks of one KV head.
#include <algorithm>

#include "device/head_moves.h"
#include "device/kernels.h"
#include "device/session.h"
#include "tier/head_moves.h"

namespace sharpi::device {

bool DeviceSession::can_keep_by_head() const {
  return device_->kernels().keeps_by_head();
}

uint64_t DeviceSession::head_table_bytes() const {
  const uint64_t bytes = HeadTables::bytes_of(heads_).device;
  return bytes == 0 ? 0 : device_->held_bytes(bytes);
}

uint64_t DeviceSession::head_table_host_bytes() const {
  const uint64_t bytes = HeadTables::bytes_of(heads_).pinned;
  return bytes == 0 ? 0 : device_->pinned_held_bytes(bytes);
}

Status DeviceSession::take_head_tables() {
  return tables_.take(heads_);
}

void DeviceSession::drop_head_tables() noexcept {
  if (std::find(by_head_.begin(), by_head_.end(), 1) != by_head_.end()) return;
  tables_.drop(heads_);
}

Status DeviceSession::read_head_rows(uint32_t layer, uint32_t head, bool value, uint32_t first,
                                     uint32_t n, void* out) const {
  SHARPI_TRY(check_head_rows(layer, head, first, n));
  return copies_.rows(head_view(layer, head), value, first, n, static_cast<std::byte*>(out),
                      Way::kToHost);
}

Status DeviceSession::write_head_rows(uint32_t layer, uint32_t head, bool value, uint32_t first,
                                      uint32_t n, const void* in) {
  SHARPI_TRY(check_head_rows(layer, head, first, n));
  auto* from = static_cast<std::byte*>(const_cast<void*>(in));  // only read
  return copies_.rows(head_view(layer, head), value, first, n, from, Way::kToDevice);
}

Status DeviceSession::send_tables() {
  for (uint32_t g = 0; g < layout_.groups.size(); ++g) {
    if (is_by_head(g)) SHARPI_TRY(tables_.send(g, heads_[g], group_base(g)));
  }
  return Status::ok();
}

const KvHeadRows* DeviceSession::head_rows(uint32_t layer) const {
  const auto group = static_cast<uint32_t>(layout_.group_of_layer[layer]);
  const auto index = static_cast<size_t>(layout_.index_in_group[layer]);
  return tables_.rows(group, heads_[group].first_head(index));
}

KvView DeviceSession::kernel_view(uint32_t layer, uint32_t head) const {
  return tables_.on_device(static_cast<uint32_t>(layout_.group_of_layer[layer]),
                           head_view(layer, head));
}

MoveList DeviceSession::list_of(std::span<const KvMove> moves) const {
  MoveList list;
  for (const KvMove& m : moves) {
    const uint32_t n_heads = layout_.find(m.layer)->n_heads;
    uint64_t stride = 0;
    float* scores = replay_scores(m.layer, &stride);
    if (!is_layer_by_head(m.layer)) list.add(view(m.layer), m);
    for (uint32_t h = 0; h < n_heads; ++h) {
      const std::span<const uint32_t> keep = m.keep[m.keep.size() == 1 ? 0 : h];
      if (is_layer_by_head(m.layer)) list.add_rows(kernel_view(m.layer, h), keep);
      if (scores != nullptr) list.add_scores(scores + h * stride, keep);
    }
  }
  return list;
}

/// What keep_by_head() needs.
uint64_t DeviceSession::least_room(std::span<const KvMove> moves) const {
  for (uint32_t g = 0; g < layout_.groups.size(); ++g) {
    if (ends_by_head(*this, g, moves)) return head_move_bytes(layout_);
  }
  return 0;
}

uint64_t DeviceSession::stage_bytes(std::span<const KvMove> moves) const {
  return moves_.stage_bytes(list_of(moves), least_room(moves));
}

Status DeviceSession::stage_moves(std::span<const KvMove> moves) {
  discard_moves();
  SHARPI_TRY(check_moves(moves));
  SHARPI_TRY(check_by_head(*this, moves));
  SHARPI_TRY(send_tables());
  MoveList list = list_of(moves);
  const uint64_t least = least_room(moves);
  SHARPI_TRY(moves_.stage(&list, least));
  if (least != 0) staged_.assign(moves.begin(), moves.end());
  return Status::ok();
}

/// The rows of a group that have moved to the front of their heads go to blocks of one head.
Status DeviceSession::keep_by_head(uint32_t group) {
  count_heads(*this, group, staged_, &counts_);
  HeadBlocks& heads = heads_[group];
  const KvGroup& g = layout_.groups[group];
  const HeadMoves steps(*device_, *stream_, tables_.stage(), moves_.room());
  uint64_t held = heads.bytes(capacity_[group]);
  if (!is_by_head(group)) {
    held = heads.name_in_place(counts_);
    SHARPI_TRY(
        steps.take_apart(g, group_base(group), static_cast<uint32_t>(held / g.block_stride)));
  }
  SHARPI_TRY(steps.move_units(heads.plan_moves(held, counts_), group_base(group), heads.unit()));
  by_head_[group] = 1;
  set_capacity(group, heads.slots_in({}, ranges_[group].committed(), wanted_[group]));
  return Status::ok();
}

Status DeviceSession::move_all() {
  SHARPI_TRY(moves_.apply());
  const DeviceScope scope(*device_);
  for (uint32_t g = 0; g < layout_.groups.size(); ++g) {
    if (ends_by_head(*this, g, staged_)) SHARPI_TRY(keep_by_head(g));
  }
  return Status::ok();
}

/// A launch that was checked and does not run is a fault of the device: nothing here can be trusted
/// any more.
void DeviceSession::apply_moves() noexcept {
  const Status done = move_all();
  if (!done.is_ok()) device_->mark_lost(done.native());
  discard_moves();
}

void DeviceSession::discard_moves() noexcept {
  moves_.discard();
  staged_.clear();
}

}  // namespace sharpi::device
