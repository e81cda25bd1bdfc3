// SPDX-License-Identifier: MIT
// Which device has which block of a model. A block is the unit of placement.
// Thread rule: plain values.
#pragma once

#include <cstdint>
#include <vector>

#include "model/model_spec.h"
#include "plan/devices.h"

namespace sharpi {

struct Placement {
  DeviceIndex embedding = DeviceIndex::kHost;
  DeviceIndex per_layer_embedding = DeviceIndex::kHost;  // the table; the projection goes with it
  DeviceIndex head = DeviceIndex::kHost;
  std::vector<DeviceIndex> mixer, ffn, experts;  // per layer
  /// Slots for routed experts, all devices together. Each device that has the `ffn` of layers whose
  /// `experts` are on the host has a pool of them, and a slot has room for the largest expert.
  /// `slots_of` says how many each device has; where it is empty, one device has all.
  uint32_t n_expert_slots = 0;
  std::vector<uint32_t> slots_of;  // by device index
  bool mtp = false;  // the block for multi-token prediction is loaded, where the head is
  DeviceIndex draft = DeviceIndex::kHost;  // a smaller model that drafts, all of it
  bool operator==(const Placement&) const = default;

  static Placement all(const ModelSpec& spec, DeviceIndex device);
  bool uses(DeviceIndex device) const;
  bool is_split() const;  // over more than one device, the host counted
  /// The devices with blocks, but for the host, in the order in which a token comes to them.
  std::vector<DeviceIndex> route() const;
  /// Router and shared expert on a device, routed experts on the host.
  bool parts_experts(const ModelSpec& spec, uint32_t layer) const;
  /// How many routed experts there are in layers with parts_experts(), of all devices or of one.
  /// With a slot for each of them, further ones would stay empty.
  uint64_t n_parted_experts(const ModelSpec& spec) const;
  uint64_t n_parted_experts(const ModelSpec& spec, DeviceIndex device) const;
  /// Slots of one device.
  uint32_t slots_on(DeviceIndex device) const {
    return slots_of.empty() ? n_expert_slots : slots_of[index_of(device)];
  }
  /// This placement as the tier of one device gets it, which thereby needs to know no index: the
  /// device and kHere change numbers, slots are only its own, and routed experts that the host
  /// computes for other devices are not seen. The host gets the placement as it is.
  Placement seen_from(DeviceIndex device) const;
};

}  // namespace sharpi
