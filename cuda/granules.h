// SPDX-License-Identifier: MIT
// The memory behind a range of device addresses, in granules of one size: a prefix of the range has
// some, and of that prefix a first part may be shared with the ranges of forks, which map the same
// memory. What is shared is never written: own() puts a copy in its place first, at the same
// address. Nothing of CUDA here; who maps what is decided the same way in tests without a device.
// Thread rule: one owner; sharing and questions may run beside each other on different threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/status.h"

namespace sharpi::cuda {

/// The driver's functions for memory. Handles and addresses are numbers of its own.
class GranuleDriver {
 public:
  virtual ~GranuleDriver() = default;
  /// Memory of one granule, mapped nowhere.
  virtual Result<uint64_t> create() const = 0;
  virtual void release(uint64_t handle) const noexcept = 0;
  /// Makes it readable and writable at an address. The same handle may be mapped several times.
  virtual Status map(uint64_t address, uint64_t handle) const = 0;
  virtual void unmap(uint64_t address) const noexcept = 0;
  virtual Status clear(uint64_t address, uint64_t bytes) const = 0;
  /// Copies what is mapped at `from` into a granule that is mapped nowhere. Done on return.
  virtual Status copy(uint64_t handle, uint64_t from) const = 0;
  /// An address lost its memory and could not get it back.
  virtual void lose(const Status& why) const noexcept = 0;
};

/// A granule that ranges share, or that one holds as the last of them.
class SharedGranule {
 public:
  SharedGranule() = default;
  ~SharedGranule();
  SharedGranule(const SharedGranule&) = delete;
  SharedGranule& operator=(const SharedGranule&) = delete;
  /// Takes a handle over; `on_free` hears of its bytes when it went back to the driver.
  void adopt(std::shared_ptr<const GranuleDriver> driver, uint64_t handle, uint64_t bytes,
             std::function<void(uint64_t)> on_free) noexcept;
  void add_user() { users_.fetch_add(1, std::memory_order_relaxed); }
  /// Pre: the range that drops out has unmapped it.
  void drop_user() { users_.fetch_sub(1, std::memory_order_release); }
  /// More than one range maps it. While the range is not forked, this can only change to false.
  bool has_others() const { return users_.load(std::memory_order_acquire) > 1; }

 private:
  std::shared_ptr<const GranuleDriver> driver_;
  std::function<void(uint64_t)> on_free_;
  uint64_t handle_ = 0, bytes_ = 0;
  std::atomic<uint32_t> users_{1};
};

class Granules {
 public:
  /// `address`: of the range; `most`: granules that fit it. Throws std::bad_alloc.
  Granules(std::shared_ptr<const GranuleDriver> driver, uint64_t address, uint64_t granule,
           uint64_t most);
  ~Granules() { decommit(0); }
  Granules(const Granules&) = delete;
  Granules& operator=(const Granules&) = delete;

  uint64_t committed() const { return entries_.size() * granule_; }
  /// Grows the prefix to at least `bytes`; new bytes are zero. On failure nothing changes.
  Status commit(uint64_t bytes);
  /// Gives whole granules past `bytes` back.
  void decommit(uint64_t bytes) noexcept;

  /// Whole granules of the first `bytes` may be mapped by share_from() of other ranges; they are
  /// not written from now on. Throws std::bad_alloc, then nothing changed.
  void make_shared(uint64_t bytes, const std::function<void(uint64_t)>& on_free);
  /// Maps whole granules of the first `bytes` of a range that shared them. Pre: nothing is
  /// committed here. On failure nothing changes.
  Status share_from(const Granules& other, uint64_t bytes);
  /// Bytes that own(from) takes at most.
  uint64_t own_bytes_of(uint64_t from) const;
  /// From the granule of byte `from` on everything can be written, and is what it was. On failure
  /// some granules may be copies, which makes no difference to anybody.
  Status own(uint64_t from);
  /// First byte that can be written.
  uint64_t writable_from() const;
  /// Bytes that no SharedGranule holds, and bytes that others map too.
  uint64_t private_bytes() const;
  uint64_t shared_bytes() const;

 private:
  struct Entry {
    uint64_t handle = 0;
    std::shared_ptr<SharedGranule> shared;  // null: this range's alone
    bool has_others() const { return shared != nullptr && shared->has_others(); }
  };
  uint64_t address_of(size_t index) const { return address_ + index * granule_; }
  Status add();
  void drop() noexcept;
  Status replace(size_t index);
  std::shared_ptr<const GranuleDriver> driver_;
  const uint64_t address_, granule_;
  mutable std::mutex mutex_;  // of what sharing changes
  std::vector<Entry> entries_;
  uint64_t locked_ = 0;  // bytes that are not written
};

}  // namespace sharpi::cuda
