// SPDX-License-Identifier: MIT
#include "support/made_latent.h"

#include <string>

#include "support/made_weights.h"

namespace sharpi::test {
namespace {

constexpr uint32_t kEmbd = 64, kLayers = 3;

struct Sizes {
  uint32_t heads, q_rank, rank, rot, key, value;  // q_rank 0: none
  bool older;                                     // as files were before April 2025
};
struct Experts {
  uint32_t all, used, width, shared;
  double gain;  // of what routed ones add
};

void keys(MadeWeights* w, const Sizes& s, const Experts& e) {
  w->key("context_length", 32768u);
  w->key("embedding_length", kEmbd);
  w->key("block_count", kLayers);
  w->key("feed_forward_length", 96u);
  w->key("attention.head_count", s.heads);
  w->key("attention.head_count_kv", s.older ? s.heads : 1);
  w->key("attention.kv_lora_rank", s.rank);
  if (s.q_rank != 0) w->key("attention.q_lora_rank", s.q_rank);
  const std::string of_heads = s.older ? "" : "_mla";
  if (!s.older) {
    w->key("attention.key_length", s.rank + s.rot);
    w->key("attention.value_length", s.rank);
  }
  w->key("attention.key_length" + of_heads, s.key + s.rot);
  w->key("attention.value_length" + of_heads, s.value);
  w->key("rope.dimension_count", s.rot);
  w->key("leading_dense_block_count", 1u);
  w->key("expert_count", e.all);
  w->key("expert_used_count", e.used);
  w->key("expert_shared_count", e.shared);
  w->key("expert_feed_forward_length", e.width);
}

void attention(MadeWeights* w, const std::string& p, const Sizes& s) {
  const uint64_t queries = uint64_t{s.heads} * (s.key + s.rot);
  if (s.q_rank == 0) {
    w->matrix(p + "attn_q.weight", {kEmbd, queries}, 1.5);
  } else {
    w->matrix(p + "attn_q_a.weight", {kEmbd, s.q_rank});
    w->values(p + "attn_q_a_norm.weight", {s.q_rank}, 1.0, 0.1);
    w->matrix(p + "attn_q_b.weight", {s.q_rank, queries}, 1.5);
  }
  w->matrix(p + "attn_kv_a_mqa.weight", {kEmbd, uint64_t{s.rank} + s.rot}, 1.5);
  w->values(p + "attn_kv_a_norm.weight", {s.rank}, 1.0, 0.1);
  if (s.older) {
    w->matrix(p + "attn_kv_b.weight", {s.rank, uint64_t{s.heads} * (s.key + s.value)});
  } else {
    w->matrix(p + "attn_k_b.weight", {s.key, s.rank, s.heads});
    w->matrix(p + "attn_v_b.weight", {s.rank, s.value, s.heads});
  }
  w->matrix(p + "attn_output.weight", {uint64_t{s.heads} * s.value, kEmbd}, 3.0);
}

void ffn(MadeWeights* w, const std::string& p, bool dense, const Experts& e) {
  constexpr uint64_t kFf = 96;
  if (dense) {
    w->matrix(p + "ffn_gate.weight", {kEmbd, kFf});
    w->matrix(p + "ffn_up.weight", {kEmbd, kFf});
    w->matrix(p + "ffn_down.weight", {kFf, kEmbd}, 2.0);
    return;
  }
  const uint64_t shared = uint64_t{e.width} * e.shared;
  w->values(p + "ffn_gate_inp.weight", {kEmbd, e.all}, 0.0, 0.3);
  w->matrix(p + "ffn_gate_exps.weight", {kEmbd, e.width, e.all});
  w->matrix(p + "ffn_up_exps.weight", {kEmbd, e.width, e.all});
  w->matrix(p + "ffn_down_exps.weight", {e.width, kEmbd, e.all}, e.gain);
  w->matrix(p + "ffn_gate_shexp.weight", {kEmbd, shared});
  w->matrix(p + "ffn_up_shexp.weight", {kEmbd, shared});
  w->matrix(p + "ffn_down_shexp.weight", {shared, kEmbd}, 2.0);
}

Bytes model(MadeWeights* w, const Sizes& s, const Experts& e, bool has_biases) {
  w->matrix("token_embd.weight", {kEmbd, MadeWeights::kVocab}, 3.0);
  w->values("output_norm.weight", {kEmbd}, 1.0, 0.1);
  w->matrix("output.weight", {kEmbd, MadeWeights::kVocab}, 3.0);
  for (uint32_t i = 0; i < kLayers; ++i) {
    const std::string p = "blk." + std::to_string(i) + ".";
    w->values(p + "attn_norm.weight", {kEmbd}, 1.0, 0.1);
    w->values(p + "ffn_norm.weight", {kEmbd}, 1.0, 0.1);
    attention(w, p, s);
    ffn(w, p, i == 0, e);
    if (has_biases && i != 0) w->values(p + "exp_probs_b.bias", {e.all}, 0.0, 0.3);
  }
  return w->bytes();
}

}  // namespace

Bytes made_deepseek2(uint64_t seed) {
  constexpr Sizes kSizes{4, 0, 128, 32, 64, 32, true};
  constexpr Experts kExperts{6, 3, 32, 2, 0.3};
  MadeWeights w("deepseek2", seed);
  w.begin("rand-deepseek2", "deepseek-llm");
  keys(&w, kSizes, kExperts);
  w.key("attention.layer_norm_rms_epsilon", 1e-6f);
  w.key("rope.freq_base", 10000.0f);
  w.key("rope.scaling.type", std::string("yarn"));
  w.key("rope.scaling.factor", 4.0f);
  w.key("rope.scaling.original_context_length", 64u);
  w.key("rope.scaling.yarn_log_multiplier", 0.0707f);
  w.key("expert_weights_scale", 1.5f);
  return model(&w, kSizes, kExperts, false);
}

Bytes made_glm_flash(uint64_t seed) {
  constexpr Sizes kSizes{5, 96, 64, 32, 32, 64, false};
  constexpr Experts kExperts{6, 2, 32, 1, 0.3};
  MadeWeights w("deepseek2", seed);
  w.begin("rand-glm-flash", "glm4");
  keys(&w, kSizes, kExperts);
  w.key("attention.layer_norm_rms_epsilon", 1e-5f);
  w.key("rope.freq_base", 1e6f);
  w.key("expert_group_count", 1u);
  w.key("expert_group_used_count", 1u);
  w.key("expert_gating_func", 2u);
  w.key("expert_weights_norm", true);
  w.key("expert_weights_scale", 1.8f);
  return model(&w, kSizes, kExperts, true);
}

}  // namespace sharpi::test
