// SPDX-License-Identifier: MIT
// Encoders of BERT's kind: every token sees the whole text, and the residual stream is normed
// behind each half of a layer (post-LN). BERT itself, whose files also carry RoBERTa and XLM-R:
// biases everywhere, absolute positions, GELU. nomic-bert: no biases but those of norms, rope,
// SwiGLU.
#include <cmath>

#include "model/arch_common.h"
#include "model/arch_registry.h"

namespace sharpi {
namespace {

struct Keys {
  TrunkKeys trunk;
  uint32_t head_dim = 0;
  RopeSpec rope;
};

Status load_norm(SpecBuilder& b, const Extent& embd, const std::string& name, LayerNormSpec* norm) {
  return b.load({{&norm->weight, (name + ".weight").c_str(), WeightKind::kF32, embd},
                 {&norm->bias, (name + ".bias").c_str(), WeightKind::kF32, embd}});
}

/// Keys, and the tables of tokens, token types and, with `positions`, absolute positions.
Status load_bottom(SpecBuilder& b, ModelSpec& spec, bool positions, Keys* k) {
  SHARPI_TRY(refuse_experts(b, "dense models are"));
  SHARPI_TRY(check_causal(b, false));
  SHARPI_TRY(load_encoder_trunk(b, spec, &k->trunk));
  SHARPI_TRY_ASSIGN(k->head_dim, read_head_dim(b, k->trunk, ""));
  const Extent& embd = k->trunk.embd;
  const Extent context{spec.n_ctx_train, "%.context_length"};
  if (positions) {
    SHARPI_TRY(b.load(
        {{&spec.position_embd, "position_embd.weight", WeightKind::kComputable, embd, context}}));
  }
  constexpr const char* kTypes = "token_types.weight";
  if (const GgufTensor* types = b.file().find_tensor(kTypes)) {
    const Extent n{types->ne[1], kTypes};
    SHARPI_TRY(b.load({{&spec.token_types, kTypes, WeightKind::kComputable, embd, n}}));
  }
  return load_norm(b, embd, "token_embd_norm", &spec.embd_norm);
}

Status load_residual_norms(SpecBuilder& b, const Keys& k, uint32_t block, LayerSpec* l) {
  const Extent& embd = k.trunk.embd;
  SHARPI_TRY(
      load_norm(b, embd, layer_tensor_name(block, "attn_output_norm"), &l->mixer_residual_norm));
  return load_norm(b, embd, layer_tensor_name(block, "layer_output_norm"), &l->ffn_residual_norm);
}

Result<AttentionSpec> whole_text(const SpecBuilder& b, const Keys& k, uint32_t block) {
  SHARPI_TRY_ASSIGN(AttentionSpec a, attention_geometry(b, k.trunk, block, k.head_dim, k.rope));
  a.causal = false;
  return a;
}

Status load_bert_layer(SpecBuilder& b, const Keys& k, uint32_t block, uint32_t d_ff, LayerSpec* l) {
  SHARPI_TRY_ASSIGN(l->attention, whole_text(b, k, block));
  SHARPI_TRY(load_attention_tensors(b, k.trunk, block, &l->attention, QkvBias::kOptional));
  const Extent& embd = k.trunk.embd;
  const Extent width{d_ff, "%.feed_forward_length"};
  FfnSpec& f = l->ffn;
  f.activation = Activation::kGeluErf;
  f.d_ff = d_ff;
  SHARPI_TRY(b.load_layer(
      block, {
                 {&l->attention.o_bias, "attn_output.bias", WeightKind::kF32, embd, {}, {}, true},
                 {&f.up, "ffn_up.weight", WeightKind::kComputable, embd, width},
                 {&f.up_bias, "ffn_up.bias", WeightKind::kF32, width, {}, {}, true},
                 {&f.down, "ffn_down.weight", WeightKind::kComputable, width, embd},
                 {&f.down_bias, "ffn_down.bias", WeightKind::kF32, embd, {}, {}, true},
             }));
  return load_residual_norms(b, k, block, l);
}

Status load_nomic_layer(SpecBuilder& b, const Keys& k, uint32_t block, uint32_t d_ff,
                        LayerSpec* l) {
  SHARPI_TRY_ASSIGN(AttentionSpec a, whole_text(b, k, block));
  const uint64_t heads = uint64_t{a.n_heads} * a.head_dim, kv = uint64_t{a.n_kv_heads} * a.head_dim;
  a.fused_qkv = true;
  SHARPI_TRY(
      b.load_layer(block, {
                              {&a.q, "attn_qkv.weight", WeightKind::kComputable, k.trunk.embd,
                               Extent{heads + 2 * kv,
                                      "(%.attention.head_count + 2 * %.attention.head_count_kv) * "
                                      "%.attention.key_length"}},
                              {&a.o, "attn_output.weight", WeightKind::kComputable,
                               Extent{heads, kQueryRows}, k.trunk.embd},
                          }));
  l->attention = a;
  SHARPI_TRY(load_dense_ffn(b, k.trunk, block, d_ff, Activation::kSilu, &l->ffn));
  return load_residual_norms(b, k, block, l);
}

using LoadLayer = Status (*)(SpecBuilder&, const Keys&, uint32_t, uint32_t, LayerSpec*);

Status load_layers(SpecBuilder& b, const Keys& k, LoadLayer load, ModelSpec& spec) {
  SHARPI_TRY_ASSIGN(const std::vector<uint32_t> d_ff,
                    b.per_block("feed_forward_length", k.trunk.n_blocks, Range{1, limits::kFf}));
  spec.layers.resize(k.trunk.n_blocks);
  for (uint32_t i = 0; i < k.trunk.n_blocks; ++i)
    SHARPI_TRY(load(b, k, i, d_ff[i], &spec.layers[i]));
  return Status::ok();
}

}  // namespace

Status load_bert(SpecBuilder& b, ModelSpec& spec) {
  Keys keys;
  SHARPI_TRY(load_bottom(b, spec, /*positions=*/true, &keys));
  return load_layers(b, keys, load_bert_layer, spec);
}

Status load_nomic_bert(SpecBuilder& b, ModelSpec& spec) {
  Keys keys;
  SHARPI_TRY(load_bottom(b, spec, /*positions=*/false, &keys));
  SHARPI_TRY_ASSIGN(keys.rope, read_rope(b, keys.head_dim, /*allow_yarn=*/false));
  return load_layers(b, keys, load_nomic_layer, spec);
}

}  // namespace sharpi
