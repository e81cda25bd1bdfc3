// SPDX-License-Identifier: MIT
#include "support/tiny_model_tensors.h"

#include <cmath>
#include <random>
#include <utility>

#include "support/paths.h"

namespace sharpi::test {
namespace {

class Table {
 public:
  explicit Table(const ModelRecipe& recipe) : r_(recipe), random_(recipe.seed) {}

  std::vector<ModelTensor> build() {
    add_global();
    for (uint32_t i = 0; i < r_.n_blocks(); ++i) {
      prefix_ = "blk." + std::to_string(i) + ".";
      if (r_.arch == "gemma4") {
        add_gemma4_block(i);
      } else if (r_.arch == "gemma3") {
        add_gemma3_block();
      } else if (r_.is_mamba()) {
        add_mamba_block(i);
      } else if (r_.is_delta()) {
        add_qwen35_block(i);
      } else if (r_.arch == "gpt-oss") {
        add_gpt_oss_block();
      } else if (r_.arch == "phi3") {
        add_phi3_block();
      } else if (r_.arch == "deepseek2") {
        add_deepseek2_block(i);
      } else {
        add_qwen3_block();
      }
    }
    return std::move(out_);
  }

 private:
  ModelTensor& add(const std::string& name, GgmlType type, std::vector<uint64_t> ne) {
    ModelTensor t;
    t.name = prefix_ + name;
    t.type = type;
    t.ne = std::move(ne);
    out_.push_back(std::move(t));
    return out_.back();
  }
  /// Keeps the size of what it is multiplied with, times `gain`.
  void matrix(const std::string& name, std::vector<uint64_t> ne, double gain = 1.0) {
    typed(name, r_.matrix_type, std::move(ne), gain);
  }
  void typed(const std::string& name, GgmlType type, std::vector<uint64_t> ne, double gain) {
    const uint64_t n_in = ne[0];
    if (n_in % ggml_traits(type).block_elements != 0) {
      type = n_in % 32 == 0 ? GgmlType::kQ8_0 : GgmlType::kF16;
    }
    add(name, type, std::move(ne)).deviation = gain / std::sqrt(static_cast<double>(n_in));
  }
  void norm(const std::string& name, uint64_t n, double centre = 1.0) {
    ModelTensor& t = add(name, GgmlType::kF32, {n});
    t.centre = centre;
    t.deviation = 0.1 * centre;
  }
  void uniform(const std::string& name, uint64_t n, double low, double high) {
    std::uniform_real_distribution<double> draw(low, high);
    ModelTensor& t = add(name, GgmlType::kF32, {n});
    for (uint64_t i = 0; i < n; ++i) t.values.push_back(static_cast<float>(draw(random_)));
  }

  void add_global() {
    const uint64_t embd = r_.n_embd, vocab = r_.n_vocab;
    typed("token_embd.weight", r_.table_type, {embd, vocab}, 1.0);
    norm("output_norm.weight", embd);
    if (!r_.tied) typed("output.weight", r_.table_type, {embd, vocab}, 3.0);
    if (r_.arch == "phi3") {
      const uint64_t pairs = (r_.n_rot != 0 ? r_.n_rot : r_.head_dim) / 2;
      uniform("rope_factors_long.weight", pairs, 1.0, 20.0);
      uniform("rope_factors_short.weight", pairs, 1.0, 1.5);
    }
    if (r_.arch != "gemma4") return;
    // A quarter of the pairs rotates, as in the published models.
    const uint64_t half = (r_.n_rot != 0 ? r_.n_rot : r_.head_dim) / 2;
    ModelTensor& factors = add("rope_freqs.weight", GgmlType::kF32, {half});
    for (uint64_t j = 0; j < half; ++j) factors.values.push_back(j < half / 4 ? 1.0f : 1e30f);
    if (r_.d_ple == 0) return;
    const uint64_t all = uint64_t{r_.d_ple} * r_.n_layers;
    typed("per_layer_token_embd.weight", r_.table_type, {all, vocab}, 1.0);
    add("per_layer_model_proj.weight", GgmlType::kBF16, {embd, all}).deviation =
        1.0 / std::sqrt(static_cast<double>(embd));
    norm("per_layer_proj_norm.weight", r_.d_ple);
  }

