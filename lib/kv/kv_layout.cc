// SPDX-License-Identifier: MIT
#include "kv/kv_layout.h"

#include <algorithm>

#include "kv/rotation.h"

namespace sharpi {
namespace {

KvLayerLayout layer_layout(uint32_t layer, const AttentionSpec& a, KvDtypePair dtype) {
  KvLayerLayout l;
  l.layer = layer;
  l.n_heads = a.n_kv_heads;
  l.head_dim = a.head_dim;
  l.k_dtype = dtype.k;
  l.v_dtype = dtype.v;
  const uint64_t n = uint64_t{a.n_kv_heads} * a.head_dim;
  l.k_row_bytes = static_cast<uint32_t>(kv_row_bytes(dtype.k, n));
  l.v_row_bytes = a.one_row() ? 0 : static_cast<uint32_t>(kv_row_bytes(dtype.v, n));
  return l;
}

void place_in_group(KvGroup* group, KvLayerLayout layer) {
  layer.k_offset = group->block_stride;
  layer.v_offset = layer.k_offset + uint64_t{layer.k_row_bytes} * kKvBlockSlots;
  group->block_stride = layer.v_offset + uint64_t{layer.v_row_bytes} * kKvBlockSlots;
  group->layers.push_back(layer);
}

/// The group of `layout` this layer joins, or a new one.
size_t group_for(KvLayout* layout, const AttentionSpec& a, const KvShape& shape) {
  const bool ring = a.window != 0;
  const auto fits = [&](const KvGroup& g) {
    return ring ? g.ring && g.window == a.window : !g.ring && !shape.per_layer_groups;
  };
  const auto it = std::find_if(layout->groups.begin(), layout->groups.end(), fits);
  if (it != layout->groups.end()) return static_cast<size_t>(it - layout->groups.begin());
  KvGroup g;
  g.ring = ring;
  g.window = a.window;
  if (ring) {
    const uint64_t want = uint64_t{a.window} + shape.rewind;
    g.ring_slots = static_cast<uint32_t>(std::min<uint64_t>(shape.n_ctx, want));
  }
  g.capacity = ring ? g.ring_slots : shape.capacity;
  layout->groups.push_back(g);
  return layout->groups.size() - 1;
}

/// "f32 and bf16 work": the codecs that store rows of n elements in heads of so many.
std::string that_store(uint64_t n, uint32_t head_dim) {
  std::string names;
  for (const KvCodec& c : kv_codecs()) {
    const bool turns = !c.rotated || rotation_of(head_dim) >= kLeastRotated;
    if (n % c.block == 0 && turns) names += (names.empty() ? "" : " and ") + std::string(c.name);
  }
  return names + " work";
}

}  // namespace

KvLayout make_kv_layout(const ModelSpec& spec, const std::vector<bool>& on_tier,
                        const std::vector<KvDtypePair>& dtypes, const KvShape& shape) {
  KvLayout layout;
  layout.group_of_layer.assign(spec.layers.size(), -1);
  layout.index_in_group.assign(spec.layers.size(), -1);
  for (const bool ring_pass : {false, true}) {
    for (uint32_t l = 0; l < spec.n_layers(); ++l) {
      const LayerSpec& layer = spec.layers[l];
      if (!on_tier[l] || !layer.owns_kv() || (layer.attention.window != 0) != ring_pass) continue;
      const size_t g = group_for(&layout, layer.attention, shape);
      layout.group_of_layer[l] = static_cast<int32_t>(g);
      layout.index_in_group[l] = static_cast<int32_t>(layout.groups[g].layers.size());
      const KvLayerLayout one = layer_layout(l, layer.attention, dtypes[l]);
      place_in_group(&layout.groups[g], one);
      if (ring_pass) {
        layout.chunk_slot_bytes =
            std::max(layout.chunk_slot_bytes, uint64_t{one.k_row_bytes} + one.v_row_bytes);
      }
    }
  }
  return layout;
}

KvView KvLayerLayout::view() const {
  KvView v;
  v.k_row_bytes = k_row_bytes;
  v.v_row_bytes = one_row() ? k_row_bytes : v_row_bytes;
  v.k_dtype = k_dtype;
  v.v_dtype = v_dtype;
  v.n_heads = n_heads;
  v.head_dim = head_dim;
  v.one_row = one_row();
  return v;
}

KvView KvLayout::view(uint32_t layer, std::byte* base) const {
  const KvLayerLayout& l = *find(layer);
  KvView v = l.view();
  v.k = base + l.k_offset;
  v.v = l.one_row() ? v.k : base + l.v_offset;
  v.block_stride = groups[static_cast<size_t>(group_of_layer[layer])].block_stride;
  return v;
}

uint64_t kv_token_bytes(const AttentionSpec& a, KvDtypePair dtypes) {
  const KvLayerLayout one = layer_layout(0, a, dtypes);
  return uint64_t{one.k_row_bytes} + one.v_row_bytes;
}

namespace {

/// One row cannot be in two codecs.
Status check_one_row(uint32_t layer, const AttentionSpec& a, KvDtypePair dtypes) {
  if (!a.one_row() || dtypes.k == dtypes.v) return Status::ok();
  return Status::error(Code::kUnsupported,
                       "layer %u stores one row that is key and value: k_dtype and v_dtype are %s "
                       "and %s, but have to be the same",
                       layer, kv_dtype_name(dtypes.k), kv_dtype_name(dtypes.v));
}

}  // namespace

Status check_kv_geometry(const ModelSpec& spec, const std::vector<bool>& on_tier,
                         const std::vector<KvDtypePair>& dtypes) {
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    if (!on_tier[l] || !spec.layers[l].owns_kv()) continue;
    const AttentionSpec& a = spec.layers[l].attention;
    const uint64_t n = uint64_t{a.n_kv_heads} * a.head_dim;
    SHARPI_TRY(check_one_row(l, a, dtypes[l]));
    for (const KvDtype dtype : {dtypes[l].k, dtypes[l].v}) {
      const KvCodec* codec = kv_codec(dtype);
      if (codec == nullptr) {
        return Status::error(Code::kInternal, "layer %u: KV dtype %u does not exist", l,
                             static_cast<uint32_t>(dtype));
      }
      if (n % codec->block != 0) {
        return Status::error(Code::kUnsupported,
                             "layer %u: a KV row has %llu elements, which is no multiple of the %u "
                             "that %s stores together; %s",
                             l, static_cast<unsigned long long>(n), codec->block, codec->name,
                             that_store(n, a.head_dim).c_str());
      }
      if (codec->rotated && rotation_of(a.head_dim) < kLeastRotated) {
        return Status::error(Code::kUnsupported,
                             "layer %u: the largest power of two that divides a head of %u "
                             "elements is %u, but %s rotates at least %u together; %s",
                             l, a.head_dim, rotation_of(a.head_dim), codec->name, kLeastRotated,
                             that_store(n, a.head_dim).c_str());
      }
    }
  }
  return Status::ok();
}

}  // namespace sharpi
