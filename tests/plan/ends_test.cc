// SPDX-License-Identifier: MIT
// Where the embedding and the head are when not all of a model fits a device: a table of its own
// leaves before any block, a head where a token is clearly faster for it, and no plan is slower by
// its own price than one that keeps both until last.
#include "plan/ends.h"

#include "plan/paper_tier.h"
#include "support/real_models.h"

namespace sharpi {
namespace {

using test::ffn_bytes;
using Request = test::PaperRequest;

constexpr uint64_t kOneMiB = 1ull << 20;

class EndsTest : public test::Solving {
 protected:
  static test::ModelRecipe eight(test::ModelRecipe recipe, bool tied = false) {
    recipe.n_layers = 8;
    recipe.tied = tied;
    return recipe;
  }
  static Request on_card(uint64_t device_budget, uint32_t n_ctx, sharpi_kv_dtype kv) {
    return {.device = kPlenty,
            .device_budget = device_budget,
            .n_ctx = n_ctx,
            .kv = kv,
            .device_rate = 4.5e11,
            .pcie_rate = 2.0e10,
            .host_rate = 3.5e10};
  }
  static uint64_t held(const Plan& p) { return p.summary().device_held_bytes; }
  /// Letters of the embedding and the head.
  static std::string places(const Plan& p) {
    return {device_letter(p.placement, p.placement.embedding),
            device_letter(p.placement, p.placement.head)};
  }
};

TEST_F(EndsTest, ATableOfItsOwnLeavesBeforeAnyBlock) {
  const auto spec = spec_of(eight(test::tiny_qwen3()));
  const uint64_t table = spec->token_embd.bytes();
  const auto all = must(spec, {.device = kPlenty, .kv = SHARPI_KV_F32});
  EXPECT_EQ(places(*all), "gg");
  EXPECT_TRUE(all->fallbacks.empty());
  for (const uint64_t budget : {held(*all) - 1, held(*all) - table}) {
    const auto p = must(spec, {.device = budget, .kv = SHARPI_KV_F32});
    EXPECT_EQ(places(*p), "cg");
    EXPECT_EQ(p->summary().n_gpu_ffn, 8u);
    EXPECT_EQ(held(*p), held(*all) - table);
    ASSERT_EQ(p->fallbacks.size(), 1u);
    EXPECT_EQ(p->fallbacks[0],
              "8 of 8 layers, 8 FFN blocks, the head on the GPU: more does not fit");
    EXPECT_NE(p->json().find("\"embedding_tier\": \"cpu\""), std::string::npos) << p->json();
    EXPECT_NE(p->json().find("\"head_tier\": \"cuda\""), std::string::npos);
    EXPECT_EQ(p->summary().host_token_bytes, 0u) << "a token looks one row up";
  }
  const auto less = must(spec, {.device = held(*all) - table - 1, .kv = SHARPI_KV_F32});
  EXPECT_EQ(places(*less), "cg");
  EXPECT_EQ(less->summary().n_gpu_ffn, 7u);
  EXPECT_EQ(held(*less), held(*all) - table - ffn_bytes(spec->layers[7]));
}

TEST_F(EndsTest, ATableThatIsTheHeadStaysWithIt) {
  const auto spec = spec_of(eight(test::tiny_qwen3(), /*tied=*/true));
  const uint64_t all = held(*must(spec, {.device = kPlenty, .kv = SHARPI_KV_F32}));
  const auto p = must(spec, {.device = all - 1, .kv = SHARPI_KV_F32});
  EXPECT_EQ(places(*p), "gg");
  EXPECT_EQ(p->summary().n_gpu_ffn, 7u);
  for (uint64_t budget = all; budget > 0; budget -= std::min(budget, all / 100)) {
    const auto at = must(spec, {.device = kPlenty, .device_budget = budget});
    ASSERT_EQ(at->placement.embedding, at->placement.head) << budget;
  }
}

TEST_F(EndsTest, PinsKeepBothOrNoneOrTheHead) {
  const auto spec = spec_of(eight(test::tiny_qwen3()));
  const uint64_t all = held(*must(spec, {.device = kPlenty, .kv = SHARPI_KV_F32}));
  for (uint64_t budget = all; budget > all / 2; budget -= all / 50) {
    const Request r{.device = kPlenty, .device_budget = budget, .kv = SHARPI_KV_F32};
    Request both = r, none = r, head = r, blocks = r;
    both.ends = 1, none.ends = 0, head.ends = 2, blocks.layers = blocks.ffn = 8;
    EXPECT_EQ(places(*must(spec, both)), "gg");
    EXPECT_EQ(places(*must(spec, head)), "cg");
    EXPECT_EQ(places(*must(spec, none)), "cc");
    const auto pinned = plan(spec, blocks);
    if (!pinned.is_ok()) continue;
    EXPECT_EQ(pinned.value()->summary().n_gpu_ffn, 8u);
    EXPECT_LE(held(*pinned.value()), budget);
  }
  const Request head{.ends = 2, .device = kPlenty, .kv = SHARPI_KV_F32};
  EXPECT_EQ(places(*must(spec, head)), "cg") << "where all would fit, too";
  const auto tied = plan(spec_of(eight(test::tiny_qwen3(), /*tied=*/true)), head);
  EXPECT_EQ(tied.status().code(), Code::kInvalidArgument);
  EXPECT_EQ(tied.status().text(), "gpu_ends is 2, but the embedding and the head are one tensor");
}

TEST_F(EndsTest, WhatATableFreesGoesToExpertSlots) {
  const auto spec = spec_of(eight(test::tiny_qwen3moe()));
  const uint64_t all = held(*must(spec, {.device = kPlenty, .kv = SHARPI_KV_BF16}));
  const uint64_t table = spec->token_embd.bytes();
  const auto whole = must(spec, {.device = all - table, .kv = SHARPI_KV_BF16});
  EXPECT_EQ(places(*whole), "cg");
  EXPECT_EQ(whole->summary().n_gpu_experts, 8u);
  const uint64_t budget = all - table - 1;
  const auto p = must(spec, {.device = budget, .kv = SHARPI_KV_BF16});
  const auto both = must(spec, {.ends = 1, .device = budget, .kv = SHARPI_KV_BF16});
  EXPECT_EQ(places(*p), "cg");
  EXPECT_EQ(p->summary().n_gpu_experts, 0u);
  EXPECT_GE(p->summary().n_expert_slots,
            both->summary().n_expert_slots + table / p->summary().expert_slot_bytes);
  EXPECT_EQ(p->summary().full_token_seconds, both->summary().full_token_seconds);
}

/// Without rates the bytes in the host's memory decide.
TEST_F(EndsTest, ATableLeavesWithAndWithoutRates) {
  const auto spec = test::real_spec(test::real_qwen36_27b());
  Request r = on_card(12288 * kOneMiB, 4096, SHARPI_KV_BF16);
  const auto p = must(spec, r);
  EXPECT_EQ(places(*p), "cg");
  r.device_rate = r.pcie_rate = r.host_rate = 0;
  EXPECT_EQ(p->placement, must(spec, r)->placement);
  r = on_card(12288 * kOneMiB, 4096, SHARPI_KV_BF16);
  r.ends = 1;
  const auto both = must(spec, r);
  const uint64_t freed = spec->token_embd.bytes();
  EXPECT_GE(p->summary().n_gpu_ffn, both->summary().n_gpu_ffn + freed / ffn_bytes(spec->layers[0]));
  EXPECT_LT(p->summary().full_token_seconds, 0.9 * both->summary().full_token_seconds);
}

/// Budget by budget, over models with and without a table of their own.
TEST_F(EndsTest, NoPlanIsSlowerThanOneThatKeepsBothOrNone) {
  const std::shared_ptr<const ModelSpec> specs[] = {
      test::real_spec(test::real_qwen3_8b()),
      test::real_spec(test::real_gemma4_12b(), GgmlType::kQ4_0),
      test::real_spec(test::real_qwen36_27b()), test::real_spec(test::real_qwen36_35b_a3b()),
      test::real_spec(test::real_gemma4_e4b())};
  uint32_t n_faster = 0;
  for (const auto& spec : specs) {
    for (const sharpi_kv_dtype kv : {SHARPI_KV_AUTO, SHARPI_KV_Q8_0}) {
      for (uint64_t budget = 1536; budget <= 24576; budget += 768) {
        Request r = on_card(budget * kOneMiB, 32768, kv);
        const auto p = must(spec, r);
        r.ends = 1;
        const auto both = plan(spec, r);
        r.ends = 0;
        const auto none = plan(spec, r);
        const double seconds = p->summary().full_token_seconds;
        if (both.is_ok()) {
          ASSERT_LE(seconds, both.value()->summary().full_token_seconds) << budget;
          n_faster += seconds < both.value()->summary().full_token_seconds ? 1 : 0;
        }
        if (!none.is_ok() || kv == SHARPI_KV_AUTO) continue;  // whose rows may be narrower
        ASSERT_LE(0.97 * seconds, none.value()->summary().full_token_seconds) << budget;
      }
    }
  }
  EXPECT_GT(n_faster, 50u);
}

/// Layers take their rows along, which costs the host more than the head does.
TEST_F(EndsTest, AHeadLeavesOnlyWhereATokenIsClearlyFaster) {
  const auto spec = test::real_spec(test::real_qwen3_8b());
  Request r = on_card(3584 * kOneMiB, 32768, SHARPI_KV_Q8_0);
  const auto p = must(spec, r);
  EXPECT_EQ(places(*p), "cc");
  EXPECT_EQ(p->summary().n_gpu_layers, 36u);
  EXPECT_EQ(p->fallbacks[0].find("the head"), std::string::npos) << p->fallbacks[0];
  r.ends = 1;
  const auto both = must(spec, r);
  EXPECT_LT(both->summary().n_gpu_layers, 36u);
  EXPECT_LT(p->summary().full_token_seconds, 0.97 * both->summary().full_token_seconds);

  EXPECT_TRUE(is_better(Ends::kHead, {.said = 0.99, .served = 0.99}, {.said = 1, .served = 1}));
  EXPECT_TRUE(is_better(Ends::kHead, {.said = 1, .served = 0.9}, {.said = 1, .served = 1}));
  EXPECT_FALSE(is_better(Ends::kHead, {.said = 1, .served = 1}, {.said = 1, .served = 1}));
  EXPECT_FALSE(is_better(Ends::kHead, {.said = 1.1, .served = 0.9}, {.said = 1, .served = 1}));
  EXPECT_FALSE(is_better(Ends::kNone, {.said = 0.98, .served = 0.98}, {.said = 1, .served = 1}));
  EXPECT_TRUE(is_better(Ends::kNone, {.said = 0.96, .served = 0.96}, {.said = 1, .served = 1}));
}

/// Rows that are narrower by themselves keep a whole model where it is; where they do not, the
/// table leaves, and rows are as wide as all blocks beside them allow.
TEST_F(EndsTest, NarrowerRowsGoBeforeATableOnTheHost) {
  test::ModelRecipe recipe = eight(test::tiny_qwen3());
  recipe.n_ctx = 16384;
  const auto spec = spec_of(recipe);
  const uint64_t table = spec->token_embd.bytes();
  const auto bytes = [&](sharpi_kv_dtype kv) {
    return held(*must(spec, {.device = kPlenty, .n_ctx = 4096, .kv = kv}));
  };
  const uint64_t f32 = bytes(SHARPI_KV_F32), q8 = bytes(SHARPI_KV_Q8_0);
  ASSERT_GT(f32 - q8, table);
  const auto whole = must(spec, {.device = f32 - 1, .n_ctx = 4096});
  EXPECT_EQ(places(*whole), "gg");
  EXPECT_EQ(whole->summary().k_dtype, static_cast<uint32_t>(SHARPI_KV_BF16));
  const auto parted = must(spec, {.device = q8 - 1, .n_ctx = 4096});
  EXPECT_EQ(places(*parted), "cg");
  EXPECT_EQ(parted->summary().k_dtype, static_cast<uint32_t>(SHARPI_KV_Q8_0));
  EXPECT_EQ(parted->summary().n_gpu_ffn, 8u);
  EXPECT_EQ(parted->fallbacks.size(), 2u);
  const auto split = must(spec, {.device = q8 - table - 1, .n_ctx = 4096});
  EXPECT_EQ(split->summary().k_dtype, static_cast<uint32_t>(SHARPI_KV_F32)) << "blocks went";
}

TEST_F(EndsTest, DraftersKeepTheHeadAndDoWithoutTheTable) {
  const auto spec = test::real_spec(test::real_qwen36_27b());
  ASSERT_FALSE(spec->mtp.embd);
  for (uint64_t budget = 6144; budget <= 14336; budget += 2048) {
    Request r = on_card(budget * kOneMiB, 32768, SHARPI_KV_Q8_0);
    r.drafters = SHARPI_DRAFT_MTP;
    const auto p = must(spec, r);
    EXPECT_EQ(p->placement.embedding, DeviceIndex::kHost) << budget;
    EXPECT_EQ(p->placement.head, DeviceIndex::kHere) << budget;
    r.ends = 1;
    const auto both = plan(spec, r);
    if (!both.is_ok()) continue;
    EXPECT_LT(token_cost(*p).said, token_cost(*both.value()).said) << budget;
  }
  const auto small = spec_of(eight(test::tiny_qwen3())), draft = spec_of(test::tiny_qwen3moe());
  Request r{.device = kPlenty, .kv = SHARPI_KV_F32, .drafters = SHARPI_DRAFT_MODEL, .draft = draft};
  r.device_budget = held(*must(small, r)) - 1;
  const auto p = must(small, r);
  EXPECT_EQ(places(*p), "cg");
  EXPECT_EQ(p->placement.draft, DeviceIndex::kHere);
  EXPECT_EQ(p->summary().n_gpu_ffn, 8u);
}

}  // namespace
}  // namespace sharpi
