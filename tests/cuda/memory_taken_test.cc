// SPDX-License-Identifier: MIT
// Memory that another process takes: between plan and load, between load and a session. Refused
// with the numbers, nothing leaked, and the same call works when the memory is back. What a
// compaction returns serves a session that had no room before.
#include <cuda_runtime_api.h>

#include "engine/engine_case.h"

namespace sharpi::testing {
namespace {

constexpr uint64_t kMiB = 1ull << 20;

/// All of the device's memory but some.
class Hog {
 public:
  explicit Hog(uint64_t leave) {
    size_t free = 0, total = 0;
    EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
    for (uint64_t piece = 1ull << 32; piece >= 2 * kMiB; piece /= 2) {
      while (free > leave + piece) {
        void* p = nullptr;
        if (cudaMalloc(&p, piece) != cudaSuccess) {
          cudaGetLastError();
          break;
        }
        pieces_.push_back(p);
        EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
      }
    }
  }
  ~Hog() {
    for (void* p : pieces_) cudaFree(p);
  }
  Hog(const Hog&) = delete;
  Hog& operator=(const Hog&) = delete;

 private:
  std::vector<void*> pieces_;
};

class MemoryTaken : public ::testing::Test {
 protected:
  void SetUp() override {
    context_ = make_context({});
    if (const std::string why = why_no_gpu(context_.get()); !why.empty()) GTEST_SKIP() << why;
    test::ModelRecipe recipe = test::tiny_qwen3();
    recipe.n_layers = 4;
    recipe.n_heads = recipe.n_kv_heads = 8;
    recipe.head_dim = 128;
    recipe.n_ctx = 32768;
    file_.emplace(recipe);
    const ModelSetup setup = setup_with([](sharpi_plan_params* p, sharpi_session_params* s) {
      p->n_gpu_layers = p->n_gpu_ffn = 4;
      p->gpu_ends = 1;
      p->n_chunk = 512;
      s->n_ctx = 32768;
      s->capture_window = 32;
      s->k_dtype = s->v_dtype = SHARPI_KV_F32;
    });
    sharpi_error e = SHARPI_ERROR_INIT;
    ASSERT_EQ(try_plan(context_.get(), file_->path(), setup, &plan_, &e), SHARPI_OK) << text_of(e);
    info_.struct_size = sizeof info_;
    ASSERT_EQ(sharpi_plan_info(plan_.get(), &info_, &e), SHARPI_OK) << text_of(e);
  }
  uint64_t held() const {
    sharpi_device d{};
    d.struct_size = sizeof d;
    sharpi_error e = SHARPI_ERROR_INIT;
    EXPECT_EQ(sharpi_device_info(context_.get(), 1, 0, &d, &e), SHARPI_OK) << text_of(e);
    return d.held_bytes;
  }
  sharpi_status load(ModelPtr* out, sharpi_error* e) const {
    sharpi_model* raw = nullptr;
    const sharpi_status s = sharpi_model_load(plan_.get(), nullptr, nullptr, &raw, e);
    out->reset(raw);
    return s;
  }
  static sharpi_status create(const sharpi_model* model, const sharpi_session_params* params,
                              SessionPtr* out, sharpi_error* e) {
    sharpi_session* raw = nullptr;
    const sharpi_status s = sharpi_session_create(model, params, &raw, e);
    out->reset(raw);
    return s;
  }
  ContextPtr context_;
  std::optional<MadeModel> file_;
  PlanPtr plan_;
  sharpi_plan_summary info_{};
};

TEST_F(MemoryTaken, BetweenPlanAndLoadIsRefusedAndTheRetryWorks) {
  ModelPtr model;
  sharpi_error e = SHARPI_ERROR_INIT;
  {
    const Hog hog(4 * kMiB);
    EXPECT_EQ(load(&model, &e), SHARPI_E_OUT_OF_MEMORY);
    EXPECT_EQ(model, nullptr);
    EXPECT_NE(std::string(e.text).find("are free now"), std::string::npos) << e.text;
    EXPECT_EQ(held(), 0u);
  }
  ASSERT_EQ(load(&model, &e), SHARPI_OK) << text_of(e);
  Chat chat(model.get());
  chat.prefill(file_->tokens(40));
}

TEST_F(MemoryTaken, BetweenLoadAndSessionIsRefusedAndTheRetryWorks) {
  ModelPtr model;
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(load(&model, &e), SHARPI_OK) << text_of(e);
  const uint64_t before = held();
  SessionPtr session;
  {
    const Hog hog(info_.session_held_bytes / 2);
    EXPECT_EQ(create(model.get(), nullptr, &session, &e), SHARPI_E_OUT_OF_MEMORY);
    EXPECT_NE(std::string(e.text).find("no memory for"), std::string::npos) << e.text;
    EXPECT_EQ(held(), before);
    sharpi_plan* raw = nullptr;  // and the price of one more says the same
    EXPECT_EQ(sharpi_plan_session(model.get(), nullptr, &raw, &e), SHARPI_E_DOES_NOT_FIT);
    EXPECT_EQ(raw, nullptr);
  }
  ASSERT_EQ(create(model.get(), nullptr, &session, &e), SHARPI_OK) << text_of(e);
  EXPECT_EQ(held(), info_.device_held_bytes);
}

TEST_F(MemoryTaken, WhatACompactionReturnsServesAnotherSession) {
  ModelPtr model;
  sharpi_error e = SHARPI_ERROR_INIT;
  ASSERT_EQ(load(&model, &e), SHARPI_OK) << text_of(e);
  Chat first(model.get());
  first.prefill(file_->tokens(4000));
  const uint64_t full = held();
  const Hog hog(32 * kMiB);
  SessionPtr second;
  sharpi_session_params half;
  sharpi_session_params_init(&half, sizeof half);
  half.n_ctx = 16384;
  half.k_dtype = half.v_dtype = SHARPI_KV_F32;
  EXPECT_EQ(create(model.get(), &half, &second, &e), SHARPI_E_OUT_OF_MEMORY) << e.text;
  sharpi_compact_params p;
  sharpi_compact_params_init(&p, sizeof p);
  p.budget = 500;
  sharpi_compact_report report{};
  report.struct_size = sizeof report;
  size_t before = 0, after = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&before, &total), cudaSuccess);
  ASSERT_EQ(sharpi_session_compact(first.get(), &p, &report, &e), SHARPI_OK) << text_of(e);
  ASSERT_EQ(cudaMemGetInfo(&after, &total), cudaSuccess);
  EXPECT_EQ(after - before, report.held_before - report.held_after);
  EXPECT_EQ(report.payload_before, 8 * report.payload_after);
  ASSERT_EQ(create(model.get(), &half, &second, &e), SHARPI_OK) << text_of(e);
  EXPECT_LT(held(), full);
  Chat other(std::move(second), first.n_vocab());
  other.prefill(file_->tokens(3000, 2));
  first.decode(5);
  other.decode(6);
}

}  // namespace
}  // namespace sharpi::testing
