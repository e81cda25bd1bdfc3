// SPDX-License-Identifier: MIT
// The C ABI with C++ ownership, for tests: a handle type per object and verbs that fail the test
// with the library's own sentence. Thread rule: as sharpi.h.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sharpi.h"
#include "support/fixed_seed.h"

namespace sharpi::testing {

struct Destroy {
  void operator()(sharpi_context* p) const { sharpi_context_destroy(p); }
  void operator()(sharpi_plan* p) const { sharpi_plan_destroy(p); }
  void operator()(sharpi_model* p) const { sharpi_model_destroy(p); }
  void operator()(sharpi_session* p) const { sharpi_session_destroy(p); }
};
using ContextPtr = std::unique_ptr<sharpi_context, Destroy>;
using PlanPtr = std::unique_ptr<sharpi_plan, Destroy>;
using ModelPtr = std::unique_ptr<sharpi_model, Destroy>;
using SessionPtr = std::unique_ptr<sharpi_session, Destroy>;

/// SHARPI_TEST_TIER is `cuda` or `vulkan`: models of this program are loaded on the first device of
/// that tier, whole; without a device every test is skipped.
bool on_gpu();
bool on_vulkan();
/// The index of that device (of CUDA where no tier is named); 0 without one.
uint32_t gpu_index(const sharpi_context* context);
/// Its free bytes; 0 without one.
uint64_t free_device_bytes(const sharpi_context* context);
/// Whether a sentence says that there is no GPU, and not that there is one which does not work.
bool says_no_gpu(const std::string& text);
/// Nothing if the sentence says that there is no GPU, the one reason for which tests of a GPU may
/// be skipped; anything else fails the test, and so does the absence of a GPU on a machine that was
/// meant to have one (SHARPI_TEST_REQUIRE_GPU=1).
void expect_absent_gpu(const std::string& text);
/// Empty if the context has a GPU of the tier that is asked for, else the reason: the library's
/// sentence, which is judged here, or that the first GPU is of another tier.
std::string why_no_gpu(const sharpi_context* context);
/// Skips all cases of a program whose models are to be on a GPU that is not there.
::testing::Environment* tier_environment();
inline ::testing::Environment* const kTierEnvironment =
    ::testing::AddGlobalTestEnvironment(tier_environment());

/// Everything a test usually wants to set; the rest has the library's defaults.
struct ModelSetup {
  uint32_t n_threads = 2;
  sharpi_cpu_isa isa = SHARPI_ISA_AUTO;
  bool use_env = false;
  std::function<void(sharpi_plan_params*, sharpi_session_params*)> edit;
  std::function<void(sharpi_context_params*)> edit_context;
};

std::string text_of(const sharpi_error& e);

/// A loaded model with its context and plan.
struct Loaded {
  ContextPtr context;
  PlanPtr plan;
  ModelPtr model;
  sharpi_plan_summary plan_info{};
  sharpi_model_summary info{};
};

ContextPtr make_context(const ModelSetup& setup);
/// SHARPI_OK, or the status with its sentence in *err.
sharpi_status try_plan(sharpi_context* context, const std::string& path, const ModelSetup& setup,
                       PlanPtr* out, sharpi_error* err);
Loaded load(const std::string& path, const ModelSetup& setup = {});

/// One session with verbs.
class Chat {
 public:
  explicit Chat(const sharpi_model* model, const sharpi_session_params* params = nullptr);
  Chat(SessionPtr session, uint32_t n_vocab) : session_(std::move(session)), n_vocab_(n_vocab) {}

  sharpi_session* get() const { return session_.get(); }
  uint32_t n_vocab() const { return n_vocab_; }
  void prefill(const std::vector<int32_t>& tokens, uint32_t n_logit_rows = 1);
  void prefill(const int32_t* tokens, uint32_t n, uint32_t n_logit_rows = 1);
  void decode(int32_t token);
  std::vector<float> logits(uint32_t row = 0) const;
  int32_t argmax(uint32_t row = 0) const;
  /// Logits after every token of the prompt, read in calls of at most `piece` tokens.
  std::vector<std::vector<float>> all_logits(const std::vector<int32_t>& tokens, uint32_t piece);
  std::vector<int32_t> greedy(uint32_t n);
  sharpi_session_summary info() const;
  Chat fork() const;

 private:
  SessionPtr session_;
  uint32_t n_vocab_ = 0;
};

}  // namespace sharpi::testing
