// SPDX-License-Identifier: MIT
// Host memory the library takes on purpose: accounted buffers and address-space reservations. Every
// byte that a plan prices goes through here, under a MemoryMeter, which counts live and peak bytes
// and can make the n-th request fail (tests).
// Thread rule: a meter may be shared by threads; a buffer or reservation has one owner.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "base/granules.h"
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

/// A range of address space of which a prefix has memory. Pointers into it never move. Of that
/// prefix a first part may be shared with other ranges: it can be read, and not be written before
/// own() made it this range's alone.
class Reservation {
 public:
  /// Commit unit: a multiple of every x86-64 page size but the huge ones.
  static constexpr uint64_t kGranule = 65536;
  /// Host code reads and writes this memory, so AddressSanitizer can guard what lies past its use.
  static constexpr bool kOfHost = true;
  static constexpr bool kShares = true;
  Reservation() = default;
  /// Reserves `bytes` (rounded up to the granule) without memory; counts as a request of 0 bytes.
  /// `what` names the range in error texts and must outlive it (a literal).
  static Result<Reservation> reserve(MemoryMeter& meter, uint64_t bytes, const char* what);
  ~Reservation() { reset(); }
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;
  Reservation(Reservation&& o) noexcept { swap(o); }
  Reservation& operator=(Reservation&& o) noexcept {
    swap(o);
    return *this;
  }
  std::byte* data() const { return data_; }
  uint64_t reserved() const { return reserved_; }
  uint64_t committed() const { return granules_ == nullptr ? 0 : granules_->committed(); }
  /// Grows the committed prefix to at least `bytes` (granule-rounded), pages touched so that later
  /// writes cannot fail. On failure nothing changes. New bytes read as zero.
  Status commit(uint64_t bytes);
  /// Shrinks the committed prefix to `bytes` (granule-rounded); the memory goes back to the system.
  void decommit(uint64_t bytes) noexcept;
  void reset() noexcept;

  // The same as those of GranuleRange; a range without any bytes shares none.
  Status make_shared(uint64_t bytes, const std::function<void(uint64_t)>& on_free) {
    return granules_ == nullptr ? Status::ok() : granules_->make_shared(bytes, on_free);
  }
  Status share_from(const Reservation& other, uint64_t bytes) {
    if (granules_ == nullptr || other.granules_ == nullptr) return Status::ok();
    return granules_->share_from(*other.granules_, bytes);
  }
  uint64_t own_bytes_of(uint64_t from) const {
    return granules_ == nullptr ? 0 : granules_->own_bytes_of(from);
  }
  Status own(uint64_t from, uint64_t live) {
    return granules_ == nullptr ? Status::ok() : granules_->own(from, live);
  }
  uint64_t writable_from() const { return granules_ == nullptr ? 0 : granules_->writable_from(); }
  uint64_t private_bytes() const { return granules_ == nullptr ? 0 : granules_->private_bytes(); }
  uint64_t shared_bytes() const { return granules_ == nullptr ? 0 : granules_->shared_bytes(); }

 private:
  void swap(Reservation& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(reserved_, o.reserved_);
    granules_.swap(o.granules_);
    std::swap(what_, o.what_);
  }
  std::byte* data_ = nullptr;
  uint64_t reserved_ = 0;
  std::unique_ptr<GranuleRange> granules_;
  const char* what_ = "";
};

}  // namespace sharpi
