// SPDX-License-Identifier: MIT
// What a tier of GPUs brings: memory, queues of copies, events, and its kernels. The room above
// these classes (sessions, weights, streams, calls, compaction) is the same for every such tier.
// Thread rule: a device is immutable but for its faults; queues and events have one owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "base/granules.h"
#include "base/status.h"
#include "plan/tier_sizer.h"

namespace sharpi::device {

class DeviceKernels;
class PassKernels;

/// Between which memories bytes are copied; kWithin: a device's own, or of one that it reaches.
enum class Way : uint8_t { kToDevice, kToHost, kWithin };

/// A mark in a queue (Queue::record()).
class Event {
 public:
  virtual ~Event() = default;
  /// Returns when everything in front of the last mark has ended; at once where none was made.
  /// `what` names the work in errors, here and everywhere below.
  virtual Status wait(const char* what) const = 0;
  /// The same without waiting: false = not yet.
  virtual Result<bool> has_happened(const char* what) const = 0;
};

/// A list of work that a queue does as often as it is asked (a graph).
class Recording {
 public:
  virtual ~Recording() = default;
};

/// Rows at equal distances.
struct RowRange {
  void* data = nullptr;
  uint64_t stride = 0;
};
struct ConstRowRange {
  const void* data = nullptr;
  uint64_t stride = 0;
};

/// Work of a device in the order in which it is given: copies, and kernels (kernels.h). All of it
/// is under way when a call returns, and host memory of a copy stays as it is until its end.
class Queue {
 public:
  virtual ~Queue() = default;
  virtual Status copy(void* to, const void* from, uint64_t bytes, Way way,
                      const char* what) const = 0;
  /// n rows of `bytes`.
  virtual Status copy_rows(const RowRange& to, const ConstRowRange& from, uint64_t bytes,
                           uint64_t n, Way way, const char* what) const = 0;
  /// Makes device memory zero.
  virtual Status clear(void* to, uint64_t bytes, const char* what) const = 0;
  virtual Status record(const Event& event, const char* what) const = 0;
  /// What is given from now on begins when the event has happened.
  virtual Status wait_for(const Event& event, const char* what) const = 0;
  /// Returns when everything has ended.
  virtual Status wait() const = 0;
  /// The same without waiting: false = not yet.
  virtual Result<bool> has_ended(const char* what) const = 0;

  /// What is given until end_recording() is written down instead of being done.
  virtual Status begin_recording() const = 0;
  /// Nothing is written down any longer. `given`: whether all that was to be recorded was given;
  /// its failure is the answer then.
  virtual Result<std::unique_ptr<Recording>> end_recording(const Status& given) const = 0;
  virtual Status replay(const Recording& recording) const = 0;

  /// Recordings that ask the host in their midst (expert_line.h) run in parts where the device
  /// cannot look at the host's memory while it works: the host hears that a part has ended, which
  /// asks for something, and begins the next. Elsewhere the kernels see to both.
  virtual bool runs_in_parts() const { return false; }
  /// Of the last replay, without waiting: false = its part has not ended yet.
  virtual Result<bool> has_asked(const char*) const { return false; }
  virtual Status go_on() const { return Status::ok(); }
};

/// Addresses of which a prefix gets memory, granule by granule.
struct Addresses {
  std::byte* data = nullptr;
  std::unique_ptr<GranuleMemory> memory;
};

/// One device of a context.
class Device {
 public:
  virtual ~Device() = default;
  virtual TierId tier() const = 0;
  /// As sharpi_device_info() counts.
  virtual uint32_t index() const = 0;
  /// A row of the plan about memory of this device, or pinned for it.
  MemoryRow row(uint32_t purpose, uint32_t kind, const std::string& label, uint64_t payload,
                uint64_t held) const {
    return make_row(tier(), index(), purpose, kind, label, payload, held);
  }
  /// Idempotent, any thread. Before anything is taken.
  virtual Status open() = 0;
  /// Whether copies of its queues may go to memory of another device of its tier, both being open:
  /// without the host's memory in between. As index() counts.
  virtual bool reaches(uint32_t) const { return false; }
  /// Whether its queues copy to and from pinned memory of other devices of its tier. Where they do
  /// not, each device has memory of its own for hand-overs.
  virtual bool shares_pinned() const { return true; }
  /// kDeviceLost once a fault was seen that stays.
  virtual Status usable() const = 0;
  /// A failure of a kernel's launch, with what the device knows about it.
  virtual Status settle(Status status) const = 0;
  /// From now on usable() fails.
  virtual void mark_lost(int native) const = 0;
  /// Held from launch to end by calls that launch persistent kernels, whose blocks wait for each
  /// other, or kernels that wait for the host. One for all Devices of a process that are the same
  /// device.
  virtual std::mutex& launch_mutex() const = 0;

  /// Bytes that a block of n bytes takes, on the device and of pinned host memory; of one granule
  /// in a range of `reserved` bytes.
  virtual uint64_t held_bytes(uint64_t n) const = 0;
  virtual uint64_t pinned_held_bytes(uint64_t n) const = 0;
  virtual uint64_t granule_bytes(uint64_t reserved) const = 0;
  /// What one block may have at most, whatever is free; UINT64_MAX = no such limit.
  virtual uint64_t largest_block() const = 0;
  /// Zeroed. kOutOfMemory names what and how much. DeviceBuffer and PinnedBuffer (memory.h) own it.
  virtual Result<std::byte*> take(uint64_t bytes, const char* what) const = 0;
  virtual void give(std::byte* data, uint64_t bytes) const noexcept = 0;
  virtual Result<std::byte*> take_pinned(uint64_t bytes, const char* what) const = 0;
  virtual void give_pinned(std::byte* data, uint64_t bytes) const noexcept = 0;
  /// The address by which kernels read and write pinned memory of this device.
  virtual std::byte* seen_by_kernels(std::byte* pinned) const { return pinned; }
  /// `bytes`: whole granules of granule_bytes(). DeviceRange owns them.
  virtual Result<Addresses> reserve(uint64_t bytes, uint64_t granule, const char* what) const = 0;
  virtual void unreserve(const Addresses& addresses, uint64_t bytes) const noexcept = 0;

  virtual Result<std::unique_ptr<Queue>> create_queue() const = 0;
  virtual Result<std::unique_ptr<Event>> create_event() const = 0;

  virtual const DeviceKernels& kernels() const = 0;
  /// Those of one model's passes. Can be asked for sizes before the device is open.
  virtual std::unique_ptr<PassKernels> pass_kernels(const ModelShape& model) const = 0;

  /// Room for what a thread has to put back when it leaves the device.
  static constexpr size_t kScopeBytes = 32;
  struct alignas(8) Scope {
    std::byte room[kScopeBytes];
  };
  virtual void enter(Scope* scope) const = 0;
  virtual void leave(Scope* scope) const noexcept = 0;
};

/// The calling thread works with this device, where a tier's system asks for that.
class DeviceScope {
 public:
  explicit DeviceScope(const Device& device) : device_(device) { device.enter(&scope_); }
  ~DeviceScope() { device_.leave(&scope_); }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  const Device& device_;
  Device::Scope scope_;
};

}  // namespace sharpi::device
