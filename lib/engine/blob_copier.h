// SPDX-License-Identifier: MIT
// Copies large pieces within the host's memory by several threads: one alone moves a fraction of
// what memory and the bus of a GPU do. Thread rule: one owner (a call).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>

#include "base/thread_pool.h"
#include "os/processors.h"

namespace sharpi {

class BlobCopier {
 public:
  /// So many bytes will be copied. Without other threads, which the machine may not have or the
  /// system refuse, the caller's copies alone. May throw std::bad_alloc.
  void begin(uint64_t bytes) {
    const uint32_t n = std::min(os::usable_cpus() / 4, kMostThreads);
    if (bytes < kThreadsFrom || n < 2 || pool_ != nullptr) return;
    if (auto pool = ThreadPool::create(n); pool.is_ok()) pool_ = pool.take();
  }
  void copy(void* to, const void* from, uint64_t bytes) {
    if (pool_ == nullptr || bytes < 2 * kPart) {
      std::memcpy(to, from, bytes);
      return;
    }
    pool_->for_range(bytes, kPart, [&](uint64_t first, uint64_t end) {
      std::memcpy(static_cast<std::byte*>(to) + first, static_cast<const std::byte*>(from) + first,
                  end - first);
    });
  }

 private:
  static constexpr uint32_t kMostThreads = 4;         // of them and the checksum's, memory is busy
  static constexpr uint64_t kThreadsFrom = 16 << 20;  // bytes that are worth starting threads
  static constexpr uint64_t kPart = 16 << 10;         // of a thread, at least
  std::unique_ptr<ThreadPool> pool_;
};

}  // namespace sharpi
