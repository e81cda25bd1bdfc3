// SPDX-License-Identifier: MIT
#include "support/made_models.h"

#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "support/made_latent.h"
#include "support/made_mamba.h"
#include "support/made_weights.h"
#include "support/tiny_model.h"

namespace sharpi::test {
namespace {

constexpr uint32_t kVocab = MadeWeights::kVocab;

void ends(MadeWeights* w, uint64_t embd) {
  w->matrix("token_embd.weight", {embd, kVocab}, 3.0);
  w->values("output_norm.weight", {embd}, 1.0, 0.1);
  w->matrix("output.weight", {embd, kVocab}, 3.0);
}

/// Q, K and V in one matrix, so gate and up; three quarters of a head rotated, by divisors of short
/// contexts up to 36 tokens and of long ones, which all cases of its golden have.
Bytes phi3(uint64_t seed) {
  constexpr uint32_t kEmbd = 64, kHeads = 4, kKv = 2, kDim = 64, kFf = 96, kLayers = 3, kRot = 48;
  MadeWeights w("phi3", seed);
  w.begin("rand-phi3", "gpt-4o");
  w.attention_keys(kEmbd, kLayers, kHeads, kKv, kDim);
  w.key("feed_forward_length", kFf);
  w.key("attention.layer_norm_rms_epsilon", 1e-5f);
  w.key("rope.dimension_count", kRot);
  w.key("rope.freq_base", 10000.0f);
  w.key("rope.scaling.original_context_length", 36u);
  w.key("rope.scaling.attn_factor", 1.25f);
  w.key("attention.sliding_window", 262144u);  // more than the context: none
  ends(&w, kEmbd);
  std::vector<float> few, many;
  for (uint32_t i = 0; i < kRot / 2; ++i) {
    few.push_back(static_cast<float>(w.uniform(1.0, 1.5)));
    many.push_back(static_cast<float>(w.uniform(1.0, 2.0) * (1 + i)));
  }
  w.exact("rope_factors_long.weight", many);
  w.exact("rope_factors_short.weight", few);
  for (uint32_t i = 0; i < kLayers; ++i) {
    const std::string p = "blk." + std::to_string(i) + ".";
    w.values(p + "attn_norm.weight", {kEmbd}, 1.0, 0.1);
    w.values(p + "ffn_norm.weight", {kEmbd}, 1.0, 0.1);
    w.matrix(p + "attn_qkv.weight", {kEmbd, (kHeads + 2 * kKv) * kDim}, 1.5);
    w.matrix(p + "attn_output.weight", {kHeads * kDim, kEmbd}, 3.0);
    w.matrix(p + "ffn_up.weight", {kEmbd, 2 * kFf});
    w.matrix(p + "ffn_down.weight", {kFf, kEmbd}, 3.0);
  }
  return w.bytes();
}

/// A delta net as older files have it, one as present ones do and an attention; a mixture with a
/// shared expert in each. Value heads of one key head follow each other.
Bytes qwen3next(uint64_t seed) {
  constexpr uint32_t kEmbd = 64, kHeads = 2, kKv = 1, kDim = 64, kFf = 32, kExperts = 6;
  constexpr uint32_t kKeys = 2, kValues = 6, kState = 32, kTaps = 4;
  MadeWeights w("qwen3next", seed);
  w.begin("rand-qwen3next", "qwen2");
  w.attention_keys(kEmbd, 3, kHeads, kKv, kDim);
  w.key("attention.layer_norm_rms_epsilon", 1e-6f);
  w.key("rope.dimension_count", 16u);
  w.key("rope.freq_base", 1e6f);
  w.key("full_attention_interval", 3u);
  w.key("expert_count", kExperts);
  w.key("expert_used_count", 3u);
  w.key("expert_feed_forward_length", kFf);
  w.key("expert_shared_feed_forward_length", kFf);
  w.key("ssm.conv_kernel", kTaps);
  w.key("ssm.state_size", kState);
  w.key("ssm.group_count", kKeys);
  w.key("ssm.time_step_rank", kValues);
  w.key("ssm.inner_size", kValues * kState);
  ends(&w, kEmbd);
  for (uint32_t i = 0; i < 3; ++i) {
    const std::string p = "blk." + std::to_string(i) + ".";
    w.values(p + "attn_norm.weight", {kEmbd}, 1.0, 0.1);
    w.values(p + "post_attention_norm.weight", {kEmbd}, 1.0, 0.1);
    if (i == 2) {
      w.matrix(p + "attn_q.weight", {kEmbd, 2 * kHeads * kDim}, 1.5);
      w.matrix(p + "attn_k.weight", {kEmbd, kKv * kDim}, 1.5);
      w.matrix(p + "attn_v.weight", {kEmbd, kKv * kDim});
      w.values(p + "attn_q_norm.weight", {kDim}, 1.2, 0.1);
      w.values(p + "attn_k_norm.weight", {kDim}, 1.2, 0.1);
      w.matrix(p + "attn_output.weight", {kHeads * kDim, kEmbd}, 3.0);
    } else {
      constexpr uint64_t kQkv = (2 * kKeys + kValues) * kState, kZ = kValues * kState;
      if (i == 0) {
        w.matrix(p + "ssm_in.weight", {kEmbd, kQkv + kZ}, 1.5);
      } else {
        w.matrix(p + "attn_qkv.weight", {kEmbd, kQkv}, 1.5);
        w.matrix(p + "attn_gate.weight", {kEmbd, kZ}, 1.5);
      }
      w.matrix(p + "ssm_ba.weight", {kEmbd, 2 * kValues}, 1.5);
      w.values(p + "ssm_conv1d.weight", {kTaps, kQkv}, 0.0, 0.5);
      w.values(p + "ssm_dt.bias", {kValues}, 0.0, 0.7);
      std::vector<float> decay(kValues);
      for (float& a : decay) a = static_cast<float>(w.uniform(-0.6, -0.02));
      w.exact(p + "ssm_a", decay);
      w.values(p + "ssm_norm.weight", {kState}, 1.0, 0.1);
      w.matrix(p + "ssm_out.weight", {kZ, kEmbd});
    }
    w.values(p + "ffn_gate_inp.weight", {kEmbd, kExperts}, 0.0, 0.3);
    w.matrix(p + "ffn_gate_exps.weight", {kEmbd, kFf, kExperts});
    w.matrix(p + "ffn_up_exps.weight", {kEmbd, kFf, kExperts});
    w.matrix(p + "ffn_down_exps.weight", {kFf, kEmbd, kExperts}, 0.7);
    w.values(p + "ffn_gate_inp_shexp.weight", {kEmbd}, 0.0, 0.2);
    w.matrix(p + "ffn_gate_shexp.weight", {kEmbd, kFf});
    w.matrix(p + "ffn_up_shexp.weight", {kEmbd, kFf});
    w.matrix(p + "ffn_down_shexp.weight", {kFf, kEmbd}, 1.5);
  }
  return w.bytes();
}

struct Made {
  std::string_view name;
  Bytes (*make)(uint64_t seed);
  uint64_t seed;  // of the golden: without near ties, and with something to say
};
constexpr Made kMade[] = {{"rand-phi3", phi3, 2},
                          {"rand-qwen3next", qwen3next, 1},
                          {"rand-granite-moe", made_granite_moe, 3},
                          {"rand-granite", made_granite, 1},
                          {"rand-nemotron-moe", made_nemotron_moe, 1},
                          {"rand-nemotron", made_nemotron, 1},
                          {"rand-deepseek2", made_deepseek2, 1},
                          {"rand-glm-flash", made_glm_flash, 1}};

}  // namespace

std::optional<Bytes> made_model(std::string_view name, uint64_t seed) {
  for (const Made& m : kMade) {
    if (m.name == name) return m.make(seed == 0 ? m.seed : seed);
  }
  return std::nullopt;
}

std::string made_model_path(std::string_view name) {
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<TempFile>, std::less<>> files;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto there = files.find(name);
  if (there != files.end()) return there->second->path();
  const std::optional<Bytes> bytes = made_model(name);
  if (!bytes) return {};
  auto file = std::make_unique<TempFile>();
  std::FILE* f = std::fopen(file->path().c_str(), "wb");
  if (f == nullptr) return {};
  const bool written = std::fwrite(bytes->data(), 1, bytes->size(), f) == bytes->size();
  if (std::fclose(f) != 0 || !written) return {};
  return files.emplace(name, std::move(file)).first->second->path();
}

}  // namespace sharpi::test
