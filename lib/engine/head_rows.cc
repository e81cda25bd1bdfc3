// SPDX-License-Identifier: MIT
#include "engine/head_rows.h"

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

void archive_evicted(SessionCore& core, std::span<const KvMove> moves) noexcept {
  const std::span<uint32_t> slots = core.archive.slots();
  for (const KvMove& m : moves) {
    for (uint32_t h = 0; h < core.archive.n_heads(m.layer); ++h) {
      const HeadRows rows(core, m.layer, h);
      const std::span<const uint32_t> keep = m.keep[m.keep.size() == 1 ? 0 : h];
      uint32_t n = 0;
      size_t kept = 0;
      for (uint32_t slot = 0; slot < rows.n_rows(); ++slot) {
        if (kept < keep.size() && keep[kept] == slot)
          ++kept;
        else
          slots[n++] = slot;
      }
      if (n != 0) core.archive.insert(m.layer, h, n, RowsAtSlots(rows, slots.first(n)));
    }
  }
}

}  // namespace sharpi
