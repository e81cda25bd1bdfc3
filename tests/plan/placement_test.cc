// SPDX-License-Identifier: MIT
// Where blocks go: the ladder of placements, and the solver on machines that exist only here, with
// a device of any size.
#include "plan/placement.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/memory.h"
#include "support/tiny_model.h"

namespace sharpi {
namespace {

uint64_t weight_bytes(const LayerSpec& l) {
  const AttentionSpec& a = l.attention;
  const DeltaNetSpec& d = l.delta;
  uint64_t n = a.q.bytes() + a.k.bytes() + a.v.bytes() + a.o.bytes();
  n += d.qkv.bytes() + d.gate.bytes() + d.alpha.bytes() + d.beta.bytes() + d.out.bytes();
  return n;
}
uint64_t ffn_bytes(const LayerSpec& l) {
  const FfnSpec& f = l.ffn;
  return f.gate.bytes() + f.up.bytes() + f.down.bytes() + f.router.bytes() + f.shared_gate.bytes() +
         f.shared_up.bytes() + f.shared_down.bytes();
}

/// A tier of any size that takes weights and KV rows, nothing else.
class PaperTier final : public TierSizer {
 public:
  PaperTier(TierId id, uint64_t bytes) : id_(id), bytes_(bytes) {}
  TierId tier() const override { return id_; }
  uint64_t free_bytes() const override { return bytes_; }
  uint64_t total_bytes() const override { return bytes_; }
  std::string device_name() const override { return "paper"; }
  std::vector<MemoryRow> model_rows(const ModelSpec& spec, const Placement& p, const ModelShape&,
                                    const SessionShape&) const override {
    uint64_t n = 1;
    for (size_t l = 0; l < spec.layers.size(); ++l) {
      if (p.mixer[l] == id_) n += weight_bytes(spec.layers[l]);
      if (p.ffn[l] == id_) n += ffn_bytes(spec.layers[l]);
    }
    if (p.embedding == id_) n += spec.token_embd.bytes();
    if (p.head == id_ && !spec.tied_output) n += spec.output.bytes();
    return {row(SHARPI_ROW_WEIGHTS, "weights", n)};
  }
  std::vector<MemoryRow> session_rows(const ModelSpec& spec, const Placement& p,
                                      const ModelShape& model,
                                      const SessionShape& session) const override {
    std::vector<bool> here(spec.layers.size());
    for (size_t l = 0; l < here.size(); ++l) here[l] = p.mixer[l] == id_;
    const uint32_t slots = session.capacity(model.n_chunk);
    const KvLayout layout =
        make_kv_layout(spec, here, session.dtypes, {session.n_ctx, slots, 0, model.n_chunk, false});
    uint64_t n = 0;
    for (const KvGroup& g : layout.groups) n += g.block_bytes(g.capacity);
    if (n == 0) return {};
    MemoryRow r = row(SHARPI_ROW_KV, "KV rows", n);
    r.per_session = 1;
    return {r};
  }

