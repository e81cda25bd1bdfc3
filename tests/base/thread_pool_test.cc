// SPDX-License-Identifier: MIT
#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

namespace sharpi {
namespace {

std::unique_ptr<ThreadPool> make_pool(uint32_t n_threads) {
  auto pool = ThreadPool::create(n_threads);
  EXPECT_TRUE(pool.is_ok()) << pool.status().text();
  return pool.take();
}

struct PoolShape {
  const char* name;
  uint32_t n_threads;
};
class ThreadPoolOf : public ::testing::TestWithParam<PoolShape> {};

TEST_P(ThreadPoolOf, RunsEveryTaskExactlyOnceInManyRegionsInARow) {
  const auto pool = make_pool(GetParam().n_threads);
  ASSERT_EQ(pool->size(), GetParam().n_threads);
  for (uint32_t region = 0; region < 3000; ++region) {
    const uint32_t n_tasks = region % 37;
    std::vector<uint32_t> runs(n_tasks, 0);  // plain memory: two runs of a task would be a race
    pool->run(n_tasks, [&](uint32_t task) { runs[task] += 1 + task; });
    for (uint32_t task = 0; task < n_tasks; ++task) ASSERT_EQ(runs[task], 1 + task);
  }
}

TEST_P(ThreadPoolOf, WritesOfOneRegionAreVisibleToEveryTaskOfTheNext) {
  const auto pool = make_pool(GetParam().n_threads);
  constexpr uint32_t n = 64;
  const auto mix = [](uint64_t a, uint64_t b) { return a * 6364136223846793005u + (b >> 7) + 1; };
  std::vector<uint64_t> now(n), next(n), serial(n), serial_next(n);
  std::iota(now.begin(), now.end(), 1u);
  serial = now;
  for (int region = 0; region < 500; ++region) {
    pool->run(n, [&](uint32_t t) { next[t] = mix(now[t], now[n - 1 - t]); });
    now.swap(next);
    for (uint32_t t = 0; t < n; ++t) serial_next[t] = mix(serial[t], serial[n - 1 - t]);
    serial.swap(serial_next);
  }
  EXPECT_EQ(now, serial);
}

TEST_P(ThreadPoolOf, RangesCoverTheIntervalOnceAndStartOnMultiplesOfTheGrain) {
  const auto pool = make_pool(GetParam().n_threads);
  for (const uint64_t n : {1u, 7u, 64u, 1000u, 4097u}) {
    for (const uint64_t grain : {1u, 3u, 64u, 5000u}) {
      std::vector<uint8_t> hits(n, 0);
      pool->for_range(n, grain, [&](uint64_t begin, uint64_t end) {
        EXPECT_EQ(begin % grain, 0u);
        EXPECT_LT(begin, end);
        for (uint64_t i = begin; i < end; ++i) ++hits[i];
      });
      EXPECT_EQ(std::count(hits.begin(), hits.end(), 1), static_cast<int64_t>(n));
    }
  }
}

TEST_P(ThreadPoolOf, RegionsOfSeveralCallersAreSerialised) {
  const auto pool = make_pool(GetParam().n_threads);
  uint64_t total = 0;  // written by the first task of each region without further locks
  const auto caller = [&] {
    for (int i = 0; i < 300; ++i) {
      pool->run(5, [&](uint32_t task) {
        if (task == 0) ++total;
      });
    }
  };
  std::thread a(caller), b(caller), c(caller);
  a.join();
  b.join();
  c.join();
  EXPECT_EQ(total, 900u);
}

TEST_P(ThreadPoolOf, AwakensWorkersThatWentToSleep) {
  const auto pool = make_pool(GetParam().n_threads);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // well past the spinning phase
    std::atomic<uint32_t> n_run{0};
    pool->run(100, [&](uint32_t) { n_run.fetch_add(1); });
    EXPECT_EQ(n_run.load(), 100u);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, ThreadPoolOf,
                         ::testing::Values(PoolShape{"one", 1}, PoolShape{"two", 2},
                                           PoolShape{"more_than_cpus", 9}),
                         [](const auto& param) { return std::string(param.param.name); });

TEST(ThreadPool, TwoTasksThatNeedEachOtherRunOnTwoThreads) {
  const auto pool = make_pool(2);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));  // the worker is asleep
  std::atomic<int> arrived{0};
  std::thread::id ids[2];
  pool->run(2, [&](uint32_t task) {
    ids[task] = std::this_thread::get_id();
    arrived.fetch_add(1);
    while (arrived.load() != 2) std::this_thread::yield();
  });
  EXPECT_NE(ids[0], ids[1]);
}

TEST(ThreadPool, OneThreadRunsTasksInOrderOnTheCaller) {
  const auto pool = make_pool(1);
  std::vector<uint32_t> order;
  const auto caller = std::this_thread::get_id();
  pool->run(10, [&](uint32_t task) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    order.push_back(task);
  });
  std::vector<uint32_t> expected(10);
  std::iota(expected.begin(), expected.end(), 0u);
  EXPECT_EQ(order, expected);
}

TEST(ThreadPool, TasksAreHandedOutInAscendingOrder) {
  const auto pool = make_pool(3);
  for (int region = 0; region < 200; ++region) {
    std::atomic<uint32_t> started{0};
    // A thread that starts task t knows that every lower task was taken by some thread, so at most
    // size() - 1 of them may still be on their way to this counter.
    std::atomic<bool> ordered{true};
    pool->run(50, [&](uint32_t task) {
      const uint32_t before = started.fetch_add(1);
      if (before + 2 < task) ordered = false;
    });
    EXPECT_TRUE(ordered.load());
  }
}

TEST(ThreadPool, AbsurdThreadCountIsRefusedWithTheLimit) {
  const auto pool = ThreadPool::create(1u << 20);
  ASSERT_FALSE(pool.is_ok());
  EXPECT_EQ(pool.status().code(), Code::kInvalidArgument);
  EXPECT_NE(pool.status().text().find("n_threads 1048576 exceeds the limit of 1024"),
            std::string::npos);
}

TEST(ThreadPool, CreatingAndDestroyingManyPoolsLeavesNoThreadBehind) {
  for (int i = 0; i < 200; ++i) {
    const auto pool = make_pool(1 + static_cast<uint32_t>(i % 4));
    std::atomic<uint32_t> n_run{0};
    if (i % 2 == 0) pool->run(3, [&](uint32_t) { n_run.fetch_add(1); });
    EXPECT_EQ(n_run.load(), i % 2 == 0 ? 3u : 0u);
  }
}

}  // namespace
}  // namespace sharpi
