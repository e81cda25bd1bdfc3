// SPDX-License-Identifier: MIT
// Threads and waiting. Thread rule: any thread.
#pragma once

#include <atomic>
#include <cstdint>

namespace sharpi::os {

/// A thread that none of the host's signal handlers run on.
class Thread {
 public:
  using Entry = void (*)(void*);
  /// 0, or the system's error number. `name` is what tools show; at most 15 letters.
  int start(Entry entry, void* argument, const char* name);
  /// Waits for its end.
  void join() const;

 private:
  uint64_t handle_ = 0;
};

/// Sleeps while `word` is `expected`. The system compares again when the thread sleeps, so a wake
/// between a caller's check and the wait is never lost; it may also return for no reason.
void wait_while(std::atomic<uint32_t>& word, uint32_t expected);
/// Wakes at most n that sleep on it.
void wake(std::atomic<uint32_t>& word, uint32_t n);

/// While it lives, the calling thread cannot be cancelled (pthread_cancel()).
class NoCancellation {
 public:
  NoCancellation() noexcept;
  ~NoCancellation();
  NoCancellation(const NoCancellation&) = delete;
  NoCancellation& operator=(const NoCancellation&) = delete;

 private:
  int before_ = 0;
};

/// Differs between a process and the children that it forks, which have none of its threads.
int64_t process_id();

}  // namespace sharpi::os
