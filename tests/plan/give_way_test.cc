// SPDX-License-Identifier: MIT
// What gives way first follows from the rates: the usual order on every usual machine, another one
// where a link or a host is unlike them, and the same plan for the same rates.
#include "plan/give_way.h"

#include "plan/paper_tier.h"
#include "support/real_models.h"

namespace sharpi {
namespace {

using test::ffn_bytes;
using test::mixer_bytes;
using test::routed_bytes;
using Request = test::PaperRequest;

constexpr KvDtypePair kF32{KvDtype::kF32, KvDtype::kF32};
constexpr Rates kServer{4.2e12, 5.4e10, 1.0e11}, kCard{5.0e11, 1.3e10, 4.0e10},
    kLaptop{2.0e11, 8.0e9, 6.0e10};

SessionShape session_of(const ModelSpec& spec, uint32_t n_ctx, KvDtype kv) {
  SessionShape s;
  s.n_ctx = n_ctx;
  s.dtypes.assign(spec.layers.size(), {kv, kv});
  return s;
}

class GiveWay : public test::Solving {
 protected:
  static Request with(const Rates& rates, uint64_t device) {
    Request r{.device = device, .kv = SHARPI_KV_F32};
    r.device_rate = rates.device, r.pcie_rate = rates.pcie, r.host_rate = rates.host;
    return r;
  }
};

TEST_F(GiveWay, TheUsualOrderHoldsForEveryModelOnUsualMachines) {
  for (const test::ModelRecipe& recipe :
       {test::real_qwen3_8b(), test::real_gemma4_12b(), test::real_gemma4_e4b(),
        test::real_olmoe_1b_7b(), test::real_qwen3_coder_30b_a3b(), test::real_qwen36_27b(),
        test::real_qwen36_35b_a3b()}) {
    const auto spec = test::real_spec(recipe);
    for (const Rates& rates : {kServer, kCard, kLaptop}) {
      for (const uint32_t n_ctx : {512u, 4096u, spec->n_ctx_train}) {
        for (const KvDtype kv : kAllKvCodecs) {
          EXPECT_EQ(give_order(*spec, session_of(*spec, n_ctx, kv), kF32, rates), kUsualOrder)
              << recipe.arch << " " << n_ctx;
        }
      }
    }
  }
}

TEST_F(GiveWay, CostsAreWhatTheHeaderSays) {
  const auto spec = spec_of(test::tiny_qwen3moe());
  const SessionShape s = session_of(*spec, 1000, KvDtype::kBf16);
  double mixers = 0, ffn = 0, routed = 0, used = 0, elements = 0;
  for (const LayerSpec& l : spec->layers) {
    mixers += static_cast<double>(mixer_bytes(l));
    ffn += static_cast<double>(ffn_bytes(l));
    routed += static_cast<double>(routed_bytes(l));
    used += static_cast<double>(routed_bytes(l) / l.ffn.n_experts * l.ffn.n_used);
    elements += 2000.0 * l.attention.n_kv_heads * l.attention.head_dim;
  }
  const Rates r = kCard;
  const double slower = 1 / r.host - 1 / r.device, layers = static_cast<double>(spec->n_layers());
  const double crossing = 2 * layers * spec->n_embd * 4 / r.pcie;
  const auto cost = [&](Give kind, uint32_t given) {
    return give_cost(*spec, s, kF32, r, kind, given);
  };
  EXPECT_DOUBLE_EQ(cost(Give::kExperts, 0), (used * slower + crossing) / routed);
  EXPECT_DOUBLE_EQ(cost(Give::kFfn, 0), ((used + ffn) * slower + crossing) / (ffn + routed));
  EXPECT_DOUBLE_EQ(cost(Give::kFfn, 1), slower) << "their hidden rows cross already";
  EXPECT_NEAR(cost(Give::kLayers, 3) /
                  ((mixers * slower + 1.4 * 4 * elements / r.host - 2 * elements / r.device) /
                   (mixers + 2 * elements)),
              1.0, 1e-12);
}

TEST_F(GiveWay, ASlowLinkKeepsLayersTogether) {
  test::ModelRecipe recipe = test::tiny_qwen3();
  recipe.n_layers = 8;
  const auto spec = spec_of(recipe);
  const uint64_t all = must(spec, with(kCard, kPlenty))->summary().device_held_bytes;
  const uint64_t budget = all - ffn_bytes(spec->layers[7]) * 5 / 2;
  const auto usual = must(spec, with(kCard, budget))->summary();
  EXPECT_EQ(usual.n_gpu_layers, 8u);
  EXPECT_EQ(usual.n_gpu_ffn, 5u);
  Rates slow = kCard;
  slow.pcie = 1e6;
  const auto p = must(spec, with(slow, budget));
  const sharpi_plan_summary s = p->summary();
  EXPECT_LT(s.n_gpu_layers, 8u);
  EXPECT_EQ(s.n_gpu_ffn, s.n_gpu_layers) << "whole layers went";
  EXPECT_EQ(p->placement.head, DeviceIndex::kHere);
  EXPECT_LE(s.device_held_bytes, budget);
  EXPECT_EQ(p->json(), must(spec, with(slow, budget))->json()) << "same rates, same plan";
  // Every rung of that ladder is reached as well, the ends last.
  std::vector<bool> seen(9);
  for (uint64_t b = all; b > 0; b -= std::min(b, all / 200)) {
    const auto at = must(spec, with(slow, b));
    ASSERT_LE(at->summary().device_held_bytes, b);
    ASSERT_TRUE(at->summary().n_gpu_ffn == at->summary().n_gpu_layers ||
                at->summary().n_gpu_layers == 1);
    seen[at->summary().n_gpu_layers] = true;
  }
  EXPECT_EQ(std::count(seen.begin(), seen.end(), true), 9);
}

TEST_F(GiveWay, AHostThatIsNotSlowerMakesCrossingsCount) {
  const auto spec = test::real_spec(test::real_qwen3_coder_30b_a3b());
  const SessionShape s = session_of(*spec, 4096, KvDtype::kF32);
  const Rates unified{1e11, 1e10, 1e11};  // device memory is the host's
  const GiveOrder order = give_order(*spec, s, kF32, unified);
  for (size_t i = 1; i < order.size(); ++i) EXPECT_NE(order[i - 1], order[i]);
  EXPECT_GE(give_cost(*spec, s, kF32, unified, Give::kExperts, 0), 0.0);
  EXPECT_LT(give_cost(*spec, s, kF32, unified, Give::kExperts, 0),
            give_cost(*spec, s, kF32, kServer, Give::kExperts, 0));
}

TEST_F(GiveWay, WithoutRatesTheOrderIsTheUsualOne) {
  const auto spec = spec_of(test::tiny_qwen3());
  const SessionShape s = session_of(*spec, 512, KvDtype::kF32);
  for (const Rates& r : {Rates{0, 1e6, 1e11}, Rates{1e12, 0, 1e11}, Rates{1e12, 1e6, 0}}) {
    EXPECT_EQ(give_order(*spec, s, kF32, r), kUsualOrder);
  }
}

class SlowLink final : public PlanMachine {
 public:
  Result<Rates> measured_rates(uint32_t) const override {
    ++n_calls;
    return Rates{5.0e11, 1e6, 4.0e10};
  }
  mutable int n_calls = 0;
};

TEST_F(GiveWay, MeasuredRatesDecideWhereNoneAreGiven) {
  test::ModelRecipe recipe = test::tiny_qwen3();
  recipe.n_layers = 8;
  const auto spec = spec_of(recipe);
  const SlowLink machine;
  const Request plenty{.device = kPlenty, .kv = SHARPI_KV_F32};
  const uint64_t all = must(spec, plenty, &machine)->summary().device_held_bytes;
  EXPECT_EQ(machine.n_calls, 0) << "it fits whole";
  const uint64_t budget = all - spec->token_embd.bytes() - 1;  // what is no block has gone as well
  const Request less{.device = budget, .kv = SHARPI_KV_F32};
  const auto p = must(spec, less, &machine);
  EXPECT_GT(machine.n_calls, 0);
  EXPECT_EQ(p->summary().n_gpu_layers, 7u);
  EXPECT_EQ(p->summary().pcie_rate, 1e6);
  EXPECT_EQ(must(spec, with(kCard, budget), &machine)->summary().n_gpu_layers, 8u);
  // Nobody asks where the answer changes nothing: no block can be on the device, or one kind gives.
  const SlowLink unused;
  (void)must(spec, {.device = kPlenty, .device_budget = 1, .kv = SHARPI_KV_F32}, &unused);
  EXPECT_EQ(unused.n_calls, 0);
}

TEST_F(GiveWay, ThePlanSaysWhatATokenReadsAndForHowLong) {
  test::ModelRecipe recipe = test::tiny_qwen3();
  recipe.n_layers = 8;
  const auto spec = spec_of(recipe);
  Request r = with(kCard, kPlenty);
  r.layers = 5;
  r.kv = SHARPI_KV_BF16;
  const sharpi_plan_summary s = must(spec, r)->summary();
  const AttentionSpec& a = spec->layers[0].attention;
  const uint64_t row = 2ull * a.n_kv_heads * a.head_dim * 512;  // elements, K and V
  EXPECT_EQ(s.device_token_row_bytes, 5 * row * 2);
  EXPECT_EQ(s.host_token_row_bytes, 3 * row * 4) << "the tail is f32";
  EXPECT_DOUBLE_EQ(s.token_seconds, static_cast<double>(s.device_token_bytes) / kCard.device +
                                        static_cast<double>(s.host_token_bytes) / kCard.host);
  EXPECT_DOUBLE_EQ(
      s.full_token_seconds,
      static_cast<double>(s.device_token_bytes + s.device_token_row_bytes) / kCard.device +
          static_cast<double>(s.host_token_bytes + s.host_token_row_bytes) / kCard.host);
}

}  // namespace
}  // namespace sharpi
