// SPDX-License-Identifier: MIT
// The trained fixtures load with the hyper-parameters that their makers gave them.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <string_view>

#include "model/model_spec.h"
#include "support/golden.h"

namespace sharpi {
namespace {

std::shared_ptr<const ModelSpec> load(const std::string& path) {
  auto file = GgufFile::open(path);
  if (!file.is_ok()) {
    ADD_FAILURE() << file.status().text();
    return nullptr;
  }
  auto spec = load_model_spec(file.take());
  if (!spec.is_ok()) {
    ADD_FAILURE() << spec.status().text();
    return nullptr;
  }
  return spec.take();
}

#define LOAD_OR_SKIP(spec, name)                                         \
  const auto path = testing::find_fixture(name);                         \
  if (!path) GTEST_SKIP() << name << " is absent (set SHARPI_FIXTURES)"; \
  const auto spec = load(path->gguf_path);                               \
  ASSERT_NE(spec, nullptr)

void expect_trunk(const ModelSpec& s, const char* arch, uint32_t n_layers, double eps) {
  EXPECT_EQ(s.architecture, arch);
  EXPECT_EQ(s.n_layers(), n_layers);
  EXPECT_EQ(s.n_embd, 256u);
  EXPECT_EQ(s.n_vocab, 2048u);
  EXPECT_EQ(s.n_ctx_train, 32768u);
  EXPECT_EQ(s.rms_eps, static_cast<float>(eps));
  EXPECT_EQ(s.token_embd.n_in, 256u);
  EXPECT_EQ(s.token_embd.n_out, 2048u);
  EXPECT_EQ(s.token_embd.bytes(), 2048u * 256 / 32 * 34);
  EXPECT_EQ(s.token_embd.row_bytes(), 256u / 32 * 34);
  EXPECT_EQ(s.output.n_out, 2048u);
  EXPECT_EQ(s.output_norm.n_in, 256u);
}

void expect_heads(const AttentionSpec& a, uint32_t heads, uint32_t kv_heads, uint32_t head_dim) {
  EXPECT_EQ(a.n_heads, heads);
  EXPECT_EQ(a.n_kv_heads, kv_heads);
  EXPECT_EQ(a.head_dim, head_dim);
}

void expect_experts(const FfnSpec& f, bool renormalize) {
  EXPECT_EQ(f.kind, FfnKind::kMoe);
  EXPECT_EQ(f.activation, Activation::kSilu);
  EXPECT_EQ(f.n_experts, 8u);
  EXPECT_EQ(f.n_used, 2u);
  EXPECT_EQ(f.d_ff, 256u);
  EXPECT_EQ(f.renormalize, renormalize);
  EXPECT_FALSE(f.fused_gate_up);
  EXPECT_EQ(f.router.n_out, 8u);
  EXPECT_EQ(f.down.n_experts, 8u);
  EXPECT_EQ(f.up.n_out, 256u);
}

TEST(ModelSpecFixtures, Qwen3) {
  LOAD_OR_SKIP(s, "tiny-qwen3");
  expect_trunk(*s, "qwen3", 4, 1e-6);
  EXPECT_EQ(s->name, "Qwen3");
  EXPECT_TRUE(s->tied_output);
  EXPECT_EQ(s->output.tensor, s->token_embd.tensor);
  EXPECT_EQ(s->default_kv_dtype, KvDtype::kF32);
  EXPECT_EQ(s->embedding_scale, 1.0f);
  EXPECT_EQ(s->logit_softcap, 0.0f);
  EXPECT_FALSE(s->is_hybrid());
  EXPECT_FALSE(s->has_window());
  for (const LayerSpec& l : s->layers) {
    expect_heads(l.attention, 4, 2, 128);
    EXPECT_EQ(l.attention.qk_norm, QkNorm::kPerHead);
    EXPECT_FLOAT_EQ(l.attention.scale, 1.0f / std::sqrt(128.0f));
    EXPECT_EQ(l.attention.rope.n_rot, 128u);
    EXPECT_EQ(l.attention.rope.freq_base, 1e6);
    EXPECT_FALSE(l.attention.rope.yarn);
    EXPECT_FALSE(l.attention.v_norm || l.attention.v_from_k || l.attention.output_gate);
    EXPECT_TRUE(l.owns_kv());
    EXPECT_EQ(l.ffn.kind, FfnKind::kDense);
    EXPECT_EQ(l.ffn.activation, Activation::kSilu);
    EXPECT_EQ(l.ffn.d_ff, 512u);
    EXPECT_FALSE(l.mixer_post_norm || l.ffn_post_norm || l.ple_gate);
    EXPECT_EQ(l.output_scale, 1.0f);
  }
}

TEST(ModelSpecFixtures, Qwen3Moe) {
  LOAD_OR_SKIP(s, "tiny-qwen3moe");
  expect_trunk(*s, "qwen3moe", 4, 1e-6);
  EXPECT_FALSE(s->tied_output);
  for (const LayerSpec& l : s->layers) {
    expect_heads(l.attention, 4, 2, 128);
    expect_experts(l.ffn, true);
    EXPECT_EQ(l.ffn.d_shared, 0u);
  }
}

TEST(ModelSpecFixtures, Olmoe) {
  LOAD_OR_SKIP(s, "tiny-olmoe");
  expect_trunk(*s, "olmoe", 4, 1e-5);
  for (const LayerSpec& l : s->layers) {
    expect_heads(l.attention, 2, 2, 128);
    EXPECT_EQ(l.attention.qk_norm, QkNorm::kWholeVector);
    EXPECT_EQ(l.attention.q_norm.n_in, 256u);
    EXPECT_EQ(l.attention.k_norm.n_in, 256u);
    EXPECT_EQ(l.attention.rope.freq_base, 1e4);
    expect_experts(l.ffn, false);
  }
}

TEST(ModelSpecFixtures, Gemma4WithPerLayerEmbeddings) {
  LOAD_OR_SKIP(s, "tiny-gemma4");
  expect_trunk(*s, "gemma4", 8, 1e-6);
  EXPECT_TRUE(s->tied_output);
  EXPECT_EQ(s->embedding_scale, 16.0f);
  EXPECT_EQ(s->logit_softcap, 30.0f);
  EXPECT_EQ(s->d_ple, 32u);
  EXPECT_EQ(s->ple_embd.n_in, 256u);
  EXPECT_EQ(s->ple_model_proj.n_out, 256u);
  EXPECT_EQ(s->ple_proj_norm.n_in, 32u);
  EXPECT_TRUE(s->has_window());
  const int32_t sources[] = {-1, -1, -1, -1, 2, 2, 2, 3};
  for (uint32_t i = 0; i < 8; ++i) {
    const LayerSpec& l = s->layers[i];
    const bool global = i % 4 == 3;
    expect_heads(l.attention, 2, 1, global ? 512 : 256);
    EXPECT_EQ(l.attention.window, global ? 0u : 128u);
    EXPECT_EQ(l.attention.scale, 1.0f);
    EXPECT_EQ(l.attention.rope.n_rot, global ? 512u : 256u);
    EXPECT_EQ(l.attention.rope.freq_base, global ? 1e6 : 1e4);
    EXPECT_EQ(l.attention.rope.freq_factors != nullptr, global);
    EXPECT_EQ(l.attention.kv_source, sources[i]);
    EXPECT_EQ(l.owns_kv(), i < 4);
    EXPECT_EQ(l.attention.v_norm, i < 4);
    EXPECT_EQ(static_cast<bool>(l.attention.k), i < 4);
    EXPECT_FALSE(l.attention.v_from_k);
    EXPECT_EQ(l.ffn.activation, Activation::kGeluTanh);
    EXPECT_TRUE(l.mixer_post_norm && l.ffn_post_norm && l.ple_gate && l.ple_proj &&
                l.ple_post_norm);
    EXPECT_TRUE(std::isfinite(l.output_scale));
  }
}

TEST(ModelSpecFixtures, Gemma4WithKeysAsValues) {
  LOAD_OR_SKIP(s, "tiny-gemma4kv");
  expect_trunk(*s, "gemma4", 4, 1e-6);
  EXPECT_EQ(s->d_ple, 0u);
  EXPECT_FALSE(s->ple_embd);
  for (uint32_t i = 0; i < 4; ++i) {
    const AttentionSpec& a = s->layers[i].attention;
    const bool global = i == 3;
    expect_heads(a, 4, global ? 1 : 2, global ? 512 : 256);
    EXPECT_EQ(a.v_from_k, global);
    EXPECT_EQ(static_cast<bool>(a.v), !global);
    EXPECT_TRUE(a.v_norm);
    EXPECT_TRUE(s->layers[i].owns_kv());
    EXPECT_FALSE(s->layers[i].ple_gate);
  }
}

void expect_delta_net(const DeltaNetSpec& d) {
  EXPECT_EQ(d.n_k_heads, 2u);
  EXPECT_EQ(d.n_v_heads, 4u);
  EXPECT_EQ(d.head_dim, 128u);
  EXPECT_EQ(d.conv_kernel, 4u);
  EXPECT_EQ(d.key_dim(), 256u);
  EXPECT_EQ(d.value_dim(), 512u);
  EXPECT_EQ(d.conv_dim(), 1024u);
  EXPECT_EQ(d.qkv.n_out, 1024u);
  EXPECT_EQ(d.conv1d.n_in, 4u);
  EXPECT_EQ(d.conv1d.n_out, 1024u);
  EXPECT_EQ(d.out.n_in, 512u);
}

void expect_hybrid(const ModelSpec& s) {
  EXPECT_TRUE(s.is_hybrid());
  EXPECT_EQ(s.default_kv_dtype, KvDtype::kBf16);
  EXPECT_FALSE(s.tied_output);
  EXPECT_EQ(s.n_mtp_layers, 1u);
  for (uint32_t i = 0; i < s.n_layers(); ++i) {
    const LayerSpec& l = s.layers[i];
    if (i % 4 != 3) {
      EXPECT_EQ(l.mixer, MixerKind::kGatedDeltaNet);
      EXPECT_FALSE(l.owns_kv());
      expect_delta_net(l.delta);
      continue;
    }
    EXPECT_EQ(l.mixer, MixerKind::kAttention);
    expect_heads(l.attention, 2, 1, 256);
    EXPECT_TRUE(l.attention.output_gate);
    EXPECT_EQ(l.attention.q.n_out, 1024u);
    EXPECT_EQ(l.attention.rope.n_rot, 64u);
    EXPECT_EQ(l.attention.rope.freq_base, 1e7);
    EXPECT_FLOAT_EQ(l.attention.scale, 1.0f / 16.0f);
    EXPECT_EQ(l.ffn_norm.tensor->name, "blk." + std::to_string(i) + ".post_attention_norm.weight");
  }
}

uint64_t bytes_under(const GgufFile& file, std::string_view prefix) {
  return std::accumulate(file.tensors().begin(), file.tensors().end(), uint64_t{0},
                         [&](uint64_t n, const GgufTensor& t) {
                           return n + (t.name.starts_with(prefix) ? t.bytes : 0);
                         });
}

TEST(ModelSpecFixtures, Qwen35) {
  LOAD_OR_SKIP(s, "tiny-qwen35");
  expect_trunk(*s, "qwen35", 8, 1e-6);
  expect_hybrid(*s);
  EXPECT_EQ(s->mtp_bytes, bytes_under(*s->file, "blk.8."));
  EXPECT_GT(s->mtp_bytes, 0u);
  for (const LayerSpec& l : s->layers) {
    EXPECT_EQ(l.ffn.kind, FfnKind::kDense);
    EXPECT_EQ(l.ffn.d_ff, 256u);
  }
}

TEST(ModelSpecFixtures, Qwen35Moe) {
  LOAD_OR_SKIP(s, "tiny-qwen35moe");
  expect_trunk(*s, "qwen35moe", 4, 1e-6);
  expect_hybrid(*s);
  EXPECT_EQ(s->mtp_bytes, bytes_under(*s->file, "blk.4."));
  for (const LayerSpec& l : s->layers) {
    expect_experts(l.ffn, true);
    EXPECT_EQ(l.ffn.d_shared, 256u);
    EXPECT_EQ(l.ffn.shared_gate_inp.n_in, 256u);
    EXPECT_EQ(l.ffn.shared_down.n_out, 256u);
  }
}

}  // namespace
}  // namespace sharpi
