// SPDX-License-Identifier: MIT
// Faults of a device: memory that runs out at any request leaves nothing behind, and a device that
// is lost says so in every later call while destruction stays legal.
#include <cuda_runtime_api.h>

#include <algorithm>

#include "cuda/one_device.h"
#include "device/memory.h"
#include "engine/engine_case.h"
#include "engine/session.h"

namespace sharpi::testing {
namespace {

class Faults : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = take_device(); !why.empty()) GTEST_SKIP() << why;
    ASSERT_TRUE(g_device->open().is_ok());
  }
  void TearDown() override { g_device.reset(); }
};

test::ModelRecipe gpu_recipe(test::ModelRecipe recipe) {
  recipe.head_dim = recipe.head_dim_swa = 64;
  recipe.delta_dim = 32;
  return recipe;
}

struct Opened {
  std::shared_ptr<const ModelSpec> spec;
  std::shared_ptr<Context> context;
  std::shared_ptr<const Plan> plan;
};

Status open_model(const std::string& path, Opened* out) {
  sharpi_context_params c;
  sharpi_context_params_init(&c, sizeof c);
  SHARPI_TRY_ASSIGN(out->context, Context::create(c, &only_device));
  SHARPI_TRY_ASSIGN(auto file, GgufFile::open(path));
  SHARPI_TRY_ASSIGN(out->spec, load_model_spec(std::move(file)));
  sharpi_session_params s;
  sharpi_session_params_init(&s, sizeof s);
  s.n_ctx = 256;
  s.n_checkpoints = 2;
  s.kv_budget = 96;
  s.recency = s.capture_window = 16;
  sharpi_plan_params p;
  sharpi_plan_params_init(&p, sizeof p);
  p.session = &s;
  p.load_mode = SHARPI_LOAD_MAP;  // there is no CPU tier to copy anything
  p.n_gpu_layers = static_cast<int32_t>(out->spec->n_layers());
  p.n_gpu_ffn = p.n_gpu_layers;
  p.n_chunk = 32;
  p.host_budget = 1ull << 32;
  SHARPI_TRY_ASSIGN(out->plan, make_plan(out->spec, out->context->sizers(), p, {}));
  return Status::ok();
}

Status use_everything(const Opened& o, const std::vector<int32_t>& tokens) {
  SHARPI_TRY_ASSIGN(auto model, Model::load(o.context, o.plan, {}));
  SHARPI_TRY_ASSIGN(auto session, Session::create(model, o.plan->session));
  sharpi_prefill_params p;
  sharpi_prefill_params_init(&p, sizeof p);
  uint32_t committed = 0;
  SHARPI_TRY(session->prefill(tokens, p, &committed));
  SHARPI_TRY(session->decode(3));
  SHARPI_TRY_ASSIGN(auto twin, session->fork());
  return twin->decode(4);
}

TEST_F(Faults, MemoryThatRunsOutAtAnyRequestLeavesNothing) {
  for (const test::ModelRecipe& recipe : {test::tiny_qwen35(), test::tiny_gemma4()}) {
    const MadeModel file(gpu_recipe(recipe));
    Opened o;
    const Status opened = open_model(file.path(), &o);
    ASSERT_TRUE(opened.is_ok()) << opened.text();
    const auto tokens = file.tokens(150);
    uint64_t n_failed = 0;
    for (uint64_t n = 1; n < 1000; ++n) {
      g_device->fail_allocation(n);
      const Status s = use_everything(o, tokens);
      g_device->fail_allocation(0);
      EXPECT_EQ(g_device->live_bytes(), 0u) << recipe.arch << " request " << n;
      if (s.is_ok()) break;
      ASSERT_EQ(s.code(), Code::kOutOfMemory)
          << recipe.arch << " request " << n << ": " << s.text();
      EXPECT_NE(s.text().find("no memory for"), std::string::npos) << s.text();
      ++n_failed;
    }
    EXPECT_GT(n_failed, 10u) << recipe.arch;
    const Status again = use_everything(o, tokens);
    EXPECT_TRUE(again.is_ok()) << again.text();
  }
}

TEST_F(Faults, ARangeGrowsAndShrinksByWholeHandles) {
  constexpr uint64_t kMiB = 1ull << 20;
  auto made = device::DeviceRange::reserve(*g_device, 40 * kMiB, "rows");
  ASSERT_TRUE(made.is_ok()) << made.status().text();
  device::DeviceRange range = made.take();
  ASSERT_TRUE(range.commit(5 * kMiB).is_ok());
  EXPECT_EQ(range.committed(), 6 * kMiB);
  g_device->fail_allocation(3);  // the third of five granules
  EXPECT_EQ(range.commit(16 * kMiB).code(), Code::kOutOfMemory);
  EXPECT_EQ(range.committed(), 6 * kMiB);
  const std::byte* at = range.data();
  ASSERT_TRUE(range.commit(16 * kMiB).is_ok());
  EXPECT_EQ(range.data(), at);
  range.decommit(1);
  EXPECT_EQ(range.committed(), 2 * kMiB);
  EXPECT_EQ(range.commit(41 * kMiB).code(), Code::kInternal);
  range.reset();
  EXPECT_EQ(g_device->live_bytes(), 0u);
}

