// SPDX-License-Identifier: MIT
#include "model/arch_common.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <optional>
#include <string>

namespace sharpi {
namespace {

constexpr double kFloatMax = 3.0e38;

Extent vocab_extent(const SpecBuilder& b) {
  const GgufValue* tokens = b.file().find_value("tokenizer.ggml.tokens");
  if (tokens != nullptr && tokens->type == GgufValueType::kArray) {
    return {tokens->count, "tokenizer.ggml.tokens"};
  }
  const GgufTensor* table = b.file().find_tensor("token_embd.weight");
  return {table != nullptr ? table->ne[1] : 0, "token_embd.weight"};
}

Status read_block_count(SpecBuilder& b, uint32_t* n_blocks) {
  SHARPI_TRY_ASSIGN(*n_blocks, b.require_uint("block_count", Range{1, limits::kLayers}));
  // Before anything is sized by it: a block has several tensors.
  const size_t n_tensors = b.file().tensors().size();
  if (*n_blocks > n_tensors) {
    return Status::error(Code::kFormat, "%s is %u, but the file has only %zu tensors",
                         b.full_key("block_count").c_str(), *n_blocks, n_tensors);
  }
  b.set_n_blocks(*n_blocks);
  return Status::ok();
}

}  // namespace

namespace {

/// Keys, and the embedding table. `epsilon`: the key of the norms'.
Status load_table(SpecBuilder& b, ModelSpec& spec, const char* epsilon, TrunkKeys* trunk) {
  SHARPI_TRY(read_block_count(b, &trunk->n_blocks));
  SHARPI_TRY_ASSIGN(spec.n_ctx_train, b.require_uint("context_length", Range{1, limits::kContext}));
  SHARPI_TRY_ASSIGN(spec.n_embd, b.require_uint("embedding_length", Range{1, limits::kEmbd}));
  SHARPI_TRY_ASSIGN(const double eps, b.require_float(epsilon, 1e-30, 1.0));
  spec.rms_eps = static_cast<float>(eps);
  const Range heads{0, limits::kHeads};
  SHARPI_TRY_ASSIGN(trunk->n_heads, b.per_block("attention.head_count", trunk->n_blocks, heads));
  SHARPI_TRY_ASSIGN(trunk->n_kv_heads, b.per_block_or("attention.head_count_kv", trunk->n_blocks,
                                                      trunk->n_heads, heads));
  trunk->embd = {spec.n_embd, "%.embedding_length"};
  trunk->vocab = vocab_extent(b);
  if (b.has_tensor("token_embd.weight") &&
      (trunk->vocab.n == 0 || trunk->vocab.n > limits::kVocab)) {
    return Status::error(Code::kFormat,
                         "%s gives a vocabulary of %" PRIu64 ", expected 1 to %" PRIu64,
                         trunk->vocab.origin, trunk->vocab.n, limits::kVocab);
  }
  spec.n_vocab = static_cast<uint32_t>(trunk->vocab.n);
  return b.load({{&spec.token_embd, "token_embd.weight", WeightKind::kComputable, trunk->embd,
                  trunk->vocab}});
}

}  // namespace

Status load_encoder_trunk(SpecBuilder& b, ModelSpec& spec, TrunkKeys* trunk) {
  return load_table(b, spec, "attention.layer_norm_epsilon", trunk);
}

Status load_trunk(SpecBuilder& b, ModelSpec& spec, TrunkKeys* trunk, bool may_tie) {
  SHARPI_TRY(load_table(b, spec, "attention.layer_norm_rms_epsilon", trunk));
  SHARPI_TRY(b.load({
      {&spec.output_norm, "output_norm.weight", WeightKind::kF32, trunk->embd},
      {&spec.output,
       "output.weight",
       WeightKind::kComputable,
       trunk->embd,
       trunk->vocab,
       {},
       may_tie},
  }));
  spec.tied_output = !spec.output;
  if (spec.tied_output) spec.output = spec.token_embd;
  return Status::ok();
}

Status check_heads(const SpecBuilder& b, const TrunkKeys& trunk, uint32_t block) {
  const uint32_t n_heads = trunk.n_heads[block];
  const uint32_t n_kv_heads = trunk.n_kv_heads[block];
  if (n_heads == 0 || n_kv_heads == 0) {
    return Status::error(
        Code::kFormat, "%s is 0 for block %u, which has attention",
        b.full_key(n_heads == 0 ? "attention.head_count" : "attention.head_count_kv").c_str(),
        block);
  }
  if (n_heads % n_kv_heads != 0) {
    return Status::error(Code::kFormat, "%s is %u for block %u, not a multiple of %s, which is %u",
                         b.full_key("attention.head_count").c_str(), n_heads, block,
                         b.full_key("attention.head_count_kv").c_str(), n_kv_heads);
  }
  return Status::ok();
}

Result<uint32_t> read_head_dim(const SpecBuilder& b, const TrunkKeys& trunk, const char* suffix) {
  const std::string key = std::string("attention.key_length") + suffix;
  const std::string value_key = std::string("attention.value_length") + suffix;
  const Range range{1, limits::kHeadDim};
  uint32_t head_dim = 0;
  if (b.has_key(key) || *suffix != '\0') {
    SHARPI_TRY_ASSIGN(head_dim, b.require_uint(key, range));
  } else {
    // Hybrids may have 0 heads on their first blocks.
    const auto any =
        std::find_if(trunk.n_heads.begin(), trunk.n_heads.end(), [](uint32_t n) { return n != 0; });
    if (any == trunk.n_heads.end() || trunk.embd.n % *any != 0 ||
        trunk.embd.n / *any > limits::kHeadDim) {
      return Status::error(
          Code::kFormat, "key %s is missing, and %s = %" PRIu64 " over %s = %u is no head size",
          b.full_key(key).c_str(), b.full_key("embedding_length").c_str(), trunk.embd.n,
          b.full_key("attention.head_count").c_str(), any == trunk.n_heads.end() ? 0 : *any);
    }
    head_dim = static_cast<uint32_t>(trunk.embd.n / *any);
  }
  SHARPI_TRY_ASSIGN(const uint32_t value_dim, b.uint_or(value_key, head_dim, range));
  if (value_dim != head_dim) {
    return Status::error(Code::kUnsupported, "%s is %u and %s is %u, only equal ones are supported",
                         b.full_key(key).c_str(), head_dim, b.full_key(value_key).c_str(),
                         value_dim);
  }
  return head_dim;
}

Result<AttentionSpec> attention_geometry(const SpecBuilder& b, const TrunkKeys& trunk,
                                         uint32_t block, uint32_t head_dim, const RopeSpec& rope) {
  SHARPI_TRY(check_heads(b, trunk, block));
  AttentionSpec a;
  a.n_heads = trunk.n_heads[block];
  a.n_kv_heads = trunk.n_kv_heads[block];
  a.head_dim = head_dim;
  a.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
  a.rope = rope;
  return a;
}

Status refuse_experts(const SpecBuilder& b, const char* what_is_supported) {
  SHARPI_TRY_ASSIGN(const uint32_t n_experts,
                    b.uint_or("expert_count", 0, Range{0, limits::kExperts}));
  if (n_experts == 0) return Status::ok();
  return Status::error(
      Code::kUnsupported, "%s with a mixture of experts (%s = %u) is not supported, only %s",
      b.arch().c_str(), b.full_key("expert_count").c_str(), n_experts, what_is_supported);
}

Status refuse_other_values(const SpecBuilder& b, std::initializer_list<NeutralKey> keys) {
  for (const NeutralKey& k : keys) {
    SHARPI_TRY_ASSIGN(const double value, b.float_or(k.key, k.neutral, -kFloatMax, kFloatMax));
    if (value == k.neutral) continue;
    return Status::error(Code::kUnsupported, "%s = %g is not supported for %s",
                         b.full_key(k.key).c_str(), value, b.arch().c_str());
  }
  return Status::ok();
}

Status check_causal(const SpecBuilder& b, bool causal) {
  const std::string key = b.full_key("attention.causal");
  SHARPI_TRY_ASSIGN(const std::optional<bool> said, b.file().get_bool(key));
  if (said.value_or(causal) == causal) return Status::ok();
  return Status::error(Code::kUnsupported, "%s = %s is not supported for %s", key.c_str(),
                       *said ? "true" : "false", b.arch().c_str());
}

Status load_attention_tensors(SpecBuilder& b, const TrunkKeys& trunk, uint32_t block,
                              AttentionSpec* attention, QkvBias bias) {
  AttentionSpec& a = *attention;
  const uint64_t head_dim = a.head_dim;
  const Extent heads{a.n_heads * head_dim, kQueryRows};
  const Extent kv{a.n_kv_heads * head_dim, kKvRows};
  const Extent queries =
      a.output_gate ? Extent{2 * heads.n, "2 * %.attention.head_count * %.attention.key_length"}
                    : heads;
  const bool whole = a.qk_norm == QkNorm::kWholeVector;
  const Extent one_head{head_dim, "%.attention.key_length"};
  SHARPI_TRY(b.load_layer(
      block, {
                 {&a.q, "attn_q.weight", WeightKind::kComputable, trunk.embd, queries},
                 {&a.k, "attn_k.weight", WeightKind::kComputable, trunk.embd, kv},
                 {&a.v, "attn_v.weight", WeightKind::kComputable, trunk.embd, kv},
                 {&a.o, "attn_output.weight", WeightKind::kComputable, heads, trunk.embd},
             }));
  if (a.qk_norm != QkNorm::kNone) {
    SHARPI_TRY(b.load_layer(
        block, {
                   {&a.q_norm, "attn_q_norm.weight", WeightKind::kF32, whole ? heads : one_head},
                   {&a.k_norm, "attn_k_norm.weight", WeightKind::kF32, whole ? kv : one_head},
               }));
  }
  if (bias == QkvBias::kNone) return Status::ok();
  const bool optional = bias == QkvBias::kOptional;
  return b.load_layer(block,
                      {
                          {&a.q_bias, "attn_q.bias", WeightKind::kF32, queries, {}, {}, optional},
                          {&a.k_bias, "attn_k.bias", WeightKind::kF32, kv, {}, {}, optional},
                          {&a.v_bias, "attn_v.bias", WeightKind::kF32, kv, {}, {}, optional},
                      });
}

Status load_sandwich_norms(SpecBuilder& b, const TrunkKeys& trunk, uint32_t block,
                           LayerSpec* layer) {
  LayerSpec& l = *layer;
  return b.load_layer(
      block, {{&l.mixer_norm, "attn_norm.weight", WeightKind::kF32, trunk.embd},
              {&l.mixer_post_norm, "post_attention_norm.weight", WeightKind::kF32, trunk.embd},
              {&l.ffn_norm, "ffn_norm.weight", WeightKind::kF32, trunk.embd},
              {&l.ffn_post_norm, "post_ffw_norm.weight", WeightKind::kF32, trunk.embd}});
}

Status load_dense_ffn(SpecBuilder& b, const TrunkKeys& trunk, uint32_t block, uint32_t d_ff,
                      Activation activation, FfnSpec* ffn) {
  ffn->kind = FfnKind::kDense;
  ffn->activation = activation;
  ffn->d_ff = d_ff;
  const Extent width{d_ff, "%.feed_forward_length"};
  if (activation == Activation::kReluSquared) {
    return b.load_layer(
        block, {
                   {&ffn->up, "ffn_up.weight", WeightKind::kComputable, trunk.embd, width},
                   {&ffn->down, "ffn_down.weight", WeightKind::kComputable, width, trunk.embd},
                   {&ffn->up_bias, "ffn_up.bias", WeightKind::kF32, width, {}, {}, true},
                   {&ffn->down_bias, "ffn_down.bias", WeightKind::kF32, trunk.embd, {}, {}, true},
               });
  }
  return b.load_layer(
      block, {
                 {&ffn->gate, "ffn_gate.weight", WeightKind::kComputable, trunk.embd, width},
                 {&ffn->up, "ffn_up.weight", WeightKind::kComputable, trunk.embd, width},
                 {&ffn->down, "ffn_down.weight", WeightKind::kComputable, width, trunk.embd},
             });
}

Status load_plain_decoder(SpecBuilder& b, const PlainDecoder& kind, ModelSpec& spec) {
  TrunkKeys trunk;
  SHARPI_TRY(load_trunk(b, spec, &trunk, /*may_tie=*/true));
  SHARPI_TRY_ASSIGN(const uint32_t head_dim, read_head_dim(b, trunk, ""));
  SHARPI_TRY_ASSIGN(RopeSpec rope, read_rope(b, head_dim, /*allow_yarn=*/true));
  rope.pairs = kind.pairs;
  if (kind.freq_factors) SHARPI_TRY(load_freq_factors(b, /*optional=*/true, &rope));
  if (kind.long_factors) SHARPI_TRY(load_long_factors(b, &rope));
  RopeSpec unturned;
  unturned.pairs = kind.pairs;
  SHARPI_TRY_ASSIGN(const std::vector<uint32_t> d_ff,
                    b.per_block("feed_forward_length", trunk.n_blocks, Range{1, limits::kFf}));

  spec.layers.resize(trunk.n_blocks);
  for (uint32_t i = 0; i < trunk.n_blocks; ++i) {
    LayerSpec& layer = spec.layers[i];
    SHARPI_TRY_ASSIGN(layer.attention, attention_geometry(b, trunk, i, head_dim, rope));
    layer.attention.qk_norm = kind.qk_norm;
    layer.attention.window = kind.window;
    layer.attention.temperature = kind.temperature;
    layer.attention.temperature_rows = kind.temperature_rows;
    const bool turned = kind.unturned_every == 0 || (i + 1) % kind.unturned_every != 0;
    if (!turned) layer.attention.rope = unturned;
    SHARPI_TRY(
        b.load_layer(i, {{&layer.mixer_norm, "attn_norm.weight", WeightKind::kF32, trunk.embd},
                         {&layer.ffn_norm, "ffn_norm.weight", WeightKind::kF32, trunk.embd}}));
    SHARPI_TRY(load_attention_tensors(b, trunk, i, &layer.attention, kind.bias));
    SHARPI_TRY(load_dense_ffn(b, trunk, i, d_ff[i], Activation::kSilu, &layer.ffn));
  }
  return Status::ok();
}

Result<MoeKeys> read_moe_keys(const SpecBuilder& b) {
  MoeKeys moe;
  SHARPI_TRY_ASSIGN(moe.n_experts, b.require_uint("expert_count", Range{1, limits::kExperts}));
  SHARPI_TRY_ASSIGN(moe.n_used, b.require_uint("expert_used_count", Range{1, limits::kExperts}));
  if (moe.n_used > moe.n_experts) {
    return Status::error(Code::kFormat, "%s is %u, more than %s, which is %u",
                         b.full_key("expert_used_count").c_str(), moe.n_used,
                         b.full_key("expert_count").c_str(), moe.n_experts);
  }
  SHARPI_TRY_ASSIGN(const uint32_t groups,
                    b.uint_or("expert_group_count", 0, Range{0, limits::kExperts}));
  if (groups > 1) {
    return Status::error(Code::kUnsupported,
                         "group-limited routing (%s = %u) is not supported for %s",
                         b.full_key("expert_group_count").c_str(), groups, b.arch().c_str());
  }
  return moe;
}

Result<Extent> read_expert_width(const SpecBuilder& b, const MoeKeys& moe) {
  const Range range{0, limits::kFf};
  SHARPI_TRY_ASSIGN(const uint32_t width, b.uint_or("expert_feed_forward_length", 0, range));
  if (width != 0) return Extent{width, "%.expert_feed_forward_length"};
  SHARPI_TRY_ASSIGN(const uint32_t total, b.uint_or("feed_forward_length", 0, range));
  if (total == 0 || total % moe.n_used != 0) {
    return Status::error(
        Code::kFormat, "key %s is missing, and %s = %u over %s = %u is no expert width",
        b.full_key("expert_feed_forward_length").c_str(), b.full_key("feed_forward_length").c_str(),
        total, b.full_key("expert_used_count").c_str(), moe.n_used);
  }
  return Extent{total / moe.n_used, "%.feed_forward_length / %.expert_used_count"};
}

namespace {

Status load_shared_expert(SpecBuilder& b, const TrunkKeys& trunk, uint32_t block,
                          const MoeKeys& moe, FfnSpec* ffn) {
  ffn->d_shared = static_cast<uint32_t>(moe.shared_width.n);
  const Extent& width = moe.shared_width;
  if (moe.shared_has_gate_inp) {
    SHARPI_TRY(b.load_layer(block, {{&ffn->shared_gate_inp, "ffn_gate_inp_shexp.weight",
                                     WeightKind::kF32, trunk.embd}}));
  }
  if (moe.activation != Activation::kReluSquared) {
    SHARPI_TRY(b.load_layer(block, {{&ffn->shared_gate, "ffn_gate_shexp.weight",
                                     WeightKind::kComputable, trunk.embd, width}}));
  }
  return b.load_layer(
      block,
      {
          {&ffn->shared_up, "ffn_up_shexp.weight", WeightKind::kComputable, trunk.embd, width},
          {&ffn->shared_down, "ffn_down_shexp.weight", WeightKind::kComputable, width, trunk.embd},
      });
}

Status load_gate_up(SpecBuilder& b, const TrunkKeys& trunk, uint32_t block, const MoeKeys& moe,
                    const Extent& experts, FfnSpec* ffn) {
  constexpr const char* kFused = "ffn_gate_up_exps.weight";
  if (moe.activation == Activation::kReluSquared) {
    return b.load_layer(block, {{&ffn->up, "ffn_up_exps.weight", WeightKind::kComputable,
                                 trunk.embd, moe.width, experts}});
  }
  ffn->fused_gate_up = b.has_layer_tensor(block, kFused);
  if (!ffn->fused_gate_up) {
    return b.load_layer(block, {
                                   {&ffn->gate, "ffn_gate_exps.weight", WeightKind::kComputable,
                                    trunk.embd, moe.width, experts},
                                   {&ffn->up, "ffn_up_exps.weight", WeightKind::kComputable,
                                    trunk.embd, moe.width, experts},
                               });
  }
  for (const char* separate : {"ffn_gate_exps.weight", "ffn_up_exps.weight"}) {
    if (!b.has_layer_tensor(block, separate)) continue;
    return Status::error(Code::kFormat, "tensors \"%s\" and \"%s\" are both in the file",
                         layer_tensor_name(block, kFused).c_str(),
                         layer_tensor_name(block, separate).c_str());
  }
  const std::string origin = std::string("2 * ") + moe.width.origin;
  return b.load_layer(block, {{&ffn->gate, kFused, WeightKind::kComputable, trunk.embd,
                               Extent{2 * moe.width.n, origin.c_str()}, experts}});
}

}  // namespace

Status load_moe_ffn(SpecBuilder& b, const TrunkKeys& trunk, uint32_t block, const MoeKeys& moe,
                    FfnSpec* ffn) {
  ffn->kind = FfnKind::kMoe;
  ffn->activation = moe.activation;
  ffn->d_ff = static_cast<uint32_t>(moe.width.n);
  ffn->n_experts = moe.n_experts;
  ffn->n_used = moe.n_used;
  ffn->renormalize = moe.renormalize;
  const Extent experts{moe.n_experts, "%.expert_count"};
  SHARPI_TRY(b.load_layer(
      block, {
                 {&ffn->router, "ffn_gate_inp.weight", WeightKind::kF32, trunk.embd, experts},
                 {&ffn->down, "ffn_down_exps.weight", WeightKind::kComputable, moe.width,
                  trunk.embd, experts},
             }));
  SHARPI_TRY(load_gate_up(b, trunk, block, moe, experts, ffn));
  return moe.shared_width.n == 0 ? Status::ok() : load_shared_expert(b, trunk, block, moe, ffn);
}

}  // namespace sharpi
