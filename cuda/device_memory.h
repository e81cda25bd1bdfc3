// SPDX-License-Identifier: MIT
// Memory of the CUDA tier: device blocks, pinned host blocks, and address ranges of which a prefix
// has memory (KV rows). What they hold follows from the size alone, so that the planner can say it.
// Thread rule: one owner each.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "base/granules.h"
#include "base/status.h"
#include "cuda/device.h"

namespace sharpi::cuda {

/// The driver hands out device memory in pieces of this size.
inline constexpr uint64_t kDeviceGranule = 2ull << 20;

/// Bytes that a device block of n bytes holds: whole granules from one granule on.
uint64_t device_held_bytes(uint64_t n);
uint64_t pinned_held_bytes(uint64_t n);

class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  /// Zeroed. bytes = 0 gives an empty buffer. `what` names the block in error texts.
  static Result<DeviceBuffer> allocate(const Device& device, uint64_t bytes, const char* what);
  ~DeviceBuffer() { reset(); }
  DeviceBuffer(DeviceBuffer&& o) noexcept { swap(o); }
  DeviceBuffer& operator=(DeviceBuffer&& o) noexcept {
    swap(o);
    return *this;
  }
  std::byte* data() const { return data_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }
  uint64_t bytes() const { return bytes_; }
  void reset() noexcept;

 private:
  void swap(DeviceBuffer& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(bytes_, o.bytes_);
    std::swap(device_, o.device_);
  }
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
  const Device* device_ = nullptr;
};

/// Host memory that the device can copy from and to at full speed.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  static Result<PinnedBuffer> allocate(const Device& device, uint64_t bytes, const char* what);
  ~PinnedBuffer() { reset(); }
  PinnedBuffer(PinnedBuffer&& o) noexcept { swap(o); }
  PinnedBuffer& operator=(PinnedBuffer&& o) noexcept {
    swap(o);
    return *this;
  }
  std::byte* data() const { return data_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }
  uint64_t bytes() const { return bytes_; }
  void reset() noexcept;

 private:
  void swap(PinnedBuffer& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(bytes_, o.bytes_);
    std::swap(device_, o.device_);
  }
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
  const Device* device_ = nullptr;
};

/// A range of device addresses of which a prefix has memory, in granules of one size. The first of
/// them may be shared with the ranges of forks (base/granules.h).
class DeviceRange {
 public:
  static constexpr bool kOfHost = false;
  static constexpr bool kShares = true;
  /// Bytes of one granule of a range of `reserved` bytes: 2 to 32 MiB, larger for larger ranges.
  static uint64_t granule_bytes(uint64_t reserved);
  /// What a committed prefix of n bytes holds in such a range.
  static uint64_t held_bytes(uint64_t reserved, uint64_t n);

  DeviceRange() = default;
  /// `what` names the range in error texts and must outlive it (a literal).
  static Result<DeviceRange> reserve(const Device& device, uint64_t bytes, const char* what);
  ~DeviceRange() { reset(); }
  DeviceRange(DeviceRange&& o) noexcept { swap(o); }
  DeviceRange& operator=(DeviceRange&& o) noexcept {
    swap(o);
    return *this;
  }
  std::byte* data() const { return reinterpret_cast<std::byte*>(address_); }
  uint64_t committed() const { return granules_ == nullptr ? 0 : granules_->committed(); }
  /// Grows the committed prefix to at least `bytes`; new bytes are zero. On failure nothing
  /// changes.
  Status commit(uint64_t bytes);
  /// Gives whole granules past `bytes` back to the driver.
  void decommit(uint64_t bytes) noexcept;
  void reset() noexcept;

  /// The same as those of Reservation (base/reservation.h), in whole granules. All work on the
  /// range has ended when own() is called.
  Status make_shared(uint64_t bytes, const std::function<void(uint64_t)>& on_free);
  Status share_from(const DeviceRange& other, uint64_t bytes);
  uint64_t own_bytes_of(uint64_t from) const;
  Status own(uint64_t from, uint64_t live);
  uint64_t writable_from() const { return granules_ == nullptr ? 0 : granules_->writable_from(); }
  uint64_t private_bytes() const { return granules_ == nullptr ? 0 : granules_->private_bytes(); }
  uint64_t shared_bytes() const { return granules_ == nullptr ? 0 : granules_->shared_bytes(); }

 private:
  void swap(DeviceRange& o) noexcept;
  uint64_t address_ = 0, reserved_ = 0;
  std::unique_ptr<GranuleRange> granules_;
  const Device* device_ = nullptr;
  const char* what_ = "";
};

}  // namespace sharpi::cuda
