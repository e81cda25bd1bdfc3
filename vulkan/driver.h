// SPDX-License-Identifier: MIT
// An open Vulkan device: one VkDevice and one queue for all contexts of the process that use the
// same card, its memory, and where addresses lie. Kernels get addresses (buffer device addresses),
// copies get buffers: place() says which buffer an address is in. Addresses of ranges that grow
// (pages.h) are names that kernels look up in a table of pages.
// Thread rule: all functions may be called from any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "base/status.h"
#include "vulkan/pages.h"
#include "vulkan/physical_device.h"
#include "vulkan/profile.h"

namespace sharpi::vulkan {

class Pipelines;

/// A buffer with memory of its own.
struct Block {
  VkBuffer buffer = VK_NULL_HANDLE;
  VkDeviceMemory memory = VK_NULL_HANDLE;
  uint64_t bytes = 0;
  uint64_t address = 0;         // as the device counts
  std::byte* mapped = nullptr;  // where the host sees it, or null
  bool counts = false;          // as memory of the device
};

/// Where a byte lies, and how many follow it in the same buffer.
struct Place {
  VkBuffer buffer = VK_NULL_HANDLE;
  uint64_t offset = 0, left = 0;
};

/// A counter that a queue raises when work ends.
class Timeline {
 public:
  Timeline(const class Driver& driver, VkSemaphore semaphore)
      : driver_(driver), semaphore_(semaphore) {}
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;
  VkSemaphore get() const { return semaphore_; }
  Status wait(uint64_t value, const char* what) const;
  Result<bool> reached(uint64_t value, const char* what) const;

 private:
  const Driver& driver_;
  VkSemaphore semaphore_;
};

/// What a submission waits for or raises.
struct Mark {
  std::shared_ptr<Timeline> timeline;
  uint64_t value = 0;
};

enum class MemoryKind : uint8_t { kDevice, kHost, kTable };

class Driver {
 public:
  /// The open device of the process; opened by the first call, and anew after it was lost. It stays
  /// until the process ends.
  /// `cache_folder`: of the first call; empty: what is compiled is kept nowhere.
  static Result<Driver*> open(const PhysicalDevice& device, const std::string& cache_folder);

  const DeviceFunctions& f() const { return f_; }
  VkDevice device() const { return device_; }
  const PhysicalDevice& physical() const { return physical_; }
  const Profile& profile() const { return profile_; }
  const Pipelines& pipelines() const { return *pipelines_; }
  Pages& pages() const { return *pages_; }

  /// Ok, or the error with its number and `what`; a lost device stays lost.
  Status check(VkResult result, const char* what) const;
  bool lost() const { return lost_.load(std::memory_order_relaxed); }

  /// A buffer of `bytes` whose memory takes exactly as many; kOutOfMemory names what and how much.
  Result<Block> allocate(uint64_t bytes, MemoryKind kind, const char* what) const;
  void free(const Block& block) const noexcept;
  /// Bytes of device memory that allocate() has taken so far and not given back, the table of pages
  /// among them, as counted at vkAllocateMemory.
  uint64_t allocated_bytes() const { return allocated_.load(std::memory_order_relaxed); }

  /// Of a device address or an address of a range (pages.h); of pinned host memory. False: it is
  /// none of those.
  bool place(uint64_t address, Place* out) const;
  bool host_place(const void* data, Place* out) const;
  /// The address by which kernels see pinned host memory; 0 = it is none.
  uint64_t address_of_pinned(const void* data) const;

  Result<std::shared_ptr<Timeline>> create_timeline() const;
  Status submit(VkCommandBuffer commands, const Mark* waits, uint32_t n_waits,
                const Mark& raises) const;
  /// Records commands by `record` and returns when the device has done them.
  Status run_now(const std::function<void(VkCommandBuffer)>& record, const char* what) const;
  /// Copies between a device address and any host memory, over a block of the driver's own that the
  /// host sees. Done on return.
  Status copy_now(uint64_t device, void* host, uint64_t bytes, bool to_host,
                  const char* what) const;

  /// A few bytes for parameters that a queue writes in front of the kernel that reads them.
  const Block& parameters() const { return parameters_; }

 private:
  Driver() = default;
  Status create(const InstanceFunctions& from, const std::string& cache_folder);
  Status create_queue_and_pool(const std::string& cache_folder);
  Result<VkBuffer> create_buffer(uint64_t bytes, const char* what) const;
  Status bind(Block* b, MemoryKind kind) const;

  PhysicalDevice physical_;
  DeviceFunctions f_;
  VkDevice device_ = VK_NULL_HANDLE;
  VkQueue queue_ = VK_NULL_HANDLE;
  Profile profile_;
  std::unique_ptr<Pipelines> pipelines_;
  std::unique_ptr<Pages> pages_;
  Block parameters_, staging_;
  mutable std::atomic<bool> lost_{false};
  mutable std::atomic<uint64_t> allocated_{0};
  mutable std::mutex submitting_, now_, staging_mutex_, blocks_mutex_;
  mutable std::map<uint64_t, Block> blocks_, pinned_;  // by address, by where the host sees them
  VkCommandPool pool_ = VK_NULL_HANDLE;                // of run_now()
  VkCommandBuffer commands_ = VK_NULL_HANDLE;
  std::shared_ptr<Timeline> timeline_;
  mutable uint64_t value_ = 0;
};

/// Everything that was given to the queue has ended, and its writes are seen, before what follows
/// begins; `host`: the host sees them too.
void barrier(const DeviceFunctions& f, VkCommandBuffer commands, bool host = false);
/// Between kernels that no copy is between.
void kernel_barrier(const DeviceFunctions& f, VkCommandBuffer commands);

}  // namespace sharpi::vulkan
