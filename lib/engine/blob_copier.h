// SPDX-License-Identifier: MIT
// Copies large pieces within the host's memory, or rows to their other form, by several threads:
// one alone moves a fraction of what memory and the bus of a GPU do. Thread rule: one owner (a
// call).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>

#include "base/thread_pool.h"
#include "engine/blob_parts.h"
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
  enum class To { kSaved, kStored };
  /// n rows of a side that changes form; an error of a codec that nobody knows.
  Status change(const RowSide& side, To form, void* to, const void* from, uint32_t n) {
    const auto one = form == To::kSaved ? kv_row_to_canonical : kv_row_from_canonical;
    SHARPI_TRY(one(side.dtype, from, 0, to));  // nothing else can be wrong with one
    const auto some = [&](uint64_t first, uint64_t end) {
      for (uint64_t i = first; i < end; ++i) {
        const uint64_t at = i * side.row_bytes;
        static_cast<void>(one(side.dtype, static_cast<const std::byte*>(from) + at, side.elements,
                              static_cast<std::byte*>(to) + at));
      }
    };
    if (pool_ == nullptr || n * side.row_bytes < 2 * kPart)
      some(0, n);
    else
      pool_->for_range(n, side.piece_rows(kPart), some);
    return Status::ok();
  }

 private:
  static constexpr uint32_t kMostThreads = 4;         // of them and the checksum's, memory is busy
  static constexpr uint64_t kThreadsFrom = 16 << 20;  // bytes that are worth starting threads
  static constexpr uint64_t kPart = 16 << 10;         // of a thread, at least
  std::unique_ptr<ThreadPool> pool_;
};

}  // namespace sharpi
