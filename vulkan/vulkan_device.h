// SPDX-License-Identifier: MIT
// One Vulkan device of a context, as the room of GPU tiers asks for it (device/device.h).
// Thread rule: immutable but for the byte count, which is atomic.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/device.h"
#include "device/kernels.h"
#include "vulkan/driver.h"

namespace sharpi::vulkan {

class Device final : public device::Device {
 public:
  Device(const PhysicalDevice& physical, uint32_t index, std::string cache_folder = {});
  ~Device() override;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const PhysicalDevice& physical() const { return physical_; }
  /// Free memory now, 0 when it cannot be asked.
  uint64_t free_now() const;
  /// Device memory that this context's buffers and ranges hold.
  uint64_t live_bytes() const { return live_.load(std::memory_order_relaxed); }
  /// Of an open device.
  const Driver& driver() const { return *driver_; }

  /// Zeroed, and counted where it is the device's.
  Result<Block> take_block(uint64_t bytes, MemoryKind kind, const char* what) const;
  void give_block(const Block& block, bool pinned) const noexcept;

  TierId tier() const override { return TierId::kVulkan; }
  uint32_t index() const override { return index_; }
  Status open() override;
  bool shares_pinned() const override { return false; }
  Status usable() const override;
  Status settle(Status status) const override { return status; }
  void mark_lost(int) const override { lost_.store(true); }
  std::mutex& launch_mutex() const override { return launch_mutex_; }
  uint64_t held_bytes(uint64_t n) const override;
  uint64_t largest_block() const override;
  uint64_t pinned_held_bytes(uint64_t n) const override;
  uint64_t granule_bytes(uint64_t reserved) const override;
  Result<std::byte*> take(uint64_t bytes, const char* what) const override;
  void give(std::byte* data, uint64_t bytes) const noexcept override;
  Result<std::byte*> take_pinned(uint64_t bytes, const char* what) const override;
  void give_pinned(std::byte* data, uint64_t bytes) const noexcept override;
  std::byte* seen_by_kernels(std::byte* pinned) const override;
  Result<device::Addresses> reserve(uint64_t bytes, uint64_t granule,
                                    const char* what) const override;
  void unreserve(const device::Addresses& addresses, uint64_t bytes) const noexcept override;
  Result<std::unique_ptr<device::Queue>> create_queue() const override;
  Result<std::unique_ptr<device::Event>> create_event() const override;
  const device::DeviceKernels& kernels() const override { return *kernels_; }
  std::unique_ptr<device::PassKernels> pass_kernels(const ModelShape& model) const override;
  void enter(Scope*) const override {}
  void leave(Scope*) const noexcept override {}

 private:
  const PhysicalDevice physical_;
  const uint32_t index_;
  const std::string cache_folder_;
  std::mutex opening_;
  Driver* driver_ = nullptr;
  std::unique_ptr<device::DeviceKernels> kernels_;
  mutable std::mutex launch_mutex_, taken_mutex_, pinned_mutex_;
  mutable std::map<const std::byte*, Block> taken_, pinned_;  // by where callers see them
  mutable std::atomic<bool> lost_{false};
  mutable std::atomic<uint64_t> live_{0};
};

/// The tier's kernels outside of passes, and those of a model's passes.
std::unique_ptr<device::DeviceKernels> make_device_kernels(const Device& device);
std::unique_ptr<device::PassKernels> make_pass_kernels(const Device& device,
                                                       const ModelShape& model);

/// Bytes/s at which the device reads its own memory, and takes what the host has pinned. Opens it.
Result<double> measure_device_bandwidth(Device& device);
Result<double> measure_link_bandwidth(Device& device);

/// The usable devices of this machine, index `first` upwards. None is no error: *why says it.
std::vector<std::shared_ptr<Device>> find_devices(uint32_t first, std::string* why,
                                                  const std::string& cache_folder = {});

}  // namespace sharpi::vulkan
