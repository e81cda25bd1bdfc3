// SPDX-License-Identifier: MIT
// The threads of one context: workers that spin for a short while between parallel regions (a
// decoded token has hundreds of them) and then sleep, so an idle host pays nothing.
// Thread rule: parallel regions are serialised by a mutex; run() may be called from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

#include "base/status.h"

namespace sharpi {

class ThreadPool {
 public:
  /// n_threads counts the calling thread; 0 = as many as usable_cpus() (os/processors.h).
  static Result<std::unique_ptr<ThreadPool>> create(uint32_t n_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  uint32_t size() const { return n_threads_; }

  /// Runs body(task) for every task in [0, n_tasks), each exactly once, on any threads of the pool,
  /// and returns when all are done. The caller takes the first; the others are handed out in
  /// ascending order.
  /// body must not throw and must not call run() of the same pool. Allocates nothing.
  template <class F>
  void run(uint32_t n_tasks, F&& body) {
    auto call = [](void* ctx, uint32_t task) {
      (*static_cast<std::remove_reference_t<F>*>(ctx))(task);
    };
    run_raw(n_tasks, call, const_cast<void*>(static_cast<const void*>(&body)));
  }

  /// Splits [0, n) into at most size()*4 ranges that are multiples of `grain` and runs
  /// body(begin, end) for each. The split depends on n, grain and size() only.
  template <class F>
  void for_range(uint64_t n, uint64_t grain, F&& body) {
    if (n == 0) return;
    const uint64_t units = (n + grain - 1) / grain;
    const uint64_t want = size() == 1 ? 1 : uint64_t{size()} * 4;
    const uint64_t n_tasks = units < want ? units : want;
    run(static_cast<uint32_t>(n_tasks), [&](uint32_t t) {
      const uint64_t b = units * t / n_tasks * grain;
      const uint64_t e = units * (t + 1) / n_tasks * grain;
      body(b, e < n ? e : n);
    });
  }

 private:
  using Call = void (*)(void* ctx, uint32_t task);
  explicit ThreadPool(uint32_t n_threads);
  void run_raw(uint32_t n_tasks, Call call, void* ctx);
  struct Impl;
  uint32_t n_threads_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sharpi