 private:
  MemoryRow row(uint32_t purpose, const char* label, uint64_t n) const {
    const bool device = id_ == TierId::kCuda;
    return make_row(id_, 0, purpose, device ? SHARPI_ROW_DEVICE : SHARPI_ROW_ANONYMOUS, label, n,
                    n);
  }
  TierId id_;
  uint64_t bytes_;
};

/// What plans leave to a GPU's driver of the memory that is free.
constexpr uint64_t kDriver = 256ull << 20;

struct Request {
  int32_t layers = -1, ffn = -1, slots = -1;
  uint64_t device = 0;  // bytes that plans may use of the device; 0 = there is none
  uint64_t device_budget = SHARPI_ALL_FREE;
  uint32_t n_ctx = 512;
  sharpi_kv_dtype kv = SHARPI_KV_AUTO, tail = SHARPI_KV_AUTO;
};

class Solving : public ::testing::Test {
 protected:
  static std::shared_ptr<const ModelSpec> spec_of(const test::ModelRecipe& recipe) {
    auto file = test::open_model(test::ModelFile(recipe));
    EXPECT_TRUE(file.is_ok()) << file.status().text();
    auto spec = load_model_spec(file.take());
    EXPECT_TRUE(spec.is_ok()) << spec.status().text();
    return spec.take();
  }
  static Result<std::shared_ptr<const Plan>> plan(const std::shared_ptr<const ModelSpec>& spec,
                                                  const Request& r) {
    const PaperTier host(TierId::kCpu, 1ull << 40), device(TierId::kCuda, r.device + kDriver);
    std::vector<const TierSizer*> sizers{&host};
    if (r.device != 0) sizers.push_back(&device);
    sharpi_session_params s;
    sharpi_session_params_init(&s, sizeof s);
    s.n_ctx = r.n_ctx;
    s.k_dtype = s.v_dtype = r.kv;
    s.tail_k_dtype = s.tail_v_dtype = r.tail;
    sharpi_plan_params p;
    sharpi_plan_params_init(&p, sizeof p);
    p.n_gpu_layers = r.layers;
    p.n_gpu_ffn = r.ffn;
    p.n_expert_slots = r.slots;
    p.device_budget = r.device_budget;
    p.session = &s;
    return make_plan(spec, sizers, p, {});
  }
  static std::shared_ptr<const Plan> must(const std::shared_ptr<const ModelSpec>& spec,
                                          const Request& r) {
    auto made = plan(spec, r);
    EXPECT_TRUE(made.is_ok()) << made.status().text();
    return made.is_ok() ? made.take() : nullptr;
  }
  static void refused(const std::shared_ptr<const ModelSpec>& spec, const Request& r, Code code,
                      const std::string& part) {
    const auto made = plan(spec, r);
    ASSERT_FALSE(made.is_ok()) << part;
    EXPECT_EQ(made.status().code(), code) << made.status().text();
    EXPECT_NE(made.status().text().find(part), std::string::npos) << made.status().text();
  }
  static test::ModelRecipe eight_layers() {
    test::ModelRecipe r = test::tiny_qwen3();
    r.n_layers = 8;
    return r;
  }
  static constexpr uint64_t kPlenty = 1ull << 40;
};

TEST_F(Solving, EverythingIsOnTheDeviceWhenItFits) {
  const auto spec = spec_of(eight_layers());
  const auto p = must(spec, {.device = kPlenty});
  const sharpi_plan_summary s = p->summary();
  EXPECT_EQ(s.n_gpu_layers, 8u);
  EXPECT_EQ(s.n_gpu_ffn, 8u);
  EXPECT_EQ(p->placement.head, TierId::kCuda);
  EXPECT_EQ(p->placement.embedding, TierId::kCuda);
  EXPECT_GT(s.device_held_bytes, 0u);
}

TEST_F(Solving, WithoutADeviceEverythingIsOnTheHost) {
  const auto spec = spec_of(eight_layers());
  EXPECT_EQ(must(spec, {})->summary().n_gpu_layers, 0u);
  EXPECT_EQ(must(spec, {})->summary().device_held_bytes, 0u);
  refused(spec, {.layers = 1}, Code::kUnsupported, "no CUDA device");
  refused(spec, {.ffn = 1}, Code::kUnsupported, "no CUDA device");
}

TEST_F(Solving, OneByteTooFewMovesOneFfnBlock) {
  const auto spec = spec_of(eight_layers());
  const uint64_t all = must(spec, {.device = kPlenty})->summary().device_held_bytes;
  EXPECT_EQ(must(spec, {.device = all})->summary().n_gpu_ffn, 8u);
  const auto p = must(spec, {.device = all - 1});
  EXPECT_EQ(p->summary().n_gpu_layers, 8u);
  EXPECT_EQ(p->summary().n_gpu_ffn, 7u);
  EXPECT_EQ(p->placement.ffn[7], TierId::kCpu);
  EXPECT_EQ(p->summary().device_held_bytes, all - ffn_bytes(spec->layers[7]));
}

TEST_F(Solving, EveryBudgetTakesTheFirstRungThatFits) {
  const auto spec = spec_of(eight_layers());
  const uint64_t all = must(spec, {.device = kPlenty})->summary().device_held_bytes;
  uint64_t before = all + 1;
  std::vector<bool> seen(9);
  for (uint64_t budget = all; budget > 0; budget -= std::min(budget, all / 200)) {
    const auto p = must(spec, {.device = kPlenty, .device_budget = budget});
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
  EXPECT_EQ(p->placement.mixer[4], TierId::kCuda);
  EXPECT_EQ(p->placement.mixer[5], TierId::kCpu);
  EXPECT_EQ(must(spec, {.layers = 0, .device = kPlenty})->summary().n_gpu_layers, 0u);
  EXPECT_EQ(must(spec, {.ffn = 3, .device = kPlenty})->summary().n_gpu_layers, 8u);
  refused(spec, {.layers = 9, .device = kPlenty}, Code::kInvalidArgument, "n_gpu_layers is 9");
  refused(spec, {.ffn = 9, .device = kPlenty}, Code::kInvalidArgument, "n_gpu_ffn is 9");
  refused(spec, {.layers = 2, .ffn = 3, .device = kPlenty}, Code::kInvalidArgument,
          "n_gpu_ffn is 3 and n_gpu_layers 2");
  refused(spec, {.slots = 4, .device = kPlenty}, Code::kUnsupported, "n_expert_slots is 4");
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
  // The embedding and the head give way before rows are rounded.
  const uint64_t ends = spec->token_embd.bytes() + spec->output.bytes();
  const auto exact = must(spec, {.layers = 8, .ffn = 8, .device = f32, .n_ctx = 8192});
  EXPECT_FALSE(exact->narrowed);
  EXPECT_EQ(exact->summary().k_dtype, SHARPI_KV_F32);
  EXPECT_EQ(must(spec, {.layers = 8, .ffn = 8, .device = f32 - 1, .n_ctx = 8192})->placement.head,
            TierId::kCpu);
  const auto below = must(spec, {.layers = 8, .ffn = 8, .device = f32 - ends - 1, .n_ctx = 8192});
  EXPECT_TRUE(below->narrowed);
  EXPECT_EQ(below->summary().k_dtype, SHARPI_KV_BF16);
  EXPECT_EQ(must(spec, {.layers = 8, .ffn = 8, .device = bf16 - ends - 1, .n_ctx = 8192})
                ->summary()
                .k_dtype,
            SHARPI_KV_Q8_0);
  refused(spec, {.layers = 8, .ffn = 8, .device = q8 - ends - 1, .n_ctx = 8192}, Code::kDoesNotFit,
          "1 more than");
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
