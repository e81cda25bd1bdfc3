// SPDX-License-Identifier: MIT
// What a file may vary: defaults, arrays, rope scaling, fused experts, types and dims.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <string>

#include "model/model_spec.h"
#include "support/tiny_model.h"

namespace sharpi {
namespace {

using test::ModelFile;
using test::ModelRecipe;

std::shared_ptr<const ModelSpec> load(const ModelFile& file, bool sparse = true) {
  auto spec = test::load_model(file, sparse);
  if (spec.is_ok()) return spec.take();
  ADD_FAILURE() << spec.status().text();
  return nullptr;
}

#define LOAD(spec, ...)                \
  const auto spec = load(__VA_ARGS__); \
  ASSERT_NE(spec, nullptr)

TEST(ModelSpec, EveryTinyRecipeLoads) {
  for (const ModelRecipe& recipe : test::tiny_recipes()) {
    SCOPED_TRACE(recipe.arch);
    LOAD(s, ModelFile(recipe), /*sparse=*/false);
    EXPECT_EQ(s->architecture, recipe.arch);
    EXPECT_EQ(s->n_layers(), recipe.n_layers);
    EXPECT_EQ(s->n_vocab, recipe.n_vocab);
    EXPECT_EQ(s->tied_output, recipe.tied);
    EXPECT_EQ(s->n_mtp_layers, recipe.n_mtp);
  }
}

TEST(ModelSpec, UnusualDimsLoad) {
  for (const uint32_t head_dim : {2u, 10u, 64u, 80u, 96u, 512u}) {
    for (ModelRecipe recipe : test::tiny_recipes()) {
      SCOPED_TRACE(recipe.arch + " " + std::to_string(head_dim));
      if (recipe.arch == "deepseek2") continue;  // its row follows from other sizes
      recipe.head_dim = recipe.head_dim_swa = head_dim;
      recipe.n_rot = 0;
      recipe.n_embd = 36;
      LOAD(s, ModelFile(recipe));
      EXPECT_EQ(s->layers.back().attention.head_dim, head_dim);
    }
  }
}

TEST(ModelSpec, EveryComputableTypeServesAsAMatrix) {
  for (const GgmlType type :
       {GgmlType::kF32, GgmlType::kF16, GgmlType::kBF16, GgmlType::kQ8_0, GgmlType::kQ4_0,
        GgmlType::kQ4_1, GgmlType::kQ5_0, GgmlType::kQ5_1, GgmlType::kQ2_K, GgmlType::kQ3_K,
        GgmlType::kQ4_K, GgmlType::kQ5_K, GgmlType::kQ6_K, GgmlType::kIQ4_NL, GgmlType::kIQ4_XS,
        GgmlType::kMXFP4}) {
    SCOPED_TRACE(ggml_traits(type).name);
    ModelRecipe recipe = test::tiny_qwen3();
    recipe.n_layers = 1;
    recipe.n_embd = recipe.d_ff = 256;
    recipe.matrix_type = recipe.table_type = type;
    LOAD(s, ModelFile(recipe));
    EXPECT_EQ(s->layers[0].ffn.down.tensor->type, type);
    EXPECT_EQ(s->token_embd.tensor->type, type);
  }
}

TEST(ModelSpec, ManyLayersLoad) {
  ModelRecipe recipe = test::tiny_qwen3();
  recipe.n_layers = 300;
  recipe.n_embd = recipe.d_ff = 8;
  recipe.head_dim = 4;
  LOAD(s, ModelFile(recipe));
  EXPECT_EQ(s->n_layers(), 300u);
}

TEST(ModelSpec, HeadSizeDefaultsToWidthOverHeads) {
  ModelRecipe recipe = test::tiny_olmoe();
  recipe.head_dim = recipe.n_embd / recipe.n_heads;
  ModelFile file(recipe);
  file.erase_key("attention.key_length").erase_key("attention.value_length");
  LOAD(s, file);
  EXPECT_EQ(s->layers[0].attention.head_dim, 32u);
  EXPECT_EQ(s->layers[0].attention.rope.n_rot, 32u);
}

TEST(ModelSpec, KvHeadsDefaultToHeads) {
  ModelFile file(test::tiny_olmoe());
  file.erase_key("attention.head_count_kv");
  LOAD(s, file);
  EXPECT_EQ(s->layers[0].attention.n_kv_heads, s->layers[0].attention.n_heads);
}

TEST(ModelSpec, RopeBaseDefaultsTo10000) {
  ModelFile file(test::tiny_qwen3moe());
  file.erase_key("rope.freq_base");
  LOAD(s, file);
  EXPECT_EQ(s->layers[0].attention.rope.freq_base, 10000.0);
}

TEST(ModelSpec, VocabularySizeComesFromTheTableWithoutATokenizer) {
  ModelRecipe recipe = test::tiny_qwen3();
  recipe.tokenizer = false;
  recipe.n_vocab = 17;
  LOAD(s, ModelFile(recipe));
  EXPECT_EQ(s->n_vocab, 17u);
}

TEST(ModelSpec, KeysMayHaveAnyIntegerType) {
  ModelFile file(test::tiny_qwen3());
  file.set("block_count", int64_t{2}).set("embedding_length", uint16_t{64});
  file.set_array("attention.head_count", std::vector<int32_t>{4, 4});
  LOAD(s, file);
  EXPECT_EQ(s->n_layers(), 2u);
}

TEST(ModelSpec, LinearRopeScalingDividesTheFrequencies) {
  ModelFile file(test::tiny_qwen3());
  file.set("rope.scaling.type", std::string("linear")).set("rope.scaling.factor", 4.0f);
  LOAD(s, file);
  EXPECT_EQ(s->layers[1].attention.rope.freq_scale, 0.25);
  EXPECT_FALSE(s->layers[1].attention.rope.yarn);
}

TEST(ModelSpec, TheOldNameOfTheScalingFactorIsRead) {
  ModelFile file(test::tiny_olmoe());
  file.set("rope.scale_linear", 2.0f);
  LOAD(s, file);
  EXPECT_EQ(s->layers[0].attention.rope.freq_scale, 0.5);
}

TEST(ModelSpec, RopeScalingNoneIgnoresTheFactor) {
  ModelFile file(test::tiny_qwen3());
  file.set("rope.scaling.type", std::string("none")).set("rope.scaling.factor", 4.0f);
  LOAD(s, file);
  EXPECT_EQ(s->layers[0].attention.rope.freq_scale, 1.0);
}

TEST(ModelSpec, YarnDefaultsAreThoseOfThePaper) {
  for (const ModelRecipe& recipe : {test::tiny_qwen3(), test::tiny_qwen3moe()}) {
    ModelFile file(recipe);
    file.set("rope.scaling.type", std::string("yarn")).set("rope.scaling.factor", 4.0f);
    LOAD(s, file);
    const RopeSpec& rope = s->layers[0].attention.rope;
    EXPECT_TRUE(rope.yarn);
    EXPECT_EQ(rope.freq_scale, 1.0);
    EXPECT_EQ(rope.yarn_factor, 4.0);
    EXPECT_EQ(rope.yarn_orig_ctx, recipe.n_ctx);
    EXPECT_EQ(rope.yarn_ext, 1.0);
    EXPECT_DOUBLE_EQ(rope.magnitude, 1.0 + 0.1 * std::log(4.0));
    EXPECT_EQ(rope.yarn_beta_fast, 32.0);
    EXPECT_EQ(rope.yarn_beta_slow, 1.0);
  }
}

TEST(ModelSpec, YarnKeysAreRead) {
  ModelFile file(test::tiny_qwen3());
  file.set("rope.scaling.type", std::string("yarn")).set("rope.scaling.factor", 8.0f);
  file.set("rope.scaling.original_context_length", 1024u);
  file.set("rope.scaling.attn_factor", 0.5f).set("rope.scaling.yarn_ext_factor", 0.25f);
  file.set("rope.scaling.yarn_beta_fast", 16.0f).set("rope.scaling.yarn_beta_slow", 2.0f);
  LOAD(s, file);
  const RopeSpec& rope = s->layers[0].attention.rope;
  EXPECT_EQ(rope.yarn_orig_ctx, 1024.0);
  EXPECT_DOUBLE_EQ(rope.magnitude, 0.5 * (1.0 + 0.1 * std::log(8.0)));
  EXPECT_EQ(rope.yarn_ext, 0.25);
  EXPECT_EQ(rope.yarn_beta_fast, 16.0);
  EXPECT_EQ(rope.yarn_beta_slow, 2.0);
}

/// attention_factor of a configuration is the whole magnitude, not another factor of it; 1 is what
/// converters write where there is none. mscale_all_dim takes back what it names.
TEST(ModelSpec, TheMagnitudeOfYarnIsThatOfTheConfiguration) {
  const double log8 = std::log(8.0), usual = 1.0 + 0.1 * log8;
  const struct {
    const char* key;
    float value;
    double magnitude;
  } cases[] = {{"rope.scaling.yarn_attn_factor", 1.25f, 1.25},
               {"rope.scaling.yarn_attn_factor", 1.0f, usual},
               {"rope.scaling.attn_factor", 0.5f, 0.5 * usual},
               {"rope.scaling.yarn_log_multiplier", 1.0f, 1.0},
               {"rope.scaling.yarn_log_multiplier", 0.5f, usual / (1.0 + 0.05 * log8)},
               {"rope.scaling.yarn_log_multiplier", 0.0f, usual},
               {"rope.scaling.yarn_ext_factor", 0.0f, 1.0}};
  for (const auto& c : cases) {
    SCOPED_TRACE(std::string(c.key) + " " + std::to_string(c.value));
    ModelFile file(test::tiny_qwen3());
    file.set("rope.scaling.type", std::string("yarn")).set("rope.scaling.factor", 8.0f);
    file.set(c.key, c.value);
    LOAD(s, file);
    EXPECT_DOUBLE_EQ(s->layers[0].attention.rope.magnitude, c.magnitude);
  }
}

TEST(ModelSpec, YarnWithoutAFactorScalesNothing) {
  for (const char* key : {"", "rope.scaling.factor", "rope.scale_linear"}) {
    ModelFile file(test::tiny_qwen3());
    file.set("rope.scaling.type", std::string("yarn"));
    if (*key != '\0') file.set(key, 0.0f);
    LOAD(s, file);
    EXPECT_EQ(s->layers[0].attention.rope.yarn_factor, 1.0) << key;
    EXPECT_EQ(s->layers[0].attention.rope.magnitude, 1.0) << key;
  }
}

/// Rnj-1 is such a file.
TEST(ModelSpec, Gemma3WithoutAWindowSeesEverything) {
  for (const bool absent : {false, true}) {
    ModelFile file(test::tiny_gemma3());
    absent ? file.erase_key("attention.sliding_window") : file.set("attention.sliding_window", 0u);
    LOAD(s, file);
    for (const LayerSpec& layer : s->layers) {
      EXPECT_EQ(layer.attention.window, 0u);
      EXPECT_EQ(layer.attention.rope.freq_base, s->layers.back().attention.rope.freq_base);
    }
  }
}

TEST(ModelSpec, FusedGateAndUpExpertsAreAccepted) {
  for (ModelRecipe recipe : {test::tiny_qwen35moe(), test::tiny_qwen3moe()}) {
    recipe.fused_gate_up = true;
    LOAD(s, ModelFile(recipe));
    const FfnSpec& ffn = s->layers[0].ffn;
    EXPECT_TRUE(ffn.fused_gate_up);
    EXPECT_EQ(ffn.gate.n_out, 2 * recipe.d_expert);
    EXPECT_EQ(ffn.gate.n_experts, recipe.n_experts);
    EXPECT_FALSE(ffn.up);
    EXPECT_EQ(ffn.d_ff, recipe.d_expert);
  }
}

TEST(ModelSpec, OnlyOlmoeKeepsItsRouterWeightsAsTheyAre) {
  for (const ModelRecipe& recipe :
       {test::tiny_qwen3moe(), test::tiny_olmoe(), test::tiny_qwen35moe()}) {
    LOAD(s, ModelFile(recipe));
    EXPECT_EQ(s->layers[0].ffn.renormalize, recipe.arch != "olmoe") << recipe.arch;
    EXPECT_EQ(s->layers[0].ffn.activation, Activation::kSilu) << recipe.arch;
  }
}

TEST(ModelSpec, OnlyQwen35MoeHasASharedExpert) {
  for (const ModelRecipe& recipe :
       {test::tiny_qwen3moe(), test::tiny_olmoe(), test::tiny_qwen35moe()}) {
    LOAD(s, ModelFile(recipe));
    const FfnSpec& ffn = s->layers[0].ffn;
    const bool shared = recipe.arch == "qwen35moe";
    EXPECT_EQ(ffn.d_shared, shared ? recipe.d_shared : 0u) << recipe.arch;
    EXPECT_EQ(ffn.shared_gate && ffn.shared_up && ffn.shared_down && ffn.shared_gate_inp, shared);
  }
}

TEST(ModelSpec, KvDefaultsToBf16ForHybridsOnly) {
  for (const ModelRecipe& recipe : test::tiny_recipes()) {
    LOAD(s, ModelFile(recipe));
    const bool hybrid = recipe.is_hybrid();
    EXPECT_EQ(s->default_kv_dtype, hybrid ? KvDtype::kBf16 : KvDtype::kF32) << recipe.arch;
  }
}

TEST(ModelSpec, ExpertWidthDefaultsToAShareOfTheDenseWidth) {
  ModelFile file(test::tiny_qwen3moe());
  file.erase_key("expert_feed_forward_length").set("feed_forward_length", 64u);
  LOAD(s, file);
  EXPECT_EQ(s->layers[0].ffn.d_ff, 32u);
}

TEST(ModelSpec, SharedGateMayHaveASecondDimensionOfOne) {
  ModelFile file(test::tiny_qwen35moe());
  file.reshape("blk.0.ffn_gate_inp_shexp.weight", {64, 1});
  LOAD(s, file);
  EXPECT_TRUE(s->layers[0].ffn.shared_gate_inp);
}

TEST(ModelSpec, RecurrentLayersKeyOverridesTheInterval) {
  ModelRecipe recipe = test::tiny_qwen35();
  recipe.attention_every = 2;
  ModelFile file(recipe);
  file.erase_key("full_attention_interval");
  file.set_array("attention.recurrent_layers", std::vector<int32_t>{1, 0, 1, 0, 1});
  LOAD(s, file);
  EXPECT_EQ(s->layers[0].mixer, MixerKind::kGatedDeltaNet);
  EXPECT_EQ(s->layers[1].mixer, MixerKind::kAttention);
}

TEST(ModelSpec, LayersWithoutAttentionMayClaimNoHeads) {
  ModelFile file(test::tiny_qwen35());
  file.set_array("attention.head_count_kv", std::vector<int32_t>{0, 0, 0, 2, 2});
  file.set_array("attention.head_count", std::vector<int32_t>{0, 0, 0, 4, 4});
  LOAD(s, file);
  EXPECT_EQ(s->layers[3].attention.n_kv_heads, 2u);
}

TEST(ModelSpec, HybridsWithoutMtpBlocksLoad) {
  ModelRecipe recipe = test::tiny_qwen35();
  recipe.n_mtp = 0;
  LOAD(s, ModelFile(recipe));
  EXPECT_EQ(s->n_mtp_layers, 0u);
  EXPECT_EQ(s->mtp_bytes, 0u);
}

TEST(ModelSpec, SharingLayersReadTheLastOwnerOfTheirKind) {
  ModelRecipe recipe = test::tiny_gemma4();
  recipe.n_layers = 10;  // layers 3, 7 and 9 are global, 0 to 4 own
  recipe.n_shared_kv = 5;
  LOAD(s, ModelFile(recipe));
  const int32_t sources[] = {-1, -1, -1, -1, -1, 4, 4, 3, 4, 3};
  for (uint32_t i = 0; i < 10; ++i) EXPECT_EQ(s->layers[i].attention.kv_source, sources[i]) << i;
}

TEST(ModelSpec, UnusedKvWeightsOfSharingLayersAreTolerated) {
  ModelRecipe recipe = test::tiny_gemma4();
  recipe.shared_kv_weights = true;
  LOAD(s, ModelFile(recipe));
  EXPECT_FALSE(s->layers[6].attention.k || s->layers[6].attention.v);
}

TEST(ModelSpec, CausalMayBeSaidAsABool) {
  for (const ModelRecipe& recipe : {test::tiny_llama(), test::tiny_smollm3()}) {
    ModelFile file(recipe);
    file.set("attention.causal", true);
    LOAD(s, file);
    EXPECT_EQ(s->architecture, recipe.arch);
  }
}

TEST(ModelSpec, TowersBesideTheTextModelAreLeftOutAndTold) {
  ModelFile file(test::tiny_qwen3());
  LOAD(plain, file);
  EXPECT_EQ(plain->left_out, "");
  file.add_tensor("v.patch_embd.weight", GgmlType::kF32, {64, 32});
  file.add_tensor("v.blk.7.attn_q.weight", GgmlType::kF32, {64, 32});
  file.add_tensor("mm.0.weight", GgmlType::kF32, {64, 32});
  LOAD(s, file);
  EXPECT_EQ(s->left_out, "a vision tower (2 tensors v.*), a projector (1 tensor mm.*)");
  EXPECT_EQ(s->parameter_count(), plain->parameter_count());
  // Others are refused as before, beside them too.
  file.add_tensor("vision.weight", GgmlType::kF32, {64, 32});
  const auto refused = test::load_model(file, true);
  EXPECT_EQ(refused.status().code(), Code::kUnsupported);
  EXPECT_NE(refused.status().text().find("\"vision.weight\" is not"), std::string::npos)
      << refused.status().text();
}

TEST(ModelSpec, TowersAloneAreRefusedByName) {
  ModelFile file(test::tiny_qwen3());
  file.set("general.architecture", std::string("clip"));
  const auto refused = test::load_model(file, true);
  EXPECT_EQ(refused.status().code(), Code::kUnsupported);
  EXPECT_NE(refused.status().text().find("towers of images or sound alone"), std::string::npos)
      << refused.status().text();
}

TEST(ModelSpec, FeedForwardWidthMayDifferPerLayer) {
  ModelFile file(test::tiny_gemma4kv());
  file.set_array("feed_forward_length", std::vector<uint32_t>{96, 96, 192, 96});
  for (const char* name : {"ffn_gate", "ffn_up"}) {
    file.reshape(std::string("blk.2.") + name + ".weight", {64, 192});
  }
  file.reshape("blk.2.ffn_down.weight", {192, 64});
  LOAD(s, file);
  EXPECT_EQ(s->layers[2].ffn.d_ff, 192u);
  EXPECT_EQ(s->layers[3].ffn.d_ff, 96u);
}

TEST(ModelSpec, LayerOutputScaleIsReadFromItsTensor) {
  ModelFile file(test::tiny_gemma4kv());
  file.tensor("blk.1.layer_output_scale.weight").values = {0.375f};
  file.erase_tensor("blk.2.layer_output_scale.weight");
  LOAD(s, file);
  EXPECT_EQ(s->layers[1].output_scale, 0.375f);
  EXPECT_EQ(s->layers[2].output_scale, 1.0f);
}

TEST(ModelSpec, SoftcapDefaultsTo30AndMayBeSwitchedOff) {
  ModelFile file(test::tiny_gemma4kv());
  file.erase_key("final_logit_softcapping");
  LOAD(with_default, file);
  EXPECT_EQ(with_default->logit_softcap, 30.0f);
  file.set("final_logit_softcapping", 0.0f);
  LOAD(without, file);
  EXPECT_EQ(without->logit_softcap, 0.0f);
}

TEST(ModelSpec, LlamaTakesItsOptionalPartsAndLeavesOutWhatIsAbsent) {
  ModelFile file(test::tiny_llama());
  LOAD(plain, file);
  const AttentionSpec& a = plain->layers[0].attention;
  EXPECT_EQ(a.rope.pairs, RopePairs::kNeighbours);
  EXPECT_EQ(a.qk_norm, QkNorm::kNone);
  EXPECT_FALSE(a.q_norm || a.k_norm || a.q_bias || a.k_bias || a.v_bias);
  EXPECT_EQ(a.rope.freq_factors, nullptr);
  EXPECT_EQ(a.window, 0u);
  file.add_tensor("rope_freqs.weight", GgmlType::kF32, {16});
  file.tensor("rope_freqs.weight").values.assign(16, 2.0f);
  file.add_tensor("blk.1.attn_k.bias", GgmlType::kF32, {64});
  file.set("attention.sliding_window", 40u);
  const auto whole = test::load_model(file);
  ASSERT_TRUE(whole.is_ok()) << whole.status().text();
  const AttentionSpec& b = whole.value()->layers[1].attention;
  EXPECT_NE(b.rope.freq_factors, nullptr);
  EXPECT_TRUE(b.k_bias && !b.q_bias);
  EXPECT_EQ(b.window, 40u);
}

TEST(ModelSpec, Gemma3HasFiveWindowsToAGlobalLayerEachWithItsRope) {
  ModelFile file(test::tiny_gemma3());
  file.set("rope.scaling.type", std::string("linear")).set("rope.scaling.factor", 8.0f);
  LOAD(s, file);
  for (uint32_t i = 0; i < 6; ++i) {
    const AttentionSpec& a = s->layers[i].attention;
    EXPECT_EQ(a.window, i == 5 ? 0u : 16u) << i;
    EXPECT_EQ(a.rope.freq_base, i == 5 ? 1e6 : 1e4) << i;
    EXPECT_EQ(a.rope.freq_scale, i == 5 ? 0.125 : 1.0) << i;
    EXPECT_FLOAT_EQ(a.scale, 1.0f / std::sqrt(32.0f));
  }
  EXPECT_EQ(s->embedding_scale, 8.0f);
  EXPECT_EQ(s->logit_softcap, 0.0f);
}

TEST(ModelSpec, Gemma3Of62BlocksScalesQueriesByItsWidth) {
  ModelRecipe recipe = test::tiny_gemma3();
  recipe.n_layers = 62;
  const ModelFile file(recipe);
  const auto s = test::load_model(file, /*sparse=*/true);
  ASSERT_TRUE(s.is_ok()) << s.status().text();
  EXPECT_FLOAT_EQ(s.value()->layers[0].attention.scale, 0.25f);  // 64 over 4 heads
}

TEST(ModelSpec, UnknownKeysAreIgnored) {
  ModelFile file(test::tiny_qwen3());
  file.set("vocab_flavour", 7u);
  LOAD(s, file);
  EXPECT_EQ(s->n_layers(), 2u);
}

TEST(ModelSpec, TiedTensorsCountOnce) {
  ModelRecipe recipe = test::tiny_qwen3();
  const ModelFile tied(recipe);
  LOAD(s, tied);
  uint64_t elements = 0;
  for (const GgufTensor& t : s->file->tensors()) elements += t.elements();
  EXPECT_EQ(s->parameter_count(), elements);
}

TEST(TinyModel, SameRecipeGivesTheSameFile) {
  const test::TempFile a, b;
  ASSERT_TRUE(ModelFile(test::tiny_qwen35()).write(a.path()));
  ASSERT_TRUE(ModelFile(test::tiny_qwen35()).write(b.path()));
  const auto text_of = [](const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  EXPECT_GT(text_of(a.path()).size(), 100000u);
  EXPECT_TRUE(text_of(a.path()) == text_of(b.path()));
}

TEST(TinyModel, SparseFilesHaveTheSameTensorTable) {
  const ModelFile file(test::tiny_gemma4());
  const auto dense = test::open_model(file), sparse = test::open_model(file, /*sparse=*/true);
  ASSERT_TRUE(dense.is_ok() && sparse.is_ok());
  const auto &a = dense.value()->tensors(), &b = sparse.value()->tensors();
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].name, b[i].name);
    EXPECT_EQ(a[i].file_offset, b[i].file_offset);
    EXPECT_EQ(a[i].bytes, b[i].bytes);
  }
}

}  // namespace
}  // namespace sharpi
