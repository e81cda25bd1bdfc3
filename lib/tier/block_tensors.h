// SPDX-License-Identifier: MIT
// Which tensors of the file each block needs: what placement moves, tiers hold and streams send.
// Thread rule: pure functions.
#pragma once

#include <vector>

#include "tier/tier.h"

namespace sharpi {

/// The tensors of one block, present ones only, small ones first. Those of the embedding are its
/// table and what makes per-layer inputs or pairs of it, but not the table of per-layer embeddings,
/// of which a call reads only a few rows.
std::vector<TensorRef> block_tensors(const ModelSpec& spec, const Block& block);

/// Those of a layer's FFN block that whoever computes its routed experts reads too: their norm,
/// because rows arrive before it, and their biases, because all but their matrices stays with the
/// router.
std::vector<TensorRef> tensors_of_experts_host(const LayerSpec& layer);

/// Those of the block for multi-token prediction and of its own ends, if it has some.
std::vector<TensorRef> mtp_tensors(const ModelSpec& spec);

/// Those of them that products read, routers apart (they are always computed in f32).
std::vector<TensorRef> block_products(const ModelSpec& spec, const Block& block);

/// Calls visit(block, device) for every block of a placement in execution order; `device` is where
/// its weights are.
template <class F>
void each_block(const ModelSpec& spec, const Placement& placement, F&& visit) {
  visit(Block{BlockKind::kEmbedding, 0}, placement.embedding);
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    visit(Block{BlockKind::kMixer, l}, placement.mixer[l]);
    visit(Block{BlockKind::kFfn, l}, placement.ffn[l]);
    if (spec.layers[l].ffn.kind == FfnKind::kMoe) {
      visit(Block{BlockKind::kExperts, l}, placement.experts[l]);
    }
  }
  visit(Block{BlockKind::kHead, 0}, placement.head);
}

}  // namespace sharpi
