// SPDX-License-Identifier: MIT
// Gemma 4: sliding-window and global layers with their own head sizes, KV heads and rope, norms
// before and after both halves of a layer, GeGLU, and optionally per-layer embeddings, a tail of
// layers that share KV, global layers whose V is their K projection, and a mixture of experts
// beside the dense FFN of every layer (26B-A4B).
#include <cmath>

#include "model/arch_common.h"
#include "model/arch_registry.h"

namespace sharpi {
namespace {

struct Keys {
  TrunkKeys trunk;
  std::vector<bool> windowed;  // per block
  std::vector<uint32_t> d_ff;  // per block
  uint32_t window = 0;
  uint32_t head_dim = 0, head_dim_swa = 0;
  RopeSpec rope, rope_swa;
  uint32_t n_owners = 0;  // blocks before the tail that shares KV
  MoeKeys moe;            // n_experts = 0: dense layers
};

Status read_ropes(const SpecBuilder& b, Keys* k) {
  SHARPI_TRY_ASSIGN(k->rope, read_rope(b, k->head_dim, /*allow_yarn=*/false));
  if (k->rope.freq_scale != 1.0) {
    return Status::error(Code::kUnsupported, "linear rope scaling by %g is not supported for %s",
                         1.0 / k->rope.freq_scale, b.arch().c_str());
  }
  SHARPI_TRY_ASSIGN(k->rope_swa.n_rot, read_n_rot(b, "_swa", k->rope.n_rot, k->head_dim_swa));
  SHARPI_TRY_ASSIGN(k->rope_swa.freq_base, b.float_or("rope.freq_base_swa", 10000.0, 1.0, 3e38));
  return Status::ok();
}

Status read_keys(SpecBuilder& b, ModelSpec& spec, Keys* k) {
  SHARPI_TRY(load_trunk(b, spec, &k->trunk, /*may_tie=*/true));
  const uint32_t n_blocks = k->trunk.n_blocks;
  SHARPI_TRY_ASSIGN(k->windowed, b.flags_per_block("attention.sliding_window_pattern", n_blocks));
  SHARPI_TRY_ASSIGN(k->window,
                    b.require_uint("attention.sliding_window", Range{1, limits::kContext}));
  SHARPI_TRY_ASSIGN(k->d_ff, b.per_block("feed_forward_length", n_blocks, Range{1, limits::kFf}));
  SHARPI_TRY_ASSIGN(k->head_dim, read_head_dim(b, k->trunk, ""));
  SHARPI_TRY_ASSIGN(k->head_dim_swa, read_head_dim(b, k->trunk, "_swa"));
  SHARPI_TRY(read_ropes(b, k));
  SHARPI_TRY_ASSIGN(const uint32_t n_shared,
                    b.uint_or("attention.shared_kv_layers", 0, Range{0, n_blocks - 1}));
  k->n_owners = n_blocks - n_shared;
  spec.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(spec.n_embd)));
  SHARPI_TRY_ASSIGN(const double softcap, b.float_or("final_logit_softcapping", 30.0, 0.0, 1e6));
  spec.logit_softcap = static_cast<float>(softcap);
  SHARPI_TRY_ASSIGN(spec.d_ple,
                    b.require_uint("embedding_length_per_layer_input", Range{0, limits::kEmbd}));
  return Status::ok();
}

Status read_experts(const SpecBuilder& b, MoeKeys* moe) {
  SHARPI_TRY_ASSIGN(const uint32_t n, b.uint_or("expert_count", 0, Range{0, limits::kExperts}));
  if (n == 0) return Status::ok();
  SHARPI_TRY_ASSIGN(*moe, read_moe_keys(b));
  moe->renormalize = true;
  SHARPI_TRY_ASSIGN(const uint32_t width,
                    b.require_uint("expert_feed_forward_length", Range{1, limits::kFf}));
  moe->width = Extent{width, "%.expert_feed_forward_length"};
  return Status::ok();
}

