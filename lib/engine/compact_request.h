// SPDX-License-Identifier: MIT
// What one compaction shall do, with every default resolved, checked against the session.
// Thread rule: plain values; the functions read the session and change nothing.
#pragma once

#include <cstdint>
#include <span>

#include "base/limits.h"
#include "engine/session_core.h"
#include "kv/policy.h"
#include "sharpi.h"
#include "tier/tier.h"

namespace sharpi {

struct CompactRequest {
  sharpi_policy policy = kDefaultPolicy;  // resolved; KEEP allowed
  uint32_t budget = 0;
  uint32_t recency = 0, sinks = 0;
  uint32_t headroom = kDefaultHeadroom;
  uint32_t pool_kernel = kDefaultPoolKernel, span = SHARPI_UNSET;
  sharpi_layer_budget layer_budget = SHARPI_LAYER_BUDGET_EQUAL;
  Capture source = Capture::kRing;
  uint32_t n_queries = 0;
  uint64_t first_position = 0;     // of the oldest query
  std::span<const uint32_t> keep;  // policy KEEP: the host's array
  bool shrink = true;              // give memory past kept + headroom back
  sharpi_progress_fn progress = nullptr;
  void* user_data = nullptr;

  PolicyParams for_layer(uint32_t layer_rows) const {
    const bool shared = layer_budget == SHARPI_LAYER_BUDGET_SHARED;
    const uint32_t marked = shared ? kSharedReplaySpan : kReplaySpan,
                   by_replay = span != SHARPI_UNSET ? span : marked,
                   by_queries = span != SHARPI_UNSET ? span : kDefaultSpan;
    return {policy,   layer_rows,  recency,
            sinks,    pool_kernel, policy_needs_queries(policy) ? by_queries : by_replay,
            by_replay};
  }
};

/// The host's, but for the queries. Pre: the boundary has checked the range of every field
/// (api_ranges.cc); here is checked what depends on the session.
Result<CompactRequest> resolve_compaction(const SessionCore& session,
                                          const sharpi_compact_params& params);
/// One that the session's template asks for. Pre: budget != 0, and one of those that the shape was
/// checked against (resolve_session()).
Result<CompactRequest> standing_compaction(const SessionShape& shape, uint32_t budget);

}  // namespace sharpi
