// SPDX-License-Identifier: MIT
// Plans that cannot be met say what is short and what would fit, and each of those hints is true;
// budgets of any size; rates that are given, measured or not needed.
#include <cinttypes>

#include "plan/paper_tier.h"

namespace sharpi {
namespace {

using Request = test::PaperRequest;

/// The number after the last `key` of a text.
uint64_t number_after(const std::string& text, const std::string& key) {
  const size_t at = text.rfind(key);
  EXPECT_NE(at, std::string::npos) << key << " is not in: " << text;
  return at == std::string::npos ? 0 : std::strtoull(text.c_str() + at + key.size(), nullptr, 10);
}

class Refusal : public test::Solving {
 protected:
  void SetUp() override {
    test::ModelRecipe recipe = test::tiny_qwen3();
    recipe.n_layers = 8;
    recipe.n_ctx = 32768;
    spec_ = spec_of(recipe);
  }
  /// Everything pinned to the device.
  Request pinned(uint64_t budget, uint32_t n_ctx = 16384) const {
    return {.layers = 8,
            .ffn = 8,
            .ends = 1,
            .device = kPlenty,
            .device_budget = budget,
            .n_ctx = n_ctx,
            .kv = SHARPI_KV_F32};
  }
  std::shared_ptr<const ModelSpec> spec_;
};

TEST_F(Refusal, SaysWhatIsShortAndEveryHintIsTrue) {
  const uint64_t need = must(spec_, pinned(kPlenty))->summary().device_held_bytes;
  for (const uint64_t less : {uint64_t{1}, uint64_t{4096}, need / 3}) {
    const uint64_t budget = need - less;
    const std::string text =
        refused(spec_, pinned(budget), Code::kDoesNotFit,
                std::to_string(less) + " more than the device_budget of " + std::to_string(budget));
    EXPECT_NE(text.find("row \"KV rows\" with"), std::string::npos) << text;
    EXPECT_EQ(number_after(text, "or device_budget "), need);
    must(spec_, pinned(need));
    const auto n_ctx = static_cast<uint32_t>(number_after(text, "or n_ctx "));
    must(spec_, pinned(budget, n_ctx));
    refused(spec_, pinned(budget, n_ctx + 1), Code::kDoesNotFit, "more than");
    const bool bf16 = text.find("KV dtype bf16") != std::string::npos;
    EXPECT_TRUE(bf16 || text.find("KV dtype q8_0") != std::string::npos) << text;
    Request narrower = pinned(budget);
    narrower.kv = bf16 ? SHARPI_KV_BF16 : SHARPI_KV_Q8_0;
    must(spec_, narrower);
  }
}

TEST_F(Refusal, NamesFewerSessions) {
  Request four = pinned(kPlenty);
  four.n_sessions = 4;
  const uint64_t all = must(spec_, four)->summary().device_held_bytes;
  four.device_budget = all - 1;
  const std::string text = refused(spec_, four, Code::kDoesNotFit, "1 more than");
  EXPECT_EQ(number_after(text, "n_sessions "), 3u) << text;
  four.n_sessions = 3;
  must(spec_, four);
}

TEST_F(Refusal, NamesBothBudgetsWhenBothAreShort) {
  Request r = pinned(1 << 20);
  r.host_budget = 16;
  const std::string text = refused(spec_, r, Code::kDoesNotFit, "more than the device_budget");
  r.device_budget = number_after(text, "device_budget ");
  r.host_budget = number_after(text, "host_budget ");
  must(spec_, r);
}

TEST_F(Refusal, BudgetsOfNothingOneByteAndMoreThanThereIs) {
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}}) {
    refused(spec_, pinned(bytes), Code::kDoesNotFit,
            "more than the device_budget of " + std::to_string(bytes));
    Request host = pinned(kPlenty);
    host.host_budget = bytes;
    refused(spec_, host, Code::kDoesNotFit,
            "more than the host_budget of " + std::to_string(bytes));
    // Nothing is pinned there: the plan goes to the CPU and says so.
    const auto p = must(spec_, {.device = kPlenty, .device_budget = bytes});
    EXPECT_EQ(p->summary().n_gpu_layers, 0u);
    ASSERT_EQ(p->fallbacks.size(), 1u);
    EXPECT_NE(p->fallbacks[0].find("everything on the CPU"), std::string::npos);
  }
  Request much = pinned(2 * kPlenty);
  EXPECT_NE(refused(spec_, much, Code::kInvalidArgument, "device_budget is").find("paper has"),
            std::string::npos);
  much = pinned(kPlenty);
  much.host_budget = (1ull << 40) + 1;
  refused(spec_, much, Code::kInvalidArgument, "host_budget is 1099511627777 bytes");
}

