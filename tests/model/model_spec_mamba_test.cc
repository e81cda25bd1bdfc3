// SPDX-License-Identifier: MIT
// Hybrids with Mamba-2: what their files say is in the spec, and files with pieces missing, with
// more than they should have or with shapes that disagree are refused.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "refusal.h"

namespace sharpi {
namespace {

using test::ModelFile;

constexpr const char* kIn = "blk.0.ssm_in.weight";

const Refusal kMambaTensors[] = {
    {"NoProjections",
     test::tiny_granite,
     [](ModelFile& f) { f.erase_tensor(kIn); },
     Code::kFormat,
     {"\"blk.0.ssm_in.weight\" is missing", "{64, 260}"}},
    {"ProjectionsOfAnotherWidth",
     test::tiny_granite,
     [](ModelFile& f) {
       f.reshape(kIn, {64, 259});
     },
     Code::kFormat,
     {"\"blk.0.ssm_in.weight\" has shape {64, 259}", "260 by 2 * granitehybrid.ssm.inner_size"}},
    {"NoConvolution",
     test::tiny_nemotron,
     [](ModelFile& f) { f.erase_tensor("blk.4.ssm_conv1d.weight"); },
     Code::kFormat,
     {"\"blk.4.ssm_conv1d.weight\" is missing"}},
    {"DecaysOfTooFewHeads",
     test::tiny_granite,
     [](ModelFile& f) {
       f.reshape("blk.1.ssm_a", {1, 3});
     },
     Code::kFormat,
     {"\"blk.1.ssm_a\"", "4 by granitehybrid.ssm.time_step_rank"}},
    {"NormOfTheWholeWidth",
     test::tiny_nemotron,
     [](ModelFile& f) { f.reshape("blk.0.ssm_norm.weight", {64}); },
     Code::kFormat,
     {"\"blk.0.ssm_norm.weight\"", "32 by nemotron_h_moe.ssm.inner_size / "}},
    {"StepsNotInF32",
     test::tiny_granite,
     [](ModelFile& f) { f.retype("blk.0.ssm_dt.bias", GgmlType::kF16); },
     Code::kUnsupported,
     {"\"blk.0.ssm_dt.bias\" has type"}},
    {"AttentionInAMambaLayer",
     test::tiny_granite,
     [](ModelFile& f) {
       f.add_tensor("blk.0.attn_q.weight", GgmlType::kF32, {64, 128});
     },
     Code::kUnsupported,
     {"blk.0.attn_q.weight"}},
    {"AGateOfExpertsThatHaveNone",
     test::tiny_nemotron,
     [](ModelFile& f) {
       f.add_tensor("blk.1.ffn_gate_exps.weight", GgmlType::kF32, {64, 32, 8});
     },
     Code::kUnsupported,
     {"blk.1.ffn_gate_exps.weight"}},
    {"NoChoiceBias",
     test::tiny_nemotron,
     [](ModelFile& f) { f.erase_tensor("blk.1.exp_probs_b.bias"); },
     Code::kFormat,
     {"\"blk.1.exp_probs_b.bias\" is missing"}},
    {"NoSharedExpert",
     test::tiny_granite,
     [](ModelFile& f) { f.erase_tensor("blk.2.ffn_up_shexp.weight"); },
     Code::kFormat,
     {"\"blk.2.ffn_up_shexp.weight\" is missing"}},
};

const Refusal kMambaKeys[] = {
    {"HeadsNoMultipleOfGroups",
     test::tiny_granite,
     [](ModelFile& f) { f.set("ssm.group_count", 3u); },
     Code::kFormat,
     {"granitehybrid.ssm.time_step_rank is 4, not a multiple of granitehybrid.ssm.group_count"}},
    {"WidthNoMultipleOfHeads",
     test::tiny_granite,
     [](ModelFile& f) { f.set("ssm.inner_size", 66u); },
     Code::kFormat,
     {"granitehybrid.ssm.inner_size is 66, not a multiple of"}},
    {"HugeHeads",
     test::tiny_granite,
     [](ModelFile& f) { f.set("ssm.inner_size", 8192u); },
     Code::kFormat,
     {"gives heads of 2048"}},
    {"NoStates",
     test::tiny_nemotron,
     [](ModelFile& f) { f.erase_key("ssm.state_size"); },
     Code::kFormat,
     {"nemotron_h_moe.ssm.state_size is missing"}},
    {"HugeStates",
     test::tiny_nemotron,
     [](ModelFile& f) { f.set("ssm.state_size", 1025u); },
     Code::kFormat,
     {"nemotron_h_moe.ssm.state_size is 1025"}},
    {"AttentionAndAnFfnInOneLayer",
     test::tiny_nemotron,
     [](ModelFile& f) {
       f.set_array("attention.head_count_kv", std::vector<int32_t>{0, 2, 2, 0, 0, 0, 2});
     },
     Code::kFormat,
     {"block 1 has both attention (nemotron_h_moe.attention.head_count_kv)"}},
    {"WidthsOfAnotherNumberOfLayers",
     test::tiny_nemotron,
     [](ModelFile& f) {
       f.set_array("feed_forward_length", std::vector<int32_t>{0, 32, 0});
     },
     Code::kFormat,
     {"nemotron_h_moe.feed_forward_length has 3 elements"}},
    {"BlocksForDrafts",
     test::tiny_nemotron,
     [](ModelFile& f) { f.set("nextn_predict_layers", 1u); },
     Code::kUnsupported,
     {"nemotron_h_moe.nextn_predict_layers = 1 is not supported"}},
    {"LatentExperts",
     test::tiny_nemotron,
     [](ModelFile& f) { f.set("moe_latent_size", 16u); },
     Code::kUnsupported,
     {"nemotron_h_moe.moe_latent_size = 16 is not supported"}},
    {"ASoftmaxOfScores",
     test::tiny_nemotron,
     [](ModelFile& f) { f.set("expert_gating_func", 1u); },
     Code::kUnsupported,
     {"nemotron_h_moe.expert_gating_func = 1 is not supported"}},
    {"GroupsOfExperts",
     test::tiny_nemotron,
     [](ModelFile& f) { f.set("expert_group_count", 4u); },
     Code::kUnsupported,
     {"group-limited routing (nemotron_h_moe.expert_group_count = 4)"}},
    {"NegativeFactor",
     test::tiny_granite,
     [](ModelFile& f) { f.set("residual_scale", -1.0f); },
     Code::kFormat,
     {"granitehybrid.residual_scale is -1"}},
};

class Mamba2Files : public ::testing::TestWithParam<Refusal> {};

TEST_P(Mamba2Files, NamesWhatIsWrong) {
  expect_refused(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Tensors, Mamba2Files, ::testing::ValuesIn(kMambaTensors), refusal_name);
INSTANTIATE_TEST_SUITE_P(Keys, Mamba2Files, ::testing::ValuesIn(kMambaKeys), refusal_name);

std::shared_ptr<const ModelSpec> hybrid_of(const ModelFile& file) {
  const auto spec = test::load_model(file, /*sparse=*/true);
  EXPECT_TRUE(spec.is_ok()) << spec.status().text();
  return spec.is_ok() ? spec.value() : nullptr;
}

TEST(Mamba2Spec, OneMatrixIsTakenApartAndItsSizesAreThoseOfTheKeys) {
  const auto s = hybrid_of(ModelFile(test::tiny_granite()));
  ASSERT_TRUE(s);
  const Mamba2Spec& m = s->layers[0].mamba;
  EXPECT_EQ(m.gate.n_out, 64u);
  EXPECT_EQ(m.xbc.n_out, 64u + 2 * 2 * 32);
  EXPECT_EQ(m.dt.n_out, 4u);
  for (const TensorRef* t : {&m.gate, &m.xbc, &m.dt}) EXPECT_EQ(t->tensor->part_of, kIn);
  const Recurrence r = s->layers[0].recurrence();
  EXPECT_EQ(r.state, 4u * 16 * 32);
  EXPECT_EQ(r.conv, 3u * (64 + 2 * 2 * 32));
  EXPECT_EQ(s->layers[3].mixer, MixerKind::kAttention);
  EXPECT_FALSE(s->layers[3].is_recurrent());
}

TEST(Mamba2Spec, GranitesFactorsAreRead) {
  const auto s = hybrid_of(ModelFile(test::tiny_granite()));
  ASSERT_TRUE(s);
  EXPECT_EQ(s->embedding_scale, 1.5f);
  EXPECT_EQ(s->logit_scale, 0.5f);  // files have the divisor
  EXPECT_EQ(s->layers[0].residual_scale, 0.7f);
  EXPECT_EQ(s->layers[3].attention.scale, 0.1f);
  EXPECT_EQ(s->layers[3].attention.rope.n_rot, 0u);
}

TEST(Mamba2Spec, GraniteWithoutFactorsHasNoneAndRotates) {
  ModelFile file(test::tiny_granite());
  for (const char* key : {"attention.scale", "logit_scale", "residual_scale", "embedding_scale",
                          "rope.scaling.finetuned"}) {
    file.erase_key(key);
  }
  const auto s = hybrid_of(file);
  ASSERT_TRUE(s);
  EXPECT_EQ(s->embedding_scale * s->logit_scale * s->layers[0].residual_scale, 1.0f);
  EXPECT_NEAR(s->layers[3].attention.scale, 1 / std::sqrt(32.0), 1e-7);
  EXPECT_EQ(s->layers[3].attention.rope.n_rot, 32u);
  EXPECT_EQ(s->layers[3].attention.rope.pairs, RopePairs::kNeighbours);
}

TEST(Mamba2Spec, NemotronsLayersAreOneThingEach) {
  const auto s = hybrid_of(ModelFile(test::tiny_nemotron()));
  ASSERT_TRUE(s);
  const MixerKind mixers[] = {MixerKind::kMamba2,   MixerKind::kNone,   MixerKind::kAttention,
                              MixerKind::kNone,     MixerKind::kMamba2, MixerKind::kNone,
                              MixerKind::kAttention};
  ASSERT_EQ(s->n_layers(), 7u);
  for (uint32_t i = 0; i < 7; ++i) {
    const LayerSpec& l = s->layers[i];
    EXPECT_EQ(l.mixer, mixers[i]) << i;
    EXPECT_EQ(l.ffn.kind, i % 2 == 1 ? FfnKind::kMoe : FfnKind::kNone) << i;
    EXPECT_NE(static_cast<bool>(l.mixer_norm), static_cast<bool>(l.ffn_norm)) << i;
  }
  const FfnSpec& f = s->layers[1].ffn;
  EXPECT_EQ(f.scores, RouterScores::kSigmoid);
  EXPECT_EQ(f.share_scale, 2.5f);
  EXPECT_EQ(f.activation, Activation::kReluSquared);
  EXPECT_TRUE(f.renormalize && f.choice_bias && f.up && f.shared_up);
  EXPECT_FALSE(f.gate || f.shared_gate || f.shared_gate_inp);
}

TEST(Mamba2Spec, AConvolutionMayHaveNoBias) {
  ModelFile file(test::tiny_granite());
  for (const char* name :
       {"blk.0.ssm_conv1d.bias", "blk.1.ssm_conv1d.bias", "blk.2.ssm_conv1d.bias"})
    file.erase_tensor(name);
  const auto s = hybrid_of(file);
  ASSERT_TRUE(s);
  EXPECT_FALSE(s->layers[0].mamba.conv_bias);
}

}  // namespace
}  // namespace sharpi
