// SPDX-License-Identifier: MIT
// The layout of one session's KV cache on one tier: which layers form which group, how a block of
// 64 slots is laid out, how many bytes a capacity takes. The planner prices and the stores allocate
// by the same functions. Thread rule: plain values.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/checked.h"
#include "base/limits.h"
#include "kv/kv_view.h"
#include "model/model_spec.h"

namespace sharpi {

/// One layer inside a group. Where one row is key and value (AttentionSpec::one_row()) it is the K
/// row, and V rows have no bytes.
struct KvLayerLayout {
  uint32_t layer = 0;
  uint32_t n_heads = 0, head_dim = 0;
  KvDtype k_dtype = KvDtype::kF32, v_dtype = KvDtype::kF32;
  uint32_t k_row_bytes = 0, v_row_bytes = 0;
  uint64_t k_offset = 0, v_offset = 0;  // of row 0 inside a block
  bool one_row() const { return v_row_bytes == 0; }
  /// The sides that are stored: K (false) and V (true), or K alone.
  std::span<const bool> sides() const {
    static constexpr bool kSides[] = {false, true};
    return {kSides, one_row() ? size_t{1} : size_t{2}};
  }
  /// What a view of such rows says of them; addresses are the caller's.
  KvView view() const;
};

/// Layers that always hold the same number of slots: one address range.
struct KvGroup {
  std::vector<KvLayerLayout> layers;
  bool ring = false;    // sliding window: slot = position % ring_slots
  uint32_t window = 0;  // of ring layers
  uint32_t ring_slots = 0;
  uint32_t capacity = 0;      // slots committed at session creation
  uint64_t block_stride = 0;  // bytes of 64 slots of all layers
  uint64_t slot_bytes() const { return block_stride / kKvBlockSlots; }
  uint64_t payload_bytes(uint64_t slots) const { return slots * slot_bytes(); }
  /// Bytes that `slots` take before granule rounding (whole blocks).
  uint64_t block_bytes(uint64_t slots) const { return div_up(slots, kKvBlockSlots) * block_stride; }
};

/// The sizes that a session wants of its KV, resolved: no AUTO is left.
struct KvShape {
  uint32_t n_ctx = 0;
  uint32_t capacity = 0;  // slots of full-attention layers
  uint32_t rewind = kDefaultRewind;
  uint32_t n_chunk = 0;  // rows of the chunk scratch of windowed layers
  bool per_layer_groups = false;
};

/// The groups of a session on one tier, and where each layer is among them.
struct KvLayout {
  std::vector<KvGroup> groups;          // full-attention groups first, then rings
  std::vector<int32_t> group_of_layer;  // -1: stores nothing on this tier
  std::vector<int32_t> index_in_group;
  uint64_t chunk_slot_bytes = 0;  // widest (K + V) row of the windowed layers, for scratch
  /// The rows of a layer that stores some here; `base` = where its group's range begins.
  KvView view(uint32_t layer, std::byte* base) const;
  const KvLayerLayout* find(uint32_t layer) const {
    const int32_t g = group_of_layer[layer];
    return g < 0
               ? nullptr
               : &groups[static_cast<size_t>(g)].layers[static_cast<size_t>(index_in_group[layer])];
  }
};

/// K and V dtype of one layer, AUTO resolved. Alike where one row is both.
struct KvDtypePair {
  KvDtype k = KvDtype::kF32, v = KvDtype::kF32;
  bool operator==(const KvDtypePair&) const = default;
};

/// Layout of the layers for which on_tier[layer] is true; dtypes[layer] is read for owners only.
KvLayout make_kv_layout(const ModelSpec& spec, const std::vector<bool>& on_tier,
                        const std::vector<KvDtypePair>& dtypes, const KvShape& shape);

/// Bytes that a layer stores of one token.
uint64_t kv_token_bytes(const AttentionSpec& a, KvDtypePair dtypes);

/// Checks that every owning layer with on_tier[layer] can be stored as dtypes[layer]: row length a
/// multiple of the codec's block, one codec where one row is key and value. kUnsupported names
/// layer, row length, block and what works.
Status check_kv_geometry(const ModelSpec& spec, const std::vector<bool>& on_tier,
                         const std::vector<KvDtypePair>& dtypes);

}  // namespace sharpi
