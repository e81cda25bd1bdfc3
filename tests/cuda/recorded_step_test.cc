// SPDX-License-Identifier: MIT
// On a GPU: what the capture of a decode step launches, launch by launch, is the list that
// sharpi_model_json() prints, for whole models and split ones, with and without room for chains.
#include "cpu/cpu_backend.h"
#include "cuda/one_device.h"
#include "device/launches.h"
#include "engine/engine_case.h"
#include "engine/model.h"

namespace sharpi::testing {
namespace {

/// The lists of recorded steps as their launches were made.
std::vector<device::LaunchList> g_seen;

void see(const device::LaunchList& list, const device::Launch& launch, bool recorded) {
  if (!recorded) return;
  if (&launch == list.launches.data()) {
    g_seen.emplace_back();
    g_seen.back().links = list.links;
  }
  g_seen.back().launches.push_back(launch);
}

/// Split models need the host as well: the factory of tests that have the device alone does not do.
Result<std::vector<std::unique_ptr<Backend>>> host_and_device(const BackendOptions&) {
  cpu::CpuBackendOptions options;
  options.n_threads = 2;
  SHARPI_TRY_ASSIGN(std::unique_ptr<Backend> host, cpu::make_backend(options));
  std::vector<std::unique_ptr<Backend>> out;
  out.push_back(std::move(host));
  out.push_back(cuda::make_backend(g_device));
  return out;
}

class RecordedStep : public ModelTest {
 protected:
  void SetUp() override {
    if (const std::string why = take_device(); !why.empty()) GTEST_SKIP() << why;
    ModelTest::SetUp();
    g_seen.clear();
    device::watch_launches(&see);
  }
  void TearDown() override {
    device::watch_launches(nullptr);
    g_device.reset();
  }

  Status load_model(uint32_t n_layers, uint32_t n_ffn, bool deterministic,
                    std::shared_ptr<Model>* out) {
    sharpi_context_params c;
    sharpi_context_params_init(&c, sizeof c);
    SHARPI_TRY_ASSIGN(auto context, Context::create(c, &host_and_device));
    sharpi_session_params s;
    sharpi_session_params_init(&s, sizeof s);
    s.n_ctx = 512;
    sharpi_plan_params p;
    sharpi_plan_params_init(&p, sizeof p);
    p.session = &s;
    p.n_gpu_layers = static_cast<int32_t>(n_layers);
    p.n_gpu_ffn = static_cast<int32_t>(n_ffn);
    p.arithmetic = SHARPI_ARITHMETIC_FAST;
    p.deterministic = deterministic ? 1 : 0;
    p.host_budget = 1ull << 32;
    SHARPI_TRY_ASSIGN(auto plan, make_plan(spec_, context->sizers(), p, {}));
    SHARPI_TRY_ASSIGN(*out, Model::load(context, plan, {}));
    return Status::ok();
  }

  void expect_printed(uint32_t n_layers, uint32_t n_ffn, bool deterministic = false) {
    g_seen.clear();
    std::shared_ptr<Model> model;
    const Status loaded = load_model(n_layers, n_ffn, deterministic, &model);
    ASSERT_TRUE(loaded.is_ok()) << loaded.text();
    const std::string json = model->json();
    ASSERT_FALSE(g_seen.empty());
    size_t at = json.find("\"step\"");
    for (const device::LaunchList& list : g_seen) {
      std::string lines;
      for (const std::string& line : device::launch_text(list))
        lines += (lines.empty() ? "\"" : ", \"") + line + "\"";
      at = json.find("{\"tier\": \"cuda\", \"device\": 1, \"does\": [" + lines + "]}", at);
      ASSERT_NE(at, std::string::npos) << lines << "\n" << json;
    }
  }

  std::shared_ptr<const ModelSpec> spec_;
};

TEST_P(RecordedStep, IsTheListThatIsPrinted) {
  auto file = GgufFile::open(path());
  ASSERT_TRUE(file.is_ok());
  auto spec = load_model_spec(file.take());
  ASSERT_TRUE(spec.is_ok());
  spec_ = spec.take();
  const uint32_t n = spec_->n_layers();
  expect_printed(n, n);
  expect_printed(n, n / 2);
  expect_printed(n, n, true);
  g_device->limit_chains(1 << 10);
  expect_printed(n, n);
}

INSTANTIATE_TEST_SUITE_P(Cuda, RecordedStep, ::testing::ValuesIn(all_models()), model_name);

}  // namespace
}  // namespace sharpi::testing
