// SPDX-License-Identifier: MIT
// Gemma 3, text (270M to 27B): five sliding-window layers to a global one, each kind with its own
// rope, per-head QK norms, norms before and after both halves of a layer, GeGLU, a tied head. And
// EmbeddingGemma, the same trunk whose tokens see each other on both sides.
#include <cmath>

#include "model/arch_common.h"
#include "model/arch_registry.h"

namespace sharpi {
namespace {

constexpr uint32_t kWindowPattern = 6;  // where the file does not say: the last of six is global
/// The 27B model is the only one with so many blocks. Its queries are scaled by the width over the
/// number of heads instead of the size of a head, and files have no key that says so.
constexpr uint32_t kBlocksScaledByWidth = 62;

struct Keys {
  TrunkKeys trunk;
  std::vector<bool> windowed;  // per block
  std::vector<uint32_t> d_ff;  // per block
  uint32_t window = 0, head_dim = 0;
  RopeSpec rope, rope_swa;
  float scale = 0.0f;
  bool causal = true;
};

/// An array of flags, or a period: the last block of each is global.
Result<std::vector<bool>> read_windowed(const SpecBuilder& b, uint32_t n_blocks) {
  constexpr const char* kKey = "attention.sliding_window_pattern";
  const GgufValue* value = b.file().find_value(b.full_key(kKey));
  if (value != nullptr && value->type == GgufValueType::kArray) {
    return b.flags_per_block(kKey, n_blocks);
  }
  SHARPI_TRY_ASSIGN(const uint32_t period,
                    b.uint_or(kKey, kWindowPattern, Range{1, limits::kLayers}));
  std::vector<bool> windowed(n_blocks);
  for (uint32_t i = 0; i < n_blocks; ++i) windowed[i] = (i + 1) % period != 0;
  return windowed;
}

Result<float> read_scale(const SpecBuilder& b, const Keys& k) {
  SHARPI_TRY_ASSIGN(const double declared, b.float_or("attention.scale", 0.0, 0.0, 1e6));
  if (declared != 0.0) return static_cast<float>(declared);
  SHARPI_TRY(check_heads(b, k.trunk, 0));
  const double of = k.trunk.n_blocks == kBlocksScaledByWidth
                        ? static_cast<double>(k.trunk.embd.n) / k.trunk.n_heads[0]
                        : static_cast<double>(k.head_dim);
  return static_cast<float>(1.0 / std::sqrt(of));
}

Status read_keys(SpecBuilder& b, ModelSpec& spec, Keys* k) {
  SHARPI_TRY(load_trunk(b, spec, &k->trunk, /*may_tie=*/true));
  const uint32_t n_blocks = k->trunk.n_blocks;
  SHARPI_TRY_ASSIGN(k->windowed, read_windowed(b, n_blocks));
  // None: every layer sees all keys, as in Rnj-1.
  SHARPI_TRY_ASSIGN(k->window,
                    b.uint_or("attention.sliding_window", 0, Range{0, limits::kContext}));
  if (k->window == 0) k->windowed.assign(n_blocks, false);
  SHARPI_TRY_ASSIGN(k->d_ff, b.per_block("feed_forward_length", n_blocks, Range{1, limits::kFf}));
  SHARPI_TRY_ASSIGN(k->head_dim, read_head_dim(b, k->trunk, ""));
  // Scaling (linear by 8 from the 4B model on) is that of the global layers.
  SHARPI_TRY_ASSIGN(k->rope, read_rope(b, k->head_dim, /*allow_yarn=*/true));
  if (!b.has_key("rope.freq_base")) k->rope.freq_base = 1e6;
  k->rope_swa.n_rot = k->rope.n_rot;
  SHARPI_TRY_ASSIGN(k->rope_swa.freq_base, b.float_or("rope.freq_base_swa", 10000.0, 1.0, 3e38));
  SHARPI_TRY_ASSIGN(k->scale, read_scale(b, *k));
  spec.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(spec.n_embd)));
  SHARPI_TRY_ASSIGN(const double softcap, b.float_or("final_logit_softcapping", 0.0, 0.0, 1e6));
  spec.logit_softcap = static_cast<float>(softcap);
  return Status::ok();
}

Status load_layer(SpecBuilder& b, const Keys& k, uint32_t block, LayerSpec* layer) {
  AttentionSpec& a = layer->attention;
  const bool swa = k.windowed[block];
  SHARPI_TRY_ASSIGN(a,
                    attention_geometry(b, k.trunk, block, k.head_dim, swa ? k.rope_swa : k.rope));
  a.scale = k.scale;
  a.window = swa ? k.window : 0;
  a.causal = k.causal;
  a.qk_norm = QkNorm::kPerHead;
  SHARPI_TRY(load_attention_tensors(b, k.trunk, block, &a));
  SHARPI_TRY(load_dense_ffn(b, k.trunk, block, k.d_ff[block], Activation::kGeluTanh, &layer->ffn));
  return load_sandwich_norms(b, k.trunk, block, layer);
}

Status load_layers(SpecBuilder& b, const Keys& keys, ModelSpec& spec) {
  spec.layers.resize(keys.trunk.n_blocks);
  for (uint32_t i = 0; i < keys.trunk.n_blocks; ++i) {
    SHARPI_TRY(load_layer(b, keys, i, &spec.layers[i]));
  }
  return Status::ok();
}

}  // namespace

Status load_gemma3(SpecBuilder& b, ModelSpec& spec) {
  SHARPI_TRY(refuse_experts(b, "dense models are"));
  SHARPI_TRY(refuse_other_values(b, {{"attn_logit_softcapping", 0}}));
  SHARPI_TRY(check_causal(b, true));
  Keys keys;
  SHARPI_TRY(read_keys(b, spec, &keys));
  return load_layers(b, keys, spec);
}

Status load_gemma_embedding(SpecBuilder& b, ModelSpec& spec) {
  SHARPI_TRY(refuse_experts(b, "dense models are"));
  SHARPI_TRY(refuse_other_values(b, {{"attn_logit_softcapping", 0}}));
  SHARPI_TRY(check_causal(b, false));
  Keys keys;
  SHARPI_TRY(read_keys(b, spec, &keys));
  keys.causal = false;
  // A window is as wide as the key says, half of it on each side, the token itself besides.
  if (keys.window != 0) keys.window = keys.window / 2 + 1;
  SHARPI_TRY(load_layers(b, keys, spec));
  if (!spec.tied_output) {
    return Status::error(Code::kUnsupported,
                         "tensor \"output.weight\" is not supported for %s, which has no logits",
                         b.arch().c_str());
  }
  spec.output = {};
  spec.tied_output = false;
  return Status::ok();
}

}  // namespace sharpi
