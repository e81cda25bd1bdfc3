// SPDX-License-Identifier: MIT
// The placements that a request allows, as a ladder: the first rung has the most on the device, and
// every further one takes less device memory. What gives way first is what costs least for a byte
// freed (plan/give_way.h), usually the routed experts of all MoE layers (single ones come back as
// slots, where there is room); then FFN blocks, last layer first; then whole layers from the tail,
// whose KV rows go with them. What of the embedding and the head stays until then is a choice
// (plan/ends.h): each makes a ladder of its own, of which the solver takes the first rung that
// fits, so equal requests at equal rates give equal placements. Thread rule: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "plan/block_placement.h"
#include "plan/devices.h"
#include "plan/give_way.h"

namespace sharpi {

/// The abilities of a plan's device, as far as placing depends on them.
struct DeviceAbility {
  bool exists = false;
  bool expert_slots = false;  // computes single routed experts beside those on the CPU
  std::string why_none;       // without one
};

/// What of the embedding and the head stays on the device while other blocks give way.
enum class Ends : uint8_t { kBoth, kHead, kNone };

class PlacementLadder {
 public:
  /// The rungs that the pins leave. kInvalidArgument: a pin above what the model has, or pins that
  /// contradict each other. kUnsupported: blocks on a device are asked for and there is none, or a
  /// split would part layers that share KV rows (names the nearest splits that would not).
  static Result<PlacementLadder> create(const ModelSpec& spec, const sharpi_plan_params& params,
                                        const DeviceAbility& device);
  /// Makes the rungs anew with kinds of blocks leaving in this order. A new ladder has kUsualOrder.
  void order_by(const GiveOrder& order);
  /// The choices that the pins and the model allow; the first has the most on the device. Where the
  /// embedding table is the head's matrix, too, both leave together.
  std::vector<Ends> ends() const;
  /// Makes the rungs of one of these choices. A new ladder has those of the first.
  void keep(Ends ends);
  /// Whether more than one kind of blocks may give way, the ends being one.
  bool order_matters() const;
  /// Whether a rung has less on the device than the request would allow.
  bool gives_way(size_t rung) const { return rung > 0 || ends_ != ends().front(); }
  /// The last rung with blocks on the device. Neither the order nor the choice of ends changes it.
  size_t least_rung() const;
  size_t size() const { return rungs_.size(); }
  Placement at(size_t rung, uint32_t n_expert_slots) const;
  /// Routed experts that slots could hold on a rung: those on the CPU whose router is on the GPU.
  uint32_t max_slots(size_t rung) const;
  /// Slots that the request pins, -1 = as many as fit.
  int32_t pinned_slots() const { return pinned_slots_; }
  /// "28 of 32 layers, 12 FFN blocks, the embedding and the head on the GPU".
  std::string describe(size_t rung) const;

 private:
  struct Rung {
    uint32_t n_mixers = 0, n_ffn = 0, n_experts = 0;  // of the first layers
    Ends ends = Ends::kNone;                          // those that are there too
  };
  struct Range {
    uint32_t most = 0, least = 0;
  };
  explicit PlacementLadder(const ModelSpec& spec) : spec_(&spec) {}
  void give(Give kind, Rung* at);
  void make_rungs();
  const ModelSpec* spec_;
  std::vector<Rung> rungs_;
  Range layers_, ffn_, experts_;
  GiveOrder order_ = kUsualOrder;
  Ends ends_ = Ends::kNone;
  int32_t pinned_slots_ = -1, pinned_ends_ = -1;
  bool together_ = false;   // a layer's routed experts go with its FFN block
  bool may_leave_ = false;  // nothing has to be on the device
};

/// The first pin of a request that asks for something on a GPU; nullptr = none.
const char* device_pin(const sharpi_plan_params& params);
/// Layers that the devices of a request's list have to hold.
uint32_t listed_layers(const sharpi_plan_params& params);
/// True when no layer from n on reads KV rows of one before it.
bool is_layer_split(const ModelSpec& spec, uint32_t n);
/// Routed experts of all layers.
uint32_t routed_experts(const ModelSpec& spec);

}  // namespace sharpi
