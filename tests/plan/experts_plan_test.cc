// SPDX-License-Identifier: MIT
// Routed experts in the ladder: they leave the device first, single ones come back as slots, and
// every pin is honoured or refused by name.
#include "plan/paper_tier.h"

namespace sharpi {
namespace {

using test::ffn_bytes;
using test::routed_bytes;
using Request = test::PaperRequest;

class Experts : public test::Solving {
 protected:
  void SetUp() override {
    test::ModelRecipe recipe = test::tiny_qwen35moe();
    recipe.n_layers = 8;
    spec_ = spec_of(recipe);
    all_ = must(spec_, {.device = kPlenty})->summary().device_held_bytes;
    for (const LayerSpec& l : spec_->layers) {
      routed_ += routed_bytes(l);
      slot_ = std::max(slot_, routed_bytes(l) / l.ffn.n_experts);
      n_experts_ += l.ffn.n_experts;
    }
  }
  std::shared_ptr<const ModelSpec> spec_;
  uint64_t all_ = 0, routed_ = 0, slot_ = 0;
  uint32_t n_experts_ = 0;
};

TEST_F(Experts, StayWholeWhereTheyFit) {
  const auto p = must(spec_, {.device = all_});
  EXPECT_EQ(p->summary().n_gpu_experts, 8u);
  EXPECT_EQ(p->summary().n_expert_slots, 0u);
  EXPECT_EQ(p->summary().expert_slot_bytes, slot_);
  EXPECT_TRUE(p->fallbacks.empty());
}

TEST_F(Experts, LeaveFirstAndComeBackAsManySlotsAsFit) {
  const uint64_t rest = all_ - routed_;
  uint32_t most = 0;
  for (uint64_t budget = all_ - 1; budget >= rest; budget -= std::max<uint64_t>(1, slot_ / 3)) {
    const auto p = must(spec_, {.ends = 1, .device = budget, .kv = SHARPI_KV_BF16});
    const sharpi_plan_summary s = p->summary();
    ASSERT_EQ(s.n_gpu_layers, 8u);
    ASSERT_EQ(s.n_gpu_ffn, 8u) << "routers and shared experts stay";
    ASSERT_EQ(s.n_gpu_experts, 0u);
    ASSERT_EQ(s.n_expert_slots, (budget - rest) / slot_);
    ASSERT_EQ(s.device_held_bytes, rest + s.n_expert_slots * slot_);
    ASSERT_EQ(p->fallbacks.size(), 1u);
    ASSERT_NE(p->fallbacks[0].find("the routed experts of 0 layers"), std::string::npos);
    most = std::max(most, s.n_expert_slots);
  }
  EXPECT_EQ(most, n_experts_ - 1);
  const auto below = must(spec_, {.ends = 1, .device = rest - 1, .kv = SHARPI_KV_BF16});
  EXPECT_EQ(below->summary().n_gpu_ffn, 7u) << "then FFN blocks";
  EXPECT_EQ(below->summary().n_gpu_layers, 8u);
}

TEST_F(Experts, EveryRungOfTheLadderIsTaken) {
  std::vector<bool> ffn(9), layers(9);
  for (uint64_t budget = all_; budget > 0; budget -= std::min(budget, all_ / 3000)) {
    const sharpi_plan_summary s =
        must(spec_, {.device = kPlenty, .device_budget = budget})->summary();
    ASSERT_LE(s.device_held_bytes, budget);
    ffn[s.n_gpu_ffn] = layers[s.n_gpu_layers] = true;
    ASSERT_TRUE(s.n_gpu_layers == 8 || s.n_gpu_ffn == 0);
  }
  EXPECT_EQ(std::count(ffn.begin(), ffn.end(), true), 9);
  EXPECT_EQ(std::count(layers.begin(), layers.end(), true), 9);
}

TEST_F(Experts, PinsAreHonoured) {
  const auto none = must(spec_, {.slots = 0, .device = kPlenty})->summary();
  EXPECT_EQ(none.n_gpu_experts, 0u) << "0 slots: all experts on the CPU";
  EXPECT_EQ(none.n_gpu_ffn, 8u);
  const auto few = must(spec_, {.slots = 5, .device = kPlenty})->summary();
  EXPECT_EQ(few.n_expert_slots, 5u);
  EXPECT_EQ(few.device_held_bytes, all_ - routed_ + 5 * slot_);
  const auto half = must(spec_, {.experts = 4, .device = kPlenty});
  EXPECT_EQ(half->summary().n_gpu_experts, 4u);
  EXPECT_EQ(half->placement.experts[3], DeviceIndex::kHere);
  EXPECT_EQ(half->placement.experts[4], DeviceIndex::kHost);
  EXPECT_EQ(half->summary().n_expert_slots, n_experts_ / 2) << "all others have a slot";
  const auto both = must(spec_, {.experts = 4, .slots = 3, .device = kPlenty})->summary();
  EXPECT_EQ(both.n_gpu_experts, 4u);
  EXPECT_EQ(both.n_expert_slots, 3u);
  const auto whole = must(spec_, {.experts = 8, .device = all_})->summary();
  EXPECT_EQ(whole.n_gpu_experts, 8u);
}

TEST_F(Experts, PinnedOnesMakeOtherBlocksGiveWay) {
  const uint64_t without = all_ - routed_;
  const auto p = must(spec_, {.experts = 4, .slots = 0, .device = without})->summary();
  EXPECT_EQ(p.n_gpu_experts, 4u);
  EXPECT_LT(p.n_gpu_ffn, 8u);
  EXPECT_GE(p.n_gpu_ffn, 4u);
  refused(spec_, {.experts = 8, .device = all_ / 4, .kv = SHARPI_KV_F32}, Code::kDoesNotFit,
          "more than");
}

TEST_F(Experts, PinsThatContradictEachOtherAreRefusedByName) {
  const auto bad = Code::kInvalidArgument;
  const auto total = static_cast<int32_t>(n_experts_);
  refused(spec_, {.experts = 9, .device = kPlenty}, bad,
          "n_gpu_experts is 9, but the model has only 8");
  refused(spec_, {.layers = 4, .experts = 5, .device = kPlenty}, bad,
          "n_gpu_experts is 5 and n_gpu_layers is 4");
  refused(spec_, {.ffn = 4, .experts = 5, .device = kPlenty}, bad,
          "n_gpu_experts is 5 and n_gpu_ffn is 4");
  refused(spec_, {.slots = total + 1, .device = kPlenty}, bad, "routed experts");
  refused(spec_, {.experts = 8, .slots = 1, .device = kPlenty}, bad, "no expert is left");
  refused(spec_, {.layers = 0, .slots = 1, .device = kPlenty}, bad,
          "n_expert_slots is 1 and n_gpu_layers is 0");
  refused(spec_, {.ffn = 0, .slots = 1, .device = kPlenty}, bad,
          "n_expert_slots is 1 and n_gpu_ffn is 0");
  refused(spec_, {.ffn = 3, .experts = 3, .slots = 1, .device = kPlenty}, bad,
          "n_expert_slots is 1 and n_gpu_ffn is 3");
  refused(spec_, {.ffn = 1, .slots = total, .device = kPlenty}, bad, "only 8 routed experts");
  refused(spec_, {.layers = 0, .ends = 1, .device = kPlenty}, bad, "gpu_ends is 1");
  refused(spec_, {.slots = 1}, Code::kUnsupported, "no GPU");
  refused(spec_, {.experts = 1}, Code::kUnsupported, "no GPU");
  refused(spec_, {.layers = 2, .device = kPlenty, .on_device = 0}, bad,
          "device is 0, which is the host");
  refused(spec_, {.device = kPlenty, .on_device = 7}, Code::kNotFound, "device 7 does not exist");
}

TEST_F(Experts, AModelThatTheDeviceCannotComputeIsRefusedForThatReason) {
  const char* why = "layer 3: heads of 40 elements";
  const Request asks[] = {{.layers = 1}, {.ffn = 1},  {.experts = 1},
                          {.slots = 1},  {.ends = 1}, {.on_device = 1}};
  for (Request r : asks) {
    r.device = kPlenty;
    r.cannot = why;
    const std::string text = refused(spec_, r, Code::kUnsupported, why);
    EXPECT_EQ(text.find("no GPU"), std::string::npos) << text;
  }
  // Nothing is pinned: the CPU has it all, and the plan says why.
  const auto p = must(spec_, {.device = kPlenty, .cannot = why});
  EXPECT_EQ(p->summary().device_held_bytes, 0u);
  ASSERT_EQ(p->fallbacks.size(), 1u);
  EXPECT_NE(p->fallbacks[0].find(why), std::string::npos) << p->fallbacks[0];
  EXPECT_NE(p->json().find(why), std::string::npos);
}

TEST_F(Experts, TheEndsCanBePinned) {
  const auto off = must(spec_, {.ends = 0, .device = kPlenty});
  EXPECT_EQ(off->placement.head, DeviceIndex::kHost);
  EXPECT_EQ(off->placement.embedding, DeviceIndex::kHost);
  EXPECT_EQ(off->summary().n_gpu_experts, 8u);
  const uint64_t ends = spec_->token_embd.bytes() + spec_->output.bytes();
  EXPECT_EQ(off->summary().device_held_bytes, all_ - ends);
  for (uint64_t budget = all_; budget > all_ / 8; budget -= all_ / 40) {
    const auto made = plan(spec_, {.ends = 1, .device = kPlenty, .device_budget = budget});
    ASSERT_TRUE(!made.is_ok() || made.value()->placement.head == DeviceIndex::kHere);
  }
}

TEST_F(Experts, AnAutomaticContextLeavesSlotsTheirRoom) {
  const Request at{.device = all_ - routed_ / 2, .n_ctx = 4096};
  const auto fixed = must(spec_, at)->summary();
  Request automatic = at;
  automatic.n_ctx = SHARPI_UNSET;
  const auto grown = must(spec_, automatic)->summary();
  EXPECT_EQ(grown.n_gpu_experts, 0u);
  EXPECT_EQ(grown.n_expert_slots, fixed.n_expert_slots) << "4096 is all that the model has";
}

}  // namespace
}  // namespace sharpi