Status load_per_layer_embeddings(SpecBuilder& b, const Keys& k, ModelSpec& spec) {
  if (spec.d_ple == 0) return Status::ok();
  const uint64_t rows = uint64_t{spec.d_ple} * k.trunk.n_blocks;
  const Extent all{rows, "%.embedding_length_per_layer_input * %.block_count"};
  const Extent one{spec.d_ple, "%.embedding_length_per_layer_input"};
  return b.load({
      {&spec.ple_embd, "per_layer_token_embd.weight", WeightKind::kComputable, all, k.trunk.vocab},
      {&spec.ple_model_proj, "per_layer_model_proj.weight", WeightKind::kComputable, k.trunk.embd,
       all},
      {&spec.ple_proj_norm, "per_layer_proj_norm.weight", WeightKind::kF32, one},
  });
}

/// The last block before the sharing tail with the same kind of attention.
Result<int32_t> find_kv_source(const SpecBuilder& b, const Keys& k, uint32_t block) {
  for (uint32_t i = k.n_owners; i-- > 0;) {
    if (k.windowed[i] != k.windowed[block]) continue;
    if (k.trunk.n_kv_heads[i] != k.trunk.n_kv_heads[block]) {
      return Status::error(Code::kFormat,
                           "%s is %u for block %u, which shares the KV of block %u, for which it "
                           "is %u",
                           b.full_key("attention.head_count_kv").c_str(), k.trunk.n_kv_heads[block],
                           block, i, k.trunk.n_kv_heads[i]);
    }
    return static_cast<int32_t>(i);
  }
  return Status::error(Code::kFormat, "%s leaves no block whose KV the %s block %u could share",
                       b.full_key("attention.shared_kv_layers").c_str(),
                       k.windowed[block] ? "sliding-window" : "global", block);
}

Status load_attention(SpecBuilder& b, const Keys& k, uint32_t block, AttentionSpec* attention) {
  AttentionSpec& a = *attention;
  const bool swa = k.windowed[block];
  SHARPI_TRY_ASSIGN(a, attention_geometry(b, k.trunk, block, swa ? k.head_dim_swa : k.head_dim,
                                          swa ? k.rope_swa : k.rope));
  a.scale = 1.0f;  // the QK norms absorb it
  a.window = swa ? k.window : 0;
  a.qk_norm = QkNorm::kPerHead;
  const uint64_t head_dim = a.head_dim;
  const Extent heads{a.n_heads * head_dim,
                     swa ? "%.attention.head_count * %.attention.key_length_swa" : kQueryRows};
  const Extent kv{a.n_kv_heads * head_dim,
                  swa ? "%.attention.head_count_kv * %.attention.key_length_swa" : kKvRows};
  const Extent one_head{head_dim, swa ? "%.attention.key_length_swa" : "%.attention.key_length"};
  SHARPI_TRY(b.load_layer(
      block, {{&a.q, "attn_q.weight", WeightKind::kComputable, k.trunk.embd, heads},
              {&a.o, "attn_output.weight", WeightKind::kComputable, heads, k.trunk.embd},
              {&a.q_norm, "attn_q_norm.weight", WeightKind::kF32, one_head}}));
  if (block >= k.n_owners) {
    // Files may still carry K and V weights of these blocks; nothing reads them.
    b.leave_out(block, {"attn_k.weight", "attn_v.weight", "attn_k_norm.weight"});
    SHARPI_TRY_ASSIGN(a.kv_source, find_kv_source(b, k, block));
    return Status::ok();
  }
  a.v_norm = true;
  SHARPI_TRY(
      b.load_layer(block, {{&a.k, "attn_k.weight", WeightKind::kComputable, k.trunk.embd, kv},
                           {&a.v,
                            "attn_v.weight",
                            WeightKind::kComputable,
                            k.trunk.embd,
                            kv,
                            {},
                            /*optional=*/!swa},
                           {&a.k_norm, "attn_k_norm.weight", WeightKind::kF32, one_head}}));
  a.v_from_k = !a.v;
  return Status::ok();
}

