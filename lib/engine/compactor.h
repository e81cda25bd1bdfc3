// SPDX-License-Identifier: MIT
// A compaction (KV cache eviction): score the rows by observed queries, select the ones to keep,
// move them together, give memory back. Everything that may fail happens before the first row
// moves; from then on nothing fails.
// Owns no state of its own.
// Thread rule: as Session.
#pragma once

#include <vector>

#include "base/status.h"
#include "engine/compact_request.h"
#include "engine/drafters.h"
#include "engine/query_observer.h"
#include "engine/row_memory.h"
#include "engine/row_selector.h"
#include "engine/session_core.h"

namespace sharpi {

class Compactor {
 public:
  Compactor(SessionCore& core, RowMemory& memory, QueryObserver& observer, RowSelector& selector,
            const Drafters& drafters)
      : core_(core),
        memory_(memory),
        observer_(observer),
        selector_(selector),
        drafters_(drafters) {}
  /// The host's: sharpi_session_compact(). A compaction that fails leaves the session as it was.
  Status compact(const sharpi_compact_params& params, sharpi_compact_report* report);
  /// One whose queries are known. `report` may be null.
  Status run(const CompactRequest& r, sharpi_compact_report* report);
  /// KV bytes of the session and its drafters.
  KvTotals totals() const;

 private:
  Status compact_now(const sharpi_compact_params& params, sharpi_compact_report* report);
  Status move_rows(const CompactRequest& r, const std::vector<KvMove>& moves);

  SessionCore& core_;
  RowMemory& memory_;
  QueryObserver& observer_;
  RowSelector& selector_;
  const Drafters& drafters_;
};

}  // namespace sharpi
