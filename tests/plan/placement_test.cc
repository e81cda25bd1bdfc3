// SPDX-License-Identifier: MIT
// Where blocks go: the ladder of placements, and the solver on machines that exist only here, with
// a device of any size.
#include "plan/placement.h"

#include "plan/paper_tier.h"

namespace sharpi {
namespace {

using test::ffn_bytes;
using test::Solving;
using Request = test::PaperRequest;

test::ModelRecipe eight_layers() {
  test::ModelRecipe r = test::tiny_qwen3();
  r.n_layers = 8;
  return r;
}

TEST_F(Solving, EverythingIsOnTheDeviceWhenItFits) {
  const auto spec = spec_of(eight_layers());
  const auto p = must(spec, {.device = kPlenty});
  const sharpi_plan_summary s = p->summary();
  EXPECT_EQ(s.n_gpu_layers, 8u);
  EXPECT_EQ(s.n_gpu_ffn, 8u);
  EXPECT_EQ(p->placement.head, DeviceIndex::kHere);
  EXPECT_EQ(p->placement.embedding, DeviceIndex::kHere);
  EXPECT_GT(s.device_held_bytes, 0u);
}

TEST_F(Solving, WithoutADeviceEverythingIsOnTheHost) {
  const auto spec = spec_of(eight_layers());
  EXPECT_EQ(must(spec, {})->summary().n_gpu_layers, 0u);
  EXPECT_EQ(must(spec, {})->summary().device_held_bytes, 0u);
  refused(spec, {.layers = 1}, Code::kUnsupported, "no GPU");
  refused(spec, {.ffn = 1}, Code::kUnsupported, "no GPU");
}

TEST_F(Solving, OneByteTooFewMovesOneFfnBlock) {
  const auto spec = spec_of(eight_layers());
  const uint64_t all = must(spec, {.device = kPlenty})->summary().device_held_bytes;
  EXPECT_EQ(must(spec, {.device = all})->summary().n_gpu_ffn, 8u);
  const auto p = must(spec, {.device = all - 1, .kv = SHARPI_KV_F32});
  EXPECT_EQ(p->summary().n_gpu_layers, 8u);
  EXPECT_EQ(p->summary().n_gpu_ffn, 7u);
  EXPECT_EQ(p->placement.ffn[7], DeviceIndex::kHost);
  EXPECT_EQ(p->summary().device_held_bytes, all - ffn_bytes(spec->layers[7]));
}

TEST_F(Solving, EveryBudgetTakesTheFirstRungThatFits) {
  const auto spec = spec_of(eight_layers());
  const uint64_t all = must(spec, {.device = kPlenty})->summary().device_held_bytes;
  uint64_t before = all + 1;
  std::vector<bool> seen(9);
  for (uint64_t budget = all; budget > 0; budget -= std::min(budget, all / 200)) {
    const auto p = must(spec, {.device = kPlenty, .device_budget = budget, .kv = SHARPI_KV_F32});
    const sharpi_plan_summary s = p->summary();
    EXPECT_LE(s.device_held_bytes, budget);
    EXPECT_LE(s.device_held_bytes, before);
    EXPECT_LE(s.n_gpu_ffn, s.n_gpu_layers);
    if (s.n_gpu_layers < 8) {
      EXPECT_EQ(s.n_gpu_ffn, 0u) << "mixers went before FFN blocks";
    }
    seen[s.n_gpu_layers] = true;
    before = s.device_held_bytes;
  }
  EXPECT_EQ(std::count(seen.begin(), seen.end(), true), 9) << "a split was never chosen";
}

TEST_F(Solving, ABudgetOfNothingIsTheCpuUnlessBlocksArePinned) {
  const auto spec = spec_of(eight_layers());
  const Request none{.device = kPlenty, .device_budget = 0};
  EXPECT_EQ(must(spec, none)->summary().n_gpu_layers, 0u);
  refused(spec, {.layers = 8, .device = kPlenty, .device_budget = 0, .kv = SHARPI_KV_F32},
          Code::kDoesNotFit, "device_budget of 0");
  refused(spec, {.layers = 8, .device = 1, .kv = SHARPI_KV_F32}, Code::kDoesNotFit,
          "more than the free memory of 1");
}

TEST_F(Solving, PinsAreHonouredOrRefused) {
  const auto spec = spec_of(eight_layers());
  const auto p = must(spec, {.layers = 5, .ffn = 2, .device = kPlenty});
  EXPECT_EQ(p->summary().n_gpu_layers, 5u);
  EXPECT_EQ(p->summary().n_gpu_ffn, 2u);
  EXPECT_EQ(p->placement.mixer[4], DeviceIndex::kHere);
  EXPECT_EQ(p->placement.mixer[5], DeviceIndex::kHost);
  EXPECT_EQ(must(spec, {.layers = 0, .device = kPlenty})->summary().n_gpu_layers, 0u);
  EXPECT_EQ(must(spec, {.ffn = 3, .device = kPlenty})->summary().n_gpu_layers, 8u);
  refused(spec, {.layers = 9, .device = kPlenty}, Code::kInvalidArgument, "n_gpu_layers is 9");
  refused(spec, {.ffn = 9, .device = kPlenty}, Code::kInvalidArgument, "n_gpu_ffn is 9");
  refused(spec, {.layers = 2, .ffn = 3, .device = kPlenty}, Code::kInvalidArgument,
          "n_gpu_ffn is 3 and n_gpu_layers is 2");
  refused(spec, {.slots = 4, .device = kPlenty}, Code::kUnsupported,
          "n_expert_slots is 4, but the model has no routed experts");
  refused(spec, {.experts = 2, .device = kPlenty}, Code::kUnsupported,
          "n_gpu_experts is 2, but the model has no routed experts");
}

TEST_F(Solving, AnAutomaticDtypeNarrowsWhereThatKeepsEveryBlockOnTheDevice) {
  test::ModelRecipe recipe = eight_layers();
  recipe.n_ctx = 16384;
  const auto spec = spec_of(recipe);
  const auto held = [&](sharpi_kv_dtype kv) {
    return must(spec, {.device = kPlenty, .n_ctx = 8192, .kv = kv})->summary().device_held_bytes;
  };
  const uint64_t f32 = held(SHARPI_KV_F32), bf16 = held(SHARPI_KV_BF16), q8 = held(SHARPI_KV_Q8_0);
  const struct {
    uint64_t device;
    sharpi_kv_dtype want;
    bool whole;
  } cases[] = {{f32, SHARPI_KV_F32, true},    {f32 - 1, SHARPI_KV_BF16, true},
               {bf16, SHARPI_KV_BF16, true},  {bf16 - 1, SHARPI_KV_Q8_0, true},
               {q8, SHARPI_KV_Q8_0, true},  // and where no dtype would, rows stay as they are
               {q8 - 1, SHARPI_KV_F32, false}};
  for (const auto& c : cases) {
    const auto p = must(spec, {.device = c.device, .n_ctx = 8192});
    const sharpi_plan_summary s = p->summary();
    EXPECT_EQ(s.k_dtype, c.want) << c.device;
    EXPECT_EQ(s.narrowed, c.want == SHARPI_KV_F32 ? 0u : 1u);
    EXPECT_EQ(s.n_gpu_layers == 8 && s.n_gpu_ffn == 8 && p->placement.head == DeviceIndex::kHere,
              c.whole);
    EXPECT_EQ(p->fallbacks.size(), c.device == f32 ? 0u : 1u) << "it is said";
  }
  // An explicit dtype is never narrowed: blocks give way.
  const auto wide = must(spec, {.device = f32 - 1, .n_ctx = 8192, .kv = SHARPI_KV_F32});
  EXPECT_EQ(wide->summary().n_gpu_ffn, 7u);
}

TEST_F(Solving, APinnedPlanNarrowsItsKvOnlyWhenItMust) {
  test::ModelRecipe recipe = eight_layers();
  recipe.n_ctx = 16384;
  const auto spec = spec_of(recipe);
  const auto held = [&](sharpi_kv_dtype kv) {
    return must(spec, {.layers = 8, .ffn = 8, .device = kPlenty, .n_ctx = 8192, .kv = kv})
        ->summary()
        .device_held_bytes;
  };
  const uint64_t f32 = held(SHARPI_KV_F32), bf16 = held(SHARPI_KV_BF16), q8 = held(SHARPI_KV_Q8_0);
  const uint64_t ends = spec->token_embd.bytes() + (spec->tied_output ? 0 : spec->output.bytes());
  const auto exact = must(spec, {.layers = 8, .ffn = 8, .device = f32, .n_ctx = 8192});
  EXPECT_FALSE(exact->narrowed);
  EXPECT_EQ(exact->summary().k_dtype, SHARPI_KV_F32);
  const auto below = must(spec, {.layers = 8, .ffn = 8, .device = f32 - 1, .n_ctx = 8192});
  EXPECT_TRUE(below->narrowed);
  EXPECT_EQ(below->summary().k_dtype, SHARPI_KV_BF16);
  EXPECT_EQ(below->placement.head, DeviceIndex::kHere);
  EXPECT_EQ(must(spec, {.layers = 8, .ffn = 8, .ends = 1, .device = bf16 - 1, .n_ctx = 8192})
                ->summary()
                .k_dtype,
            SHARPI_KV_Q8_0);
  EXPECT_EQ(
      must(spec, {.layers = 8, .ffn = 8, .device = q8 - ends, .n_ctx = 8192})->summary().k_dtype,
      SHARPI_KV_Q8_0)
      << "nothing else fits";
  refused(spec, {.layers = 8, .ffn = 8, .device = q8 - ends - 1, .n_ctx = 8192}, Code::kDoesNotFit,
          ", 1 more than");
  refused(spec,
          {.layers = 8, .ffn = 8, .device = f32 - ends - 1, .n_ctx = 8192, .kv = SHARPI_KV_F32},
          Code::kDoesNotFit, "would fit");
}

TEST_F(Solving, AnAutomaticContextGrowsOnThePlacementItGot) {
  test::ModelRecipe recipe = eight_layers();
  recipe.n_ctx = 65536;
  const auto spec = spec_of(recipe);
  const Request at{.layers = 8, .device = kPlenty, .n_ctx = 20000};
  const uint64_t bytes = must(spec, at)->summary().device_held_bytes;
  const auto p = must(spec, {.device = bytes, .n_ctx = SHARPI_UNSET});
  EXPECT_EQ(p->summary().n_gpu_ffn, 8u);
  EXPECT_GE(p->summary().n_ctx, 20000u);
  EXPECT_LT(p->summary().n_ctx, 20000u + kKvBlockSlots);
  EXPECT_LE(p->summary().device_held_bytes, bytes);
}

TEST_F(Solving, AnAutomaticContextLeavesTheHostItsMemory) {
  test::ModelRecipe recipe = eight_layers();
  recipe.n_ctx = 65536;
  const auto spec = spec_of(recipe);
  const auto p = must(spec, {.n_ctx = SHARPI_UNSET});
  EXPECT_EQ(p->summary().n_ctx, 4096u) << "more rows than weights";
  ASSERT_EQ(p->fallbacks.size(), 1u);
  EXPECT_NE(p->fallbacks[0].find("n_ctx is 4096 of 65536: without a budget"), std::string::npos)
      << p->fallbacks[0];
  EXPECT_EQ(must(spec, {.host_budget = 1ull << 40, .n_ctx = SHARPI_UNSET})->summary().n_ctx, 65536u)
      << "a budget says how much";
  // Too little memory for 512 tokens is refused, by that number and with what would help.
  const uint64_t least = must(spec, {.n_ctx = 512})->summary().host_held_bytes;
  EXPECT_EQ(must(spec, {.host_budget = least, .n_ctx = SHARPI_UNSET})->summary().n_ctx, 512u);
  const std::string text = refused(spec, {.host_budget = least - 1, .n_ctx = SHARPI_UNSET},
                                   Code::kDoesNotFit, "for n_ctx 512, the least of auto");
  EXPECT_NE(text.find("KV dtype bf16, or host_budget " + std::to_string(least)), std::string::npos)
      << text;
  EXPECT_EQ(text.find(", or n_ctx "), std::string::npos) << text;
  // What fits fewer than 512 is no advice.
  const std::string asked =
      refused(spec, {.host_budget = least - 1, .n_ctx = 8192, .kv = SHARPI_KV_F32},
              Code::kDoesNotFit, "host_budget");
  EXPECT_EQ(asked.find(", or n_ctx "), std::string::npos) << asked;
}

TEST_F(Solving, ChunksAreAsLargeAsPaysAndFits) {
  test::ModelRecipe recipe = eight_layers();
  recipe.n_ctx = 8192;
  const auto spec = spec_of(recipe);
  const auto of = [&](uint64_t device, uint32_t n_ctx = 8192) {
    const auto p =
        must(spec, {.device = device, .n_ctx = n_ctx, .kv = SHARPI_KV_F32, .token_bytes = 1000});
    return p->summary();
  };
  EXPECT_EQ(of(0).n_chunk, 512u) << "without a device";
  EXPECT_EQ(of(kPlenty, 1025).n_chunk, 2048u);
  EXPECT_EQ(of(kPlenty, 1024).n_chunk, 1024u) << "no prompt is that long";
  EXPECT_EQ(of(kPlenty, 100).n_chunk, 128u);
  // Smaller chunks give way before any block does.
  uint64_t device = kPlenty;
  for (const uint32_t n : {2048u, 1024u, 512u}) {
    const sharpi_plan_summary s = of(device);
    EXPECT_EQ(s.n_chunk, n);
    EXPECT_EQ(s.n_gpu_ffn, s.n_layers) << n;
    EXPECT_EQ(of(s.device_held_bytes).n_chunk, n);
    device = s.device_held_bytes - 1;
  }
  const sharpi_plan_summary s = of(device);
  EXPECT_EQ(s.n_chunk, 512u);
  EXPECT_LT(s.n_gpu_ffn, s.n_layers);
}

TEST_F(Solving, LayersThatShareRowsStayTogether) {
  const auto spec = spec_of(test::tiny_gemma4());
  uint32_t n_splits = 0;
  for (uint32_t n = 0; n <= spec->n_layers(); ++n) n_splits += is_layer_split(*spec, n) ? 1 : 0;
  ASSERT_LT(n_splits, spec->n_layers() + 1) << "no layer shares rows";
  const uint64_t all = must(spec, {.device = kPlenty})->summary().device_held_bytes;
  for (uint64_t budget = all; budget > 0; budget -= std::min(budget, all / 100)) {
    EXPECT_TRUE(is_layer_split(*spec, must(spec, {.device = budget})->summary().n_gpu_layers));
  }
  for (uint32_t n = 1; n <= spec->n_layers(); ++n) {
    const Request r{.layers = static_cast<int32_t>(n), .device = kPlenty};
    if (is_layer_split(*spec, n)) {
      EXPECT_EQ(must(spec, r)->summary().n_gpu_layers, n);
    } else {
      refused(spec, r, Code::kUnsupported, "share KV rows");
    }
  }
}

TEST_F(Solving, TheTailKeepsWideRowsUnlessTold) {
  const auto spec = spec_of(eight_layers());
  const auto p = must(spec, {.layers = 3, .device = kPlenty, .kv = SHARPI_KV_Q8_0});
  EXPECT_EQ(p->session.dtypes[2].k, KvDtype::kQ8_0);
  EXPECT_EQ(p->session.dtypes[3].k, KvDtype::kF32);
  EXPECT_EQ(p->summary().tail_k_dtype, SHARPI_KV_F32);
  const auto told =
      must(spec, {.layers = 3, .device = kPlenty, .kv = SHARPI_KV_Q8_0, .tail = SHARPI_KV_BF16});
  EXPECT_EQ(told->session.dtypes[3].v, KvDtype::kBf16);
  const auto host = must(spec, {.layers = 0, .device = kPlenty, .kv = SHARPI_KV_Q8_0});
  EXPECT_EQ(host->session.dtypes[3].k, KvDtype::kQ8_0) << "the GPU holds no attention layer";
}

TEST_F(Solving, EqualRequestsGiveEqualPlans) {
  const auto spec = spec_of(test::tiny_qwen35());
  const uint64_t all = must(spec, {.device = kPlenty})->summary().device_held_bytes;
  const Request r{.device = all * 2 / 3};
  EXPECT_EQ(must(spec, r)->json(), must(spec, r)->json());
}

/// Rows of 24 elements: no whole block of q8_0.
ModelSpec narrow_rows() {
  ModelSpec spec;
  spec.layers.resize(4);
  for (LayerSpec& l : spec.layers) {
    l.attention.n_heads = l.attention.n_kv_heads = 1;
    l.attention.head_dim = 24;
  }
  return spec;
}

TEST(KvGeometry, LooksOnlyAtLayersStoredInThatCodec) {
  ModelSpec spec = narrow_rows();
  const std::vector<bool> all(4, true);
  std::vector<KvDtypePair> dtypes(4);
  EXPECT_TRUE(check_kv_geometry(spec, all, dtypes).is_ok());
  dtypes[2].v = KvDtype::kQ8_0;
  const Status bad = check_kv_geometry(spec, all, dtypes);
  EXPECT_EQ(bad.code(), Code::kUnsupported);
  for (const char* part : {"layer 2", "24", "32", "bf16"}) {
    EXPECT_NE(bad.text().find(part), std::string::npos) << part;
  }
  EXPECT_TRUE(check_kv_geometry(spec, {true, true, false, true}, dtypes).is_ok());
  spec.layers[2].attention.kv_source = 1;
  EXPECT_TRUE(check_kv_geometry(spec, all, dtypes).is_ok()) << "a sharing layer stores nothing";
  spec.layers[2].attention.kv_source = -1;
  spec.layers[2].mixer = MixerKind::kGatedDeltaNet;
  EXPECT_TRUE(check_kv_geometry(spec, all, dtypes).is_ok()) << "nor does a delta net";
  EXPECT_TRUE(check_kv_geometry(spec, std::vector<bool>(4), dtypes).is_ok());
}

}  // namespace
}  // namespace sharpi
