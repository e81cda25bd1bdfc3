// SPDX-License-Identifier: MIT
// Granite 4: layers of Mamba-2 and some of attention, usually without rotary embedding, behind each
// a SwiGLU, dense or routed with a shared expert; and four factors, of the embedding, of what
// layers add to the residual stream, of q.k and of the logits. The softmax over the chosen experts
// alone is the one over all of them with renormalised shares.
#include <optional>
#include <vector>

#include "model/arch_common.h"
#include "model/arch_registry.h"
#include "model/mamba2_keys.h"

namespace sharpi {
namespace {

constexpr double kMostFactor = 1e9;

/// A factor that 0 and a missing key leave out.
Result<float> read_factor(const SpecBuilder& b, const char* key, float absent) {
  SHARPI_TRY_ASSIGN(const double factor, b.float_or(key, 0.0, 0.0, kMostFactor));
  return factor == 0.0 ? absent : static_cast<float>(factor);
}

struct Keys {
  TrunkKeys trunk;
  uint32_t head_dim = 0;
  float attention_scale = 0.0f, residual_scale = 1.0f;
  RopeSpec rope;
  Mamba2Spec mamba;
  MoeKeys moe;  // n_experts 0: dense FFNs
  uint32_t d_ff = 0;
  bool is_recurrent(uint32_t block) const { return trunk.n_kv_heads[block] == 0; }
};

Status read_ffn(const SpecBuilder& b, Keys* k) {
  const Range range{1, limits::kFf};
  SHARPI_TRY_ASSIGN(k->d_ff, b.require_uint("feed_forward_length", range));
  SHARPI_TRY_ASSIGN(const uint32_t n_experts,
                    b.uint_or("expert_count", 0, Range{0, limits::kExperts}));
  if (n_experts == 0) return Status::ok();
  SHARPI_TRY_ASSIGN(k->moe, read_moe_keys(b));
  k->moe.width = {k->d_ff, "%.feed_forward_length"};
  k->moe.renormalize = true;
  k->moe.shared_has_gate_inp = false;
  SHARPI_TRY_ASSIGN(const uint32_t shared,
                    b.uint_or("expert_shared_feed_forward_length", 0, Range{0, limits::kFf}));
  k->moe.shared_width = {shared, "%.expert_shared_feed_forward_length"};
  return Status::ok();
}

/// Whether queries and keys are rotated at all.
Status read_rotation(SpecBuilder& b, Keys* k) {
  SHARPI_TRY_ASSIGN(const std::optional<bool> rotated,
                    b.file().get_bool(b.full_key("rope.scaling.finetuned")));
  k->rope.pairs = RopePairs::kNeighbours;
  if (!rotated.value_or(true)) return Status::ok();
  SHARPI_TRY_ASSIGN(k->rope, read_rope(b, k->head_dim, /*allow_yarn=*/true));
  k->rope.pairs = RopePairs::kNeighbours;
  return load_freq_factors(b, /*optional=*/true, &k->rope);
}

Status read_keys(SpecBuilder& b, ModelSpec& spec, Keys* k) {
  SHARPI_TRY(load_trunk(b, spec, &k->trunk, /*may_tie=*/true));
  SHARPI_TRY(check_causal(b, true));
  SHARPI_TRY_ASSIGN(k->head_dim, read_head_dim(b, k->trunk, ""));
  SHARPI_TRY_ASSIGN(k->mamba, read_mamba2(b));
  SHARPI_TRY(read_ffn(b, k));
  SHARPI_TRY_ASSIGN(k->attention_scale, read_factor(b, "attention.scale", 0.0f));
  SHARPI_TRY_ASSIGN(k->residual_scale, read_factor(b, "residual_scale", 1.0f));
  SHARPI_TRY_ASSIGN(spec.embedding_scale, read_factor(b, "embedding_scale", 1.0f));
  SHARPI_TRY_ASSIGN(const float divisor, read_factor(b, "logit_scale", 1.0f));
  spec.logit_scale = 1.0f / divisor;
  return Status::ok();
}

Status load_block(SpecBuilder& b, const Keys& k, float share_scale, uint32_t block,
                  LayerSpec* layer) {
  LayerSpec& l = *layer;
  l.residual_scale = k.residual_scale;
  SHARPI_TRY(
      b.load_layer(block, {{&l.mixer_norm, "attn_norm.weight", WeightKind::kF32, k.trunk.embd},
                           {&l.ffn_norm, "ffn_norm.weight", WeightKind::kF32, k.trunk.embd}}));
  if (k.is_recurrent(block)) {
    l.mixer = MixerKind::kMamba2;
    l.mamba = k.mamba;
    SHARPI_TRY(load_mamba2(b, k.trunk, block, &l.mamba));
  } else {
    SHARPI_TRY_ASSIGN(l.attention, attention_geometry(b, k.trunk, block, k.head_dim, k.rope));
    if (k.attention_scale != 0.0f) l.attention.scale = k.attention_scale;
    SHARPI_TRY(load_attention_tensors(b, k.trunk, block, &l.attention, QkvBias::kOptional));
    SHARPI_TRY(b.load_layer(
        block,
        {{&l.attention.o_bias, "attn_output.bias", WeightKind::kF32, k.trunk.embd, {}, {}, true}}));
  }
  if (k.moe.n_experts == 0)
    return load_dense_ffn(b, k.trunk, block, k.d_ff, Activation::kSilu, &l.ffn);
  SHARPI_TRY(load_moe_ffn(b, k.trunk, block, k.moe, &l.ffn));
  l.ffn.share_scale = share_scale;
  return Status::ok();
}

}  // namespace

Status load_granite_hybrid(SpecBuilder& b, ModelSpec& spec) {
  Keys keys;
  SHARPI_TRY(read_keys(b, spec, &keys));
  SHARPI_TRY(read_rotation(b, &keys));
  SHARPI_TRY_ASSIGN(const float share_scale, read_factor(b, "expert_weights_scale", 1.0f));
  spec.layers.resize(keys.trunk.n_blocks);
  for (uint32_t i = 0; i < keys.trunk.n_blocks; ++i)
    SHARPI_TRY(load_block(b, keys, share_scale, i, &spec.layers[i]));
  return Status::ok();
}

Result<std::vector<GgufPart>> parts_of_granite_hybrid(SpecBuilder& b) {
  ModelSpec spec;
  Keys keys;
  SHARPI_TRY(read_keys(b, spec, &keys));
  return mamba2_parts(b, keys);
}

}  // namespace sharpi
