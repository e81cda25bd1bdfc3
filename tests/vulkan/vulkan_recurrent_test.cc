// SPDX-License-Identifier: MIT
// Recurrent layers of the Vulkan tier: drafts that are taken back, states that go to another tier
// while rows of drafts wait to be applied to them, checkpoints, and chunks of many rows with heads
// as wide as those of real models.
#include <algorithm>

#include "engine/engine_case.h"
#include "engine/session_blob.h"
#include "vulkan/vulkan_tier.h"

namespace sharpi::testing {
namespace {

class VulkanRecurrent : public ::testing::TestWithParam<test::ModelRecipe> {
 protected:
  void SetUp() override {
    SHARPI_NEEDS_VULKAN();
    open_file(GetParam());
  }
  void open_file(const test::ModelRecipe& recipe) {
    file_.emplace(recipe);
    auto engine = InnerEngine::open(file_->path(), &host_and_vulkan);
    ASSERT_TRUE(engine.is_ok()) << engine.status().text();
    engine_ = engine.take();
  }
  /// With all layers on a device, the CPU tier being 0.
  std::shared_ptr<Model> open(uint32_t device, const Edit& edit = {}) const {
    auto plan = engine_.plan([&](sharpi_plan_params* p, sharpi_session_params* s) {
      s->k_dtype = s->v_dtype = SHARPI_KV_F32;
      s->n_ctx = 2048;
      p->arithmetic = SHARPI_ARITHMETIC_EXACT;
      p->device = device;
      p->n_gpu_layers = device == 0 ? 0 : -1;
      p->n_chunk = 64;
      p->n_sessions = 4;
      if (edit) edit(p, s);
    });
    EXPECT_TRUE(plan.is_ok()) << plan.status().text();
    if (!plan.is_ok()) return nullptr;
    auto model = Model::load(engine_.context, plan.value(), nullptr);
    EXPECT_TRUE(model.is_ok()) << model.status().text();
    return model.is_ok() ? model.take() : nullptr;
  }
  std::unique_ptr<Session> session(const std::shared_ptr<Model>& model) const {
    return make_session(model, model->plan().session);
  }
  Logits logits(const Session& s) const { return logits_of(s, *engine_.spec); }
  int32_t best(const Session& s) const { return static_cast<int32_t>(best_of(logits(s))); }
  std::optional<MadeModel> file_;
  InnerEngine engine_;
};

void four_drafts(sharpi_plan_params*, sharpi_session_params* s) {
  s->n_draft = 4;
}

Status greedy(Session* s) {
  sharpi_sampler_params sampler;
  sharpi_sampler_params_init(&sampler, sizeof sampler);
  sampler.temperature = 0.0f;
  return s->set_sampler(sampler);
}

/// Reads the token that `plain` would draw and `n_right` right ones behind it, then wrong ones;
/// `plain` reads those that were right.
void verify_some(Session* plain, Session* s, uint32_t n_right, const ModelSpec& spec) {
  constexpr uint32_t kDrafts = 4;
  std::vector<int32_t> said;
  for (uint32_t i = 0; i <= kDrafts; ++i) {
    const auto next = static_cast<int32_t>(best_of(logits_of(*plain, spec)));
    if (i <= n_right) {
      said.push_back(next);
      decode(plain, next);
    } else {
      said.push_back((next + 1) % 64);
    }
  }
  sharpi_sample_params drawn;
  sharpi_sample_params_init(&drawn, sizeof drawn);
  uint32_t n_read = 0;
  const Status read = s->verify(said, drawn, &n_read);
  ASSERT_TRUE(read.is_ok()) << read.text();
  EXPECT_EQ(n_read, 1 + n_right);
}

/// Drafts of which some are right: what is taken back leaves no trace in the state, and the rows
/// that stay are applied in front of the next ones.
TEST_P(VulkanRecurrent, DraftsThatAreWrongLeaveNothing) {
  const auto model = open(1, &four_drafts);
  ASSERT_TRUE(model);
  const auto plain = session(model), s = session(model);
  for (Session* one : {plain.get(), s.get()}) prefill(one, file_->tokens(70));
  ASSERT_TRUE(greedy(s.get()).is_ok());
  for (const uint32_t n_right : {0u, 2u, 1u, 4u, 0u, 3u}) {
    verify_some(plain.get(), s.get(), n_right, *engine_.spec);
    EXPECT_LE(distance(logits(*plain), logits(*s)), kNear) << n_right << " were right";
    decode(plain.get(), 5);
    decode(s.get(), 5);
    EXPECT_LE(distance(logits(*plain), logits(*s)), kNear) << n_right << " were right";
  }
}

/// A session is saved while rows of drafts wait to be applied, and goes on where it is restored:
/// from the device to the CPU and back.
TEST_P(VulkanRecurrent, StatesGoToTheCpuAndBackWhileRowsArePending) {
  const auto gpu = open(1, &four_drafts), cpu = open(0, &four_drafts);
  ASSERT_TRUE(gpu && cpu);
  const auto plain = session(gpu);
  auto s = session(gpu);
  for (Session* one : {plain.get(), s.get()}) prefill(one, file_->tokens(70));
  for (const auto& to : {cpu, gpu, cpu}) {
    ASSERT_TRUE(greedy(s.get()).is_ok());
    verify_some(plain.get(), s.get(), 2, *engine_.spec);
    auto bytes = s->save_bytes();
    ASSERT_TRUE(bytes.is_ok());
    std::vector<std::byte> blob(bytes.value());
    MemorySink sink(blob.data());
    ASSERT_TRUE(s->save(&sink, blob.size()).is_ok());
    auto restored = session(to);
    MemorySource source(blob.data(), blob.size());
    const Status read = restored->restore(&source, blob.size());
    ASSERT_TRUE(read.is_ok()) << read.text();
    for (Session* one : {plain.get(), s.get(), restored.get()}) decode(one, 7);
    EXPECT_LE(distance(logits(*plain), logits(*s)), kNear);
    EXPECT_LE(distance(logits(*plain), logits(*restored)), kNear);
    s = std::move(restored);
  }
}

/// A checkpoint that is made while rows are pending has them in it.
TEST_P(VulkanRecurrent, CheckpointsComeBackAsTheyWere) {
  const auto model = open(1, [](sharpi_plan_params* p, sharpi_session_params* s) {
    four_drafts(p, s);
    s->n_checkpoints = 2;
  });
  ASSERT_TRUE(model);
  const auto plain = session(model), s = session(model);
  for (Session* one : {plain.get(), s.get()}) prefill(one, file_->tokens(70));
  ASSERT_TRUE(greedy(s.get()).is_ok());
  verify_some(plain.get(), s.get(), 2, *engine_.spec);
  const auto at = static_cast<uint32_t>(s->tokens().size());
  const Status kept = s->checkpoint(true);
  ASSERT_TRUE(kept.is_ok()) << kept.text();
  prefill(s.get(), file_->tokens(40));
  const Status back = s->truncate(at);
  ASSERT_TRUE(back.is_ok()) << back.text();
  decode(plain.get(), 9);
  decode(s.get(), 9);
  EXPECT_LE(distance(logits(*plain), logits(*s)), kNear);
}

/// As wide as real models, and more rows of a chunk than one dispatch of a recurrence takes: a
/// software device ends loops early that go round too often.
TEST_P(VulkanRecurrent, LongPromptsOfWideHeadsAreNearTheCpu) {
  test::ModelRecipe recipe = GetParam();
  if (recipe.arch == "granitehybrid") GTEST_SKIP() << "its recurrence is the other hybrid's";
  recipe.head_dim = 256;
  recipe.delta_dim = recipe.is_mamba() ? 64 : 128;
  recipe.mamba_state = 128;
  open_file(recipe);
  std::vector<Logits> got;
  for (const uint32_t device : {0u, 1u}) {
    const auto model =
        open(device, [](sharpi_plan_params* p, sharpi_session_params*) { p->n_chunk = 2048; });
    ASSERT_TRUE(model);
    const auto s = session(model);
    prefill(s.get(), file_->tokens(1100));
    got.push_back(logits(*s));
  }
  EXPECT_LE(distance(got[0], got[1]), kNear);
}

std::vector<test::ModelRecipe> recurrent_recipes() {
  test::ModelRecipe delta = test::tiny_qwen35(), odd = test::tiny_granite();
  delta.n_mtp = 0;
  // Heads and states of no round number, three taps, a group for each head.
  odd.delta_dim = 20;
  odd.mamba_state = 36;
  odd.conv_kernel = 3;
  odd.delta_k_heads = odd.delta_v_heads;
  return {delta, test::tiny_granite(), test::tiny_nemotron_dense(), odd};
}

INSTANTIATE_TEST_SUITE_P(Kinds, VulkanRecurrent, ::testing::ValuesIn(recurrent_recipes()),
                         recipe_name);

}  // namespace
}  // namespace sharpi::testing
