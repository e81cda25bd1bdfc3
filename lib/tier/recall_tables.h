// SPDX-License-Identifier: MIT
// What the steps of a recall (engine/recaller.h) find out, in host memory: the best blocks of each
// KV head, what rows count at their positions, and the rows that may change places. Taken before
// the first step; nothing allocates later. Thread rule: one owner (the recall).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/ledger.h"
#include "kv/row_archive.h"

namespace sharpi {

/// What a tier has found once take_recalled() returns.
enum class RecallStep : uint8_t { kBlocks, kTerms, kRows };

struct RecallTables {
  /// Set before reserve().
  uint32_t budget = 0, sinks = 0, recency = 0;  // rows that may come in; those that stay
  uint32_t n_blocks = 0, all_blocks = 0;        // of a head at most: whose rows are scored, and all
  uint32_t n_slots = 0, n_exchanged = 0;        // the most of a head
  uint32_t n_ctx = 0, n_lists = 0, most_heads = 0;
  std::vector<uint32_t> first_list;  // by layer: of its KV heads

  uint32_t n_archived() const { return n_blocks * kArchiveBlock; }
  uint32_t n_keys() const { return n_slots + n_archived(); }
  uint64_t bytes() const;
  /// Throws std::bad_alloc.
  void reserve();

  /// The best blocks of a head, ascending.
  struct List {
    uint32_t* at = nullptr;
    uint32_t* n = nullptr;
    std::span<uint32_t> span() const { return {at, *n}; }
  };
  List blocks(uint32_t layer, uint32_t head) {
    const uint64_t i = first_list[layer] + head;
    return {blocks_.data() + i * n_blocks, &n_blocks_[i]};
  }
  /// The best archived rows of a head and the session's worst, as many of both, by ascending slots.
  List in(uint32_t layer, uint32_t head) {
    const uint64_t i = first_list[layer] + head;
    return {in_.data() + i * n_exchanged, &n_changed_[i]};
  }
  List out(uint32_t layer, uint32_t head) {
    const uint64_t i = first_list[layer] + head;
    return {out_.data() + i * n_exchanged, &n_changed_[i]};
  }
  /// In front of the session's rows that may go.
  uint32_t& first_out(uint32_t layer, uint32_t head) {
    return first_out_[first_list[layer] + head];
  }
  std::vector<float> shared;       // the largest terms by position
  std::vector<float> by_position;  // the same, where a hit marks what follows it
  std::vector<uint32_t> listed;    // a layer's rows of best blocks, [head][n_archived()]
  std::vector<uint32_t> n_listed;  // of each of its heads
  /// Room of tiers that choose in host memory: [head][all_blocks], [head][n_keys()], a head's.
  std::vector<float> bounds, wanted;
  std::vector<uint32_t> order;

  /// Lists the rows of a head's best blocks; how many there are.
  uint32_t list_rows(const RowArchive& archive, uint32_t layer, uint32_t head);

 private:
  std::vector<uint32_t> blocks_, n_blocks_, in_, out_, n_changed_, first_out_;
};

/// Of a head, the session's rows [first, last) that may go, and how many may change places.
struct ExchangeParts {
  uint32_t first = 0, last = 0, most = 0;
};
ExchangeParts exchange_parts(const RecallTables& tables, const KvLedger& ledger,
                             const RowArchive& archive, uint32_t layer, uint32_t head);

/// Blocks of a head with rows, at most.
uint32_t archived_blocks(const RowArchive& archive, uint32_t layer, uint32_t head);

/// out[i] = the position of a head's row in slot first + i, for i < n.
void copy_positions(const KvLedger& ledger, uint32_t layer, uint32_t head, uint32_t first,
                    uint32_t n, uint32_t* out);

}  // namespace sharpi
