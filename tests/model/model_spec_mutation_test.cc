// SPDX-License-Identifier: MIT
// Headers with flipped bytes: each is refused with a text, or gives a spec that keeps every promise
// that later code relies on.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <random>

#include "model/model_spec.h"
#include "support/tiny_model.h"

namespace sharpi {
namespace {

/// The bytes of a reference are those of its rows, and lie in the file.
void expect_whole(const ModelSpec& s, const TensorRef& t) {
  if (!t) return;
  EXPECT_EQ(t.bytes(), t.row_bytes() * t.n_out * t.n_experts) << t.tensor->name;
  EXPECT_LE(t.tensor->file_offset + t.bytes(), s.file->file_bytes()) << t.tensor->name;
}

void expect_sound_attention(const ModelSpec& s, uint32_t layer) {
  const AttentionSpec& a = s.layers[layer].attention;
  ASSERT_GT(a.n_kv_heads, 0u);
  EXPECT_EQ(a.n_heads % a.n_kv_heads, 0u);
  EXPECT_GT(a.n_heads, 0u);
  EXPECT_GT(a.head_dim, 0u);
  EXPECT_LE(a.head_dim, 4096u);
  const bool unturned = s.architecture == "smollm3" && layer % 4 == 3;
  const bool may_turn = s.architecture == "granitehybrid";
  const bool never = s.architecture.starts_with("nemotron");
  EXPECT_TRUE(may_turn || (a.rope.n_rot == 0) == (unturned || never));
  EXPECT_LE(a.rope.n_rot, a.head_dim);
  EXPECT_EQ(a.rope.n_rot % 2, 0u);
  EXPECT_TRUE(a.rope.freq_base >= 1.0 && std::isfinite(a.rope.freq_base));
  EXPECT_TRUE(a.rope.freq_scale > 0.0 && std::isfinite(a.rope.freq_scale));
  EXPECT_TRUE(a.q && a.o && (a.q_norm || a.qk_norm == QkNorm::kNone));
  EXPECT_EQ(a.o.n_in, a.mixed_row());
  if (s.layers[layer].owns_kv()) {
    EXPECT_TRUE(a.k && (a.k_norm || a.qk_norm == QkNorm::kNone) && (a.v || a.v_from_k || a.latent));
    EXPECT_EQ(a.k.n_out, uint64_t{a.n_kv_heads} * a.head_dim);
  } else {
    const auto source = static_cast<uint32_t>(a.kv_source);
    ASSERT_LT(source, layer);
    EXPECT_TRUE(s.layers[source].owns_kv());
    EXPECT_EQ(s.layers[source].attention.n_kv_heads, a.n_kv_heads);
    EXPECT_EQ(s.layers[source].attention.head_dim, a.head_dim);
    EXPECT_EQ(s.layers[source].attention.window, a.window);
  }
}

void expect_sound_mixer(const ModelSpec& s, uint32_t layer) {
  const LayerSpec& l = s.layers[layer];
  const DeltaNetSpec& d = l.delta;
  const Mamba2Spec& m = l.mamba;
  switch (l.mixer) {
    case MixerKind::kAttention:
      return expect_sound_attention(s, layer);
    case MixerKind::kGatedDeltaNet:
      ASSERT_GT(d.n_k_heads, 0u);
      EXPECT_EQ(d.n_v_heads % d.n_k_heads, 0u);
      EXPECT_GE(d.conv_kernel, 2u);
      EXPECT_EQ(d.qkv.n_out, d.conv_dim());
      return;
    case MixerKind::kMamba2:
      ASSERT_GT(m.n_groups, 0u);
      EXPECT_EQ(m.n_heads % m.n_groups, 0u);
      EXPECT_GE(m.conv_kernel, 2u);
      EXPECT_EQ(m.xbc.n_out, m.conv_dim());
      EXPECT_TRUE(m.gate && m.dt && m.out && m.a && m.d && m.norm);
      return;
    case MixerKind::kNone:
      EXPECT_NE(l.ffn.kind, FfnKind::kNone);
      return;
  }
}

void expect_sound(const ModelSpec& s) {
  EXPECT_GT(s.n_embd, 0u);
  EXPECT_GT(s.n_vocab, 0u);
  EXPECT_GT(s.n_ctx_train, 0u);
  EXPECT_TRUE(s.rms_eps > 0.0f && std::isfinite(s.rms_eps));
  EXPECT_TRUE(s.logit_softcap >= 0.0f && std::isfinite(s.logit_softcap));
  ASSERT_GT(s.n_layers(), 0u);
  for (const TensorRef* t : {&s.token_embd, &s.output, &s.output_norm, &s.ple_embd}) {
    expect_whole(s, *t);
  }
  for (uint32_t i = 0; i < s.n_layers(); ++i) {
    const LayerSpec& l = s.layers[i];
    const FfnSpec& f = l.ffn;
    expect_sound_mixer(s, i);
    EXPECT_EQ(static_cast<bool>(l.mixer_norm), l.mixer != MixerKind::kNone);
    EXPECT_EQ(l.ffn_norm && f.up && f.down, f.kind != FfnKind::kNone && !f.fused_gate_up);
    EXPECT_EQ(static_cast<bool>(f.gate),
              f.kind != FfnKind::kNone && f.activation != Activation::kReluSquared);
    EXPECT_TRUE(std::isfinite(l.output_scale) && std::isfinite(l.residual_scale));
    if (f.kind == FfnKind::kMoe) {
      EXPECT_LE(f.n_used, f.n_experts);
      EXPECT_GT(f.n_used, 0u);
    }
    for (const TensorRef* t : l.mixer_products()) expect_whole(s, *t);
    for (const TensorRef* t : {&f.gate, &f.up, &f.down, &f.router}) expect_whole(s, *t);
  }
}

/// Writes `n` bytes over a file in place.
void overwrite(const std::string& path, const std::byte* bytes, size_t n, uint64_t at) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(at));
  file.write(reinterpret_cast<const char*>(bytes), static_cast<std::streamsize>(n));
  EXPECT_TRUE(file.good());
}

