// SPDX-License-Identifier: MIT
// Brings evicted rows back that a question wants: scores the bounds of the archive's blocks by the
// question's queries, then the rows of the best blocks beside those of the session, lets a hit
// count in every head at its position and mark what follows it, as policy RETRIEVAL does, and has
// the best archived rows of each head change places with the worst of its session's. A head's count
// of rows stays. Everything that may fail happens before the first row moves. Owns no state of its
// own. Thread rule: as Session.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/compact_request.h"
#include "engine/head_rows.h"
#include "engine/query_observer.h"
#include "engine/row_memory.h"
#include "engine/row_selector.h"
#include "engine/session_core.h"

namespace sharpi {

class Recaller {
 public:
  Recaller(SessionCore& core, RowMemory& memory, QueryObserver& observer, RowSelector& selector)
      : core_(core), memory_(memory), observer_(observer), selector_(selector) {}
  /// sharpi_session_recall(). One that fails leaves the session as it was.
  Status recall(const sharpi_recall_params& params, sharpi_recall_report* report);

 private:
  struct Desk;
  Status recall_now(const sharpi_recall_params& params, sharpi_recall_report* report);
  Status check(const sharpi_recall_params& params) const;
  uint32_t fullest_archive(std::span<const uint32_t> layers) const;
  ScoreShape shape_of(const sharpi_recall_params& params, const CompactRequest& r,
                      RecallTables* tables) const;
  Status make_desk(const sharpi_recall_params& params, const CompactRequest& r, Lease* lease,
                   Desk* desk);
  ScoreRequest request(const CompactRequest& r, uint32_t layer) const;
  Status score(const CompactRequest& r, Desk* desk);
  Status step(const CompactRequest& r, RecallStep which, Desk* desk);
  uint32_t pair_head(uint32_t layer, uint32_t head, Desk* desk) const;
  void order_head(uint32_t layer, uint32_t head, Desk* desk) const;
  uint32_t list_stay(uint32_t layer, uint32_t head, Desk* desk) const;
  void place_head(uint32_t layer, uint32_t head, Desk* desk) const;
  Status change_places(std::span<const uint32_t> layers, Desk* desk, sharpi_recall_report* report);
  void exchange_layer(uint32_t layer, Desk* desk) noexcept;
  void exchange_head(uint32_t layer, const HeadExchange& move, Desk* desk) noexcept;

  SessionCore& core_;
  RowMemory& memory_;
  QueryObserver& observer_;
  RowSelector& selector_;
};

}  // namespace sharpi