Status load_output_scale(SpecBuilder& b, uint32_t block, LayerSpec* layer) {
  constexpr const char* kName = "layer_output_scale.weight";
  TensorRef scale;
  SHARPI_TRY(b.load_layer(block, {{&scale, kName, WeightKind::kF32, {}, {}, {}, true}}));
  if (!scale) return Status::ok();
  SHARPI_TRY(b.file().read_tensor(*scale.tensor, 0, &layer->output_scale, sizeof(float)));
  if (std::isfinite(layer->output_scale)) return Status::ok();
  return Status::error(Code::kFormat, "tensor \"%s\" holds %g, expected a finite number",
                       layer_tensor_name(block, kName).c_str(),
                       static_cast<double>(layer->output_scale));
}

/// The dense FFN becomes the shared expert of a mixture beside it, each with norms of its own.
Status load_experts(SpecBuilder& b, const Keys& k, uint32_t block, LayerSpec* layer) {
  FfnSpec& f = layer->ffn;
  const Extent& embd = k.trunk.embd;
  const Extent experts{k.moe.n_experts, "%.expert_count"};
  const FfnSpec dense = f;
  f = FfnSpec{};
  SHARPI_TRY(load_moe_ffn(b, k.trunk, block, k.moe, &f));
  f.activation = dense.activation;
  f.d_shared = dense.d_ff;
  f.shared_gate = dense.gate, f.shared_up = dense.up, f.shared_down = dense.down;
  constexpr WeightKind kF32 = WeightKind::kF32;
  return b.load_layer(block, {{&f.router_scale, "ffn_gate_inp.scale", kF32, embd},
                              {&f.expert_norm, "pre_ffw_norm_2.weight", kF32, embd},
                              {&f.expert_post_norm, "post_ffw_norm_2.weight", kF32, embd},
                              {&f.shared_post_norm, "post_ffw_norm_1.weight", kF32, embd},
                              {&f.expert_scale, "ffn_down_exps.scale", kF32, experts}});
}

Status load_layer(SpecBuilder& b, const Keys& k, uint32_t d_ple, uint32_t block, LayerSpec* layer) {
  LayerSpec& l = *layer;
  const Extent& embd = k.trunk.embd;
  SHARPI_TRY(load_attention(b, k, block, &l.attention));
  SHARPI_TRY(load_dense_ffn(b, k.trunk, block, k.d_ff[block], Activation::kGeluTanh, &l.ffn));
  if (k.moe.n_experts != 0) SHARPI_TRY(load_experts(b, k, block, &l));
  SHARPI_TRY(load_sandwich_norms(b, k.trunk, block, &l));
  SHARPI_TRY(load_output_scale(b, block, &l));
  if (d_ple == 0) return Status::ok();
  const Extent ple{d_ple, "%.embedding_length_per_layer_input"};
  return b.load_layer(block, {{&l.ple_gate, "inp_gate.weight", WeightKind::kComputable, embd, ple},
                              {&l.ple_proj, "proj.weight", WeightKind::kComputable, ple, embd},
                              {&l.ple_post_norm, "post_norm.weight", WeightKind::kF32, embd}});
}

}  // namespace

Status load_gemma4(SpecBuilder& b, ModelSpec& spec) {
  Keys keys;
  SHARPI_TRY(read_keys(b, spec, &keys));
  SHARPI_TRY(read_experts(b, &keys.moe));
  // The divisors that leave most pairs of a global head unrotated.
  SHARPI_TRY(load_freq_factors(b, /*optional=*/false, &keys.rope));
  SHARPI_TRY(load_per_layer_embeddings(b, keys, spec));
  spec.layers.resize(keys.trunk.n_blocks);
  for (uint32_t i = 0; i < keys.trunk.n_blocks; ++i) {
    SHARPI_TRY(load_layer(b, keys, spec.d_ple, i, &spec.layers[i]));
  }
  return Status::ok();
}

}  // namespace sharpi
