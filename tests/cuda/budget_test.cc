// SPDX-License-Identifier: MIT
// What the published geometries take on an H200 of which 12 GiB, or the 10 854 MiB that such a card
// has free, may be used: all rows of both tiers, from their own sizing functions. No device is
// needed; bench/scenario_bench takes the same on one.
#include <gtest/gtest.h>

#include "cpu/cpu_backend.h"
#include "cuda/cuda_backend.h"
#include "cuda/device.h"
#include "plan/placement.h"
#include "plan/plan.h"
#include "support/real_models.h"
#include "support/tiny_model.h"

namespace sharpi {
namespace {

constexpr uint64_t kMiB = 1ull << 20, kGiB = 1ull << 30;
constexpr uint64_t kBudgets[] = {12 * kGiB, 10854 * kMiB};

struct Request {
  uint64_t budget = 12 * kGiB;
  uint32_t n_ctx = 4096;
  sharpi_kv_dtype kv = SHARPI_KV_AUTO;
  int32_t layers = -1, ffn = -1, ends = -1, slots = -1;
  uint32_t capture_window = SHARPI_UNSET;
};

class Budget : public ::testing::Test {
 protected:
  void SetUp() override {
    cpu::CpuBackendOptions options;
    options.n_threads = 1;
    auto host = cpu::make_backend(options);
    ASSERT_TRUE(host.is_ok()) << host.status().text();
    host_ = host.take();
    const cuda::DeviceProperties h200{cuda::find_card("9.0")->profile, 141 * kGiB, "H200 on paper"};
    device_ = cuda::make_backend(std::make_shared<cuda::Device>(1, h200));
  }
  Result<std::shared_ptr<const Plan>> plan(const std::shared_ptr<const ModelSpec>& spec,
                                           const Request& r) const {
    sharpi_session_params s;
    sharpi_session_params_init(&s, sizeof s);
    s.n_ctx = r.n_ctx;
    s.k_dtype = s.v_dtype = r.kv;
    s.capture_window = r.capture_window;
    sharpi_plan_params p;
    sharpi_plan_params_init(&p, sizeof p);
    p.n_chunk = 512;  // an automatic one would take what room there is
    p.n_gpu_layers = r.layers;
    p.n_gpu_ffn = r.ffn;
    p.gpu_ends = r.ends;
    p.n_expert_slots = r.slots;
    p.device_budget = r.budget;
    p.session = &s;
    return make_plan(spec, {&host_->sizer(), &device_->sizer()}, p, {});
  }
  std::shared_ptr<const Plan> must(const std::shared_ptr<const ModelSpec>& spec,
                                   const Request& r) const {
    auto made = plan(spec, r);
    EXPECT_TRUE(made.is_ok()) << made.status().text();
    return made.is_ok() ? made.take() : nullptr;
  }
  std::unique_ptr<Backend> host_, device_;
};

uint64_t held(const Plan& plan, uint32_t purpose, bool device) {
  uint64_t n = 0;
  for (const MemoryRow& r : plan.rows) {
    const bool there = r.kind == SHARPI_ROW_DEVICE;
    if (r.purpose == purpose && there == device && r.transient == 0) n += r.held_bytes;
  }
  return n;
}

TEST_F(Budget, Gemma12BFitsTwelveGiBWhole) {
  const auto spec = test::real_spec(test::real_gemma4_12b(), GgmlType::kQ4_0);
  Request r{.n_ctx = 131072, .layers = 48, .ffn = 48, .ends = 1};
  uint64_t f32 = 0;
  for (const sharpi_kv_dtype kv : {SHARPI_KV_F32, SHARPI_KV_BF16, SHARPI_KV_Q8_0}) {
    r.kv = kv;
    r.layers = r.ffn = r.ends = -1;
    const auto p = must(spec, r);
    const sharpi_plan_summary s = p->summary();
    RecordProperty(("device_mib_" + std::to_string(kv)).c_str(),
                   std::to_string(s.device_held_bytes / kMiB));
    EXPECT_EQ(s.n_gpu_layers, 48u) << kv;
    EXPECT_EQ(s.n_gpu_ffn, 48u) << kv;
    EXPECT_EQ(p->placement.head, DeviceIndex::kHere);
    EXPECT_TRUE(p->fallbacks.empty());
    EXPECT_LE(s.device_peak_bytes, 12 * kGiB);
    if (kv == SHARPI_KV_F32) f32 = s.device_held_bytes;
  }
  EXPECT_GT(f32, 10854 * kMiB);
  EXPECT_NEAR(static_cast<double>(f32) / static_cast<double>(kGiB), 11.4, 0.2);
  r = {.budget = 10854 * kMiB,
       .n_ctx = 131072,
       .kv = SHARPI_KV_F32,
       .layers = 48,
       .ffn = 48,
       .ends = 1};
  const auto refused = plan(spec, r);
  ASSERT_FALSE(refused.is_ok());
  EXPECT_EQ(refused.status().code(), Code::kDoesNotFit);
  EXPECT_NE(refused.status().text().find(std::to_string(f32 - 10854 * kMiB) + " more than"),
            std::string::npos)
      << refused.status().text();
  r.kv = SHARPI_KV_AUTO;
  EXPECT_EQ(must(spec, r)->summary().k_dtype, SHARPI_KV_BF16);
  EXPECT_TRUE(must(spec, r)->narrowed);
  r.budget = 12 * kGiB;
  r.n_ctx = 262144;
  EXPECT_TRUE(must(spec, r)->narrowed);
  r.kv = SHARPI_KV_F32;
  EXPECT_FALSE(plan(spec, r).is_ok());
}

TEST_F(Budget, KvPayloadsAreExactAndHeldBytesAreWholeHandles) {
  const struct {
    test::ModelRecipe recipe;
    uint32_t n_ctx;
    sharpi_kv_dtype kv;
    uint64_t mib;
  } cases[] = {{test::real_qwen3_coder_30b_a3b(), 32768, SHARPI_KV_F32, 6144},
               {test::real_qwen3_coder_30b_a3b(), 32768, SHARPI_KV_Q8_0, 1632},
               {test::real_qwen36_27b(), 4096, SHARPI_KV_F32, 512},
               {test::real_qwen36_27b(), 4096, SHARPI_KV_BF16, 256},
               {test::real_qwen36_35b_a3b(), 4096, SHARPI_KV_F32, 160},
               {test::real_qwen36_35b_a3b(), 4096, SHARPI_KV_BF16, 80}};
  for (const auto& c : cases) {
    const auto spec = test::real_spec(c.recipe);
    for (const uint64_t budget : kBudgets) {
      const auto p = must(spec, {.budget = budget, .n_ctx = c.n_ctx, .kv = c.kv});
      const sharpi_plan_summary s = p->summary();
      EXPECT_EQ(s.kv_payload_bytes, c.mib * kMiB);
      EXPECT_EQ(s.n_gpu_layers, spec->n_layers());
      EXPECT_LE(s.device_peak_bytes, budget);
      const uint64_t kv = held(*p, SHARPI_ROW_KV, true);
      EXPECT_GE(kv, c.mib * kMiB);
      EXPECT_LT(kv, c.mib * kMiB + 33 * kMiB);
      EXPECT_EQ(kv % (2 * kMiB), 0u);
    }
  }
}

TEST_F(Budget, NarrowRowsOf27BBringFfnBlocks) {
  const auto spec = test::real_spec(test::real_qwen36_27b());
  const FfnSpec& f = spec->layers[0].ffn;
  const uint64_t block = f.gate.bytes() + f.up.bytes() + f.down.bytes();
  ASSERT_GE(256 * kMiB / block, 1u);
  for (const uint64_t budget : kBudgets) {
    const auto wide = must(spec, {.budget = budget, .kv = SHARPI_KV_F32})->summary();
    const auto narrow = must(spec, {.budget = budget, .kv = SHARPI_KV_BF16})->summary();
    EXPECT_GE(narrow.n_gpu_ffn - wide.n_gpu_ffn, 256 * kMiB / block);
    EXPECT_LE(narrow.n_gpu_ffn - wide.n_gpu_ffn, 256 * kMiB / block + 1);
    EXPECT_GT(wide.n_gpu_ffn, 0u);
    EXPECT_LT(narrow.n_gpu_ffn, 64u);
  }
}

TEST_F(Budget, ExpertSlotsFillWhatIsLeft) {
  for (const auto& [recipe, n_ctx] : {std::pair{test::real_qwen3_coder_30b_a3b(), 32768u},
                                      std::pair{test::real_qwen36_35b_a3b(), 4096u}}) {
    const auto spec = test::real_spec(recipe);
    for (const uint64_t budget : kBudgets) {
      const auto with = [&](sharpi_kv_dtype kv) {
        return must(spec, {.budget = budget, .n_ctx = n_ctx, .kv = kv, .ends = 1});
      };
      const auto wide = with(SHARPI_KV_F32), narrow = with(SHARPI_KV_Q8_0);
      const sharpi_plan_summary w = wide->summary(), n = narrow->summary();
      ASSERT_GT(w.expert_slot_bytes, 0u) << "the device computes no single experts";
      EXPECT_EQ(w.n_gpu_ffn, spec->n_layers());
      EXPECT_EQ(w.n_gpu_experts, 0u);
      EXPECT_GT(w.n_expert_slots, 0u);
      const uint64_t freed = held(*wide, SHARPI_ROW_KV, true) - held(*narrow, SHARPI_ROW_KV, true);
      const uint64_t more = n.n_expert_slots - w.n_expert_slots;
      EXPECT_GE(more, freed / w.expert_slot_bytes);
      EXPECT_LE(more, freed / w.expert_slot_bytes + 1);
      for (const Plan* p : {wide.get(), narrow.get()}) {
        Request one_more{.budget = budget, .n_ctx = n_ctx};
        one_more.kv = p == wide.get() ? SHARPI_KV_F32 : SHARPI_KV_Q8_0;
        one_more.layers = one_more.ffn = static_cast<int32_t>(spec->n_layers());
        one_more.ends = 1;
        one_more.slots = static_cast<int32_t>(p->placement.n_expert_slots);
        EXPECT_TRUE(plan(spec, one_more).is_ok());
        one_more.slots += 1;
        EXPECT_FALSE(plan(spec, one_more).is_ok());
      }
    }
  }
}

TEST_F(Budget, WeightsAreAtFileSizeAndGapsUnderAThousandth) {
  for (const test::ModelRecipe& recipe :
       {test::real_qwen3_8b(), test::real_gemma4_12b(), test::real_gemma4_e4b(),
        test::real_olmoe_1b_7b(), test::real_qwen36_27b(), test::real_qwen36_35b_a3b()}) {
    const auto spec = test::real_spec(recipe);
    const auto layers = static_cast<int32_t>(spec->n_layers());
    const auto p = must(spec, {.budget = 140 * kGiB, .layers = layers, .ffn = layers, .ends = 1});
    uint64_t weights = 0, gaps = 0;
    for (const MemoryRow& r : p->rows) {
      if (r.purpose != SHARPI_ROW_WEIGHTS || r.kind != SHARPI_ROW_DEVICE) continue;
      const bool gap = std::string(r.label) == "alignment of weights";
      (gap ? gaps : weights) += r.held_bytes;
    }
    uint64_t in_file = 0;
    for (const GgufTensor& t : spec->file->tensors()) in_file += t.bytes;
    EXPECT_GT(weights, 0u) << recipe.arch;
    EXPECT_LE(weights, in_file) << recipe.arch;
    EXPECT_LT(static_cast<double>(gaps), 1e-3 * static_cast<double>(weights)) << recipe.arch;
  }
}

TEST_F(Budget, StagingIsListedAndLowersNoTotal) {
  const auto spec = test::real_spec(test::real_qwen3_8b());
  const auto p = must(spec, {.budget = 140 * kGiB, .n_ctx = 4096});
  uint64_t transient = 0, kept = 0;
  for (const MemoryRow& r : p->rows) {
    if (r.kind != SHARPI_ROW_DEVICE) continue;
    (r.transient != 0 ? transient : kept) += r.held_bytes;
  }
  EXPECT_EQ(transient, 64 * kMiB) << "two areas of 32 MiB";
  EXPECT_EQ(p->summary().device_held_bytes, kept);
  EXPECT_EQ(p->summary().device_peak_bytes, kept) << "activations and a session take more later";
}

TEST_F(Budget, ACompactionThatIsPricedHasItsListsInThePlan) {
  const auto spec = test::real_spec(test::real_qwen3_8b());
  const auto without = must(spec, {.budget = 140 * kGiB, .n_ctx = 16384});
  const auto with = must(spec, {.budget = 140 * kGiB, .n_ctx = 16384, .capture_window = 64});
  EXPECT_EQ(held(*without, SHARPI_ROW_COMPACTION, true), 0u);
  // A list for every KV head of every layer, and some jobs.
  EXPECT_GE(held(*with, SHARPI_ROW_COMPACTION, true), 36ull * 8 * 16384 * 4);
}

TEST_F(Budget, HeadsThatNoKernelTakesAreRefusedByName) {
  test::ModelRecipe recipe = test::tiny_qwen3();
  for (const uint32_t dim :
       {32u, 48u, 72u, 112u, 160u, 192u, 320u, 64u, 80u, 96u, 128u, 256u, 512u}) {
    recipe.head_dim = dim;
    const auto spec = test::real_spec(recipe, GgmlType::kF32);
    const bool taken =
        dim == 64 || dim == 80 || dim == 96 || dim == 128 || dim == 256 || dim == 512;
    const auto made = plan(spec, {.n_ctx = 256, .layers = 2});
    ASSERT_EQ(made.is_ok(), taken) << dim;
    if (taken) continue;
    EXPECT_EQ(made.status().code(), Code::kUnsupported);
    const std::string want = "heads of " + std::to_string(dim) + " elements";
    EXPECT_NE(made.status().text().find(want), std::string::npos) << made.status().text();
    // Not pinned: the plan takes the CPU and says why.
    const auto automatic = must(spec, {.n_ctx = 256});
    EXPECT_EQ(automatic->summary().n_gpu_layers, 0u);
    ASSERT_EQ(automatic->fallbacks.size(), 1u);
    EXPECT_NE(automatic->fallbacks[0].find(want), std::string::npos);
  }
}

TEST_F(Budget, ADeviceOnPaperTakesNothing) {
  test::ModelRecipe recipe = test::tiny_qwen3();
  recipe.head_dim = 64;
  const auto p = must(test::real_spec(recipe, GgmlType::kF32), {.n_ctx = 256});
  const auto loaded = device_->load(p, {});
  ASSERT_FALSE(loaded.is_ok());
  EXPECT_EQ(loaded.status().code(), Code::kUnsupported);
  EXPECT_NE(loaded.status().text().find("H200 on paper"), std::string::npos);
}

}  // namespace
}  // namespace sharpi
