// SPDX-License-Identifier: MIT
// One KV head's rows of a layer, however the layer's are stored: together with those of the other
// heads, or in blocks of one head. A row here is the head's own part, its planes one behind the
// other, as RowArchive has it. And the way of rows that a compaction evicts into the archive.
// Rows are in host memory, or a device brings them (tier/remote_rows.h). Owns nothing. Thread rule:
// as Session.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/session_core.h"
#include "kv/kv_store.h"
#include "kv/row_archive.h"
#include "tier/remote_rows.h"

namespace sharpi {

class HeadRows {
 public:
  HeadRows(const SessionCore& core, uint32_t layer, uint32_t head);
  uint32_t n_rows() const { return n_rows_; }
  uint32_t position(uint32_t slot) const { return ledger_.position(layer_, head_, slot); }
  uint32_t row_bytes(bool value) const;
  void read(uint32_t slot, bool value, std::byte* to) const noexcept;
  void write(uint32_t slot, bool value, const std::byte* from) noexcept;
  /// Replay scores by slot; null = the session has none.
  float* scores() const { return scores_; }
  /// The sides that are stored.
  std::span<const bool> sides() const { return layout_.sides(); }

 private:
  const KvLedger& ledger_;
  KvStore& store_;
  const KvLayerLayout& layout_;
  uint32_t layer_, head_, n_rows_;
  bool by_head_;
  float* scores_ = nullptr;
};

/// Rows at some slots of a head, on their way into the archive.
class RowsAtSlots final : public RowArchive::Source {
 public:
  RowsAtSlots(const HeadRows& rows, std::span<const uint32_t> slots) : rows_(rows), slots_(slots) {}
  void read(uint32_t i, bool value, std::byte* to) const override {
    rows_.read(slots_[i], value, to);
  }
  uint32_t position(uint32_t i) const override { return rows_.position(slots_[i]); }
  float score(uint32_t i) const override {
    return rows_.scores() == nullptr ? 0.0f : rows_.scores()[slots_[i]];
  }

 private:
  const HeadRows& rows_;
  std::span<const uint32_t> slots_;
};

/// The positions of such rows, wherever they are.
class PositionsAtSlots final : public RowArchive::Positions {
 public:
  PositionsAtSlots(const KvLedger& ledger, uint32_t layer, uint32_t head,
                   std::span<const uint32_t> slots)
      : ledger_(ledger), slots_(slots), layer_(layer), head_(head) {}
  uint32_t position(uint32_t i) const override {
    return ledger_.position(layer_, head_, slots_[i]);
  }

 private:
  const KvLedger& ledger_;
  std::span<const uint32_t> slots_;
  uint32_t layer_, head_;
};

/// The rows that these moves leave behind go into the session's archive. Pre: there is one, and the
/// moves are not made yet. Allocates nothing; only a device that fails fails here, and what the
/// archive has then is not to be used.
Status archive_evicted(SessionCore& core, std::span<const KvMove> moves) noexcept;

}  // namespace sharpi
