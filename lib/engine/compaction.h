// SPDX-License-Identifier: MIT
// What one compaction shall do, with every default resolved and every field checked.
// Thread rule: plain values.
#pragma once

#include <cstdint>
#include <span>

#include "kv/policy.h"
#include "sharpi.h"
#include "tier/tier.h"

namespace sharpi {

/// Last rows that a compaction keeps when its caller does not say.
constexpr uint32_t kDefaultRecency = 64;

struct CompactRequest {
  sharpi_policy policy = kDefaultPolicy;  // resolved; KEEP allowed
  uint32_t budget = 0;
  uint32_t recency = kDefaultRecency, sinks = 0;
  uint32_t headroom = 1024;
  uint32_t pool_kernel = 13, span = 12;
  sharpi_layer_budget layer_budget = SHARPI_LAYER_BUDGET_EQUAL;
  Capture source = Capture::kRing;
  uint32_t n_queries = 0;
  uint64_t first_position = 0;     // of the oldest query
  std::span<const uint32_t> keep;  // policy KEEP: the host's array
  bool shrink = true;              // give memory past kept + headroom back
  sharpi_progress_fn progress = nullptr;
  void* user_data = nullptr;

  PolicyParams for_layer(uint32_t layer_rows) const {
    return {policy, layer_rows, recency, sinks, pool_kernel, span};
  }
};

/// Live and committed KV bytes of a session.
struct KvTotals {
  uint64_t payload = 0, held = 0, shared = 0;
};

}  // namespace sharpi
