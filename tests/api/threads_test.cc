// SPDX-License-Identifier: MIT
// The thread rules of sharpi.h, from several threads at once.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "support/abi.h"
#include "support/paths.h"

namespace sharpi::testing {
namespace {

const std::string kModel = test::source_path("tests/fixtures/tiny-qwen3-q8_0.gguf");

std::vector<int32_t> prompt(uint32_t n, int32_t seed) {
  std::vector<int32_t> tokens;
  for (uint32_t i = 0; i < n; ++i)
    tokens.push_back(1 + (static_cast<int32_t>(i) * 31 + seed) % 1500);
  return tokens;
}

ModelSetup small(uint32_t n_ctx, uint32_t n_chunk, uint32_t max_concurrent = 1) {
  ModelSetup setup;
  setup.edit = [=](sharpi_plan_params* p, sharpi_session_params* s) {
    s->n_ctx = n_ctx;
    p->n_chunk = n_chunk;
    p->n_sessions = 8;
    p->max_concurrent = max_concurrent;
  };
  return setup;
}

TEST(Threads, ReadingCallsOnOneSessionRunTogether) {
  const Loaded l = load(kModel, small(64, 16));
  Chat chat(l.model.get());
  chat.prefill(prompt(40, 3));
  const std::vector<float> expected = chat.logits();
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      std::vector<float> row(chat.n_vocab());
      for (int i = 0; i < 200; ++i) {
        uint32_t n = 0;
        sharpi_session_summary s{};
        s.struct_size = sizeof s;
        const bool ok = sharpi_session_logits(chat.get(), 0, row.data(), chat.n_vocab(), &n,
                                              nullptr) == SHARPI_OK &&
                        sharpi_session_info(chat.get(), &s, nullptr) == SHARPI_OK &&
                        row == expected && s.n_tokens == 40;
        if (!ok) ++failures;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(failures, 0);
}

TEST(Threads, ASecondChangingCallIsBusyAndTheFirstIsUnharmed) {
  const Loaded l = load(kModel, small(512, 64));
  const std::vector<int32_t> tokens = prompt(500, 5);
  Chat alone(l.model.get());
  alone.prefill(tokens);
  Chat chat(l.model.get());
  std::atomic<bool> inside{false};
  std::atomic<int> busy{0}, other{0};
  struct Gate {
    std::atomic<bool>* inside;
    std::atomic<int>* busy;
  } gate{&inside, &busy};
  std::thread second([&] {
    while (!inside) std::this_thread::yield();
    while (busy == 0 && other == 0) {
      (sharpi_session_decode(chat.get(), 1, nullptr) == SHARPI_E_BUSY ? busy : other)++;
    }
  });
  sharpi_prefill_params p;
  sharpi_prefill_params_init(&p, sizeof p);
  p.user_data = &gate;
  p.progress = [](void* user, uint32_t, uint64_t, uint64_t) -> int32_t {
    auto* g = static_cast<Gate*>(user);
    *g->inside = true;
    while (*g->busy == 0) std::this_thread::yield();  // until the other thread was turned away
    return 0;
  };
  EXPECT_EQ(sharpi_session_prefill(chat.get(), tokens.data(), 500, &p, nullptr, nullptr),
            SHARPI_OK);
  second.join();
  EXPECT_EQ(other, 0);
  EXPECT_EQ(chat.logits(), alone.logits());
}

TEST(Threads, CancelFromAnotherThreadStopsPrefillAtAChunk) {
  const Loaded l = load(kModel, small(512, 16));
  const std::vector<int32_t> tokens = prompt(500, 7);
  Chat chat(l.model.get());
  std::atomic<bool> inside{false}, cancelled{false};
  struct Gate {
    std::atomic<bool>*inside, *cancelled;
  } gate{&inside, &cancelled};
  std::thread second([&] {
    while (!inside) std::this_thread::yield();
    sharpi_session_cancel(chat.get());
    cancelled = true;
  });
  sharpi_prefill_params p;
  sharpi_prefill_params_init(&p, sizeof p);
  p.user_data = &gate;
  p.progress = [](void* user, uint32_t, uint64_t done, uint64_t) -> int32_t {
    auto* g = static_cast<Gate*>(user);
    if (done < 16) return 0;  // a layer of the first chunk
    *g->inside = true;
    while (!*g->cancelled) std::this_thread::yield();
    return 0;
  };
  uint32_t done = 0;
  EXPECT_EQ(sharpi_session_prefill(chat.get(), tokens.data(), 500, &p, &done, nullptr),
            SHARPI_E_CANCELLED);
  second.join();
  EXPECT_EQ(done, 16u);
  EXPECT_EQ(chat.info().n_tokens, 16u);
  Chat alone(l.model.get());
  alone.prefill(tokens);
  chat.prefill(tokens.data() + 16, 484);
  EXPECT_EQ(chat.logits(), alone.logits());  // the same chunks, so the same bits
}

TEST(Threads, SessionsOfOneModelFromSeveralThreadsGiveTheBitsOfOneAlone) {
  for (const uint32_t max_concurrent : {1u, 2u}) {
    const Loaded l = load(kModel, small(128, 32, max_concurrent));
    std::vector<std::vector<float>> expected;
    for (int t = 0; t < 3; ++t) {
      Chat alone(l.model.get());
      alone.prefill(prompt(70, t));
      alone.greedy(8);
      expected.push_back(alone.logits());
    }
    std::vector<std::vector<float>> got(3);
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        Chat chat(l.model.get());
        chat.prefill(prompt(70, t));
        chat.greedy(8);
        got[static_cast<size_t>(t)] = chat.logits();
      });
    }
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(got, expected) << "max_concurrent " << max_concurrent;
  }
}

TEST(Threads, ASecondPlanOnABusyContextIsBusyOrWaitsForNobody) {
  const ContextPtr context = make_context({});
  std::atomic<int> ok{0}, busy{0}, other{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        PlanPtr plan;
        sharpi_error e = SHARPI_ERROR_INIT;
        const sharpi_status s = try_plan(context.get(), kModel, small(64, 16), &plan, &e);
        (s == SHARPI_OK ? ok : s == SHARPI_E_BUSY ? busy : other)++;
        EXPECT_EQ(plan != nullptr, s == SHARPI_OK);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(other, 0);
  EXPECT_GT(ok, 0);
  EXPECT_EQ(ok + busy, 80);
}

}  // namespace
}  // namespace sharpi::testing
