// SPDX-License-Identifier: MIT
// gpt-oss (arXiv 2508.10925): learned sinks beside the keys of every head, windows on every other
// layer from the first on, YaRN whose ramp is not rounded to whole pairs, biases on all products of
// a layer, and routed experts with a clamped SwiGLU. The softmax over the chosen experts alone is
// the one over all of them with renormalised shares.
#include "model/arch_common.h"
#include "model/arch_registry.h"

namespace sharpi {
namespace {

constexpr WeightKind kF32 = WeightKind::kF32;

Status load_expert_biases(SpecBuilder& b, const TrunkKeys& trunk, uint32_t block,
                          const MoeKeys& moe, FfnSpec* f) {
  const Extent experts{moe.n_experts, "%.expert_count"};
  if (f->fused_gate_up) {
    return Status::error(Code::kUnsupported,
                         "block %u has gate and up of its experts in one matrix, which is not "
                         "supported beside biases",
                         block);
  }
  return b.load_layer(block, {{&f->router_bias, "ffn_gate_inp.bias", kF32, experts},
                              {&f->gate_bias, "ffn_gate_exps.bias", kF32, moe.width, experts},
                              {&f->up_bias, "ffn_up_exps.bias", kF32, moe.width, experts},
                              {&f->down_bias, "ffn_down_exps.bias", kF32, trunk.embd, experts}});
}

Status load_layer(SpecBuilder& b, const TrunkKeys& trunk, uint32_t block, const MoeKeys& moe,
                  LayerSpec* layer) {
  AttentionSpec& a = layer->attention;
  const Extent heads{a.n_heads, "%.attention.head_count"};
  SHARPI_TRY(
      b.load_layer(block, {{&layer->mixer_norm, "attn_norm.weight", kF32, trunk.embd},
                           {&layer->ffn_norm, "post_attention_norm.weight", kF32, trunk.embd},
                           {&a.sinks, "attn_sinks.weight", kF32, heads},
                           {&a.o_bias, "attn_output.bias", kF32, trunk.embd}}));
  SHARPI_TRY(load_attention_tensors(b, trunk, block, &a, QkvBias::kRequired));
  SHARPI_TRY(load_moe_ffn(b, trunk, block, moe, &layer->ffn));
  layer->ffn.activation = Activation::kSwigluClamped;
  return load_expert_biases(b, trunk, block, moe, &layer->ffn);
}

}  // namespace

Status load_gpt_oss(SpecBuilder& b, ModelSpec& spec) {
  TrunkKeys trunk;
  SHARPI_TRY(load_trunk(b, spec, &trunk, /*may_tie=*/false));
  SHARPI_TRY_ASSIGN(const uint32_t head_dim, read_head_dim(b, trunk, ""));
  SHARPI_TRY_ASSIGN(RopeSpec rope, read_rope(b, head_dim, /*allow_yarn=*/true));
  rope.yarn_whole_pairs = false;
  SHARPI_TRY_ASSIGN(const uint32_t window,
                    b.require_uint("attention.sliding_window", Range{1, limits::kContext}));
  SHARPI_TRY_ASSIGN(MoeKeys moe, read_moe_keys(b));
  SHARPI_TRY_ASSIGN(moe.width, read_expert_width(b, moe));
  moe.renormalize = true;
  spec.layers.resize(trunk.n_blocks);
  for (uint32_t i = 0; i < trunk.n_blocks; ++i) {
    LayerSpec& layer = spec.layers[i];
    SHARPI_TRY_ASSIGN(layer.attention, attention_geometry(b, trunk, i, head_dim, rope));
    if (i % 2 == 0) layer.attention.window = window;
    SHARPI_TRY(load_layer(b, trunk, i, moe, &layer));
  }
  return Status::ok();
}

}  // namespace sharpi
