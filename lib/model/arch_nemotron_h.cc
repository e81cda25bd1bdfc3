// SPDX-License-Identifier: MIT
// Nemotron-H, Nemotron Nano and Nemotron 3, dense and with experts: every layer is one thing only,
// Mamba-2, attention without rotary embedding, or an FFN that squares what is positive and has no
// gate. A router's scores are sigmoids; a number of each expert's own is added to them for the
// choice alone.
#include <optional>
#include <vector>

#include "model/arch_common.h"
#include "model/arch_registry.h"
#include "model/mamba2_keys.h"

namespace sharpi {
namespace {

constexpr double kMostScale = 1e9, kSigmoid = 2.0;

struct Keys {
  TrunkKeys trunk;
  uint32_t head_dim = 0;
  std::vector<uint32_t> d_ff;  // per block, 0 = no FFN
  Mamba2Spec mamba;
  MoeKeys moe;  // n_experts 0: dense FFNs
  float share_scale = 1.0f, attention_scale = 0.0f;
  bool is_recurrent(uint32_t block) const {
    return trunk.n_kv_heads[block] == 0 && d_ff[block] == 0;
  }
};

Status read_experts(const SpecBuilder& b, Keys* k) {
  SHARPI_TRY_ASSIGN(const uint32_t n_experts,
                    b.uint_or("expert_count", 0, Range{0, limits::kExperts}));
  if (n_experts == 0) return Status::ok();
  SHARPI_TRY(refuse_other_values(b, {{"moe_latent_size", 0}, {"expert_gating_func", kSigmoid}}));
  SHARPI_TRY_ASSIGN(k->moe, read_moe_keys(b));
  const Range range{1, limits::kFf};
  SHARPI_TRY_ASSIGN(const uint32_t width, b.require_uint("expert_feed_forward_length", range));
  SHARPI_TRY_ASSIGN(const uint32_t shared,
                    b.require_uint("expert_shared_feed_forward_length", range));
  SHARPI_TRY_ASSIGN(const std::optional<bool> norm,
                    b.file().get_bool(b.full_key("expert_weights_norm")));
  SHARPI_TRY_ASSIGN(const double scale, b.float_or("expert_weights_scale", 0.0, 0.0, kMostScale));
  k->moe.width = {width, "%.expert_feed_forward_length"};
  k->moe.shared_width = {shared, "%.expert_shared_feed_forward_length"};
  k->moe.shared_has_gate_inp = false;
  k->moe.renormalize = norm.value_or(false);
  k->moe.activation = Activation::kReluSquared;
  if (scale != 0.0) k->share_scale = static_cast<float>(scale);
  return Status::ok();
}

Status read_keys(SpecBuilder& b, ModelSpec& spec, Keys* k) {
  SHARPI_TRY(load_trunk(b, spec, &k->trunk, /*may_tie=*/true));
  SHARPI_TRY(refuse_other_values(b, {{"nextn_predict_layers", 0}}));
  SHARPI_TRY_ASSIGN(k->head_dim, read_head_dim(b, k->trunk, ""));
  SHARPI_TRY_ASSIGN(k->d_ff,
                    b.per_block("feed_forward_length", k->trunk.n_blocks, Range{0, limits::kFf}));
  SHARPI_TRY_ASSIGN(const double scale, b.float_or("attention.scale", 0.0, 0.0, kMostScale));
  k->attention_scale = static_cast<float>(scale);
  SHARPI_TRY_ASSIGN(k->mamba, read_mamba2(b));
  for (uint32_t i = 0; i < k->trunk.n_blocks; ++i) {
    if (k->d_ff[i] == 0 || k->trunk.n_kv_heads[i] == 0) continue;
    return Status::error(Code::kFormat, "block %u has both attention (%s) and an FFN (%s)", i,
                         b.full_key("attention.head_count_kv").c_str(),
                         b.full_key("feed_forward_length").c_str());
  }
  return read_experts(b, k);
}

Status load_ffn(SpecBuilder& b, const Keys& k, uint32_t block, FfnSpec* ffn) {
  if (k.moe.n_experts == 0)
    return load_dense_ffn(b, k.trunk, block, k.d_ff[block], Activation::kReluSquared, ffn);
  SHARPI_TRY(load_moe_ffn(b, k.trunk, block, k.moe, ffn));
  ffn->scores = RouterScores::kSigmoid;
  ffn->share_scale = k.share_scale;
  const Extent experts{k.moe.n_experts, "%.expert_count"};
  return b.load_layer(block, {{&ffn->choice_bias, "exp_probs_b.bias", WeightKind::kF32, experts}});
}

Status load_block(SpecBuilder& b, const Keys& k, uint32_t block, LayerSpec* layer) {
  LayerSpec& l = *layer;
  const bool has_ffn = k.d_ff[block] != 0;
  SHARPI_TRY(b.load_layer(block, {{has_ffn ? &l.ffn_norm : &l.mixer_norm, "attn_norm.weight",
                                   WeightKind::kF32, k.trunk.embd}}));
  if (has_ffn) {
    l.mixer = MixerKind::kNone;
    return load_ffn(b, k, block, &l.ffn);
  }
  l.ffn.kind = FfnKind::kNone;
  if (k.is_recurrent(block)) {
    l.mixer = MixerKind::kMamba2;
    l.mamba = k.mamba;
    return load_mamba2(b, k.trunk, block, &l.mamba);
  }
  SHARPI_TRY_ASSIGN(l.attention, attention_geometry(b, k.trunk, block, k.head_dim, RopeSpec{}));
  if (k.attention_scale != 0.0f) l.attention.scale = k.attention_scale;
  SHARPI_TRY(load_attention_tensors(b, k.trunk, block, &l.attention, QkvBias::kOptional));
  return b.load_layer(
      block,
      {{&l.attention.o_bias, "attn_output.bias", WeightKind::kF32, k.trunk.embd, {}, {}, true}});
}

}  // namespace

Status load_nemotron_h(SpecBuilder& b, ModelSpec& spec) {
  Keys keys;
  SHARPI_TRY(read_keys(b, spec, &keys));
  spec.layers.resize(keys.trunk.n_blocks);
  for (uint32_t i = 0; i < keys.trunk.n_blocks; ++i)
    SHARPI_TRY(load_block(b, keys, i, &spec.layers[i]));
  return Status::ok();
}

Result<std::vector<GgufPart>> parts_of_nemotron_h(SpecBuilder& b) {
  ModelSpec spec;
  Keys keys;
  SHARPI_TRY(read_keys(b, spec, &keys));
  return mamba2_parts(b, keys);
}

}  // namespace sharpi