/// Cards in one machine: the first that holds the model is taken, or the one that is named, and
/// whatever is said of it names it. One that cannot compute the model is left out, not in silence.
TEST_F(Refusal, OfTwoCardsThePlanNamesWhich) {
  const test::PaperTier host(TierId::kCpu, kPlenty);
  const test::PaperTier small(TierId::kCuda, test::kDriverShare + 1000, nullptr, "Small Card", 1);
  const test::PaperTier large(TierId::kCuda, kPlenty, nullptr, "Large Card", 2);
  const test::PaperTier odd(TierId::kCuda, kPlenty, "Odd Card cannot", "Odd Card", 3);
  const auto plan = [&](uint32_t device, int32_t layers) {
    sharpi_session_params s;
    sharpi_session_params_init(&s, sizeof s);
    s.n_ctx = 512;
    sharpi_plan_params p;
    sharpi_plan_params_init(&p, sizeof p);
    p.device = device;
    p.n_gpu_layers = layers;
    p.session = &s;
    return make_plan(spec_, {&host, &small, &large, &odd}, p, {});
  };
  const auto made = plan(1, 8);
  ASSERT_FALSE(made.is_ok());
  EXPECT_EQ(made.status().code(), Code::kDoesNotFit);
  EXPECT_NE(made.status().text().find("of device memory on Small Card (device 1), "),
            std::string::npos)
      << made.status().text();
  for (const uint32_t device : {SHARPI_UNSET, 2u}) {
    const auto whole = plan(device, 8);
    ASSERT_TRUE(whole.is_ok()) << whole.status().text();
    EXPECT_EQ(whole.value()->placement.route(), std::vector{DeviceIndex{2}});
    for (const MemoryRow& r : whole.value()->rows) {
      EXPECT_EQ(r.device, r.kind == SHARPI_ROW_DEVICE ? 2u : 0u) << r.label;
    }
    if (device == 2) continue;
    const auto rows = whole.value()->device_rows();
    ASSERT_EQ(rows.size(), 4u);
    EXPECT_STREQ(rows[3].refusal, "Odd Card cannot");
    EXPECT_STREQ(rows[2].refusal, "");
    ASSERT_EQ(whole.value()->fallbacks.size(), 1u);
    EXPECT_EQ(whole.value()->fallbacks[0], "device 3 (Odd Card) is left out: Odd Card cannot");
  }
  const auto cannot = plan(3, 8);
  ASSERT_FALSE(cannot.is_ok());
  EXPECT_EQ(cannot.status().text(), "Odd Card cannot");
  const auto none = plan(4, 8);
  ASSERT_FALSE(none.is_ok());
  EXPECT_EQ(none.status().code(), Code::kNotFound);
  EXPECT_NE(none.status().text().find("device 4 does not exist"), std::string::npos);
  // Nothing pinned: a card with less memory than the least that a placement takes is left alone.
  const auto automatic = plan(1, -1);
  ASSERT_TRUE(automatic.is_ok()) << automatic.status().text();
  EXPECT_EQ(automatic.value()->summary().n_gpu_layers, 0u);
  ASSERT_FALSE(automatic.value()->fallbacks.empty());
}

TEST_F(Refusal, WhatAutoGaveUpIsListed) {
  Request r = pinned(kPlenty);
  EXPECT_TRUE(must(spec_, r)->fallbacks.empty());
  r.device_budget = must(spec_, r)->summary().device_held_bytes - 1;
  r.kv = SHARPI_KV_AUTO;
  const auto narrowed = must(spec_, r);
  ASSERT_EQ(narrowed->fallbacks.size(), 1u);
  EXPECT_EQ(narrowed->fallbacks[0],
            "KV rows are bf16, not f32: n_ctx 16384 does not fit otherwise");
  EXPECT_EQ(narrowed->summary().n_fallbacks, 1u);
  r.layers = r.ffn = r.ends = -1;
  const auto whole = must(spec_, r);
  ASSERT_EQ(whole->fallbacks.size(), 1u);
  EXPECT_EQ(whole->fallbacks[0],
            "KV rows are bf16, not f32: n_ctx 16384 does not fit with all blocks on the GPU "
            "otherwise");
  r.kv = SHARPI_KV_F32;
  const auto moved = must(spec_, r);
  EXPECT_FALSE(moved->narrowed) << "an explicit dtype stays";
  ASSERT_EQ(moved->fallbacks.size(), 1u);
  EXPECT_NE(moved->fallbacks[0].find("8 of 8 layers, 7 FFN blocks"), std::string::npos)
      << moved->fallbacks[0];
  EXPECT_NE(moved->json().find(moved->fallbacks[0]), std::string::npos);
}

