// SPDX-License-Identifier: MIT
// Memory of a device with an owner: device blocks, pinned host blocks, and address ranges of which
// a prefix has memory (KV rows). What they hold follows from the size alone, so that the planner
// can say it. Thread rule: one owner each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "base/granules.h"
#include "base/status.h"
#include "device/device.h"

namespace sharpi::device {

/// kPinned: host memory that the device can copy from and to at full speed.
template <bool kPinned>
class MemoryBlock {
 public:
  MemoryBlock() = default;
  /// Zeroed. bytes = 0 gives an empty block. `what` names the block in error texts.
  static Result<MemoryBlock> allocate(const Device& device, uint64_t bytes, const char* what) {
    MemoryBlock b;
    if (bytes == 0) return b;
    SHARPI_TRY_ASSIGN(b.data_,
                      kPinned ? device.take_pinned(bytes, what) : device.take(bytes, what));
    b.bytes_ = bytes;
    b.device_ = &device;
    return b;
  }
  ~MemoryBlock() { reset(); }
  MemoryBlock(MemoryBlock&& o) noexcept { swap(o); }
  MemoryBlock& operator=(MemoryBlock&& o) noexcept {
    swap(o);
    return *this;
  }
  std::byte* data() const { return data_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }
  uint64_t bytes() const { return bytes_; }
  void reset() noexcept {
    if (data_ == nullptr) return;
    kPinned ? device_->give_pinned(data_, bytes_) : device_->give(data_, bytes_);
    data_ = nullptr;
    bytes_ = 0;
  }

 private:
  void swap(MemoryBlock& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(bytes_, o.bytes_);
    std::swap(device_, o.device_);
  }
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
  const Device* device_ = nullptr;
};
using DeviceBuffer = MemoryBlock<false>;
using PinnedBuffer = MemoryBlock<true>;

/// A range of device addresses of which a prefix has memory, in granules of one size. The first of
/// them may be shared with the ranges of forks (base/granules.h).
class DeviceRange {
 public:
  static constexpr bool kOfHost = false;
  static constexpr bool kShares = true;
  /// What a committed prefix of n bytes holds in a range of `reserved` bytes.
  static uint64_t held_bytes(const Device& device, uint64_t reserved, uint64_t n);

  DeviceRange() = default;
  /// `what` names the range in error texts and must outlive it (a literal).
  static Result<DeviceRange> reserve(const Device& device, uint64_t bytes, const char* what);
  ~DeviceRange() { reset(); }
  DeviceRange(DeviceRange&& o) noexcept { swap(o); }
  DeviceRange& operator=(DeviceRange&& o) noexcept {
    swap(o);
    return *this;
  }
  std::byte* data() const { return addresses_.data; }
  uint64_t committed() const { return granules_ == nullptr ? 0 : granules_->committed(); }
  /// Grows the committed prefix to at least `bytes`; new bytes are zero. On failure nothing
  /// changes.
  Status commit(uint64_t bytes);
  /// Gives whole granules past `bytes` back to the device.
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
  Addresses addresses_;  // without its memory, which `granules_` has
  uint64_t reserved_ = 0;
  std::unique_ptr<GranuleRange> granules_;
  const Device* device_ = nullptr;
  const char* what_ = "";
};

}  // namespace sharpi::device
