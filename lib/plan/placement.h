// SPDX-License-Identifier: MIT
// The placements that a request allows, as a ladder: the first rung has the most on the device, and
// every further one takes less device memory. What gives way first is what costs least for a byte
// freed: the FFN blocks (with a layer's routed experts), last layer first; then whole layers from
// the tail, whose KV rows go with them; then the embedding and the head. The solver takes the first
// rung that fits, so equal requests give equal placements.
// Thread rule: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "plan/plan.h"

namespace sharpi {

class PlacementLadder {
 public:
  /// The rungs that the pins n_gpu_layers and n_gpu_ffn leave. kInvalidArgument: a pin above the
  /// number of layers, or pins that contradict each other. kUnsupported: blocks on a device are
  /// asked for and there is none, or a split would part layers that share KV rows (names the
  /// nearest splits that would not).
  static Result<PlacementLadder> create(const ModelSpec& spec, const sharpi_plan_params& params,
                                        bool has_device);
  size_t size() const { return rungs_.size(); }
  Placement at(size_t rung) const;
  /// "28 of 32 layers, 12 FFN blocks, the embedding and the head on the GPU".
  std::string describe(size_t rung) const;

 private:
  struct Rung {
    uint32_t n_mixers = 0, n_ffn = 0;  // of the first layers
    bool ends = false;                 // the embedding and the head too
  };
  explicit PlacementLadder(const ModelSpec& spec) : spec_(&spec) {}
  const ModelSpec* spec_;
  std::vector<Rung> rungs_;
};

/// True when no layer from n on reads KV rows of one before it.
bool is_layer_split(const ModelSpec& spec, uint32_t n);

}  // namespace sharpi
