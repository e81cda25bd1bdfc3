// SPDX-License-Identifier: MIT
// Device::launch_mutex(): steps whose blocks wait for each other take it, all others run beside
// them.
#include <chrono>
#include <future>

#include "cuda/device.h"
#include "cuda/kernels/products/chain.h"
#include "cuda/one_device.h"
#include "engine/engine_case.h"

namespace sharpi::testing {
namespace {

class Turn : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = take_device(); !why.empty()) GTEST_SKIP() << why;
    device_ = std::move(g_device);
  }
  static test::ModelRecipe recipe() {
    test::ModelRecipe r = test::tiny_qwen3();
    r.head_dim = 64;
    return r;
  }
  static Loaded load_on_gpu(const MadeModel& file, const Edit& more) {
    return load(file.path(), setup_with([&](sharpi_plan_params* p, sharpi_session_params* s) {
                  p->n_gpu_layers = -1;
                  s->n_ctx = 256;
                  more(p, s);
                }));
  }
  /// Whether the call ends while another thread has the mutex; it does so afterwards in any case.
  bool ends_beside(const std::function<void()>& call, std::chrono::milliseconds patience) {
    std::unique_lock<std::mutex> held(device_->launch_mutex());
    std::future<void> done = std::async(std::launch::async, call);
    const bool ended = done.wait_for(patience) == std::future_status::ready;
    held.unlock();
    done.get();
    return ended;
  }
  std::shared_ptr<cuda::Device> device_;
};

constexpr std::chrono::milliseconds kLong(20000), kShort(300);

TEST_F(Turn, ExactStepsNeedNone) {
  const MadeModel file(recipe());
  const Loaded l = load_on_gpu(file, [](sharpi_plan_params* p, sharpi_session_params*) {
    p->arithmetic = SHARPI_ARITHMETIC_EXACT;
  });
  Chat chat(l.model.get());
  chat.prefill(file.tokens(20));
  EXPECT_TRUE(ends_beside([&] { chat.decode(3); }, kLong));
}

/// Steps of so many sessions together.
class Together {
 public:
  Together(const Loaded& l, const MadeModel& file, uint32_t n) {
    for (uint32_t i = 0; i < n; ++i) {
      chats_.push_back(std::make_unique<Chat>(l.model.get()));
      chats_.back()->prefill(file.tokens(20, i + 1));
      sessions_.push_back(chats_.back()->get());
      tokens_.push_back(static_cast<int32_t>(3 + i));
    }
  }
  void decode() {
    sharpi_error e = SHARPI_ERROR_INIT;
    EXPECT_EQ(sharpi_decode_batch(sessions_.data(), tokens_.data(),
                                  static_cast<uint32_t>(sessions_.size()), &e),
              SHARPI_OK)
        << text_of(e);
  }

 private:
  std::vector<std::unique_ptr<Chat>> chats_;
  std::vector<sharpi_session*> sessions_;
  std::vector<int32_t> tokens_;
};

TEST_F(Turn, PromptsAndBatchesOfManyRowsNeedNone) {
  cuda::KernelConfig config;
  config.device = device_->profile();
  const uint32_t many = cuda::max_fused_rows(config) + 1;
  const MadeModel file(recipe());
  const Loaded l = load_on_gpu(file, [&](sharpi_plan_params* p, sharpi_session_params*) {
    p->n_sessions = p->max_batch = many;
  });
  std::unique_ptr<Together> all;
  EXPECT_TRUE(ends_beside([&] { all = std::make_unique<Together>(l, file, many); }, kLong));
  EXPECT_TRUE(ends_beside([&] { all->decode(); }, kLong));
}

TEST_F(Turn, StepsOfSeveralRowsWaitForIt) {
  cuda::KernelConfig config;
  config.device = device_->profile();
  const MadeModel file(recipe());
  const uint32_t most = cuda::max_fused_rows(config);
  const Loaded l = load_on_gpu(file, [&](sharpi_plan_params* p, sharpi_session_params*) {
    p->n_sessions = p->max_batch = most;
  });
  for (const uint32_t n : {2u, most}) {
    Together some(l, file, n);
    EXPECT_FALSE(ends_beside([&] { some.decode(); }, kShort)) << n;
  }
}

TEST_F(Turn, ChainsWaitForIt) {
  cuda::KernelConfig config;
  config.device = device_->profile();
  const MadeModel file(recipe());
  const Loaded l = load_on_gpu(file, [](sharpi_plan_params*, sharpi_session_params*) {});
  Chat chat(l.model.get());
  chat.prefill(file.tokens(20));
  EXPECT_EQ(ends_beside([&] { chat.decode(3); }, kShort), !cuda::has_chains(config));
  EXPECT_EQ(chat.info().n_tokens, 21u);
}

}  // namespace
}  // namespace sharpi::testing
