// SPDX-License-Identifier: MIT
// What a session's parts look like on one tier: KV groups, recurrent state, observed queries. Every
// tier's store and the planner call these, so that a blob of one tier fits the other.
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace sharpi {

/// Recurrent layers of this tier and where their parts lie in one state buffer.
struct StateLayout {
  struct Layer {
    uint32_t layer = 0;
    uint64_t state_offset = 0, state_bytes = 0;
    uint64_t conv_offset = 0, conv_bytes = 0;
  };
  std::vector<Layer> layers;
  std::vector<int32_t> index_of_layer;  // -1 = not recurrent here
  uint64_t bytes = 0;                   // of one copy
};
StateLayout make_state_layout(const ModelSpec& spec, const Placement& placement, TierId tier);
/// Full-attention layers of this tier whose queries can be observed, and where one query row of
/// each lies when a row of all layers is `floats` long.
struct QueryLayout {
  std::vector<int64_t> offset_of_layer;  // -1 = not observed here
  std::vector<uint32_t> dim_of_layer;
  uint64_t floats = 0;  // per query position
};
QueryLayout make_query_layout(const ModelSpec& spec, const Placement& placement, TierId tier);
KvLayout make_tier_kv_layout(const ModelSpec& spec, const Placement& placement, TierId tier,
                             const ModelShape& model, const SessionShape& session);

}  // namespace sharpi
