// SPDX-License-Identifier: MIT
#include "tier/session_layout.h"

#include <algorithm>
#include <utility>

namespace sharpi {

StateLayout make_state_layout(const ModelSpec& spec, const Placement& placement,
                              DeviceIndex device) {
  StateLayout out;
  out.index_of_layer.assign(spec.layers.size(), -1);
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    if (!spec.layers[l].is_recurrent() || placement.mixer[l] != device) continue;
    const Recurrence recurrence = spec.layers[l].recurrence();
    StateLayout::Layer s;
    s.layer = l;
    s.state_bytes = recurrence.state * sizeof(float);
    s.conv_bytes = recurrence.conv * sizeof(float);
    s.state_offset = out.bytes;
    s.conv_offset = s.state_offset + s.state_bytes;
    out.bytes = s.conv_offset + s.conv_bytes;
    out.index_of_layer[l] = static_cast<int32_t>(out.layers.size());
    out.layers.push_back(s);
  }
  return out;
}

DraftLayout make_draft_layout(const ModelSpec& spec, const Placement& placement, DeviceIndex device,
                              uint32_t n_draft) {
  DraftLayout out;
  if (n_draft == 0) return out;
  const uint64_t n = n_draft + 1;
  for (const StateLayout::Layer& l : make_state_layout(spec, placement, device).layers) {
    const Recurrence recurrence = spec.layers[l.layer].recurrence();
    DraftLayout::Layer at;
    for (const uint64_t width : recurrence.inputs) {
      at.planes.push_back(out.copy_floats);
      out.copy_floats += n * width;
    }
    out.layers.push_back(std::move(at));
    out.out_offset = std::max<uint64_t>(out.out_offset, n * recurrence.in_place);
    out.scratch_floats = std::max<uint64_t>(out.scratch_floats, n * recurrence.outs);
    out.n_rows = static_cast<uint32_t>(n);
  }
  out.scratch_floats += out.out_offset;
  return out;
}

QueryLayout make_query_layout(const ModelSpec& spec, const Placement& placement,
                              DeviceIndex device) {
  QueryLayout out;
  out.offset_of_layer.assign(spec.layers.size(), -1);
  out.dim_of_layer.assign(spec.layers.size(), 0);
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    const LayerSpec& layer = spec.layers[l];
    const AttentionSpec* a = layer.attends_to_all();
    if (placement.mixer[l] != device || a == nullptr) continue;
    out.offset_of_layer[l] = static_cast<int64_t>(out.floats);
    out.dim_of_layer[l] = a->n_heads * a->head_dim;
    out.floats += out.dim_of_layer[l];
  }
  return out;
}

Result<float*> ReplayLayout::part_of(uint32_t layer, uint32_t head, uint32_t first, uint32_t n,
                                     float* base) const {
  const uint64_t at = head * capacity + first;
  if (has(layer) && uint64_t{first} + n <= capacity &&
      static_cast<uint64_t>(offset_of_layer[layer]) + at + n <= floats)
    return base + offset_of_layer[layer] + at;
  return Status::error(Code::kInternal, "layer %u has no replay scores of head %u, rows %u to %u",
                       layer, head, first, first + n);
}

ReplayLayout make_replay_layout(const ModelSpec& spec, const Placement& placement,
                                DeviceIndex device, const ModelShape& model,
                                const SessionShape& session) {
  ReplayLayout out;
  out.offset_of_layer.assign(spec.layers.size(), -1);
  if (session.replay_every == 0) return out;
  out.capacity = session.capacity(model.n_chunk);
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    const LayerSpec& layer = spec.layers[l];
    if (placement.mixer[l] != device || !layer.owns_kv() || layer.attention.window != 0) continue;
    out.offset_of_layer[l] = static_cast<int64_t>(out.floats);
    out.floats += layer.attention.n_kv_heads * out.capacity;
  }
  return out;
}

uint64_t range_bytes(const KvGroup& group, uint32_t n_ctx) {
  return group.block_bytes(group.ring ? group.ring_slots : std::max(group.capacity, n_ctx));
}

KvLayout make_tier_kv_layout(const ModelSpec& spec, const Placement& placement, DeviceIndex device,
                             const ModelShape& model, const SessionShape& session) {
  std::vector<bool> here(spec.layers.size());
  for (size_t l = 0; l < here.size(); ++l) here[l] = placement.mixer[l] == device;
  KvShape shape;
  shape.n_ctx = session.n_ctx;
  shape.capacity = session.capacity(model.n_chunk);
  shape.rewind = session.rewind + session.n_draft;  // rejected drafts write over no row of them
  shape.n_chunk = model.n_chunk;
  shape.per_layer_groups = session.per_layer_budgets;
  return make_kv_layout(spec, here, session.dtypes, shape);
}

Status check_chunk_rows(uint64_t slot_bytes, uint64_t priced) {
  if (slot_bytes <= priced) return Status::ok();
  return Status::error(
      Code::kDoesNotFit,
      "a KV row of the sliding-window layers takes %llu bytes, but the plan priced %llu",
      static_cast<unsigned long long>(slot_bytes), static_cast<unsigned long long>(priced));
}

}  // namespace sharpi
