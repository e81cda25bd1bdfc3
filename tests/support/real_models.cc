// SPDX-License-Identifier: MIT
#include "support/real_models.h"

namespace sharpi::test {
namespace {

ModelRecipe quantised(const char* arch) {
  ModelRecipe r;
  r.arch = arch;
  r.matrix_type = GgmlType::kQ4_K;
  r.table_type = GgmlType::kQ6_K;
  return r;
}

ModelRecipe gemma4_common() {
  ModelRecipe r = quantised("gemma4");
  r.tied = true;
  r.n_vocab = 262144;
  r.head_dim = 512;
  r.head_dim_swa = 256;
  r.global_every = 6;
  r.rope_base = 1e6f;
  return r;
}

ModelRecipe qwen36_common(const char* arch) {
  ModelRecipe r = quantised(arch);
  r.n_vocab = 248320;
  r.n_ctx = 262144;
  r.head_dim = 256;
  r.n_rot = 64;
  r.rope_base = 1e7f;
  r.delta_k_heads = 16;
  r.delta_dim = 128;
  r.n_mtp = 1;
  return r;
}

}  // namespace

ModelRecipe real_qwen3_8b() {
  ModelRecipe r = quantised("qwen3");
  r.n_layers = 36;
  r.n_embd = 4096;
  r.n_heads = 32;
  r.n_kv_heads = 8;
  r.head_dim = 128;
  r.d_ff = 12288;
  r.n_vocab = 151936;
  r.n_ctx = 40960;
  r.rope_base = 1e6f;
  return r;
}

ModelRecipe real_qwen3_coder_30b_a3b() {
  ModelRecipe r = quantised("qwen3moe");
  r.n_layers = 48;
  r.n_embd = 2048;
  r.n_heads = 32;
  r.n_kv_heads = 4;
  r.head_dim = 128;
  r.n_experts = 128;
  r.n_used = 8;
  r.d_expert = 768;
  r.n_vocab = 151936;
  r.n_ctx = 262144;
  r.rope_base = 1e7f;
  return r;
}

ModelRecipe real_olmoe_1b_7b() {
  ModelRecipe r = quantised("olmoe");
  r.n_layers = 16;
  r.n_embd = 2048;
  r.n_heads = r.n_kv_heads = 16;
  r.head_dim = 128;
  r.n_experts = 64;
  r.n_used = 8;
  r.d_expert = 1024;
  r.n_vocab = 50304;
  r.rms_eps = 1e-5f;
  return r;
}

ModelRecipe real_gemma4_e4b() {
  ModelRecipe r = gemma4_common();
  r.n_layers = 42;
  r.n_embd = 2560;
  r.n_heads = 8;
  r.n_kv_heads = r.n_kv_heads_global = 2;
  r.d_ff = 10240;
  r.n_ctx = 131072;
  r.window = 512;
  r.n_shared_kv = 18;
  r.shared_kv_weights = true;
  r.d_ple = 256;
  return r;
}

ModelRecipe real_gemma4_12b() {
  ModelRecipe r = gemma4_common();
  r.n_layers = 48;
  r.n_embd = 3840;
  r.n_heads = 16;
  r.n_kv_heads = 8;
  r.n_kv_heads_global = 1;
  r.d_ff = 15360;
  r.n_ctx = 262144;
  r.window = 1024;
  r.k_eq_v = true;
  return r;
}

ModelRecipe real_qwen36_27b() {
  ModelRecipe r = qwen36_common("qwen35");
  r.n_layers = 64;
  r.n_embd = 5120;
  r.n_heads = 24;
  r.n_kv_heads = 4;
  r.d_ff = 17408;
  r.delta_v_heads = 48;
  return r;
}

ModelRecipe real_qwen36_35b_a3b() {
  ModelRecipe r = qwen36_common("qwen35moe");
  r.n_layers = 40;
  r.n_embd = 2048;
  r.n_heads = 16;
  r.n_kv_heads = 2;
  r.n_experts = 256;
  r.n_used = 8;
  r.d_expert = r.d_shared = 512;
  r.delta_v_heads = 32;
  return r;
}

ModelRecipe real_glm47_flash() {
  ModelRecipe r = quantised("deepseek2");
  r.n_layers = 47;
  r.n_embd = 2048;
  r.n_vocab = 154880;
  r.n_heads = 20;
  r.n_kv_heads = 1;
  r.latent_rank = 512;
  r.n_rot = 64;
  r.head_dim = 576;
  r.q_rank = 768;
  r.key_part = 192;
  r.value_dim = 256;
  r.d_ff = 10240;
  r.n_experts = 64;
  r.n_used = 4;
  r.d_expert = r.d_shared = 1536;
  r.rms_eps = 1e-5f;
  return r;
}

/// Rows of 2880 columns are eleven units of 256 and a quarter.
ModelRecipe real_gpt_oss_20b() {
  ModelRecipe r = quantised("gpt-oss");
  r.matrix_type = r.table_type = GgmlType::kMXFP4;
  r.n_layers = 24;
  r.n_embd = 2880;
  r.n_heads = 64;
  r.n_kv_heads = 8;
  r.head_dim = 64;
  r.n_experts = 32;
  r.n_used = 4;
  r.d_expert = 2880;
  r.window = 128;
  r.n_vocab = 201088;
  r.n_ctx = 131072;
  r.rope_base = 150000.0f;
  r.rms_eps = 1e-5f;
  return r;
}

}  // namespace sharpi::test