/// The device's own memory: what granules_test tries with memory of the host.
TEST_F(Faults, RangesShareGranulesAndTakeTheirOwnAtTheSameAddress) {
  constexpr uint64_t kMiB = 1ull << 20;
  const auto range_of = [](uint64_t bytes) {
    auto made = device::DeviceRange::reserve(*g_device, bytes, "rows");
    EXPECT_TRUE(made.is_ok()) << made.status().text();
    return made.take();
  };
  const auto fill = [](const device::DeviceRange& r, uint64_t from, uint64_t to, int value) {
    EXPECT_EQ(cudaMemset(r.data() + from, value, to - from), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  };
  const auto expect = [](const device::DeviceRange& r, uint64_t from, uint64_t to, int value) {
    std::vector<unsigned char> there(to - from);
    ASSERT_EQ(cudaMemcpy(there.data(), r.data() + from, to - from, cudaMemcpyDeviceToHost),
              cudaSuccess);
    EXPECT_EQ(std::count(there.begin(), there.end(), value), static_cast<long>(to - from));
  };
  const cuda::DeviceScope scope(*g_device);
  uint64_t freed = 0;
  const auto on_free = [&](uint64_t bytes) { freed += bytes; };
  {
    device::DeviceRange a = range_of(12 * kMiB), b = range_of(12 * kMiB), c = range_of(12 * kMiB);
    ASSERT_TRUE(a.commit(8 * kMiB).is_ok());
    fill(a, 0, 8 * kMiB, 11);
    ASSERT_TRUE(a.make_shared(7 * kMiB, on_free).is_ok());
    ASSERT_TRUE(b.share_from(a, 7 * kMiB).is_ok());
    ASSERT_TRUE(b.commit(8 * kMiB).is_ok());
    ASSERT_TRUE(c.share_from(b, 2 * kMiB).is_ok());
    EXPECT_EQ(g_device->live_bytes(), 10 * kMiB);
    EXPECT_EQ(b.shared_bytes(), 6 * kMiB);
    expect(b, 0, 6 * kMiB, 11);
    expect(b, 6 * kMiB, 8 * kMiB, 0);
    expect(c, 0, 2 * kMiB, 11);
    const std::byte* at = b.data();
    EXPECT_EQ(b.own_bytes_of(3 * kMiB), 4 * kMiB);
    g_device->fail_allocation(2);
    EXPECT_EQ(b.own(3 * kMiB, 8 * kMiB).code(), Code::kOutOfMemory);
    g_device->fail_allocation(0);
    EXPECT_EQ(b.writable_from(), 6 * kMiB);
    expect(b, 0, 6 * kMiB, 11);
    ASSERT_TRUE(b.own(3 * kMiB, 8 * kMiB).is_ok());
    EXPECT_EQ(b.data(), at);
    EXPECT_EQ(b.writable_from(), 2 * kMiB);
    EXPECT_EQ(g_device->live_bytes(), 14 * kMiB);
    fill(b, 2 * kMiB, 8 * kMiB, 22);
    expect(b, 0, 2 * kMiB, 11);
    expect(a, 0, 8 * kMiB, 11);
    expect(c, 0, 2 * kMiB, 11);
    EXPECT_EQ(a.own_bytes_of(2 * kMiB), 0u) << "nobody else maps them any more";
    ASSERT_TRUE(a.own(2 * kMiB, 8 * kMiB).is_ok());
    fill(a, 2 * kMiB, 8 * kMiB, 33);
    expect(b, 2 * kMiB, 8 * kMiB, 22);
    a.reset();
    EXPECT_EQ(freed, 4 * kMiB);
    expect(c, 0, 2 * kMiB, 11);
  }
  EXPECT_EQ(freed, 6 * kMiB);
  EXPECT_EQ(g_device->live_bytes(), 0u);
}

TEST_F(Faults, ALostDeviceSaysSoFromThenOn) {
  const MadeModel file(gpu_recipe(test::tiny_qwen3()));
  Opened o;
  ASSERT_TRUE(open_model(file.path(), &o).is_ok());
  auto loaded = Model::load(o.context, o.plan, {});
  ASSERT_TRUE(loaded.is_ok()) << loaded.status().text();
  const std::shared_ptr<Model> model = loaded.take();
  auto made = Session::create(model, o.plan->session);
  ASSERT_TRUE(made.is_ok()) << made.status().text();
  const std::unique_ptr<Session> session = made.take();
  ASSERT_TRUE(session->decode(1).is_ok());
  constexpr int kIllegalAddress = 700;  // what the runtime reports after a stray access
  const Status fault =
      g_device->settle(Status::native_error(Code::kDevice, kIllegalAddress, "kernel of the test"));
  EXPECT_EQ(fault.code(), Code::kDeviceLost);
  EXPECT_EQ(fault.native(), kIllegalAddress);
  std::vector<float> logits(o.spec->n_vocab);
  EXPECT_EQ(session->logits(0, logits.data()).code(), Code::kDeviceLost);
  EXPECT_EQ(session->decode(1).code(), Code::kDeviceLost);
  EXPECT_EQ(Session::create(model, o.plan->session).status().code(), Code::kDeviceLost);
}

}  // namespace
}  // namespace sharpi::testing
