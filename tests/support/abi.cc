// SPDX-License-Identifier: MIT
#include "support/abi.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "support/paths.h"

namespace sharpi::testing {
namespace {

class TierEnvironment : public ::testing::Environment {
 public:
  void SetUp() override {
    if (!on_gpu()) return;
    sharpi_context* raw = nullptr;
    sharpi_error e = SHARPI_ERROR_INIT;
    ASSERT_EQ(sharpi_context_create(nullptr, &raw, &e), SHARPI_OK) << e.text;
    const ContextPtr context(raw);
    const std::string why = why_no_gpu(raw);
    if (why.empty() || ::testing::Test::HasFailure()) return;
    std::printf("skipped as a whole: %s\n", why.c_str());
    GTEST_SKIP() << why;
  }
};

uint32_t vocab_of(const sharpi_model* model) {
  sharpi_model_summary m{};
  m.struct_size = sizeof m;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_model_info(model, &m, &e), SHARPI_OK) << text_of(e);
  return m.n_vocab;
}

}  // namespace

bool on_gpu() {
  return test::suites_on_gpu();
}

bool on_vulkan() {
  return test::suites_tier() == "vulkan";
}

uint32_t gpu_index(const sharpi_context* context) {
  const sharpi_tier wanted = on_vulkan() ? SHARPI_TIER_VULKAN : SHARPI_TIER_CUDA;
  sharpi_device d{};
  d.struct_size = sizeof d;
  for (uint32_t i = 1; sharpi_device_info(context, i, 0, &d, nullptr) == SHARPI_OK; ++i) {
    if (d.tier == wanted) return i;
  }
  return 0;
}

uint64_t free_device_bytes(const sharpi_context* context) {
  sharpi_device d{};
  d.struct_size = sizeof d;
  const uint32_t index = gpu_index(context);
  return index != 0 && sharpi_device_info(context, index, 0, &d, nullptr) == SHARPI_OK
             ? d.free_bytes
             : 0;
}

bool says_no_gpu(const std::string& text) {
  const auto says = [&](const char* before, const char* reason) {
    return text.find(std::string(before) + reason) != std::string::npos;
  };
  if (says("no GPU (", "this build has no GPU tier")) return true;
  if (on_vulkan()) {
    return says("Vulkan: ", "no Vulkan device (") ||
           says("", "libsharpi-vulkan.so is not beside the library");
  }
  for (const char* reason : {"libsharpi-cuda.so is not beside the library",
                             "no NVIDIA driver is installed", "the NVIDIA driver sees no device"}) {
    if (says("no GPU (", reason) || says("no GPU (CUDA: ", reason)) return true;
  }
  return false;
}

namespace {

void expect_no_gpu_required(const std::string& text) {
  const char* required = std::getenv("SHARPI_TEST_REQUIRE_GPU");
  EXPECT_TRUE(required == nullptr || std::strcmp(required, "1") != 0)
      << "SHARPI_TEST_REQUIRE_GPU is 1: " << text;
}

}  // namespace

void expect_absent_gpu(const std::string& text) {
  EXPECT_TRUE(says_no_gpu(text)) << "not a machine without a GPU: " << text;
  expect_no_gpu_required(text);
}

std::string why_no_gpu(const sharpi_context* context) {
  if (gpu_index(context) != 0) return {};
  sharpi_device d{};
  d.struct_size = sizeof d;
  sharpi_error e = SHARPI_ERROR_INIT;
  const sharpi_status asked = sharpi_device_info(context, 1, 0, &d, &e);
  if (asked == SHARPI_OK) {
    const std::string other = std::string("no GPU of the tier ") +
                              (on_vulkan() ? "Vulkan" : "CUDA") + ", but one of " +
                              sharpi_tier_name(d.tier);
    expect_no_gpu_required(other);
    return other;
  }
  EXPECT_EQ(asked, SHARPI_E_NOT_FOUND) << e.text;
  expect_absent_gpu(e.text);
  return e.text;
}

::testing::Environment* tier_environment() {
  return new TierEnvironment;
}

std::string text_of(const sharpi_error& e) {
  return std::string(sharpi_status_name(e.status)) + ": " + e.text;
}

ContextPtr make_context(const ModelSetup& setup) {
  sharpi_context_params p;
  sharpi_context_params_init(&p, sizeof p);
  p.n_threads = setup.n_threads;
  p.cpu_isa = setup.isa;
  p.flags = setup.use_env ? SHARPI_CONTEXT_READ_ENV : 0;
  if (setup.edit_context) setup.edit_context(&p);
  sharpi_context* out = nullptr;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_context_create(&p, &out, &e), SHARPI_OK) << text_of(e);
  return ContextPtr(out);
}

