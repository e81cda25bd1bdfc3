// SPDX-License-Identifier: MIT
// The memory of a session's KV rows: taking more and giving it back within the session's share of
// the model's allowance, and sharing it copy-on-write between forks (what others call a prefix
// cache is a fork of a session that has read the prefix). Full blocks of 64 rows are shared where
// the tier's memory can be; before a session writes such rows, it takes memory of its own for them.
// Blocks behind the last full one are each session's own from the start, so appending never needs
// memory.
// Owns no rows: those are in the tiers' stores.
// Thread rule: as Session; share_rows() also from several forks of one session, one at a time.
#pragma once

#include <cstdint>
#include <functional>

#include "base/status.h"
#include "engine/session_core.h"

namespace sharpi {

/// Live and committed KV bytes of a session.
struct KvTotals {
  uint64_t payload = 0, held = 0, shared = 0;
};

class RowMemory {
 public:
  explicit RowMemory(SessionCore& core) : core_(core) {}
  /// Of the tiers' stores; drafters have their own.
  KvTotals totals() const;
  /// Commits so many slots in every full-attention layer, or nothing.
  Status reserve(uint32_t n_slots);
  /// Gives back what is past the fullest layer of each group and `headroom` slots.
  void shrink_to(uint32_t headroom) noexcept;

  /// Tables for rows by head, which sessions that score were priced for; others take them from the
  /// session's share, and have them while rows are by head. Either they are there, or nothing
  /// changed.
  Status take_head_tables();
  void drop_head_tables() noexcept;
  /// The session is empty: rows of all heads are stored together again. Pre: own_rows() from slot
  /// 0.
  void begin_again() noexcept;

  /// Makes the rows of every layer from first_written(layer) on the session's own. Either all are
  /// afterwards, or nothing that anybody sees changed.
  Status own_rows(const std::function<uint32_t(uint32_t layer)>& first_written);
  /// Makes what forks can share pages that they can map. What the session counted as its own is
  /// then counted by those pages, until the last one who maps them gives them back.
  Status share_rows() const;
  /// What a fork takes: what this one holds, with memory of its own only for what cannot be shared.
  HeldBytes fork_share() const;
  /// Shares the rows of `from`, whose share_rows() was called, and takes memory for the rest.
  Status take_shared(const RowMemory& from);

 private:
  HeldBytes held() const;
  HeldBytes tables_of(size_t tier) const;
  HeldBytes growth(uint32_t n_slots) const;
  uint32_t shareable_slots(const KvGroup& group) const;

  SessionCore& core_;
};

}  // namespace sharpi
