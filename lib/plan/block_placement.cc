// SPDX-License-Identifier: MIT
#include "plan/block_placement.h"

#include <algorithm>

namespace sharpi {

Placement Placement::all(const ModelSpec& spec, DeviceIndex device) {
  Placement p;
  p.embedding = p.head = device;
  p.per_layer_embedding = DeviceIndex::kHost;  // a lookup of a few rows: host memory serves it
  p.mixer.assign(spec.layers.size(), device);
  p.ffn = p.mixer;
  p.experts = p.mixer;
  return p;
}

bool Placement::uses(DeviceIndex device) const {
  const auto any = [&](const std::vector<DeviceIndex>& v) {
    return std::find(v.begin(), v.end(), device) != v.end();
  };
  return embedding == device || head == device || any(mixer) || any(ffn) || any(experts);
}

std::vector<DeviceIndex> Placement::route() const {
  std::vector<DeviceIndex> out;
  const auto add = [&](DeviceIndex device) {
    if (is_host(device) || std::find(out.begin(), out.end(), device) != out.end()) return;
    out.push_back(device);
  };
  add(embedding);
  for (size_t l = 0; l < mixer.size(); ++l) {
    add(mixer[l]);
    add(ffn[l]);
    add(experts[l]);
  }
  add(head);
  return out;
}

bool Placement::is_split() const {
  return route().size() + (uses(DeviceIndex::kHost) ? 1 : 0) > 1;
}

bool Placement::parts_experts(const ModelSpec& spec, uint32_t layer) const {
  return spec.layers[layer].ffn.kind == FfnKind::kMoe && !is_host(ffn[layer]) &&
         is_host(experts[layer]);
}

uint64_t Placement::n_parted_experts(const ModelSpec& spec) const {
  uint64_t n = 0;
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    if (parts_experts(spec, l)) n += spec.layers[l].ffn.n_experts;
  }
  return n;
}

uint64_t Placement::n_parted_experts(const ModelSpec& spec, DeviceIndex device) const {
  uint64_t n = 0;
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    if (ffn[l] == device && parts_experts(spec, l)) n += spec.layers[l].ffn.n_experts;
  }
  return n;
}

Placement Placement::seen_from(DeviceIndex own) const {
  if (is_host(own)) return *this;
  const auto renamed = [own](DeviceIndex d) {
    if (d == own) return DeviceIndex::kHere;
    return d == DeviceIndex::kHere ? own : d;
  };
  Placement p = *this;
  for (DeviceIndex* d : {&p.embedding, &p.per_layer_embedding, &p.head, &p.draft}) *d = renamed(*d);
  for (size_t l = 0; l < mixer.size(); ++l) {
    p.mixer[l] = renamed(mixer[l]);
    p.ffn[l] = renamed(ffn[l]);
    const bool for_another = ffn[l] != own && !is_host(ffn[l]) && is_host(experts[l]);
    p.experts[l] = for_another ? p.ffn[l] : renamed(experts[l]);
  }
  if (!slots_of.empty()) p.n_expert_slots = slots_of[index_of(own)];
  p.slots_of.clear();
  return p;
}

}  // namespace sharpi