TEST_F(Refusal, LayersAreDescribedAsPlaced) {
  const auto p = must(
      spec_,
      {.layers = 5, .ffn = 2, .device = kPlenty, .kv = SHARPI_KV_Q8_0, .tail = SHARPI_KV_BF16});
  for (uint32_t l = 0; l < 8; ++l) {
    sharpi_layer_info info{};
    ASSERT_TRUE(describe_layer(*p, l, &info).is_ok());
    EXPECT_EQ(info.tier, l < 5 ? SHARPI_TIER_CUDA : SHARPI_TIER_CPU);
    EXPECT_EQ(info.ffn_tier, l < 2 ? SHARPI_TIER_CUDA : SHARPI_TIER_CPU);
    EXPECT_EQ(info.experts_tier, 0u);
    EXPECT_EQ(info.k_dtype, l < 5 ? SHARPI_KV_Q8_0 : SHARPI_KV_BF16);
    EXPECT_EQ(info.capacity, 512u);
  }
  const std::string json = p->json();
  for (const char* part : {"\"layers\": [0, 1]", "\"layers\": [2, 3, 4]", "\"layers\": [5, 6, 7]"})
    EXPECT_NE(json.find(part), std::string::npos) << json;
}

class CountingMachine final : public PlanMachine {
 public:
  Result<Rates> measured_rates(uint32_t device) const override {
    ++n_calls;
    EXPECT_EQ(device, 1u);
    return Rates{3e12, 5e10, 1e11};
  }
  mutable int n_calls = 0;
};

TEST_F(Refusal, RatesAreMeasuredOnlyWhereBothTiersWorkAndNoneAreGiven) {
  const CountingMachine machine;
  EXPECT_EQ(must(spec_, {.device = kPlenty}, &machine)->rates.device, 0.0);
  EXPECT_EQ(must(spec_, {}, &machine)->rates.host, 0.0);
  EXPECT_EQ(machine.n_calls, 0);
  const auto split = must(spec_, {.layers = 4, .device = kPlenty}, &machine);
  EXPECT_EQ(machine.n_calls, 1);
  EXPECT_EQ(split->summary().pcie_rate, 5e10);
  EXPECT_NE(split->json().find("\"host_rate\": 100000000000"), std::string::npos);
  Request given{.layers = 4, .device = kPlenty};
  given.device_rate = 1e12, given.pcie_rate = 2e10, given.host_rate = 4e10;
  const auto told = must(spec_, given, &machine);
  EXPECT_EQ(machine.n_calls, 1);
  EXPECT_EQ(told->rates.pcie, 2e10);
  const auto bytes_of = [&](DeviceIndex at) {
    return token_bytes(*spec_, told->placement, told->session, at).weights;
  };
  uint64_t device = spec_->output.bytes(), host = 0;  // of the embedding a token reads one row
  for (uint32_t l = 0; l < 8; ++l) {
    const LayerSpec& layer = spec_->layers[l];
    (l < 4 ? device : host) += test::mixer_bytes(layer) + test::ffn_bytes(layer);
  }
  EXPECT_EQ(bytes_of(DeviceIndex{1}), device);
  EXPECT_EQ(bytes_of(DeviceIndex::kHost), host);
  EXPECT_DOUBLE_EQ(token_seconds(*told, false),
                   static_cast<double>(device) / 1e12 + static_cast<double>(host) / 4e10);
  Plan unknown = *told;
  unknown.devices[0].rate = 0;
  EXPECT_EQ(token_seconds(unknown, true), 0.0);
  EXPECT_EQ(told->json(), must(spec_, given, &machine)->json());
}

}  // namespace
}  // namespace sharpi