  void add_attention(uint64_t q_rows_per_head, bool whole_norm) {
    const uint64_t embd = r_.n_embd, q = uint64_t{r_.n_heads} * r_.head_dim;
    const uint64_t kv = uint64_t{r_.n_kv_heads} * r_.head_dim;
    matrix("attn_q.weight", {embd, r_.n_heads * q_rows_per_head});
    matrix("attn_k.weight", {embd, kv});
    matrix("attn_v.weight", {embd, kv});
    matrix("attn_output.weight", {q, embd}, 0.5);
    if (r_.arch == "qwen2" || r_.arch == "gpt-oss") {
      uniform("attn_q.bias", q, -0.5, 0.5);
      uniform("attn_k.bias", kv, -0.5, 0.5);
      uniform("attn_v.bias", kv, -0.5, 0.5);
    }
    if (r_.arch == "llama" || r_.arch == "qwen2" || r_.arch == "smollm3" || r_.arch == "gpt-oss" ||
        r_.is_mamba())
      return;  // no QK norms
    norm("attn_q_norm.weight", whole_norm ? q : r_.head_dim);
    norm("attn_k_norm.weight", whole_norm ? kv : r_.head_dim);
  }
  void add_dense(uint64_t d_ff) {
    if (!r_.is_nemotron()) matrix("ffn_gate.weight", {r_.n_embd, d_ff});
    matrix("ffn_up.weight", {r_.n_embd, d_ff});
    matrix("ffn_down.weight", {d_ff, r_.n_embd}, 0.5);
  }
  void add_moe() {
    const uint64_t embd = r_.n_embd, width = r_.d_expert, n = r_.n_experts;
    add("ffn_gate_inp.weight", GgmlType::kF32, {embd, n}).deviation =
        3.0 / std::sqrt(static_cast<double>(embd));
    if (r_.is_nemotron()) {
      matrix("ffn_up_exps.weight", {embd, width, n});
    } else if (r_.fused_gate_up) {
      matrix("ffn_gate_up_exps.weight", {embd, 2 * width, n});
    } else {
      matrix("ffn_gate_exps.weight", {embd, width, n});
      matrix("ffn_up_exps.weight", {embd, width, n});
    }
    matrix("ffn_down_exps.weight", {width, embd, n}, 0.5);
  }
  void add_shared_expert() {
    if (!r_.is_mamba() && r_.arch != "deepseek2") {
      add("ffn_gate_inp_shexp.weight", GgmlType::kF32, {r_.n_embd}).deviation =
          1.0 / std::sqrt(static_cast<double>(r_.n_embd));
    }
    if (!r_.is_nemotron()) matrix("ffn_gate_shexp.weight", {r_.n_embd, r_.d_shared});
    matrix("ffn_up_shexp.weight", {r_.n_embd, r_.d_shared});
    matrix("ffn_down_shexp.weight", {r_.d_shared, r_.n_embd}, 0.5);
  }

  void add_qwen3_block() {
    norm("attn_norm.weight", r_.n_embd);
    norm("ffn_norm.weight", r_.n_embd);
    add_attention(r_.head_dim, r_.arch == "olmoe");
    if (r_.arch == "qwen3moe" || r_.arch == "olmoe") {
      add_moe();
    } else {
      add_dense(r_.d_ff);
    }
  }

  void add_phi3_block() {
    const uint64_t embd = r_.n_embd, dim = r_.head_dim;
    norm("attn_norm.weight", embd);
    norm("ffn_norm.weight", embd);
    matrix("attn_qkv.weight", {embd, (r_.n_heads + 2 * uint64_t{r_.n_kv_heads}) * dim});
    matrix("attn_output.weight", {r_.n_heads * dim, embd}, 0.5);
    matrix("ffn_up.weight", {embd, 2 * uint64_t{r_.d_ff}});
    matrix("ffn_down.weight", {r_.d_ff, embd}, 0.5);
  }

