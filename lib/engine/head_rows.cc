// SPDX-License-Identifier: MIT
#include "engine/head_rows.h"

#include <algorithm>
#include <cassert>
#include <cstring>

namespace sharpi {

HeadRows::HeadRows(const SessionCore& core, uint32_t layer, uint32_t head)
    : ledger_(core.ledger()),
      store_(core.store(layer)),
      layout_(*core.store(layer).layout().find(layer)),
      layer_(layer),
      head_(head),
      n_rows_(core.ledger().n_slots(layer, head)),
      by_head_(core.ledger().is_by_head()) {
  uint64_t stride = 0;
  float* all = core.tier_of(layer).host_replay_scores(layer, &stride);
  if (all != nullptr) scores_ = all + head * stride;
}

uint32_t HeadRows::row_bytes(bool value) const {
  return (value ? layout_.v_row_bytes : layout_.k_row_bytes) / layout_.n_heads;
}

void HeadRows::read(uint32_t slot, bool value, std::byte* to) const noexcept {
  if (by_head_) {
    const Status read = store_.read_head_rows(layer_, head_, value, slot, 1, to);
    assert(read.is_ok());
    (void)read;
    return;
  }
  const KvView view = store_.view(layer_);
  const std::byte* row = view.row(value, slot);
  for (const KvPart& part : KvHeadParts(view, value, head_)) {
    std::memcpy(to, row + part.offset, part.bytes);
    to += part.bytes;
  }
}

void HeadRows::write(uint32_t slot, bool value, const std::byte* from) noexcept {
  if (by_head_) {
    const Status written = store_.write_head_rows(layer_, head_, value, slot, 1, from);
    assert(written.is_ok());
    (void)written;
    return;
  }
  const KvView view = store_.view(layer_);
  std::byte* row = view.row(value, slot);
  for (const KvPart& part : KvHeadParts(view, value, head_)) {
    std::memcpy(row + part.offset, from, part.bytes);
    from += part.bytes;
  }
}

namespace {

/// Slots of [first, end) that `keep` has not, ascending.
std::span<const uint32_t> evicted(std::span<const uint32_t> keep, uint32_t first, uint32_t end,
                                  std::span<uint32_t> room) {
  auto kept = std::lower_bound(keep.begin(), keep.end(), first);
  size_t n = 0;
  for (uint32_t slot = first; slot < end; ++slot) {
    if (kept != keep.end() && *kept == slot)
      ++kept;
    else
      room[n++] = slot;
  }
  return room.first(n);
}

constexpr uint32_t kHeadsAtOnce = 64;

/// Places in the archive for rows that a device brings there, as far as there is room.
void take_places(SessionCore& core, uint32_t layer, RowsOfHead* of) {
  const auto n = static_cast<uint32_t>(of->slots.size());
  const std::span<uint32_t> places = core.archive.places(of->head).first(n);
  const PositionsAtSlots rows(core.ledger(), layer, of->head, of->slots);
  const uint32_t gone = core.archive.place(layer, of->head, n, rows, places.data());
  of->slots = of->slots.subspan(gone);
  of->places = places.subspan(gone);
}

/// Those of a layer's heads from `head` on whose slots are in [first, first + as many as the
/// archive lists).
Status archive_slots(SessionCore& core, const KvMove& m, uint32_t first, uint32_t head) {
  RowArchive& archive = core.archive;
  RowsOfHead lists[kHeadsAtOnce];
  size_t n_lists = 0;
  for (uint32_t h = head; h < std::min(archive.n_heads(m.layer), head + kHeadsAtOnce); ++h) {
    const uint32_t end = std::min(core.ledger().n_slots(m.layer, h), first + archive.n_slots());
    const std::span<const uint32_t> slots =
        evicted(m.keep[m.keep.size() == 1 ? 0 : h], first, end, archive.slots(h));
    if (!slots.empty()) lists[n_lists++] = {h, slots, {}};
  }
  const std::span<RowsOfHead> all{lists, n_lists};
  if (RemoteRows* remote = core.tier_of(m.layer).remote_rows(); remote != nullptr) {
    for (RowsOfHead& of : all) take_places(core, m.layer, &of);
    return remote->send(m.layer, all, archive);
  }
  for (const RowsOfHead& of : all) {
    const HeadRows rows(core, m.layer, of.head);
    archive.insert(m.layer, of.head, static_cast<uint32_t>(of.slots.size()),
                   RowsAtSlots(rows, of.slots));
  }
  return Status::ok();
}

}  // namespace

Status archive_evicted(SessionCore& core, std::span<const KvMove> moves) noexcept {
  for (const KvMove& m : moves) {
    const uint32_t n = core.ledger().n_slots(m.layer);
    for (uint32_t first = 0; first < n; first += core.archive.n_slots()) {
      for (uint32_t h = 0; h < core.archive.n_heads(m.layer); h += kHeadsAtOnce)
        SHARPI_TRY(archive_slots(core, m, first, h));
    }
  }
  return Status::ok();
}

}  // namespace sharpi
