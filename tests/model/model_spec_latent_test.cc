// SPDX-License-Identifier: MIT
// Models with multi-head latent attention: what their files say is in the spec, and files with
// pieces missing, with more than they should have, of an older form or with shapes that disagree
// are refused.
#include <array>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "refusal.h"

namespace sharpi {
namespace {

using test::ModelFile;

/// Of a file from before April 2025.
void older_keys(ModelFile* f) {
  f->erase_key("attention.key_length_mla").erase_key("attention.value_length_mla");
  f->set("attention.key_length", 48u).set("attention.value_length", 24u);
  f->set("attention.head_count_kv", 4u);
}

const Refusal kLatentTensors[] = {
    {"NoMatrixOfKeys",
     test::tiny_deepseek2,
     [](ModelFile& f) { f.erase_tensor("blk.1.attn_k_b.weight"); },
     Code::kFormat,
     {"\"blk.1.attn_k_b.weight\" is missing", "{32, 48, 4}"}},
    {"NoMatrixOfValues",
     test::tiny_deepseek2,
     [](ModelFile& f) { f.erase_tensor("blk.2.attn_v_b.weight"); },
     Code::kFormat,
     {"\"blk.2.attn_v_b.weight\" is missing", "{48, 24, 4}"}},
    {"BothMatricesInOneOfAnotherSize",
     test::tiny_deepseek2,
     [](ModelFile& f) {
       for (const char* name : {"blk.0.attn_k_b.weight", "blk.0.attn_v_b.weight"})
         f.erase_tensor(name);
       f.add_tensor("blk.0.attn_kv_b.weight", GgmlType::kF32, {48, 225});
     },
     Code::kFormat,
     {"\"blk.0.attn_kv_b.weight\" has shape {48, 225}", "224 by deepseek2.attention.head_count"}},
    {"OlderKeysWithoutTheOneMatrix",
     test::tiny_deepseek2,
     [](ModelFile& f) {
       older_keys(&f);
       for (const char* name : {"blk.0.attn_k_b.weight", "blk.0.attn_v_b.weight"})
         f.erase_tensor(name);
     },
     Code::kFormat,
     {"\"blk.0.attn_k_b.weight\" is missing", "{32, 48, 4}"}},
    {"OlderKeysWithOneKvHead",
     test::tiny_deepseek2,
     [](ModelFile& f) {
       older_keys(&f);
       f.set("attention.head_count_kv", 1u);
     },
     Code::kFormat,
     {"deepseek2.attention.head_count_kv = 1", "as many"}},
    {"MatrixOfKeysTheOtherWayRound",
     test::tiny_deepseek2,
     [](ModelFile& f) {
       f.reshape("blk.0.attn_k_b.weight", {48, 32, 4});
     },
     Code::kFormat,
     {"\"blk.0.attn_k_b.weight\" has shape {48, 32, 4}",
      "32 by deepseek2.attention.key_length_mla - deepseek2.rope.dimension_count"}},
    {"MatrixOfValuesOfTooFewHeads",
     test::tiny_deepseek2,
     [](ModelFile& f) {
       f.reshape("blk.0.attn_v_b.weight", {48, 24, 3});
     },
     Code::kFormat,
     {"\"blk.0.attn_v_b.weight\"", "4 by deepseek2.attention.head_count"}},
    {"RowWithoutItsTurnedPart",
     test::tiny_deepseek2,
     [](ModelFile& f) {
       f.reshape("blk.0.attn_kv_a_mqa.weight", {64, 48});
     },
     Code::kFormat,
     {"\"blk.0.attn_kv_a_mqa.weight\"",
      "64 by deepseek2.attention.kv_lora_rank + deepseek2.rope.dimension_count"}},
    {"NoNormOfTheLatent",
     test::tiny_deepseek2,
     [](ModelFile& f) { f.erase_tensor("blk.0.attn_kv_a_norm.weight"); },
     Code::kFormat,
     {"\"blk.0.attn_kv_a_norm.weight\" is missing"}},
    {"QueriesOfBothKinds",
     test::tiny_deepseek2,
     [](ModelFile& f) {
       f.add_tensor("blk.0.attn_q.weight", GgmlType::kF32, {64, 192});
     },
     Code::kUnsupported,
     {"blk.0.attn_q.weight"}},
    {"SmallerRowOfQueriesWithoutItsKey",
     test::tiny_deepseek2,
     [](ModelFile& f) { f.erase_key("attention.q_lora_rank"); },
     Code::kFormat,
     {"\"blk.0.attn_q.weight\" is missing"}},
    {"ABias",
     test::tiny_deepseek2,
     [](ModelFile& f) { f.add_tensor("blk.0.attn_q_a.bias", GgmlType::kF32, {64}); },
     Code::kUnsupported,
     {"blk.0.attn_q_a.bias"}},
    {"ExpertsInADenseLayer",
     test::tiny_deepseek2,
     [](ModelFile& f) { f.set("leading_dense_block_count", 0u); },
     Code::kFormat,
     {"\"blk.0.ffn_gate_inp.weight\" is missing"}},
};

const Refusal kLatentKeys[] = {
    {"NoRank",
     test::tiny_deepseek2,
     [](ModelFile& f) { f.erase_key("attention.kv_lora_rank"); },
     Code::kFormat,
     {"deepseek2.attention.kv_lora_rank is missing"}},
    {"NoKeyLength",
     test::tiny_deepseek2,
     [](ModelFile& f) { f.erase_key("attention.key_length_mla"); },
     Code::kFormat,
     {"deepseek2.attention.key_length_mla is missing"}},
    {"NoTurnedPart",
     test::tiny_deepseek2,
     [](ModelFile& f) { f.erase_key("rope.dimension_count"); },
     Code::kFormat,
     {"deepseek2.rope.dimension_count is missing"}},
    {"NothingButTheTurnedPart",
     test::tiny_deepseek2,
     [](ModelFile& f) { f.set("attention.key_length_mla", 16u); },
     Code::kFormat,
     {"deepseek2.attention.key_length_mla = 16", "more of a key than RoPE turns"}},
    {"ARowThatIsTooWide",
     test::tiny_deepseek2,
     [](ModelFile& f) { f.set("attention.kv_lora_rank", 1020u); },
     Code::kFormat,
     {"deepseek2.attention.kv_lora_rank = 1020", "at most 1024"}},
    {"KeyLengthOfOneHead",
     test::tiny_deepseek2,
     [](ModelFile& f) { f.set("attention.key_length", 48u); },
     Code::kFormat,
     {"deepseek2.attention.key_length is 48, expected 64"}},
    {"ValueLengthOfOneHead",
     test::tiny_deepseek2,
     [](ModelFile& f) { f.set("attention.value_length", 24u); },
     Code::kFormat,
     {"deepseek2.attention.value_length is 24, expected 48"}},
    {"SeveralKvHeads",
     test::tiny_deepseek2,
     [](ModelFile& f) { f.set("attention.head_count_kv", 4u); },
     Code::kFormat,
     {"deepseek2.attention.head_count_kv = 4", "block 0"}},
    {"GroupsOfExperts",
     test::tiny_deepseek2,
     [](ModelFile& f) { f.set("expert_group_count", 4u); },
     Code::kUnsupported,
     {"group-limited routing (deepseek2.expert_group_count = 4)"}},
    {"AnotherGate",
     test::tiny_deepseek2,
     [](ModelFile& f) { f.set("expert_gating_func", 3u); },
     Code::kUnsupported,
     {"deepseek2.expert_gating_func = 3"}},
    {"BlocksThatDraft",
     test::tiny_deepseek2,
     [](ModelFile& f) { f.set("nextn_predict_layers", 1u); },
     Code::kUnsupported,
     {"deepseek2.nextn_predict_layers = 1"}},
    {"QueriesThatGrow",
     test::tiny_deepseek2,
     [](ModelFile& f) { f.set("attention.temperature_scale", 0.1f); },
     Code::kUnsupported,
     {"deepseek2.attention.temperature_scale"}},
    {"DenseLayersWithoutAWidth",
     test::tiny_deepseek2,
     [](ModelFile& f) { f.erase_key("feed_forward_length"); },
     Code::kFormat,
     {"deepseek2.feed_forward_length is missing"}},
};

class LatentFiles : public ::testing::TestWithParam<Refusal> {};

TEST_P(LatentFiles, NamesWhatIsWrong) {
  expect_refused(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Tensors, LatentFiles, ::testing::ValuesIn(kLatentTensors), refusal_name);
INSTANTIATE_TEST_SUITE_P(Keys, LatentFiles, ::testing::ValuesIn(kLatentKeys), refusal_name);

std::shared_ptr<const ModelSpec> latent_model(const ModelFile& file) {
  const auto spec = test::load_model(file, /*sparse=*/true);
  EXPECT_TRUE(spec.is_ok()) << spec.status().text();
  return spec.is_ok() ? spec.value() : nullptr;
}

TEST(LatentSpec, SizesAreThoseOfTheKeys) {
  const auto s = latent_model(ModelFile(test::tiny_deepseek2()));
  ASSERT_TRUE(s);
  const AttentionSpec& a = s->layers[1].attention;
  EXPECT_TRUE(a.one_row());
  EXPECT_EQ(a.n_kv_heads, 1u);
  EXPECT_EQ(a.head_dim, 64u);
  EXPECT_EQ(a.rope.n_rot, 16u);
  EXPECT_EQ(a.rope.pairs, RopePairs::kNeighbours);
  EXPECT_EQ(a.latent.rank, 48u);
  EXPECT_EQ(a.latent.key_dim, 32u);
  EXPECT_EQ(a.latent.value_dim, 24u);
  EXPECT_EQ(a.query_row(), 4u * 64);
  EXPECT_EQ(a.mixed_row(), 4u * 24);
  EXPECT_NEAR(a.scale, 1 / std::sqrt(48.0), 1e-7);
  EXPECT_TRUE(a.latent.q_a && a.latent.q_norm && !a.v);
  const FfnSpec& f = s->layers[1].ffn;
  EXPECT_EQ(s->layers[0].ffn.kind, FfnKind::kDense);
  EXPECT_EQ(f.kind, FfnKind::kMoe);
  EXPECT_EQ(f.scores, RouterScores::kSigmoid);
  EXPECT_EQ(f.share_scale, 1.8f);
  EXPECT_EQ(f.d_shared, 64u);
  EXPECT_TRUE(f.renormalize && f.choice_bias && !f.shared_gate_inp);
}

TEST(LatentSpec, WithoutAGateSharesAreASoftmax) {
  ModelFile file(test::tiny_deepseek2());
  for (const char* key : {"expert_gating_func", "expert_weights_norm", "expert_weights_scale"})
    file.erase_key(key);
  for (const char* name : {"blk.1.exp_probs_b.bias", "blk.2.exp_probs_b.bias"})
    file.erase_tensor(name);
  const auto s = latent_model(file);
  ASSERT_TRUE(s);
  const FfnSpec& f = s->layers[1].ffn;
  EXPECT_EQ(f.scores, RouterScores::kSoftmax);
  EXPECT_EQ(f.share_scale, 1.0f);
  EXPECT_FALSE(f.renormalize || f.choice_bias);
}

TEST(LatentSpec, YarnScalesScoresAndNothingThatIsTurned) {
  ModelFile file(test::tiny_deepseek2());
  file.set("rope.scaling.type", std::string("yarn")).set("rope.scaling.factor", 40.0f);
  file.set("rope.scaling.original_context_length", 512u);
  file.set("rope.scaling.yarn_log_multiplier", 0.0707f);
  const auto s = latent_model(file);
  ASSERT_TRUE(s);
  const AttentionSpec& a = s->layers[0].attention;
  const double magnitude = 1 + 0.1 * 0.707 * std::log(40.0);
  EXPECT_NEAR(a.scale, magnitude * magnitude / std::sqrt(48.0), 1e-6);
  EXPECT_EQ(a.rope.magnitude, 1.0);
}

TEST(LatentSpec, OlderFilesHaveOneMatrixForKeysAndValues) {
  ModelFile file(test::tiny_deepseek2());
  older_keys(&file);
  for (uint32_t i = 0; i < 3; ++i) {
    const std::string p = "blk." + std::to_string(i) + ".";
    file.erase_tensor(p + "attn_k_b.weight").erase_tensor(p + "attn_v_b.weight");
    file.add_tensor(p + "attn_kv_b.weight", GgmlType::kF32, {48, 224});
  }
  const auto s = latent_model(file);
  ASSERT_TRUE(s);
  const AttentionSpec& a = s->layers[1].attention;
  for (const TensorRef* t : {&a.latent.k_b, &a.latent.v_b})
    EXPECT_EQ(t->tensor->part_of, "blk.1.attn_kv_b.weight");
  EXPECT_EQ(a.latent.k_b.tensor->ne, (std::array<uint64_t, 4>{32, 48, 4, 1}));
  EXPECT_EQ(a.latent.v_b.tensor->ne, (std::array<uint64_t, 4>{48, 24, 4, 1}));
  EXPECT_EQ(a.n_kv_heads, 1u);
  EXPECT_EQ(a.head_dim, 64u);
}

TEST(LatentSpec, BothFormsOfOneMatrixAreNoReasonToRefuse) {
  ModelFile file(test::tiny_deepseek2());
  for (const char* name : {"blk.0.attn_kv_b.weight", "blk.1.attn_kv_b.weight"})
    file.add_tensor(name, GgmlType::kF32, {48, 224});
  EXPECT_TRUE(latent_model(file));
}

TEST(LatentSpec, ModelsWithoutExpertsAreDense) {
  test::ModelRecipe recipe = test::tiny_deepseek2();
  recipe.n_dense = recipe.n_layers;
  recipe.q_rank = 0;
  ModelFile file(recipe);
  for (const char* key : {"expert_count", "expert_used_count", "leading_dense_block_count"})
    file.erase_key(key);
  const auto s = latent_model(file);
  ASSERT_TRUE(s);
  for (const LayerSpec& l : s->layers) EXPECT_EQ(l.ffn.kind, FfnKind::kDense);
  EXPECT_FALSE(s->layers[0].attention.latent.q_a);
  EXPECT_EQ(s->layers[0].attention.q.n_in, 64u);
}

}  // namespace
}  // namespace sharpi
