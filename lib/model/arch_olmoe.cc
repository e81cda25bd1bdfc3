// SPDX-License-Identifier: MIT
// OLMoE (0924): attention whose QK norms span the whole projected vector, routed SwiGLU experts
// whose weights are not renormalised.
#include "model/arch_common.h"
#include "model/arch_registry.h"

namespace sharpi {

Status load_olmoe(SpecBuilder& b, ModelSpec& spec) {
  TrunkKeys trunk;
  SHARPI_TRY(load_trunk(b, spec, &trunk, /*may_tie=*/false));
  SHARPI_TRY_ASSIGN(const uint32_t head_dim, read_head_dim(b, trunk, ""));
  SHARPI_TRY_ASSIGN(const RopeSpec rope, read_rope(b, head_dim, /*allow_yarn=*/false));
  SHARPI_TRY_ASSIGN(const double clamp, b.float_or("attention.clamp_kqv", 0.0, 0.0, 1e30));
  if (clamp != 0.0) {
    return Status::error(Code::kUnsupported, "clamped projections (%s = %g) are not supported",
                         b.full_key("attention.clamp_kqv").c_str(), clamp);
  }
  SHARPI_TRY_ASSIGN(MoeKeys moe, read_moe_keys(b));
  SHARPI_TRY_ASSIGN(const uint32_t d_ff,
                    b.require_uint("feed_forward_length", Range{1, limits::kFf}));
  moe.width = {d_ff, "%.feed_forward_length"};

  spec.layers.resize(trunk.n_blocks);
  for (uint32_t i = 0; i < trunk.n_blocks; ++i) {
    LayerSpec& layer = spec.layers[i];
    SHARPI_TRY_ASSIGN(layer.attention, attention_geometry(b, trunk, i, head_dim, rope));
    layer.attention.qk_norm = QkNorm::kWholeVector;
    SHARPI_TRY(
        b.load_layer(i, {{&layer.mixer_norm, "attn_norm.weight", WeightKind::kF32, trunk.embd},
                         {&layer.ffn_norm, "ffn_norm.weight", WeightKind::kF32, trunk.embd}}));
    SHARPI_TRY(load_attention_tensors(b, trunk, i, &layer.attention));
    SHARPI_TRY(load_moe_ffn(b, trunk, i, moe, &layer.ffn));
  }
  return Status::ok();
}

}  // namespace sharpi
