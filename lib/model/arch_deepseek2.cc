// SPDX-License-Identifier: MIT
// DeepSeek-V2-Lite (arXiv 2405.04434) and what is built like it, GLM-4.7-Flash among them:
// multi-head latent attention, first layers with a dense FFN, then routed experts beside one or
// more that every token takes, chosen by shares or by sigmoids with a number of each expert's own.
// Keys of a file are those of one KV head, as wide as a token's latent and what RoPE turns, and
// beside them the sizes of query heads (`_mla`). Files from before April 2025 have these sizes
// alone, and one matrix for what takes latents to keys and to values, which is taken apart.
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/arch_common.h"
#include "model/arch_registry.h"

namespace sharpi {
namespace {

constexpr WeightKind kF32 = WeightKind::kF32, kComputable = WeightKind::kComputable;
constexpr double kMostScale = 1e9, kMostFactor = 1e6;
constexpr const char *kKeys = "attn_k_b.weight", *kValues = "attn_v_b.weight";
constexpr const char* kBoth = "attn_kv_b.weight";

struct Keys {
  TrunkKeys trunk;
  AttentionSpec attention;  // without tensors and heads, of every layer
  bool older = false;       // from before April 2025
  const char *key_length = "attention.key_length_mla", *value_length = "attention.value_length_mla";
  uint32_t q_rank = 0;   // 0: queries come of the input at once
  uint32_t n_dense = 0;  // first layers, which have a dense FFN
  std::vector<uint32_t> d_ff;
  MoeKeys moe;
  RouterScores scores = RouterScores::kSoftmax;
  float share_scale = 1.0f;
};

/// The key yarn_log_multiplier is a tenth of the configuration's mscale_all_dim here, which such
/// files have for mscale, too: scores grow by the square of its magnitude, and what RoPE turns by
/// nothing.
Status scale_by_context(const SpecBuilder& b, RopeSpec* rope, double* scale) {
  SHARPI_TRY_ASSIGN(const double log_multiplier,
                    b.float_or("rope.scaling.yarn_log_multiplier", 0.0, 0.0, kMostFactor));
  if (!rope->yarn || log_multiplier == 0.0) return Status::ok();
  SHARPI_TRY_ASSIGN(const double attn,
                    b.float_or("rope.scaling.attn_factor", 1.0, 1e-6, kMostFactor));
  SHARPI_TRY_ASSIGN(const double whole,
                    b.float_or("rope.scaling.yarn_attn_factor", 1.0, 1e-6, kMostFactor));
  rope->magnitude = attn * whole;
  const double magnitude = 1.0 + log_multiplier * std::log(rope->yarn_factor);
  *scale *= magnitude * magnitude;
  return Status::ok();
}

/// A key of the one KV head's sizes, where the file has it.
Status check_length(const SpecBuilder& b, const char* key, uint32_t expected, const char* origin) {
  SHARPI_TRY_ASSIGN(const uint32_t length, b.uint_or(key, expected, Range{0, limits::kHeadDim}));
  if (length == expected) return Status::ok();
  return Status::error(Code::kFormat, "%s is %u, expected %u: %s", b.full_key(key).c_str(), length,
                       expected, b.expand(origin).c_str());
}

Status read_attention(const SpecBuilder& b, Keys* k) {
  AttentionSpec& a = k->attention;
  const Range range{1, limits::kHeadDim};
  SHARPI_TRY_ASSIGN(a.latent.rank, b.require_uint("attention.kv_lora_rank", range));
  k->older = !b.has_key(k->key_length) && !b.has_key(k->value_length);
  if (k->older) k->key_length = "attention.key_length", k->value_length = "attention.value_length";
  SHARPI_TRY_ASSIGN(const uint32_t key_length, b.require_uint(k->key_length, range));
  SHARPI_TRY_ASSIGN(a.latent.value_dim, b.require_uint(k->value_length, range));
  SHARPI_TRY(b.require_uint("rope.dimension_count", Range{2, limits::kHeadDim}).take_status());
  SHARPI_TRY_ASSIGN(a.rope, read_rope(b, key_length, /*allow_yarn=*/true));
  a.rope.pairs = RopePairs::kNeighbours;
  a.head_dim = a.rope.n_rot + a.latent.rank;
  if (key_length <= a.rope.n_rot || a.head_dim > limits::kHeadDim) {
    return Status::error(Code::kFormat,
                         "%s = %u, %s = %u and %s = %u are no sizes of heads: more of a key than "
                         "RoPE turns is needed, and a stored row of at most %u elements",
                         b.full_key(k->key_length).c_str(), key_length,
                         b.full_key("rope.dimension_count").c_str(), a.rope.n_rot,
                         b.full_key("attention.kv_lora_rank").c_str(), a.latent.rank,
                         static_cast<uint32_t>(limits::kHeadDim));
  }
  a.latent.key_dim = key_length - a.rope.n_rot;
  if (!k->older) {
    SHARPI_TRY(check_length(b, "attention.key_length", a.head_dim,
                            "%.attention.kv_lora_rank + %.rope.dimension_count"));
    SHARPI_TRY(
        check_length(b, "attention.value_length", a.latent.rank, "%.attention.kv_lora_rank"));
  }
  double scale = 1.0 / std::sqrt(static_cast<double>(key_length));
  SHARPI_TRY(scale_by_context(b, &a.rope, &scale));
  a.scale = static_cast<float>(scale);
  SHARPI_TRY_ASSIGN(k->q_rank, b.uint_or("attention.q_lora_rank", 0, Range{0, limits::kEmbd}));
  return Status::ok();
}

/// Files of GLM-4.7-Flash may leave out how their experts are chosen, as files of DeepSeek-V2 do,
/// whose shares are a softmax; they are known by their sizes, as elsewhere.
Result<RouterScores> read_scores(const SpecBuilder& b, const TrunkKeys& trunk) {
  constexpr uint32_t kUnsaid = 0, kSoftmax = 1, kSigmoid = 2, kGlmLayers = 47;
  constexpr uint64_t kGlmVocab = 154880;
  SHARPI_TRY_ASSIGN(const uint32_t said, b.uint_or("expert_gating_func", kUnsaid, Range{0, 255}));
  if (said == kSigmoid) return RouterScores::kSigmoid;
  if (said == kSoftmax) return RouterScores::kSoftmax;
  if (said == kUnsaid) {
    const bool glm = trunk.n_blocks == kGlmLayers && trunk.vocab.n == kGlmVocab;
    return glm ? RouterScores::kSigmoid : RouterScores::kSoftmax;
  }
  return Status::error(Code::kUnsupported, "%s = %u is not supported for %s",
                       b.full_key("expert_gating_func").c_str(), said, b.arch().c_str());
}

Status read_experts(const SpecBuilder& b, Keys* k) {
  k->n_dense = k->trunk.n_blocks;
  SHARPI_TRY_ASSIGN(const uint32_t n_experts,
                    b.uint_or("expert_count", 0, Range{0, limits::kExperts}));
  if (n_experts == 0) return Status::ok();
  SHARPI_TRY_ASSIGN(k->n_dense,
                    b.uint_or("leading_dense_block_count", 0, Range{0, k->trunk.n_blocks}));
  SHARPI_TRY_ASSIGN(k->moe, read_moe_keys(b));
  SHARPI_TRY_ASSIGN(const uint32_t width,
                    b.require_uint("expert_feed_forward_length", Range{1, limits::kFf}));
  SHARPI_TRY_ASSIGN(const uint32_t n_shared,
                    b.uint_or("expert_shared_count", 0, Range{0, limits::kFf / width}));
  SHARPI_TRY_ASSIGN(const std::optional<bool> norm,
                    b.file().get_bool(b.full_key("expert_weights_norm")));
  SHARPI_TRY_ASSIGN(const double scale, b.float_or("expert_weights_scale", 0.0, 0.0, kMostScale));
  SHARPI_TRY_ASSIGN(k->scores, read_scores(b, k->trunk));
  k->moe.width = {width, "%.expert_feed_forward_length"};
  k->moe.shared_width = {uint64_t{n_shared} * width,
                         "%.expert_shared_count * %.expert_feed_forward_length"};
  k->moe.shared_has_gate_inp = false;
  k->moe.renormalize = norm.value_or(false);
  if (scale != 0.0) k->share_scale = static_cast<float>(scale);
  return Status::ok();
}

Status load_queries(SpecBuilder& b, const Keys& k, uint32_t block, AttentionSpec* a) {
  const uint64_t one = uint64_t{a->latent.key_dim} + a->rope.n_rot;
  const std::string origin = std::string("%.attention.head_count * %.") + k.key_length;
  const Extent queries{a->n_heads * one, origin.c_str()};
  if (k.q_rank == 0) {
    return b.load_layer(block, {{&a->q, "attn_q.weight", kComputable, k.trunk.embd, queries}});
  }
  const Extent rank{k.q_rank, "%.attention.q_lora_rank"};
  return b.load_layer(block, {{&a->latent.q_a, "attn_q_a.weight", kComputable, k.trunk.embd, rank},
                              {&a->latent.q_norm, "attn_q_a_norm.weight", kF32, rank},
                              {&a->q, "attn_q_b.weight", kComputable, rank, queries}});
}

/// What takes latents to keys and to values.
Status load_head_matrices(SpecBuilder& b, const Keys& k, uint32_t block, AttentionSpec* a) {
  LatentSpec& l = a->latent;
  b.leave_out(block, {kBoth});  // some files have both forms
  const std::string key_rows = std::string("%.") + k.key_length + " - %.rope.dimension_count";
  const std::string value_length = std::string("%.") + k.value_length;
  const Extent heads{a->n_heads, "%.attention.head_count"};
  const Extent rank{l.rank, "%.attention.kv_lora_rank"};
  const Extent key{l.key_dim, key_rows.c_str()}, value{l.value_dim, value_length.c_str()};
  return b.load_layer(block, {{&l.k_b, kKeys, kComputable, key, rank, heads},
                              {&l.v_b, kValues, kComputable, rank, value, heads}});
}

Status load_attention(SpecBuilder& b, const Keys& k, uint32_t block, AttentionSpec* a) {
  *a = k.attention;
  a->n_heads = k.trunk.n_heads[block];
  a->n_kv_heads = 1;
  const uint32_t n_kv = k.trunk.n_kv_heads[block], expected = k.older ? a->n_heads : 1;
  if (a->n_heads == 0 || n_kv != expected) {
    return Status::error(Code::kFormat, "%s = %u and %s = %u of block %u, expected heads and %s",
                         b.full_key("attention.head_count").c_str(), a->n_heads,
                         b.full_key("attention.head_count_kv").c_str(), n_kv, block,
                         k.older ? "as many" : "one");
  }
  SHARPI_TRY(load_queries(b, k, block, a));
  SHARPI_TRY(load_head_matrices(b, k, block, a));
  const std::string origin = std::string("%.attention.head_count * %.") + k.value_length;
  const Extent rank{a->latent.rank, "%.attention.kv_lora_rank"};
  const Extent row{a->head_dim, "%.attention.kv_lora_rank + %.rope.dimension_count"};
  const Extent mixed{a->mixed_row(), origin.c_str()};
  return b.load_layer(block, {{&a->k, "attn_kv_a_mqa.weight", kComputable, k.trunk.embd, row},
                              {&a->latent.kv_norm, "attn_kv_a_norm.weight", kF32, rank},
                              {&a->o, "attn_output.weight", kComputable, mixed, k.trunk.embd}});
}

Status load_ffn(SpecBuilder& b, const Keys& k, uint32_t block, FfnSpec* ffn) {
  if (block < k.n_dense)
    return load_dense_ffn(b, k.trunk, block, k.d_ff[block], Activation::kSilu, ffn);
  SHARPI_TRY(load_moe_ffn(b, k.trunk, block, k.moe, ffn));
  ffn->scores = k.scores;
  ffn->share_scale = k.share_scale;
  const Extent experts{k.moe.n_experts, "%.expert_count"};
  return b.load_layer(block,
                      {{&ffn->choice_bias, "exp_probs_b.bias", kF32, experts, {}, {}, true}});
}

}  // namespace

Status load_deepseek2(SpecBuilder& b, ModelSpec& spec) {
  Keys keys;
  SHARPI_TRY(load_trunk(b, spec, &keys.trunk, /*may_tie=*/true));
  SHARPI_TRY(
      refuse_other_values(b, {{"nextn_predict_layers", 0}, {"attention.temperature_scale", 0}}));
  SHARPI_TRY(read_attention(b, &keys));
  SHARPI_TRY(read_experts(b, &keys));
  if (keys.n_dense != 0) {
    SHARPI_TRY_ASSIGN(
        keys.d_ff, b.per_block("feed_forward_length", keys.trunk.n_blocks, Range{1, limits::kFf}));
  }
  spec.layers.resize(keys.trunk.n_blocks);
  for (uint32_t i = 0; i < keys.trunk.n_blocks; ++i) {
    LayerSpec& l = spec.layers[i];
    SHARPI_TRY(b.load_layer(i, {{&l.mixer_norm, "attn_norm.weight", kF32, keys.trunk.embd},
                                {&l.ffn_norm, "ffn_norm.weight", kF32, keys.trunk.embd}}));
    SHARPI_TRY(load_attention(b, keys, i, &l.attention));
    SHARPI_TRY(load_ffn(b, keys, i, &l.ffn));
  }
  return Status::ok();
}

/// Queries meet the columns of what gives keys: these become rows.
Result<std::vector<GgufPart>> parts_of_deepseek2(SpecBuilder& b) {
  ModelSpec spec;
  Keys k;
  SHARPI_TRY(load_trunk(b, spec, &k.trunk, /*may_tie=*/true));
  SHARPI_TRY(read_attention(b, &k));
  const uint64_t key = k.attention.latent.key_dim, value = k.attention.latent.value_dim;
  const std::string origin = std::string("%.attention.head_count * (%.") + k.key_length +
                             " - %.rope.dimension_count + %." + k.value_length + ")";
  std::vector<GgufPart> parts;
  for (uint32_t i = 0; i < k.trunk.n_blocks; ++i) {
    if (b.has_layer_tensor(i, kKeys) || b.has_layer_tensor(i, kValues)) continue;
    const uint64_t heads = k.trunk.n_heads[i], both = key + value;
    TensorRef none;
    SHARPI_TRY_ASSIGN(
        const GgufTensor* of,
        b.find_in_layer(i, {&none, kBoth, kComputable,
                            Extent{k.attention.latent.rank, "%.attention.kv_lora_rank"},
                            Extent{heads * both, origin.c_str()}}));
    if (of == nullptr || heads == 0) continue;
    GgufPart keys{layer_tensor_name(i, kKeys), of, {{0, key, heads, both}}, heads, true};
    parts.push_back(std::move(keys));
    parts.push_back({layer_tensor_name(i, kValues), of, {{key, value, heads, both}}, heads});
  }
  return parts;
}

}  // namespace sharpi
