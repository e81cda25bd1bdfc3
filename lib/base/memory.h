// SPDX-License-Identifier: MIT
// Host memory the library takes on purpose: accounted buffers, and beside them the ranges of
// reservation.h. Every byte that a plan prices is counted by a MemoryMeter, which knows live and
// peak bytes and can make the n-th request fail (tests). Thread rule: a meter may be shared by
// threads; a buffer has one owner.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/status.h"

namespace sharpi {

/// Host callbacks for large blocks; both null = the library's own aligned allocation.
struct HostAllocator {
  void* (*allocate)(void* user, uint64_t bytes, uint64_t alignment) = nullptr;
  void (*release)(void* user, void* pointer, uint64_t bytes) = nullptr;
  void* user = nullptr;
};

/// Counts the memory of one context. live_bytes() is what is taken now, peak_bytes() the most that
/// ever was, n_requests() how often memory was asked for.
class MemoryMeter {
 public:
  explicit MemoryMeter(HostAllocator allocator = {}) : allocator_(allocator) {}
  const HostAllocator& allocator() const { return allocator_; }
  uint64_t live_bytes() const { return live_.load(std::memory_order_relaxed); }
  uint64_t peak_bytes() const { return peak_.load(std::memory_order_relaxed); }
  uint64_t n_requests() const { return requests_.load(std::memory_order_relaxed); }
  /// The n-th request from now fails (1 = the next one); 0 switches injection off.
  void fail_request(uint64_t n) { fail_at_ = n == 0 ? 0 : n_requests() + n; }
  /// Counts a request of `bytes`; false = injected failure, nothing counted as live.
  bool admit(uint64_t bytes);
  void retire(uint64_t bytes) { live_.fetch_sub(bytes, std::memory_order_relaxed); }

 private:
  HostAllocator allocator_;
  std::atomic<uint64_t> live_{0}, peak_{0}, requests_{0}, fail_at_{0};
};

/// One block of anonymous host memory, 64-byte aligned (2 MiB from 4 MiB on, with huge pages asked
/// for), released on destruction.
class HostBuffer {
 public:
  enum class Contents { kZero, kUnset };  // unset: the caller writes all of it before it reads
  HostBuffer() = default;
  /// `what` names the block in the error text. bytes = 0 gives an empty buffer.
  static Result<HostBuffer> allocate(MemoryMeter& meter, uint64_t bytes, const char* what,
                                     Contents contents = Contents::kZero);
  ~HostBuffer() { reset(); }
  HostBuffer(HostBuffer&& o) noexcept { swap(o); }
  HostBuffer& operator=(HostBuffer&& o) noexcept {
    swap(o);
    return *this;
  }
  std::byte* data() const { return data_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }
  uint64_t bytes() const { return bytes_; }
  void reset();

 private:
  void swap(HostBuffer& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(bytes_, o.bytes_);
    std::swap(meter_, o.meter_);
  }
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
  MemoryMeter* meter_ = nullptr;
};

}  // namespace sharpi
