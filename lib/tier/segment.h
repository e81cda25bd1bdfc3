// SPDX-License-Identifier: MIT
// Blocks, and the runs of them that a tier gets at once. Thread rule: plain values, pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/block_placement.h"
#include "plan/devices.h"
#include "tier/segment_program.h"

namespace sharpi {

enum class BlockKind : uint8_t { kEmbedding, kMixer, kFfn, kExperts, kHead };

struct Block {
  BlockKind kind = BlockKind::kEmbedding;
  uint32_t layer = 0;
  bool streamed = false;  // its weights are placed on another device and come over for the call
};

/// A maximal run of blocks on one device, in execution order.
struct Segment {
  DeviceIndex device = DeviceIndex::kHost;
  std::vector<Block> blocks;
  SegmentProgram program;   // make_program() of the blocks
  uint32_t index = 0;       // in its list
  bool first_here = false;  // the first of its device: brings the call's tables along
  bool streamed = false;    // has such a block; a list with one is not the placement's own
  bool has_head() const { return blocks.back().kind == BlockKind::kHead; }
};

/// The segments of a call whose blocks run where `placement` says. A layer's routed experts are
/// computed by the device of its FFN block, wherever their weights are. `home`: where the weights
/// are, when that differs; blocks that run elsewhere are marked as streamed. Of a part of a model
/// they begin or end with a layer.
std::vector<Segment> make_segments(const ModelSpec& spec, const Placement& placement,
                                   const Placement* home = nullptr);

}  // namespace sharpi
