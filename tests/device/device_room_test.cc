// SPDX-License-Identifier: MIT
// The room of GPU tiers is right, seen without a GPU: a device of host memory, whose queues do
// nothing before somebody waits, runs every fixture to the goldens of another implementation, in
// whole and in parts.
#include <cmath>

#include "device/host_tier.h"
#include "device/weights.h"
#include "support/golden.h"
#include "support/made_models.h"
#include "support/paths.h"

namespace sharpi::testing {
namespace {

/// Tokens of a prompt: more than a chunk, and how many of them are read one by one.
constexpr size_t kTokens = 84, kSteps = 6;

class OnDevice : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    fixture_ = find_fixture(GetParam());
    if (!fixture_) GTEST_SKIP() << missing_fixtures_text(list_fixtures());
    auto golden = load_golden(fixture_->golden_path);
    ASSERT_TRUE(golden.is_ok()) << golden.status().text();
    golden_ = golden.take();
    auto engine = InnerEngine::open(fixture_->gguf_path, &host_and_device);
    ASSERT_TRUE(engine.is_ok()) << engine.status().text();
    engine_ = engine.take();
  }
  void TearDown() override {
    host_faults().drops_waits = host_faults().drops_uploads = host_faults().keeps_layout = false;
  }
  std::shared_ptr<Model> open(const Edit& edit) const {
    auto plan = engine_.plan([&](sharpi_plan_params* p, sharpi_session_params* s) {
      s->k_dtype = s->v_dtype = SHARPI_KV_F32;
      s->n_ctx = 1024;
      p->arithmetic = SHARPI_ARITHMETIC_EXACT;
      p->n_chunk = 64;
      p->stream_rows = SHARPI_UNSET;
      edit(p, s);
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
  /// The largest distance of logits to the golden's: behind a prompt, and behind each of the tokens
  /// that follow it.
  double worst(const std::shared_ptr<Model>& model, const GoldenCase& g) const {
    const auto s = session(model);
    const size_t n = std::min(g.tokens.size(), kTokens), first = n - std::min(n - 1, kSteps);
    prefill(s.get(), slice(g.tokens, 0, first));
    double most = 0;
    for (size_t p = first; p <= n; ++p) {
      const Logits got = logits_of(*s, *engine_.spec);
      for (size_t i = 0; i < 5; ++i) {
        const double d =
            std::fabs(got[static_cast<size_t>(g.top5[p - 1][i])] - g.top5_logits[p - 1][i]);
        most = std::isfinite(d) ? std::max(most, d) : INFINITY;
      }
      if (p < n) decode(s.get(), g.tokens[p]);
    }
    return most;
  }
  std::optional<Fixture> fixture_;
  Golden golden_;
  InnerEngine engine_;
};

void whole(sharpi_plan_params* p, sharpi_session_params*) {
  p->n_gpu_layers = -1;
}

TEST_P(OnDevice, LogitsAreTheGoldens) {
  const auto model = open(&whole);
  ASSERT_TRUE(model);
  EXPECT_LE(worst(model, golden_.cases[0]), kNear);
}

/// A device gives no block above a size (2 to 4 GiB with many drivers of Vulkan): weights are
/// spread.
TEST_P(OnDevice, WeightsLieInBlocksThatTheDeviceGives) {
  const auto plan = engine_.plan([](sharpi_plan_params* p, sharpi_session_params* s) {
    whole(p, s);
    s->n_ctx = 64;
  });
  ASSERT_TRUE(plan.is_ok()) << plan.status().text();
  const HostDevice device;
  const device::WeightPlan w = device::make_weight_plan(
      device, *plan.value()->spec, plan.value()->placement.seen_from(DeviceIndex{1}));
  EXPECT_EQ(w.blocks.size() > 1, w.bytes > HostDevice::kLargestBlock);
  std::vector<uint64_t> end(w.blocks.size());
  for (const device::WeightItem& item : w.items) {
    ASSERT_LT(item.place.block, end.size());
    EXPECT_EQ(item.place.offset, end[item.place.block]) << "tensors lie one behind the other";
    end[item.place.block] += (item.ref.bytes() + 255) / 256 * 256;
  }
  EXPECT_EQ(end, w.blocks);
  uint64_t held = 0, planned = 0;
  for (const uint64_t n : w.blocks) {
    EXPECT_LE(n, HostDevice::kLargestBlock);
    held += device.held_bytes(n);
  }
  for (const MemoryRow& r : device::weight_plan_rows(w, device)) planned += r.held_bytes;
  EXPECT_EQ(held, planned);
}

TEST(DeviceRoom, RefusesATensorLargerThanAnyBlockOfTheDevice) {
  test::ModelRecipe recipe = test::tiny_qwen3();
  recipe.n_vocab = 16384;  // of 64 elements in f32: 4 MiB
  const MadeModel file(recipe);
  auto engine = InnerEngine::open(file.path(), &host_and_device);
  ASSERT_TRUE(engine.is_ok()) << engine.status().text();
  const auto pinned = engine.value().plan([](sharpi_plan_params* p, sharpi_session_params* s) {
    p->n_gpu_layers = 2;
    p->gpu_ends = 1;
    s->n_ctx = 64;
  });
  ASSERT_FALSE(pinned.is_ok());
  EXPECT_EQ(pinned.status().code(), Code::kUnsupported);
  const std::string says =
      "tensor token_embd.weight takes 4194304 bytes, and the device gives at most 3145728 at once";
  EXPECT_EQ(pinned.status().text(), says);
  // Where nothing is asked for there, the plan goes on without the device and says why.
  const auto plan =
      engine.value().plan([](sharpi_plan_params* p, sharpi_session_params* s) { whole(p, s); });
  ASSERT_TRUE(plan.is_ok()) << plan.status().text();
  EXPECT_EQ(plan.value()->summary().n_gpu_layers, 0u);
  EXPECT_NE(plan.value()->placement_reason.find(says), std::string::npos)
      << plan.value()->placement_reason;
}

TEST(DeviceRoom, RefusesWhatItHasNoLaunchesForByName) {
  const std::pair<const char*, const char*> cases[] = {
      {"rand-bert", "bert is an encoder, which the GPU does not compute yet"},
      {"rand-nomic-bert", "nomic-bert is an encoder, which the GPU does not compute yet"},
      {"rand-gemma-embedding",
       "gemma-embedding is an encoder, which the GPU does not compute yet"}};
  for (const auto& [name, says] : cases) {
    const std::string made = test::made_model_path(name);
    const std::string kept = test::source_path(std::string("tests/fixtures/") + name + ".gguf");
    const std::string& path = made.empty() ? kept : made;
    auto engine = InnerEngine::open(path, &host_and_device);
    ASSERT_TRUE(engine.is_ok()) << engine.status().text();
    const auto pinned = engine.value().plan([](sharpi_plan_params* p, sharpi_session_params* s) {
      p->n_gpu_layers = 1;
      s->n_ctx = 64;
    });
    ASSERT_FALSE(pinned.is_ok()) << name;
    EXPECT_EQ(pinned.status().code(), Code::kUnsupported);
    EXPECT_NE(pinned.status().text().find(says), std::string::npos) << pinned.status().text();
    // Where nothing is asked for there, the plan goes on without the device and says why.
    const auto plan = engine.value().plan([](sharpi_plan_params* p, sharpi_session_params* s) {
      p->n_gpu_layers = -1;
      s->n_ctx = 64;
    });
    ASSERT_TRUE(plan.is_ok()) << plan.status().text();
    EXPECT_EQ(plan.value()->summary().n_gpu_layers, 0u);
    EXPECT_NE(plan.value()->placement_reason.find(says), std::string::npos)
        << plan.value()->placement_reason;
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, OnDevice, ::testing::ValuesIn(all_models()), model_name);

}  // namespace
}  // namespace sharpi::testing
