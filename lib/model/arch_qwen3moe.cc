// SPDX-License-Identifier: MIT
// Qwen3 MoE: the attention of Qwen3, routed SwiGLU experts with renormalised weights.
#include "model/arch_common.h"
#include "model/arch_registry.h"

namespace sharpi {

Status load_qwen3moe(SpecBuilder& b, ModelSpec& spec) {
  TrunkKeys trunk;
  SHARPI_TRY(load_trunk(b, spec, &trunk, /*may_tie=*/true));
  SHARPI_TRY_ASSIGN(const uint32_t head_dim, read_head_dim(b, trunk, ""));
  SHARPI_TRY_ASSIGN(const RopeSpec rope, read_rope(b, head_dim, /*allow_yarn=*/true));
  SHARPI_TRY_ASSIGN(MoeKeys moe, read_moe_keys(b));
  SHARPI_TRY_ASSIGN(moe.width, read_expert_width(b, moe));
  moe.renormalize = true;

  spec.layers.resize(trunk.n_blocks);
  for (uint32_t i = 0; i < trunk.n_blocks; ++i) {
    LayerSpec& layer = spec.layers[i];
    SHARPI_TRY_ASSIGN(layer.attention, attention_geometry(b, trunk, i, head_dim, rope));
    layer.attention.qk_norm = QkNorm::kPerHead;
    SHARPI_TRY(
        b.load_layer(i, {{&layer.mixer_norm, "attn_norm.weight", WeightKind::kF32, trunk.embd},
                         {&layer.ffn_norm, "ffn_norm.weight", WeightKind::kF32, trunk.embd}}));
    SHARPI_TRY(load_attention_tensors(b, trunk, i, &layer.attention));
    SHARPI_TRY(load_moe_ffn(b, trunk, i, moe, &layer.ffn));
  }
  return Status::ok();
}

}  // namespace sharpi
