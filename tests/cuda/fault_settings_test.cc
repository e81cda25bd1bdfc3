// SPDX-License-Identifier: MIT
// Device memory that runs out while a trained model is loaded and used, for every way to store rows
// with every arithmetic, deterministic and not: nothing is left behind, and the next try works.
#include "cuda/one_device.h"
#include "engine/session.h"
#include "engine/setting_case.h"

namespace sharpi::testing {
namespace {

class FaultSettings : public ::testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    if (const std::string why = take_device(); !why.empty()) GTEST_SKIP() << why;
    const auto fixture = find_fixture(std::get<0>(GetParam()));
    if (!fixture) GTEST_SKIP() << missing_fixtures_text(list_fixtures());
    const Status opened = open(fixture->gguf_path);
    ASSERT_TRUE(opened.is_ok()) << opened.text();
  }
  void TearDown() override { g_device.reset(); }

  Status open(const std::string& path) {
    sharpi_context_params c;
    sharpi_context_params_init(&c, sizeof c);
    SHARPI_TRY_ASSIGN(context_, Context::create(c, &only_device));
    SHARPI_TRY_ASSIGN(auto file, GgufFile::open(path));
    SHARPI_TRY_ASSIGN(auto spec, load_model_spec(std::move(file)));
    sharpi_session_params s;
    sharpi_session_params_init(&s, sizeof s);
    s.n_ctx = 512;
    s.n_checkpoints = 2;
    s.kv_budget = 128;
    s.recency = s.capture_window = 16;
    s.k_dtype = s.v_dtype = std::get<1>(GetParam());
    sharpi_plan_params p;
    sharpi_plan_params_init(&p, sizeof p);
    p.session = &s;
    p.load_mode = SHARPI_LOAD_MAP;  // there is no CPU tier to copy anything
    p.n_gpu_layers = p.n_gpu_ffn = static_cast<int32_t>(spec->n_layers());
    p.n_chunk = 64;
    p.arithmetic = std::get<2>(GetParam());
    p.deterministic = std::get<3>(GetParam());
    p.host_budget = 1ull << 32;
    SHARPI_TRY_ASSIGN(plan_, make_plan(spec, context_->sizers(), p, {}));
    return Status::ok();
  }
  /// A prompt longer than the budget, a step, a fork and its step.
  Status use() const {
    SHARPI_TRY_ASSIGN(auto model, Model::load(context_, plan_, {}));
    SHARPI_TRY_ASSIGN(auto session, Session::create(model, plan_->session));
    std::vector<int32_t> tokens(250);
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(7 + 5 * i % 200);
    sharpi_prefill_params p;
    sharpi_prefill_params_init(&p, sizeof p);
    uint32_t committed = 0;
    SHARPI_TRY(session->prefill(tokens, p, &committed));
    SHARPI_TRY(session->decode(3));
    SHARPI_TRY_ASSIGN(auto twin, session->fork());
    return twin->decode(4);
  }
  std::shared_ptr<Context> context_;
  std::shared_ptr<const Plan> plan_;
};

TEST_P(FaultSettings, MemoryThatRunsOutLeavesNothing) {
  // Every seventh request, another seventh for each setting; faults_test tries all of one setting.
  constexpr uint64_t kStride = 7;
  const auto& [model, kv, arithmetic, deterministic] = GetParam();
  uint64_t first = 1 + (3 * kv + 2 * arithmetic + deterministic + model.size()) % kStride;
  uint64_t n_failed = 0;
  for (uint64_t n = first; n < 2000; n += kStride) {
    g_device->fail_allocation(n);
    const Status s = use();
    g_device->fail_allocation(0);
    EXPECT_EQ(g_device->live_bytes(), 0u) << "request " << n;
    if (s.is_ok()) break;
    ASSERT_EQ(s.code(), Code::kOutOfMemory) << "request " << n << ": " << s.text();
    EXPECT_NE(s.text().find("no memory for"), std::string::npos) << s.text();
    ++n_failed;
  }
  EXPECT_GE(n_failed, 2u);
  const Status again = use();
  EXPECT_TRUE(again.is_ok()) << again.text();
}

INSTANTIATE_TEST_SUITE_P(Cuda, FaultSettings, all_settings(stored_dtypes()), setting_name);

}  // namespace
}  // namespace sharpi::testing
