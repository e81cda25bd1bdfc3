// SPDX-License-Identifier: MIT
// What a pass over a segment does, as a list: the order of operations stands here, once for all
// tiers. The CPU tier goes through the list one by one; a GPU tier makes launches of it first
// (device/launches.h). Thread rule: plain values, pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/block_placement.h"
#include "plan/devices.h"

namespace sharpi {

struct Segment;

/// x is the hidden row, every operation one for all rows of the call. Norms belong to the operation
/// that reads them, a norm of an output to the one that writes it.
enum class OpKind : uint8_t {
  kEmbed,                // x = scale * embedding of the token
  kEmbedPairs,           // x = proj * (norm of the token's embedding, norm of x)
  kPerLayerInputs,       // per-layer embeddings of the tokens, x being their embeddings
  kPerLayerInputsAgain,  // the same where x is not: the tokens are embedded again, aside
  kRopeTables,           // cosines and sines of the rows' positions
  kAttentionIn,          // queries, keys, values of norm(x)
  kKeepRing,             // rows of a windowed layer that wait go to its ring, if any wait
  kAttentionRows,        // biases, norms, RoPE; keys and values are stored, queries captured
  kAttend,               // over the stored rows, output gate included
  kAttentionOut,         // x += norm(projection)
  kDeltaIn,              // projections of norm(x)
  kDeltaNet,             // convolution and recurrence
  kDeltaOut,             // x += norm(projection)
  kMambaIn,              // projections of norm(x)
  kMamba,                // convolution, recurrence, gate and norm
  kMambaOut,             // x += norm(projection)
  kFetchWeights,         // of an FFN block that is placed elsewhere
  kFfnIn,                // h = act(gate norm(x)) * up norm(x)
  kFfnOut,               // x += norm(down h)
  kRoute,                // which experts, and their shares
  kExperts,         // x += norm(sum of the routed experts of norm(x)); beside a dense path: kept
  kSharedExpert,    // x += gate * shared expert of norm(x), x as it was before kExperts;
                    // of a dense path: x += norm(norm(dense) + norm(what kExperts kept))
  kInjectPerLayer,  // x += norm(projection of the gated per-layer input)
  kScaleLayer,      // x *= the layer's scale
  kReleaseWeights,  // the pass is done with what kFetchWeights brought
  kLayerEnd,        // whoever follows the pass hears of the layer
  kHead,            // logits of the wanted rows
};

struct Op {
  OpKind kind = OpKind::kEmbed;
  uint32_t layer = 0;
  bool opens = false;  // the first of a block: in front of it a pass may stop
};

using SegmentProgram = std::vector<Op>;

/// The operations of the segment's blocks. `placement`: where the blocks of the call run.
SegmentProgram make_program(const ModelSpec& spec, const Placement& placement,
                            const Segment& segment);

/// "attention in".
const char* op_name(OpKind kind);

/// The list for people: what a layer does, equal layers together where the first of them stands,
/// such as "layers 0-2, 4-6: delta in, delta net, delta out, ffn in, ffn out".
std::vector<std::string> program_text(const SegmentProgram& program);

/// Layers whose texts are equal in one line, and lines of no layer, in the order of the first of
/// each. An empty text is left out.
struct LayerText {
  int64_t layer = -1;  // of no layer
  std::string text;
};
std::vector<std::string> join_layers(const std::vector<LayerText>& layers);

}  // namespace sharpi
