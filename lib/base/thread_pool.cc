// SPDX-License-Identifier: MIT
#include "base/thread_pool.h"

#include <atomic>
#include <chrono>
#include <mutex>
#include <vector>

#include "base/cpu_relax.h"
#include "os/processors.h"
#include "os/threads.h"

namespace sharpi {
namespace {

constexpr uint32_t kMaxThreads = 1024;
// Longer than the serial stretches between the parallel regions of one decoded token (a few
// microseconds), far shorter than a scheduler tick.
constexpr auto kSpinTime = std::chrono::microseconds(50);
constexpr int kPausesPerClockRead = 16;

/// Waits a bounded time for done() with pause instructions; true if it came true.
template <class Done>
bool spin_until(Done done, std::chrono::nanoseconds budget) {
  if (done()) return true;
  if (budget.count() == 0) return false;
  const auto deadline = std::chrono::steady_clock::now() + budget;
  do {
    for (int i = 0; i < kPausesPerClockRead; ++i) {
      cpu_relax();
      if (done()) return true;
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return false;
}

}  // namespace

// One region at a time. The caller writes `call`, `ctx` and `n_tasks`, then publishes them by
// storing `state`. The first task is the caller's own; a thread owns another one once it has
// lowered the upper half of `state` by compare-exchange, and only then reads the three fields: the
// region cannot end, so they cannot change, before that thread has also lowered the lower half. A
// worker that wakes late finds nothing to claim and touches nothing, so the caller never waits for
// threads that took no task. All that a worker needs to begin lies in one cache line, because a
// line takes a quarter of a microsecond from one core to another where they share no cache, and a
// token has hundreds of regions. For the same reason the caller does nothing that waits for its
// stores to be seen.
struct ThreadPool::Impl {
  static constexpr uint64_t kClaim = uint64_t{1} << 32;

  alignas(64) std::atomic<uint64_t> state{
      0};  // upper half: unclaimed tasks; lower: unfinished ones
  Call call = nullptr;
  void* ctx = nullptr;
  uint32_t n_tasks = 0;
  std::atomic<uint32_t> epoch{0};  // futex of the sleeping workers
  std::atomic<bool> stop{false};
  alignas(64) std::atomic<uint32_t> n_sleeping{0};
  std::atomic<uint32_t> caller_sleeps{0};  // futex of the sleeping caller
  alignas(64) std::mutex region_mutex;
  std::chrono::nanoseconds spin{0};
  std::vector<os::Thread> workers;
  int64_t process = os::process_id();  // that has them

  uint32_t work();
  void worker_loop();
  void announce(uint32_t max_wake);
  void finish(uint32_t n_run);
  void wait_for_workers();
};

/// Takes tasks until none is left; how many this thread ran.
uint32_t ThreadPool::Impl::work() {
  uint32_t n_run = 0;
  uint64_t now = state.load(std::memory_order_acquire);
  while (now >= kClaim) {
    if (!state.compare_exchange_weak(now, now - kClaim, std::memory_order_acq_rel,
                                     std::memory_order_acquire)) {
      continue;
    }
    call(ctx, n_tasks - static_cast<uint32_t>(now / kClaim));
    ++n_run;
    now = state.load(std::memory_order_acquire);
  }
  return n_run;
}

void ThreadPool::Impl::worker_loop() {
  uint32_t seen = 0;
  for (;;) {
    const auto changed = [&] { return epoch.load(std::memory_order_acquire) != seen; };
    if (!spin_until(changed, spin)) {
      n_sleeping.fetch_add(1, std::memory_order_seq_cst);
      while (epoch.load(std::memory_order_seq_cst) == seen) os::wait_while(epoch, seen);
      n_sleeping.fetch_sub(1, std::memory_order_relaxed);
    }
    seen = epoch.load(std::memory_order_acquire);
    if (stop.load(std::memory_order_acquire)) return;
    finish(work());
  }
}

/// Wakes workers that sleep, as far as the caller knows: one that is falling asleep just now may be
/// missed, and finds work in the next region. A region does without it.
void ThreadPool::Impl::announce(uint32_t max_wake) {
  epoch.store(epoch.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  if (n_sleeping.load(std::memory_order_relaxed) != 0) os::wake(epoch, max_wake);
}

/// After n_run tasks of a worker.
void ThreadPool::Impl::finish(uint32_t n_run) {
  if (n_run == 0) return;
  const uint64_t before = state.fetch_sub(n_run, std::memory_order_seq_cst);
  if (static_cast<uint32_t>(before) != n_run) return;
  // Sequentially consistent against wait_for_workers(): either the caller sees the last task
  // finished, or this thread sees it asleep.
  if (caller_sleeps.load(std::memory_order_seq_cst) == 0) return;
  caller_sleeps.store(0, std::memory_order_seq_cst);
  os::wake(caller_sleeps, 1);
}

void ThreadPool::Impl::wait_for_workers() {
  const auto finished = [&] {
    return static_cast<uint32_t>(state.load(std::memory_order_acquire)) == 0;
  };
  if (spin_until(finished, spin)) return;
  for (;;) {
    // As an exchange: emulators of ARM on x86-64 let a store and the load behind it change places.
    caller_sleeps.exchange(1, std::memory_order_seq_cst);
    if (static_cast<uint32_t>(state.load(std::memory_order_seq_cst)) == 0) break;
    os::wait_while(caller_sleeps, 1);
  }
  caller_sleeps.store(0, std::memory_order_relaxed);
}

Result<std::unique_ptr<ThreadPool>> ThreadPool::create(uint32_t n_threads) {
  const uint32_t n_cpus = os::usable_cpus();
  if (n_threads == 0) n_threads = n_cpus < kMaxThreads ? n_cpus : kMaxThreads;
  if (n_threads > kMaxThreads) {
    return Status::error(Code::kInvalidArgument, "n_threads %u exceeds the limit of %u", n_threads,
                         kMaxThreads);
  }
  std::unique_ptr<ThreadPool> pool(new ThreadPool(n_threads));
  Impl& impl = *pool->impl_;
  // With more threads than CPUs a spinning thread only delays the one it waits for.
  impl.spin = n_threads <= n_cpus ? kSpinTime : std::chrono::microseconds(0);
  impl.workers.reserve(n_threads - 1);

  int rc = 0;
  for (uint32_t i = 1; i < n_threads && rc == 0; ++i) {
    const auto entry = [](void* p) { static_cast<Impl*>(p)->worker_loop(); };
    os::Thread thread;
    rc = thread.start(entry, &impl, "sharpi-worker");
    if (rc == 0) impl.workers.push_back(thread);
  }
  if (rc != 0) {
    return Status::native_error(Code::kOutOfMemory, rc, "cannot start worker thread %zu of %u",
                                impl.workers.size() + 1, n_threads - 1);
  }
  return pool;
}

ThreadPool::ThreadPool(uint32_t n_threads) : n_threads_(n_threads), impl_(new Impl) {}

ThreadPool::~ThreadPool() {
  if (os::process_id() != impl_->process) return;  // a child has no copy of the threads
  impl_->stop.store(true, std::memory_order_release);
  // Whoever is falling asleep sees the new epoch, or is woken.
  impl_->epoch.fetch_add(1, std::memory_order_seq_cst);
  os::wake(impl_->epoch, UINT32_MAX);
  for (const os::Thread& thread : impl_->workers) thread.join();
}

void ThreadPool::run_raw(uint32_t n_tasks, Call call, void* ctx) {
  if (n_tasks == 0) return;
  Impl& impl = *impl_;
  const std::lock_guard lock(impl.region_mutex);
  if (n_threads_ == 1 || n_tasks == 1) {
    for (uint32_t task = 0; task < n_tasks; ++task) call(ctx, task);
    return;
  }
  impl.call = call;
  impl.ctx = ctx;
  impl.n_tasks = n_tasks;
  impl.state.store((n_tasks - 1) * (Impl::kClaim + 1), std::memory_order_release);
  impl.announce(n_tasks - 1);
  call(ctx, 0);
  const uint32_t n_run = impl.work();
  if (n_run != 0) impl.state.fetch_sub(n_run, std::memory_order_acq_rel);
  impl.wait_for_workers();
}

}  // namespace sharpi