  void add_latent_attention() {
    const uint64_t embd = r_.n_embd, heads = r_.n_heads, rank = r_.latent_rank;
    const uint64_t queries = heads * (uint64_t{r_.key_part} + r_.n_rot);
    if (r_.q_rank == 0) {
      matrix("attn_q.weight", {embd, queries});
    } else {
      matrix("attn_q_a.weight", {embd, r_.q_rank});
      norm("attn_q_a_norm.weight", r_.q_rank);
      matrix("attn_q_b.weight", {r_.q_rank, queries});
    }
    matrix("attn_kv_a_mqa.weight", {embd, r_.head_dim});
    norm("attn_kv_a_norm.weight", rank);
    matrix("attn_k_b.weight", {r_.key_part, rank, heads});
    matrix("attn_v_b.weight", {rank, r_.value_dim, heads});
    matrix("attn_output.weight", {heads * r_.value_dim, embd}, 0.5);
  }
  void add_deepseek2_block(uint32_t i) {
    norm("attn_norm.weight", r_.n_embd);
    norm("ffn_norm.weight", r_.n_embd);
    add_latent_attention();
    if (i < r_.n_dense) return add_dense(r_.d_ff);
    add_moe();
    add_shared_expert();
    uniform("exp_probs_b.bias", r_.n_experts, -0.3, 0.3);
  }

  void add_gpt_oss_block() {
    const uint64_t embd = r_.n_embd, n = r_.n_experts;
    norm("attn_norm.weight", embd);
    norm("post_attention_norm.weight", embd);
    add_attention(r_.head_dim, false);
    uniform("attn_output.bias", embd, -0.2, 0.2);
    uniform("attn_sinks.weight", r_.n_heads, -2.0, 4.0);
    add_moe();
    uniform("ffn_gate_inp.bias", n, -0.5, 0.5);
    for (const char* name : {"ffn_gate_exps.bias", "ffn_up_exps.bias"})
      add(name, GgmlType::kF32, {r_.d_expert, n}).deviation = 0.2;
    add("ffn_down_exps.bias", GgmlType::kF32, {embd, n}).deviation = 0.2;
  }

  void add_gemma3_block() {
    for (const char* name : {"attn_norm.weight", "post_attention_norm.weight", "ffn_norm.weight",
                             "post_ffw_norm.weight"}) {
      norm(name, r_.n_embd);
    }
    add_attention(r_.head_dim, false);
    add_dense(r_.d_ff);
  }

  void add_experts_beside_dense() {
    add_moe();
    for (const char* name :
         {"pre_ffw_norm_2.weight", "post_ffw_norm_1.weight", "post_ffw_norm_2.weight"}) {
      norm(name, r_.n_embd);
    }
    norm("ffn_gate_inp.scale", r_.n_embd, 8.0);
    uniform("ffn_down_exps.scale", r_.n_experts, 0.5, 1.5);
  }

  void add_gemma4_block(uint32_t i) {
    const bool global = r_.is_global(i), owner = i < r_.n_layers - r_.n_shared_kv;
    const uint64_t embd = r_.n_embd, head_dim = global ? r_.head_dim : r_.head_dim_swa;
    const uint64_t kv = (global ? r_.n_kv_heads_global : r_.n_kv_heads) * head_dim;
    for (const char* name : {"attn_norm.weight", "post_attention_norm.weight", "ffn_norm.weight",
                             "post_ffw_norm.weight"}) {
      norm(name, embd);
    }
    matrix("attn_q.weight", {embd, r_.n_heads * head_dim});
    matrix("attn_output.weight", {r_.n_heads * head_dim, embd});
    // The attention scale is 1, so one of the norms holds 1/sqrt(head_dim).
    norm("attn_q_norm.weight", head_dim, 1.0 / std::sqrt(static_cast<double>(head_dim)));
    if (owner || r_.shared_kv_weights) {
      matrix("attn_k.weight", {embd, kv});
      norm("attn_k_norm.weight", head_dim);
      if (!(r_.k_eq_v && global)) matrix("attn_v.weight", {embd, kv});
    }
    uniform("layer_output_scale.weight", 1, 0.7, 1.1);
    add_dense(r_.d_ff);
    if (r_.beside_dense) add_experts_beside_dense();
    if (r_.d_ple == 0) return;
    matrix("inp_gate.weight", {embd, r_.d_ple});
    matrix("proj.weight", {r_.d_ple, embd});
    norm("post_norm.weight", embd);
  }