TEST(ModelSpecMutation, FlippedHeadersAreRefusedOrSound) {
  constexpr int kFlipsPerModel = 400;
  uint32_t n_sound = 0, n_refused = 0;
  for (test::ModelRecipe recipe : test::tiny_recipes()) {
    SCOPED_TRACE(recipe.arch);
    recipe.tokenizer = false;
    const test::TempFile temp;
    ASSERT_TRUE(test::ModelFile(recipe).write_sparse(temp.path()));
    uint64_t header = 0;
    std::vector<std::byte> original;
    {
      const auto file = GgufFile::open(temp.path());
      ASSERT_TRUE(file.is_ok()) << file.status().text();
      header = file.value()->tensors().front().file_offset;
      original.resize(header);
      std::FILE* in = std::fopen(temp.path().c_str(), "rb");
      ASSERT_NE(in, nullptr);
      ASSERT_EQ(std::fread(original.data(), 1, header, in), header);
      std::fclose(in);
    }
    std::mt19937_64 random(recipe.seed);
    for (int flip = 0; flip < kFlipsPerModel; ++flip) {
      std::vector<std::byte> bent = original;
      const uint64_t at = random() % header;
      bent[at] ^= static_cast<std::byte>(1u << (random() % 8));
      overwrite(temp.path(), bent.data() + at, 1, at);
      const auto file = GgufFile::open(temp.path());
      if (file.is_ok()) {
        const auto spec = load_model_spec(file.value());
        ++(spec.is_ok() ? n_sound : n_refused);
        if (spec.is_ok()) {
          expect_sound(*spec.value());
        } else {
          EXPECT_FALSE(spec.status().text().empty());
        }
      }
      overwrite(temp.path(), original.data() + at, 1, at);
    }
  }
  // Both outcomes were met, so the check is not empty.
  EXPECT_GT(n_sound, 20u);
  EXPECT_GT(n_refused, 200u);
}

}  // namespace
}  // namespace sharpi