sharpi_status try_plan(sharpi_context* context, const std::string& path, const ModelSetup& setup,
                       PlanPtr* out, sharpi_error* err) {
  sharpi_plan_params p;
  sharpi_plan_params_init(&p, sizeof p);
  sharpi_session_params s;
  sharpi_session_params_init(&s, sizeof s);
  p.session = &s;
  p.n_gpu_layers = on_gpu() ? -1 : 0;
  if (on_vulkan()) p.device = gpu_index(context);  // one of CUDA, or a software device, is named
  s.n_ctx = 4096;
  if (setup.edit) setup.edit(&p, &s);
  sharpi_plan* plan = nullptr;
  const sharpi_status status = sharpi_plan_create(context, path.c_str(), &p, &plan, err);
  out->reset(plan);
  if (on_gpu() && plan != nullptr && p.n_gpu_layers == -1) {
    sharpi_plan_summary info{};
    info.struct_size = sizeof info;
    EXPECT_EQ(sharpi_plan_info(plan, &info, err), SHARPI_OK) << text_of(*err);
    EXPECT_EQ(info.n_gpu_layers, info.n_layers) << "the GPU was left out";
  }
  return status;
}

Loaded load(const std::string& path, const ModelSetup& setup) {
  Loaded l;
  l.context = make_context(setup);
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(try_plan(l.context.get(), path, setup, &l.plan, &e), SHARPI_OK) << text_of(e);
  if (!l.plan) return l;
  sharpi_model* model = nullptr;
  EXPECT_EQ(sharpi_model_load(l.plan.get(), nullptr, nullptr, &model, &e), SHARPI_OK) << text_of(e);
  l.model.reset(model);
  l.plan_info.struct_size = sizeof l.plan_info;
  l.info.struct_size = sizeof l.info;
  EXPECT_EQ(sharpi_plan_info(l.plan.get(), &l.plan_info, &e), SHARPI_OK) << text_of(e);
  if (model == nullptr) return l;
  EXPECT_EQ(sharpi_model_info(model, &l.info, &e), SHARPI_OK) << text_of(e);
  return l;
}

Chat::Chat(const sharpi_model* model, const sharpi_session_params* params)
    : n_vocab_(vocab_of(model)) {
  sharpi_session* s = nullptr;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_session_create(model, params, &s, &e), SHARPI_OK) << text_of(e);
  session_.reset(s);
  if (s != nullptr) fix_seed(s);
}

void Chat::prefill(const std::vector<int32_t>& tokens, uint32_t n_logit_rows) {
  prefill(tokens.data(), static_cast<uint32_t>(tokens.size()), n_logit_rows);
}

void Chat::prefill(const int32_t* tokens, uint32_t n, uint32_t n_logit_rows) {
  sharpi_prefill_params p;
  sharpi_prefill_params_init(&p, sizeof p);
  p.n_logit_rows = n_logit_rows;
  uint32_t committed = 0;
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(sharpi_session_prefill(get(), tokens, n, &p, &committed, &e), SHARPI_OK) << text_of(e);
  ASSERT_EQ(committed, n);
}

void Chat::decode(int32_t token) {
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(sharpi_session_decode(get(), token, &e), SHARPI_OK) << text_of(e);
}

std::vector<float> Chat::logits(uint32_t row) const {
  std::vector<float> out(n_vocab_);
  uint32_t n = 0;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_session_logits(get(), row, out.data(), n_vocab_, &n, &e), SHARPI_OK)
      << text_of(e);
  return out;
}

int32_t Chat::argmax(uint32_t row) const {
  const std::vector<float> l = logits(row);
  return static_cast<int32_t>(std::max_element(l.begin(), l.end()) - l.begin());
}

std::vector<std::vector<float>> Chat::all_logits(const std::vector<int32_t>& tokens,
                                                 uint32_t piece) {
  std::vector<std::vector<float>> out;
  for (size_t at = 0; at < tokens.size(); at += piece) {
    const auto n = static_cast<uint32_t>(std::min<size_t>(piece, tokens.size() - at));
    prefill(tokens.data() + at, n, n);
    for (uint32_t i = n; i-- > 0;) out.push_back(logits(i));
  }
  return out;
}

std::vector<int32_t> Chat::greedy(uint32_t n) {
  std::vector<int32_t> out;
  for (uint32_t i = 0; i < n; ++i) {
    out.push_back(argmax());
    if (i + 1 < n) decode(out.back());
  }
  return out;
}

sharpi_session_summary Chat::info() const {
  sharpi_session_summary s{};
  s.struct_size = sizeof s;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_session_info(get(), &s, &e), SHARPI_OK) << text_of(e);
  return s;
}

Chat Chat::fork() const {
  sharpi_session* out = nullptr;
  sharpi_error e = SHARPI_ERROR_INIT;
  EXPECT_EQ(sharpi_session_fork(get(), &out, &e), SHARPI_OK) << text_of(e);
  return Chat(SessionPtr(out), n_vocab_);
}

}  // namespace sharpi::testing
