// SPDX-License-Identifier: MIT
#include "support/made_mamba.h"

#include <string>
#include <vector>

#include "support/made_weights.h"

namespace sharpi::test {
namespace {

constexpr uint32_t kEmbd = 64, kHeads = 2, kKv = 1, kDim = 64, kTaps = 4;

struct Sizes {
  uint32_t heads, dim, groups, state;
  uint32_t inner() const { return heads * dim; }
  uint32_t conv() const { return inner() + 2 * groups * state; }
};

void sizes(MadeWeights* w, const Sizes& s) {
  w->key("attention.layer_norm_rms_epsilon", 1e-5f);
  w->key("ssm.conv_kernel", kTaps);
  w->key("ssm.state_size", s.state);
  w->key("ssm.group_count", s.groups);
  w->key("ssm.time_step_rank", s.heads);
  w->key("ssm.inner_size", s.inner());
}

void ends(MadeWeights* w, double gain) {
  w->matrix("token_embd.weight", {kEmbd, MadeWeights::kVocab}, 3.0);
  w->values("output_norm.weight", {kEmbd}, 1.0, 0.1);
  w->matrix("output.weight", {kEmbd, MadeWeights::kVocab}, gain);
}

void mamba(MadeWeights* w, const std::string& p, const Sizes& s) {
  w->matrix(p + "ssm_in.weight", {kEmbd, uint64_t{s.inner()} + s.conv() + s.heads}, 1.5);
  w->values(p + "ssm_conv1d.weight", {kTaps, s.conv()}, 0.0, 0.5);
  w->values(p + "ssm_conv1d.bias", {s.conv()}, 0.0, 0.3);
  w->values(p + "ssm_dt.bias", {s.heads}, -1.0, 0.7);
  std::vector<float> decay(s.heads);
  for (float& a : decay) a = static_cast<float>(w->uniform(-0.6, -0.02));
  w->exact(p + "ssm_a", {1, s.heads}, decay);
  w->values(p + "ssm_d", {1, s.heads}, 1.0, 0.3);
  w->values(p + "ssm_norm.weight", {s.inner() / s.groups, s.groups}, 1.0, 0.1);
  w->matrix(p + "ssm_out.weight", {s.inner(), kEmbd}, 3.0);
}

void attention(MadeWeights* w, const std::string& p) {
  w->matrix(p + "attn_q.weight", {kEmbd, kHeads * kDim}, 1.5);
  w->matrix(p + "attn_k.weight", {kEmbd, kKv * kDim}, 1.5);
  w->matrix(p + "attn_v.weight", {kEmbd, kKv * kDim});
  w->matrix(p + "attn_output.weight", {kHeads * kDim, kEmbd}, 3.0);
}

std::string block(uint32_t i) {
  return "blk." + std::to_string(i) + ".";
}

/// Layer 1 of three is of attention.
Bytes granite(const char* name, uint64_t seed, bool moe) {
  constexpr uint32_t kLayers = 3, kFf = 64, kShared = 32, kExperts = 6;
  constexpr Sizes kSizes{4, 32, 1, 32};
  MadeWeights w("granitehybrid", seed);
  w.begin(name, "dbrx");
  w.attention_keys(kEmbd, kLayers, kHeads, 0, kDim);
  w.keys("attention.head_count_kv", std::vector<int32_t>{0, kKv, 0});
  sizes(&w, kSizes);
  w.key("feed_forward_length", kFf);
  if (moe) {
    w.key("expert_count", kExperts);
    w.key("expert_used_count", 3u);
    w.key("expert_shared_feed_forward_length", kShared);
    w.key("rope.scaling.finetuned", false);
    w.key("attention.scale", 0.08f);
    w.key("embedding_scale", 1.5f);
    w.key("residual_scale", 0.6f);
    w.key("logit_scale", 0.5f);
  } else {
    w.key("rope.freq_base", 1e4f);
  }
  ends(&w, moe ? 1.5 : 3.0);
  for (uint32_t i = 0; i < kLayers; ++i) {
    const std::string p = block(i);
    w.values(p + "attn_norm.weight", {kEmbd}, 1.0, 0.1);
    w.values(p + "ffn_norm.weight", {kEmbd}, 1.0, 0.1);
    i == 1 ? attention(&w, p) : mamba(&w, p, kSizes);
    if (!moe) {
      w.matrix(p + "ffn_gate.weight", {kEmbd, kFf});
      w.matrix(p + "ffn_up.weight", {kEmbd, kFf});
      w.matrix(p + "ffn_down.weight", {kFf, kEmbd}, 2.0);
      continue;
    }
    w.values(p + "ffn_gate_inp.weight", {kEmbd, kExperts}, 0.0, 0.3);
    w.matrix(p + "ffn_gate_exps.weight", {kEmbd, kFf, kExperts});
    w.matrix(p + "ffn_up_exps.weight", {kEmbd, kFf, kExperts});
    w.matrix(p + "ffn_down_exps.weight", {kFf, kEmbd, kExperts}, 2.0);
    w.matrix(p + "ffn_gate_shexp.weight", {kEmbd, kShared});
    w.matrix(p + "ffn_up_shexp.weight", {kEmbd, kShared});
    w.matrix(p + "ffn_down_shexp.weight", {kShared, kEmbd}, 2.0);
  }
  return w.bytes();
}

/// 'M' Mamba-2, '*' attention, 'E' experts, '-' a dense FFN.
Bytes nemotron(const char* name, const char* arch, std::string_view pattern, uint64_t seed) {
  constexpr uint32_t kFf = 64, kShared = 96, kExperts = 6;
  constexpr Sizes kSizes{6, 32, 2, 16};
  const auto layers = static_cast<uint32_t>(pattern.size());
  MadeWeights w(arch, seed);
  w.begin(name, "tekken");
  w.attention_keys(kEmbd, layers, kHeads, 0, kDim);
  std::vector<int32_t> kv, ff;
  for (const char c : pattern) {
    kv.push_back(c == '*' ? kKv : 0);
    ff.push_back(c == 'E' || c == '-' ? kFf : 0);
  }
  w.keys("attention.head_count_kv", kv);
  w.keys("feed_forward_length", ff);
  sizes(&w, kSizes);
  if (pattern.find('E') != std::string_view::npos) {
    w.key("expert_count", kExperts);
    w.key("expert_used_count", 2u);
    w.key("expert_group_count", 1u);
    w.key("expert_shared_count", 1u);
    w.key("expert_feed_forward_length", kFf);
    w.key("expert_shared_feed_forward_length", kShared);
    w.key("expert_weights_norm", true);
    w.key("expert_weights_scale", 2.5f);
  }
  ends(&w, 3.0);
  for (uint32_t i = 0; i < layers; ++i) {
    const std::string p = block(i);
    w.values(p + "attn_norm.weight", {kEmbd}, 1.0, 0.1);
    if (pattern[i] == 'M') {
      mamba(&w, p, kSizes);
    } else if (pattern[i] == '*') {
      attention(&w, p);
    } else if (pattern[i] == '-') {
      w.matrix(p + "ffn_up.weight", {kEmbd, kFf});
      w.matrix(p + "ffn_down.weight", {kFf, kEmbd}, 2.0);
      w.values(p + "ffn_up.bias", {kFf}, 0.0, 0.3);
      w.values(p + "ffn_down.bias", {kEmbd}, 0.0, 0.3);
    } else {
      w.values(p + "ffn_gate_inp.weight", {kEmbd, kExperts}, 0.0, 0.2);
      w.values(p + "exp_probs_b.bias", {kExperts}, 0.0, 0.3);
      w.matrix(p + "ffn_up_exps.weight", {kEmbd, kFf, kExperts});
      w.matrix(p + "ffn_down_exps.weight", {kFf, kEmbd, kExperts}, 0.3);
      w.matrix(p + "ffn_up_shexp.weight", {kEmbd, kShared});
      w.matrix(p + "ffn_down_shexp.weight", {kShared, kEmbd}, 1.0);
    }
  }
  return w.bytes();
}

}  // namespace

Bytes made_granite_moe(uint64_t seed) {
  return granite("rand-granite-moe", seed, true);
}
Bytes made_granite(uint64_t seed) {
  return granite("rand-granite", seed, false);
}
Bytes made_nemotron_moe(uint64_t seed) {
  return nemotron("rand-nemotron-moe", "nemotron_h_moe", "ME*MEM", seed);
}
Bytes made_nemotron(uint64_t seed) {
  return nemotron("rand-nemotron", "nemotron_h", "M-M*-", seed);
}

}  // namespace sharpi::test
