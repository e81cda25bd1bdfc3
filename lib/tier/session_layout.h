// SPDX-License-Identifier: MIT
// What a session's parts look like on one tier: KV groups, recurrent state, observed queries. Every
// tier's store and the planner call these, so that a blob of one tier fits the other.
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "kv/kv_store.h"
#include "plan/block_placement.h"
#include "plan/shapes.h"

namespace sharpi {

/// Recurrent layers of this tier and where their parts lie in one state buffer.
struct StateLayout {
  struct Layer {
    uint32_t layer = 0;
    uint64_t state_offset = 0, state_bytes = 0;
    uint64_t conv_offset = 0, conv_bytes = 0;
    uint64_t offset(StatePart part) const {
      return part == StatePart::kState ? state_offset : conv_offset;
    }
    uint64_t bytes(StatePart part) const {
      return part == StatePart::kState ? state_bytes : conv_bytes;
    }
  };
  std::vector<Layer> layers;
  std::vector<int32_t> index_of_layer;  // -1 = not recurrent here
  uint64_t bytes = 0;                   // of one copy
  /// nullptr = not recurrent here.
  const Layer* find(uint32_t layer) const {
    const int32_t i = index_of_layer[layer];
    return i < 0 ? nullptr : &layers[static_cast<size_t>(i)];
  }
};
StateLayout make_state_layout(const ModelSpec& spec, const Placement& placement,
                              DeviceIndex device);
/// What recurrent layers of this tier need to take rows back. A pass whose rows are drafts writes
/// no state: it leaves the inputs of its recurrences, and the next pass applies those that were
/// accepted while it reads the state anyway. Two copies, one of the last pass and one of the pass
/// under way, and on the CPU scratch of one layer.
struct DraftLayout {
  /// Planes of one layer in a copy, n_rows rows each: Recurrence::inputs of its mixer, one behind
  /// the other.
  struct Layer {
    std::vector<uint64_t> planes;  // offsets in floats
  };
  std::vector<Layer> layers;  // as StateLayout::layers
  uint32_t n_rows = 0;        // n_draft + 1; 0 = no drafts, or nothing recurrent here
  uint64_t copy_floats = 0;
  uint64_t out_offset = 0, scratch_floats = 0;  // scratch: projections, then outputs
  uint64_t copies_bytes() const { return 2 * copy_floats * sizeof(float); }
  uint64_t bytes() const { return copies_bytes() + scratch_floats * sizeof(float); }
};
DraftLayout make_draft_layout(const ModelSpec& spec, const Placement& placement, DeviceIndex device,
                              uint32_t n_draft);
/// Full-attention layers of this tier whose queries can be observed, and where one query row of
/// each lies when a row of all layers is `floats` long.
struct QueryLayout {
  std::vector<int64_t> offset_of_layer;  // -1 = not observed here
  std::vector<uint32_t> dim_of_layer;
  uint64_t floats = 0;  // per query position
  uint64_t bytes(uint32_t n_rows) const { return floats * n_rows * sizeof(float); }
  /// Of the ring of a session: drafts that are rejected write over none of the last queries.
  uint64_t ring_bytes(const SessionShape& session) const {
    return session.capture_window == 0 ? 0 : bytes(session.capture_window + session.n_draft);
  }
};
QueryLayout make_query_layout(const ModelSpec& spec, const Placement& placement,
                              DeviceIndex device);
/// Full-attention layers of this tier that own rows, and where the replay scores of each lie, one
/// number a KV head and slot: [n_heads][capacity].
struct ReplayLayout {
  std::vector<int64_t> offset_of_layer;  // in floats; -1 = none here
  uint64_t capacity = 0, floats = 0;
  uint64_t bytes() const { return floats * sizeof(float); }
  bool has(uint32_t layer) const { return offset_of_layer[layer] >= 0; }
  /// Of a layer among all of them, `base`; null where it has none.
  float* scores_of(uint32_t layer, float* base, uint64_t* stride) const {
    *stride = capacity;
    return has(layer) ? base + offset_of_layer[layer] : nullptr;
  }
  /// Those of a head's slots [first, first + n). kInternal where there are none.
  Result<float*> part_of(uint32_t layer, uint32_t head, uint32_t first, uint32_t n,
                         float* base) const;
};
/// Empty for sessions that capture none.
ReplayLayout make_replay_layout(const ModelSpec& spec, const Placement& placement,
                                DeviceIndex device, const ModelShape& model,
                                const SessionShape& session);
/// Bytes of address space that a group's rows may come to need.
uint64_t range_bytes(const KvGroup& group, uint32_t n_ctx);
KvLayout make_tier_kv_layout(const ModelSpec& spec, const Placement& placement, DeviceIndex device,
                             const ModelShape& model, const SessionShape& session);
/// kDoesNotFit: a session's rows of sliding-window layers, KvLayout::chunk_slot_bytes, are wider
/// than those that the plan made room for in the workspaces, which sessions of any KV type share.
Status check_chunk_rows(uint64_t slot_bytes, uint64_t priced);

}  // namespace sharpi
