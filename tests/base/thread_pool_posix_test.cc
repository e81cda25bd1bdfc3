// SPDX-License-Identifier: MIT
// What a pool has to do with affinities, signals and children of a process.
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>

#include "base/thread_pool.h"

namespace sharpi {
namespace {

std::unique_ptr<ThreadPool> pool_with(uint32_t n_threads) {
  auto pool = ThreadPool::create(n_threads);
  EXPECT_TRUE(pool.is_ok()) << pool.status().text();
  return pool.take();
}

TEST(ThreadPool, ZeroThreadsMeansTheCpusOfTheAffinityMask) {
  cpu_set_t set;
  ASSERT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
  EXPECT_EQ(pool_with(0)->size(), static_cast<uint32_t>(CPU_COUNT(&set)));
}

TEST(ThreadPool, WorkersBlockTheSignalsOfTheHost) {
  const auto pool = pool_with(2);
  std::atomic<int> arrived{0};
  std::atomic<int> n_blocked{0};
  pool->run(2, [&](uint32_t) {
    arrived.fetch_add(1);
    while (arrived.load() != 2) std::this_thread::yield();  // one task on each thread
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    if (sigismember(&mask, SIGINT) == 1 && sigismember(&mask, SIGPROF) == 1) n_blocked.fetch_add(1);
  });
  EXPECT_EQ(n_blocked.load(), 1);
}

/// Before, the child waited for threads that it did not have, by numbers that meant nothing there.
TEST(ThreadPool, AChildOfForkMayDestroyAPool) {
  for (const uint32_t n : {1u, 2u, 4u, 8u}) {
    auto pool = pool_with(n);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      pool.reset();
      _exit(0);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << n << " threads";
    std::atomic<uint32_t> n_run{0};  // the parent's pool is as it was
    pool->run(16, [&](uint32_t) { n_run.fetch_add(1); });
    EXPECT_EQ(n_run.load(), 16u);
  }
}

}  // namespace
}  // namespace sharpi
