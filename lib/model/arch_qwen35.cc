// SPDX-License-Identifier: MIT
// Qwen3.5 and 3.6, dense and MoE, and Qwen3-Next: three gated delta nets for every gated full
// attention, a SwiGLU or routed FFN with a shared expert, and trailing blocks for multi-token
// prediction (MTP). Files of Qwen3-Next have the delta nets' small projections in one matrix, key
// head by key head, and older ones so all of them but the last.
#include <functional>
#include <string>
#include <vector>

#include "model/arch_common.h"
#include "model/arch_registry.h"

namespace sharpi {
namespace {

struct Keys {
  TrunkKeys trunk;
  uint32_t n_layers = 0;        // without MTP blocks
  std::vector<bool> recurrent;  // per block
  uint32_t head_dim = 0;
  RopeSpec rope;
  DeltaNetSpec delta;  // sizes only
};

using FfnLoader = std::function<Status(uint32_t block, const TrunkKeys& trunk, FfnSpec* ffn)>;

/// Interleaved M-RoPE gives every rotated pair the time, height or width position; for text these
/// are equal, so it is plain NEOX rope as long as the three sections cover every pair.
Status check_sections(const SpecBuilder& b, uint32_t n_rot) {
  const std::string key = b.full_key("rope.dimension_sections");
  const GgufValue* value = b.file().find_value(key);
  if (value == nullptr) {
    return Status::error(Code::kFormat, "key %s is missing, %s needs it", key.c_str(),
                         b.arch().c_str());
  }
  if (value->type != GgufValueType::kArray || value->count < 3 || value->count > 4) {
    return Status::error(Code::kFormat, "%s is not an array of 3 or 4 numbers", key.c_str());
  }
  SHARPI_TRY_ASSIGN(const std::optional<std::vector<int64_t>> sections,
                    b.file().get_int_array(key));
  for (uint32_t pair = 0; pair < n_rot / 2; ++pair) {
    const int64_t section = (*sections)[pair % 3];
    if (section >= 0 && pair / 3 < section) continue;
    return Status::error(Code::kUnsupported,
                         "%s = %s leaves rotated pair %u of %u without a text position",
                         key.c_str(), b.file().value_text(*value).c_str(), pair, n_rot / 2);
  }
  return Status::ok();
}

Status read_recurrent(const SpecBuilder& b, Keys* k) {
  if (b.has_key("attention.recurrent_layers")) {
    SHARPI_TRY_ASSIGN(k->recurrent,
                      b.flags_per_block("attention.recurrent_layers", k->trunk.n_blocks));
  } else {
    SHARPI_TRY_ASSIGN(const uint32_t interval,
                      b.uint_or("full_attention_interval", 4, Range{1, limits::kLayers}));
    k->recurrent.resize(k->trunk.n_blocks);
    for (uint32_t i = 0; i < k->trunk.n_blocks; ++i) k->recurrent[i] = (i + 1) % interval != 0;
  }
  for (uint32_t i = k->n_layers; i < k->trunk.n_blocks; ++i) k->recurrent[i] = false;
  return Status::ok();
}

Status read_delta(const SpecBuilder& b, DeltaNetSpec* d) {
  SHARPI_TRY_ASSIGN(d->conv_kernel,
                    b.require_uint("ssm.conv_kernel", Range{2, limits::kConvKernel}));
  SHARPI_TRY_ASSIGN(d->head_dim, b.require_uint("ssm.state_size", Range{1, limits::kStateDim}));
  SHARPI_TRY_ASSIGN(d->n_k_heads, b.require_uint("ssm.group_count", Range{1, limits::kHeads}));
  SHARPI_TRY_ASSIGN(d->n_v_heads, b.require_uint("ssm.time_step_rank", Range{1, limits::kHeads}));
  if (d->n_v_heads % d->n_k_heads != 0) {
    return Status::error(Code::kFormat, "%s is %u, not a multiple of %s, which is %u",
                         b.full_key("ssm.time_step_rank").c_str(), d->n_v_heads,
                         b.full_key("ssm.group_count").c_str(), d->n_k_heads);
  }
  const uint64_t inner_max = limits::kHeads * limits::kStateDim;
  SHARPI_TRY_ASSIGN(const uint32_t inner, b.require_uint("ssm.inner_size", Range{1, inner_max}));
  if (inner != d->value_dim()) {
    return Status::error(Code::kFormat, "%s is %u, expected %u by %s * %s",
                         b.full_key("ssm.inner_size").c_str(), inner, d->value_dim(),
                         b.full_key("ssm.time_step_rank").c_str(),
                         b.full_key("ssm.state_size").c_str());
  }
  return Status::ok();
}

/// `sections`: the file says for which pairs of rotated elements which position counts.
Status read_keys(SpecBuilder& b, ModelSpec& spec, bool sections, Keys* k) {
  SHARPI_TRY(load_trunk(b, spec, &k->trunk, /*may_tie=*/true));
  SHARPI_TRY_ASSIGN(spec.n_mtp_layers,
                    b.uint_or("nextn_predict_layers", 0, Range{0, k->trunk.n_blocks - 1}));
  k->n_layers = k->trunk.n_blocks - spec.n_mtp_layers;
  SHARPI_TRY(read_recurrent(b, k));
  SHARPI_TRY_ASSIGN(k->head_dim, read_head_dim(b, k->trunk, ""));
  SHARPI_TRY_ASSIGN(k->rope, read_rope(b, k->head_dim, /*allow_yarn=*/false));
  if (sections) SHARPI_TRY(check_sections(b, k->rope.n_rot));
  return read_delta(b, &k->delta);
}

Status load_delta_net(SpecBuilder& b, const Keys& k, uint32_t block, DeltaNetSpec* delta) {
  DeltaNetSpec& d = *delta;
  d = k.delta;
  const Extent& embd = k.trunk.embd;
  const Extent v_heads{d.n_v_heads, "%.ssm.time_step_rank"};
  const Extent inner{d.value_dim(), "%.ssm.inner_size"};
  const Extent conv{d.conv_dim(), "2 * %.ssm.group_count * %.ssm.state_size + %.ssm.inner_size"};
  const Extent taps{d.conv_kernel, "%.ssm.conv_kernel"};
  const Extent state{d.head_dim, "%.ssm.state_size"};
  return b.load_layer(block,
                      {
                          {&d.qkv, "attn_qkv.weight", WeightKind::kComputable, embd, conv},
                          {&d.gate, "attn_gate.weight", WeightKind::kComputable, embd, inner},
                          {&d.alpha, "ssm_alpha.weight", WeightKind::kComputable, embd, v_heads},
                          {&d.beta, "ssm_beta.weight", WeightKind::kComputable, embd, v_heads},
                          {&d.out, "ssm_out.weight", WeightKind::kComputable, inner, embd},
                          {&d.conv1d, "ssm_conv1d.weight", WeightKind::kF32, taps, conv},
                          {&d.dt_bias, "ssm_dt.bias", WeightKind::kF32, v_heads},
                          {&d.a, "ssm_a", WeightKind::kF32, v_heads},
                          {&d.norm, "ssm_norm.weight", WeightKind::kF32, state},
                      });
}

Status load_block(SpecBuilder& b, const Keys& k, const FfnLoader& load_ffn, uint32_t block,
                  LayerSpec* layer) {
  const Extent& embd = k.trunk.embd;
  SHARPI_TRY(b.load_layer(
      block, {{&layer->mixer_norm, "attn_norm.weight", WeightKind::kF32, embd},
              // Named after what it follows: it is the norm before the FFN.
              {&layer->ffn_norm, "post_attention_norm.weight", WeightKind::kF32, embd}}));
  if (k.recurrent[block]) {
    layer->mixer = MixerKind::kGatedDeltaNet;
    SHARPI_TRY(load_delta_net(b, k, block, &layer->delta));
  } else {
    SHARPI_TRY_ASSIGN(layer->attention, attention_geometry(b, k.trunk, block, k.head_dim, k.rope));
    layer->attention.qk_norm = QkNorm::kPerHead;
    layer->attention.output_gate = true;
    SHARPI_TRY(load_attention_tensors(b, k.trunk, block, &layer->attention));
  }
  return load_ffn(block, k.trunk, &layer->ffn);
}

Status load_mtp_block(SpecBuilder& b, const Keys& k, const FfnLoader& load_ffn, uint32_t block,
                      MtpSpec* mtp) {
  SHARPI_TRY(load_block(b, k, load_ffn, block, &mtp->layer));
  PairInput& p = mtp->pair;
  const Extent pair{2 * k.trunk.embd.n, "2 * %.embedding_length"};
  return b.load_layer(
      block, {
                 {&p.proj, "nextn.eh_proj.weight", WeightKind::kComputable, pair, k.trunk.embd},
                 {&p.embd_norm, "nextn.enorm.weight", WeightKind::kF32, k.trunk.embd},
                 {&p.hidden_norm, "nextn.hnorm.weight", WeightKind::kF32, k.trunk.embd},
                 {&mtp->head_norm,
                  "nextn.shared_head_norm.weight",
                  WeightKind::kF32,
                  k.trunk.embd,
                  {},
                  {},
                  true},
                 {&mtp->embd,
                  "nextn.embed_tokens.weight",
                  WeightKind::kComputable,
                  k.trunk.embd,
                  k.trunk.vocab,
                  {},
                  true},
                 {&mtp->head,
                  "nextn.shared_head_head.weight",
                  WeightKind::kComputable,
                  k.trunk.embd,
                  k.trunk.vocab,
                  {},
                  true},
             });
}

Status load_blocks(SpecBuilder& b, ModelSpec& spec, const Keys& k, const FfnLoader& load_ffn) {
  spec.layers.resize(k.n_layers);
  for (uint32_t i = 0; i < k.n_layers; ++i) {
    SHARPI_TRY(load_block(b, k, load_ffn, i, &spec.layers[i]));
  }
  for (uint32_t i = k.n_layers; i < k.trunk.n_blocks; ++i) {
    MtpSpec block;
    SHARPI_TRY(load_mtp_block(b, k, load_ffn, i, &block));
    if (i == k.n_layers) spec.mtp = std::move(block);
  }
  for (const GgufTensor& t : b.file().tensors()) {
    const std::optional<uint64_t> block = block_of(t.name);
    if (block && *block >= k.n_layers && *block < k.trunk.n_blocks) spec.mtp_bytes += t.bytes;
  }
  return Status::ok();
}

/// Blocks with routed experts and a shared one.
Status load_moe_blocks(SpecBuilder& b, ModelSpec& spec, const Keys& keys) {
  SHARPI_TRY_ASSIGN(MoeKeys moe, read_moe_keys(b));
  SHARPI_TRY_ASSIGN(moe.width, read_expert_width(b, moe));
  moe.renormalize = true;
  const Range range{0, limits::kFf};
  SHARPI_TRY_ASSIGN(const uint32_t shared,
                    b.uint_or("expert_shared_feed_forward_length", 0, range));
  if (shared != 0) {
    moe.shared_width = {shared, "%.expert_shared_feed_forward_length"};
  } else {
    SHARPI_TRY_ASSIGN(const uint32_t d_ff, b.uint_or("feed_forward_length", 0, range));
    if (d_ff == 0) {
      return Status::error(Code::kFormat, "key %s is missing, %s needs it",
                           b.full_key("expert_shared_feed_forward_length").c_str(),
                           b.arch().c_str());
    }
    moe.shared_width = {d_ff, "%.feed_forward_length"};
  }
  return load_blocks(b, spec, keys, [&](uint32_t block, const TrunkKeys& trunk, FfnSpec* ffn) {
    return load_moe_ffn(b, trunk, block, moe, ffn);
  });
}

/// Of a matrix whose rows are those of one key head behind those of another, each of `unit` rows:
/// the rows [first, first + n) of every one.
GgufRows of_each_key_head(const DeltaNetSpec& d, uint64_t unit, uint64_t first, uint64_t n) {
  return {first, n, d.n_k_heads, unit};
}

}  // namespace

Status load_qwen35(SpecBuilder& b, ModelSpec& spec) {
  Keys keys;
  SHARPI_TRY(read_keys(b, spec, /*sections=*/true, &keys));
  SHARPI_TRY_ASSIGN(const std::vector<uint32_t> d_ff,
                    b.per_block("feed_forward_length", keys.trunk.n_blocks, Range{1, limits::kFf}));
  return load_blocks(b, spec, keys, [&](uint32_t block, const TrunkKeys& trunk, FfnSpec* ffn) {
    return load_dense_ffn(b, trunk, block, d_ff[block], Activation::kSilu, ffn);
  });
}

Status load_qwen35moe(SpecBuilder& b, ModelSpec& spec) {
  Keys keys;
  SHARPI_TRY(read_keys(b, spec, /*sections=*/true, &keys));
  return load_moe_blocks(b, spec, keys);
}

Status load_qwen3next(SpecBuilder& b, ModelSpec& spec) {
  Keys keys;
  SHARPI_TRY(read_keys(b, spec, /*sections=*/false, &keys));
  keys.delta.grouped = true;
  return load_moe_blocks(b, spec, keys);
}

Result<std::vector<GgufPart>> parts_of_qwen3next(SpecBuilder& b) {
  ModelSpec spec;
  Keys keys;
  SHARPI_TRY(read_keys(b, spec, /*sections=*/false, &keys));
  const DeltaNetSpec& d = keys.delta;
  const uint64_t each = d.n_v_heads / d.n_k_heads, dim = d.head_dim, values = each * dim;
  const uint64_t unit = 2 * dim + 2 * values;
  const Extent all{unit * d.n_k_heads,
                   "2 * %.ssm.group_count * %.ssm.state_size + 2 * %.ssm.inner_size"};
  const Extent both{2 * uint64_t{d.n_v_heads}, "2 * %.ssm.time_step_rank"};
  std::vector<GgufPart> parts;
  for (uint32_t i = 0; i < keys.trunk.n_blocks; ++i) {
    TensorRef none;
    const auto rule = [&](const char* name, const Extent& rows) {
      return TensorRule{&none, name, WeightKind::kComputable, keys.trunk.embd, rows};
    };
    SHARPI_TRY_ASSIGN(const GgufTensor* in, b.find_in_layer(i, rule("ssm_in.weight", all)));
    SHARPI_TRY_ASSIGN(const GgufTensor* ba, b.find_in_layer(i, rule("ssm_ba.weight", both)));
    const auto rows = [&](uint64_t first, uint64_t n) {
      return of_each_key_head(d, unit, first, n);
    };
    if (in != nullptr) {
      parts.push_back({layer_tensor_name(i, "attn_qkv.weight"),
                       in,
                       {rows(0, dim), rows(dim, dim), rows(2 * dim, values)}});
      parts.push_back(
          {layer_tensor_name(i, "attn_gate.weight"), in, {rows(2 * dim + values, values)}});
    }
    if (ba == nullptr) continue;
    parts.push_back(
        {layer_tensor_name(i, "ssm_beta.weight"), ba, {of_each_key_head(d, 2 * each, 0, each)}});
    parts.push_back({layer_tensor_name(i, "ssm_alpha.weight"),
                     ba,
                     {of_each_key_head(d, 2 * each, each, each)}});
  }
  return parts;
}

}  // namespace sharpi