  /// `in_one`: as older files of Qwen3-Next have the large projections.
  void add_delta_net(bool in_one) {
    const uint64_t embd = r_.n_embd, inner = uint64_t{r_.delta_v_heads} * r_.delta_dim;
    const uint64_t conv = 2 * uint64_t{r_.delta_k_heads} * r_.delta_dim + inner;
    if (in_one) {
      matrix("ssm_in.weight", {embd, conv + inner});
    } else {
      matrix("attn_qkv.weight", {embd, conv});
      matrix("attn_gate.weight", {embd, inner});
    }
    add("ssm_conv1d.weight", GgmlType::kF32, {r_.conv_kernel, conv}).deviation = 0.5;
    uniform("ssm_dt.bias", r_.delta_v_heads, -1.0, 1.0);
    uniform("ssm_a", r_.delta_v_heads, -2.0, -0.01);
    if (r_.arch == "qwen3next") {
      matrix("ssm_ba.weight", {embd, 2 * uint64_t{r_.delta_v_heads}});
    } else {
      matrix("ssm_alpha.weight", {embd, r_.delta_v_heads});
      matrix("ssm_beta.weight", {embd, r_.delta_v_heads});
    }
    norm("ssm_norm.weight", r_.delta_dim);
    matrix("ssm_out.weight", {inner, embd}, 0.5);
  }
  void add_mamba() {
    const uint64_t embd = r_.n_embd, heads = r_.delta_v_heads, inner = heads * r_.delta_dim;
    const uint64_t conv = inner + 2 * uint64_t{r_.delta_k_heads} * r_.mamba_state;
    matrix("ssm_in.weight", {embd, inner + conv + heads});
    add("ssm_conv1d.weight", GgmlType::kF32, {r_.conv_kernel, conv}).deviation = 0.5;
    uniform("ssm_conv1d.bias", conv, -0.3, 0.3);
    uniform("ssm_dt.bias", heads, -1.0, 1.0);
    uniform("ssm_a", heads, -2.0, -0.01);
    out_.back().ne = {1, heads};
    uniform("ssm_d", heads, 0.5, 1.5);
    out_.back().ne = {1, heads};
    norm("ssm_norm.weight", inner);
    out_.back().ne = {inner / r_.delta_k_heads, r_.delta_k_heads};
    matrix("ssm_out.weight", {inner, embd}, 0.5);
  }
  void add_mamba_block(uint32_t i) {
    norm("attn_norm.weight", r_.n_embd);
    const bool ffn = r_.has_ffn(i);
    if (r_.is_recurrent(i)) {
      add_mamba();
    } else if (!ffn || !r_.is_nemotron()) {
      add_attention(r_.head_dim, false);
    }
    if (!ffn) return;
    if (!r_.is_nemotron()) norm("ffn_norm.weight", r_.n_embd);
    if (r_.arch == "nemotron_h") return add_dense(r_.d_expert);
    add_moe();
    add_shared_expert();
    if (r_.is_nemotron()) uniform("exp_probs_b.bias", r_.n_experts, -0.3, 0.3);
  }

  void add_qwen35_block(uint32_t i) {
    norm("attn_norm.weight", r_.n_embd);
    norm("post_attention_norm.weight", r_.n_embd);
    if (r_.is_recurrent(i)) {
      add_delta_net(r_.arch == "qwen3next" && i == 0);
    } else {
      add_attention(2 * uint64_t{r_.head_dim}, false);
    }
    if (r_.arch != "qwen35") {
      add_moe();
      add_shared_expert();
    } else {
      add_dense(r_.d_ff);
    }
    if (i < r_.n_layers) return;
    matrix("nextn.eh_proj.weight", {2 * uint64_t{r_.n_embd}, r_.n_embd});
    for (const char* name :
         {"nextn.enorm.weight", "nextn.hnorm.weight", "nextn.shared_head_norm.weight"}) {
      norm(name, r_.n_embd);
    }
  }

