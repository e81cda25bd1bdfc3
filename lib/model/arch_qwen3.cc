// SPDX-License-Identifier: MIT
// Qwen3 dense: full attention with per-head QK norms, SwiGLU.
#include "model/arch_common.h"
#include "model/arch_registry.h"

namespace sharpi {

Status load_qwen3(SpecBuilder& b, ModelSpec& spec) {
  TrunkKeys trunk;
  SHARPI_TRY(load_trunk(b, spec, &trunk, /*may_tie=*/true));
  SHARPI_TRY_ASSIGN(const uint32_t head_dim, read_head_dim(b, trunk, ""));
  SHARPI_TRY_ASSIGN(const RopeSpec rope, read_rope(b, head_dim, /*allow_yarn=*/true));
  SHARPI_TRY_ASSIGN(const std::vector<uint32_t> d_ff,
                    b.per_block("feed_forward_length", trunk.n_blocks, Range{1, limits::kFf}));

  spec.layers.resize(trunk.n_blocks);
  for (uint32_t i = 0; i < trunk.n_blocks; ++i) {
    LayerSpec& layer = spec.layers[i];
    SHARPI_TRY_ASSIGN(layer.attention, attention_geometry(b, trunk, i, head_dim, rope));
    layer.attention.qk_norm = QkNorm::kPerHead;
    SHARPI_TRY(
        b.load_layer(i, {{&layer.mixer_norm, "attn_norm.weight", WeightKind::kF32, trunk.embd},
                         {&layer.ffn_norm, "ffn_norm.weight", WeightKind::kF32, trunk.embd}}));
    SHARPI_TRY(load_attention_tensors(b, trunk, i, &layer.attention));
    SHARPI_TRY(load_dense_ffn(b, trunk, i, d_ff[i], Activation::kSilu, &layer.ffn));
  }
  return Status::ok();
}

}  // namespace sharpi
