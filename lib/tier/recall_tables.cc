// SPDX-License-Identifier: MIT
#include "tier/recall_tables.h"

#include <algorithm>

#include "base/checked.h"

namespace sharpi {

uint64_t RecallTables::bytes() const {
  const uint64_t of_list = uint64_t{n_blocks} + 2 * uint64_t{n_exchanged} + 3,
                 of_head = uint64_t{n_archived()} + 1 + all_blocks + n_keys(),
                 order = uint64_t{n_slots} + uint64_t{all_blocks} * kArchiveBlock;
  return sizeof(uint32_t) *
         (n_lists * of_list + 2 * uint64_t{n_ctx} + most_heads * of_head + order);
}

void RecallTables::reserve() {
  blocks_.resize(uint64_t{n_lists} * n_blocks);
  n_blocks_.resize(n_lists);
  in_.resize(uint64_t{n_lists} * n_exchanged);
  out_.resize(uint64_t{n_lists} * n_exchanged);
  n_changed_.resize(n_lists);
  first_out_.resize(n_lists);
  shared.resize(n_ctx);
  by_position.resize(n_ctx);
  listed.resize(uint64_t{most_heads} * n_archived());
  n_listed.resize(most_heads);
  bounds.resize(uint64_t{most_heads} * all_blocks);
  wanted.resize(uint64_t{most_heads} * n_keys());
  order.resize(n_slots + uint64_t{all_blocks} * kArchiveBlock);
}

uint32_t RecallTables::list_rows(const RowArchive& archive, uint32_t layer, uint32_t head) {
  const std::span<const uint32_t> archived = archive.positions(layer, head);
  uint32_t* const list = listed.data() + uint64_t{head} * n_archived();
  uint32_t n = 0;
  for (const uint32_t block : blocks(layer, head).span()) {
    const uint32_t from = block * kArchiveBlock,
                   end = std::min(from + kArchiveBlock, static_cast<uint32_t>(archived.size()));
    for (uint32_t slot = from; slot < end; ++slot) {
      list[n] = slot;
      n += archived[slot] != kNoRow ? 1 : 0;
    }
  }
  n_listed[head] = n;
  return n;
}

ExchangeParts exchange_parts(const RecallTables& t, const KvLedger& ledger,
                             const RowArchive& archive, uint32_t layer, uint32_t head) {
  const uint32_t n = ledger.n_slots(layer, head);
  ExchangeParts p;
  p.first = std::min(t.sinks, n);
  p.last = n - std::min(t.recency, n - p.first);
  p.most = std::min({t.budget, archive.n_rows(layer, head), p.last - p.first});
  return p;
}

uint32_t archived_blocks(const RowArchive& archive, uint32_t layer, uint32_t head) {
  return static_cast<uint32_t>(div_up(archive.positions(layer, head).size(), kArchiveBlock));
}

void copy_positions(const KvLedger& ledger, uint32_t layer, uint32_t head, uint32_t first,
                    uint32_t n, uint32_t* out) {
  const LayerRows& r = ledger.rows(layer);
  const uint32_t placed = r.n_compacted == 0 ? 0 : r.n_compacted - ledger.lag(layer, head);
  const uint32_t listed = std::min(first + n, placed) - std::min(first, placed);
  if (listed != 0) {
    const uint32_t* from = ledger.positions(layer, r.n_lists == 1 ? 0 : head).data() + first;
    std::copy_n(from, listed, out);
  }
  for (uint32_t i = listed; i < n; ++i) out[i] = r.tail_position + (first + i - placed);
}

}  // namespace sharpi