  const ModelRecipe& r_;
  std::mt19937_64 random_;
  std::string prefix_;
  std::vector<ModelTensor> out_;
};

}  // namespace

std::vector<ModelTensor> recipe_tensors(const ModelRecipe& recipe) {
  return Table(recipe).build();
}

ModelRecipe tiny_qwen3() {
  ModelRecipe r;
  r.tied = true;
  return r;
}

ModelRecipe tiny_llama() {
  ModelRecipe r;
  r.arch = "llama";
  return r;
}

ModelRecipe tiny_phi3() {
  ModelRecipe r;
  r.arch = "phi3";
  r.n_rot = 24;
  r.rms_eps = 1e-5f;
  return r;
}

ModelRecipe tiny_qwen2() {
  ModelRecipe r;
  r.arch = "qwen2";
  r.tied = true;
  return r;
}

ModelRecipe tiny_smollm3() {
  ModelRecipe r;
  r.arch = "smollm3";
  r.tied = true;
  r.n_layers = 4;
  return r;
}

ModelRecipe tiny_gemma3() {
  ModelRecipe r;
  r.arch = "gemma3";
  r.tied = true;
  r.n_layers = 6;
  r.rope_base = 1e6f;
  return r;
}

ModelRecipe tiny_qwen3moe() {
  ModelRecipe r;
  r.arch = "qwen3moe";
  return r;
}

ModelRecipe tiny_olmoe() {
  ModelRecipe r;
  r.arch = "olmoe";
  r.n_heads = r.n_kv_heads = 2;
  r.rms_eps = 1e-5f;
  return r;
}

ModelRecipe tiny_gpt_oss() {
  ModelRecipe r;
  r.arch = "gpt-oss";
  r.n_layers = 3;
  r.rope_base = 150000.0f;
  r.rms_eps = 1e-5f;
  return r;
}

ModelRecipe tiny_gemma4() {
  ModelRecipe r;
  r.arch = "gemma4";
  r.tied = true;
  r.n_layers = 8;
  r.head_dim = 64;
  r.rope_base = 1e6f;
  r.n_shared_kv = 4;
  r.d_ple = 32;
  return r;
}

ModelRecipe tiny_gemma4kv() {
  ModelRecipe r = tiny_gemma4();
  r.n_layers = 4;
  r.n_kv_heads_global = 1;
  r.n_shared_kv = 0;
  r.d_ple = 0;
  r.k_eq_v = true;
  return r;
}

ModelRecipe tiny_gemma4moe() {
  ModelRecipe r = tiny_gemma4kv();
  r.beside_dense = true;
  return r;
}

ModelRecipe tiny_qwen35() {
  ModelRecipe r;
  r.arch = "qwen35";
  r.n_layers = 4;
  r.n_rot = 8;
  r.rope_base = 1e7f;
  r.n_mtp = 1;
  return r;
}

ModelRecipe tiny_qwen35moe() {
  ModelRecipe r = tiny_qwen35();
  r.arch = "qwen35moe";
  return r;
}

ModelRecipe tiny_qwen3next() {
  ModelRecipe r = tiny_qwen35();
  r.arch = "qwen3next";
  r.n_mtp = 0;
  return r;
}

ModelRecipe tiny_granite() {
  ModelRecipe r;
  r.arch = "granitehybrid";
  r.n_layers = 4;
  r.rms_eps = 1e-5f;
  return r;
}

ModelRecipe tiny_nemotron() {
  ModelRecipe r;
  r.arch = "nemotron_h_moe";
  r.n_layers = 7;
  r.rms_eps = 1e-5f;
  return r;
}

ModelRecipe tiny_deepseek2() {
  ModelRecipe r;
  r.arch = "deepseek2";
  r.n_layers = 3;
  r.n_kv_heads = 1;
  r.head_dim = 64;
  r.n_rot = 16;
  r.d_shared = 2 * r.d_expert;
  return r;
}

std::vector<ModelRecipe> with_newer_kinds(std::vector<ModelRecipe> recipes) {
  recipes.push_back(tiny_granite());
  recipes.push_back(tiny_nemotron());
  recipes.push_back(tiny_deepseek2());
  return recipes;
}

std::vector<ModelRecipe> tiny_recipes() {
  return with_newer_kinds({tiny_qwen3(), tiny_qwen3moe(), tiny_olmoe(), tiny_gemma4(),
                           tiny_gemma4kv(), tiny_qwen35(), tiny_qwen35moe(), tiny_llama(),
                           tiny_qwen2(), tiny_gemma3(), tiny_smollm3(), tiny_gemma4moe(),
                           tiny_gpt_oss(), tiny_phi3(), tiny_qwen3next()});
}

}  // namespace sharpi::test
