// SPDX-License-Identifier: MIT
// Which queries score the KV rows in a compaction (the observation window of SnapKV): the last ones
// that were captured while the session read, or those of a probe, a question that is run for this
// purpose and leaves nothing but its queries. Owns the knowledge of what the observer rows hold;
// the rows themselves are in the tiers' sessions.
// Thread rule: as Session.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "engine/compact_request.h"
#include "engine/session_core.h"

namespace sharpi {

class QueryObserver {
 public:
  explicit QueryObserver(SessionCore& core) : core_(core) {}
  /// The last queries that were captured, as many as there are up to `window`.
  Status use_captured(uint32_t window, CompactRequest* r) const;
  /// Those of tokens that are looked at now, as if they came next; more than a chunk in several
  /// passes, with a copy of what these overwrite (KeptState). Ok or not, end_probe() follows,
  /// which gives back what a longer probe than the template was priced for took.
  Status use_probe(std::span<const int32_t> probe, CompactRequest* r);
  void end_probe() noexcept;
  /// Looks at tokens at a position: `no_context` without the rows that are there. The observer rows
  /// are theirs from now on. Pre: there are as many.
  Status observe(std::span<const int32_t> tokens, uint64_t position, bool no_context);

  /// The observer rows hold the template's probe, seen by observe() with no_context there.
  bool holds_probe() const { return probe_seen_; }
  void set_probe_seen(uint64_t position);
  void forget_probe() noexcept { probe_seen_ = false; }
  /// Another look at that probe, after one at something else. The call goes on from here.
  void look_again();
  void copy_from(const QueryObserver& from);

 private:
  Status check_sight(size_t n_tokens) const;
  Status take_rows(uint32_t n);
  Status look(std::span<const int32_t> tokens, SequenceRows q, Submission rows);
  Status observe_chunks(std::span<const int32_t> tokens);
  Status observe_long(std::span<const int32_t> tokens);

  SessionCore& core_;
  Lease rows_of_call_{core_.share};
  bool probe_seen_ = false;
  uint64_t probe_position_ = 0;
};

}  // namespace sharpi
