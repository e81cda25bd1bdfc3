// SPDX-License-Identifier: MIT
// Models over several Vulkan devices, which are one device here, opened twice: wherever the layers
// are cut they give the bits of one, sessions the same saved forms, and each device holds what the
// plan says.
#include <cmath>
#include <map>

#include "api/api_handles.h"
#include "engine/engine_case.h"
#include "support/device_ladders.h"
#include "vulkan/vulkan_tier.h"

namespace sharpi::testing {
namespace {

/// The first device twice, under names of its own.
class TwoOfOne {
 public:
  TwoOfOne() {
    made_.clear();
    sharpi_context_params c;
    sharpi_context_params_init(&c, sizeof c);
    auto context = Context::create(c, [](const BackendOptions&) -> Backends {
      SHARPI_TRY_ASSIGN(std::unique_ptr<Backend> host, small_cpu());
      std::vector<std::unique_ptr<Backend>> out;
      out.push_back(std::move(host));
      std::string why;
      vulkan::PhysicalDevice physical = vulkan_device(&why)->physical();
      for (uint32_t i = 1; i <= 2; ++i) {
        physical.id = "vulkan-of-two-" + std::to_string(i);
        made_.push_back(std::make_shared<vulkan::Device>(physical, i));
        out.push_back(vulkan::make_backend(made_.back()));
      }
      return out;
    });
    EXPECT_TRUE(context.is_ok()) << context.status().text();
    auto handle = std::make_unique<sharpi_context>();
    if (context.is_ok()) handle->p = context.take();
    context_.reset(handle.release());
  }
  LadderMachine ladders() const { return {context_.get()}; }
  /// Counted where it is allocated.
  std::map<uint32_t, uint64_t> held() const {
    std::map<uint32_t, uint64_t> out;
    for (const auto& d : made_) {
      EXPECT_TRUE(d->open().is_ok());
      out[d->index()] = d->driver().allocated_bytes();
    }
    return out;
  }

 private:
  using Backends = Result<std::vector<std::unique_ptr<Backend>>>;
  inline static std::vector<std::shared_ptr<vulkan::Device>> made_;  // by the factory
  ContextPtr context_;
};

void lean(sharpi_plan_params* p, sharpi_session_params* s) {
  p->deterministic = 1;
  p->n_sessions = p->max_batch = 1;
  with_checkpoints(p, s);
}

test::ModelRecipe with_layers(test::ModelRecipe recipe, uint32_t n) {
  recipe.n_layers = n;
  return recipe;
}

class VulkanSeveral : public ::testing::TestWithParam<test::ModelRecipe> {
 protected:
  void SetUp() override { SHARPI_NEEDS_VULKAN(); }
  int32_t n() const { return static_cast<int32_t>(GetParam().n_layers); }
};

TEST_P(VulkanSeveral, GiveTheBitsOfOneAndHoldWhatThePlanSays) {
  const TwoOfOne machine;
  const MadeModel file(GetParam());
  const auto prompt = file.tokens(70);
  const Loaded one = machine.ladders().load(file.path(), {{2, n()}}, &lean);
  const auto want = talk(one, prompt);
  const auto life = session_life(one, file, nullptr);
  uint32_t n_compared = 0;
  for (const Ladder& ladder : {Ladder{{1, 1}, {2, n() - 1}}, Ladder{{2, n() - 1}, {1, 1}}}) {
    const auto before = machine.held();
    sharpi_error why = SHARPI_ERROR_INIT;
    const Loaded l = machine.ladders().try_load(file.path(), ladder, &why, &lean);
    if (!l.model) {  // layers that share KV rows stay together
      EXPECT_NE(std::string(why.text).find("KV rows"), std::string::npos) << why.text;
      continue;
    }
    ++n_compared;
    const Chat chat(l.model.get());
    std::map<uint32_t, uint64_t> planned;
    uint32_t n_handovers = 0;
    for (const sharpi_memory_row& r : rows_of_handle(sharpi_plan_rows, l.plan.get())) {
      if (r.kind == SHARPI_ROW_DEVICE && r.transient == 0) planned[r.device] += r.held_bytes;
      n_handovers += std::string(r.label) == "hidden rows between tiers" ? 1 : 0;
    }
    auto now = machine.held();
    for (const uint32_t d : {1u, 2u})
      EXPECT_EQ(now[d] - before.at(d), planned[d]) << text_of(ladder) << "device " << d;
    EXPECT_EQ(n_handovers, 2u);
    expect_same_rows(talk(l, prompt), want, text_of(ladder));
    const auto lived = session_life(l, file, nullptr);
    ASSERT_EQ(lived.size(), life.size());
    for (size_t i = 0; i < life.size(); ++i) EXPECT_TRUE(lived[i] == life[i]) << text_of(ladder);
  }
  EXPECT_GE(n_compared, 1u);
}

INSTANTIATE_TEST_SUITE_P(Kinds, VulkanSeveral,
                         ::testing::Values(with_layers(test::tiny_qwen3(), 3), test::tiny_gemma3(),
                                           with_layers(test::tiny_qwen3moe(), 3),
                                           test::tiny_qwen35(), test::tiny_granite(),
                                           test::tiny_deepseek2()),
                         recipe_name);

/// Layers on the host behind those of two devices, weights that stream, FFNs on the host between
/// them; and experts of the host in slots of each.
TEST(VulkanSeveralWays, TailsAndSlotsAreNearTheCpu) {
  SHARPI_NEEDS_VULKAN();
  const TwoOfOne machine;
  const auto exact = [](sharpi_plan_params* p, sharpi_session_params*) {
    p->arithmetic = SHARPI_ARITHMETIC_EXACT;
    p->n_sessions = p->max_batch = 1;
  };
  const MadeModel file(with_layers(test::tiny_qwen3moe(), 4));
  const auto prompt = file.tokens(60);
  const auto want = talk(machine.ladders().load(file.path(), {}, exact), prompt);
  const auto compare = [&](const Ladder& ladder, const Edit& edit, const char* what) {
    const Loaded l = machine.ladders().load(file.path(), ladder, [&](auto* p, auto* s) {
      exact(p, s);
      edit(p, s);
    });
    ASSERT_TRUE(l.model) << what;
    const auto got = talk(l, prompt);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_LE(distance(got[i], want[i]), kNear) << what;
  };
  for (const uint32_t stream : {SHARPI_UNSET, 40u}) {
    compare(
        {{2, 1}, {1, 1}},
        [=](auto* p, auto*) {
          p->n_gpu_ffn = 1;
          p->stream_rows = stream;
        },
        "tails");
  }
  compare(
      {{1, 2}, {2, 2}},
      [](auto* p, auto*) {
        p->n_gpu_experts = 0;
        p->n_expert_slots = 6;
      },
      "slots");
}

/// Random sequences of calls, on one device and over two.
TEST(VulkanSeveralWays, RandomSequencesStayTheSame) {
  SHARPI_NEEDS_VULKAN();
  const TwoOfOne machine;
  const MadeModel file(with_layers(test::tiny_qwen3(), 2));
  const Loaded one = machine.ladders().load(file.path(), {{2, 2}}, &lean);
  const Loaded two = machine.ladders().load(file.path(), {{2, 1}, {1, 1}}, &lean);
  for (uint32_t seed = 1; seed <= 4; ++seed) expect_same_sequence(one, two, file, seed, "qwen3");
}

}  // namespace
}  // namespace sharpi::testing
