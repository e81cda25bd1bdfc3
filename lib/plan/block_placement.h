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
  /// Slots for routed experts of layers whose `experts` are on the host and whose `ffn` is not; one
  /// pool for each device with such layers, a slot takes the largest expert. In all: what
  /// `slots_of` says, or this many of the one device that has such layers where that is empty.
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
  /// Experts of all layers for which that holds, or of those on one device: more slots than these
  /// serve nothing.
  uint64_t n_parted_experts(const ModelSpec& spec) const;
  uint64_t n_parted_experts(const ModelSpec& spec, DeviceIndex device) const;
  /// The same for the eyes of a device: it is kHere, the device that had this index has its own,
  /// slots are its own, and what others ask the host for is theirs. The host sees what there is.
  Placement seen_from(DeviceIndex device) const;
};

}  // namespace sharpi
