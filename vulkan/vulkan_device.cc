// SPDX-License-Identifier: MIT
#include "vulkan/vulkan_device.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/checked.h"
#include "device/pass_kernels.h"
#include "vulkan/granules.h"
#include "vulkan/queue.h"

namespace sharpi::vulkan {
namespace {

/// What blocks are rounded up to: drivers align buffers to less.
constexpr uint64_t kBlockBytes = 4096;

}  // namespace

Device::Device(const PhysicalDevice& physical, uint32_t index, std::string cache_folder)
    : physical_(physical),
      index_(index),
      cache_folder_(std::move(cache_folder)),
      kernels_(make_device_kernels(*this)) {}

Device::~Device() = default;

uint64_t Device::free_now() const {
  std::string why;
  const InstanceFunctions* f = instance_functions(&why);
  return f == nullptr || lost_ ? 0 : free_bytes(*f, physical_);
}

Status Device::open() {
  const std::lock_guard<std::mutex> lock(opening_);
  if (driver_ != nullptr) return Status::ok();
  SHARPI_TRY_ASSIGN(driver_, Driver::open(physical_, cache_folder_));
  return Status::ok();
}

Status Device::usable() const {
  if (!lost_ && (driver_ == nullptr || !driver_->lost())) return Status::ok();
  return Status::error(Code::kDeviceLost, "device %u (%s) was lost", index_,
                       physical_.name.c_str());
}

uint64_t Device::held_bytes(uint64_t n) const {
  return round_up(n, kBlockBytes);
}

/// A block takes whole steps of held_bytes().
uint64_t Device::largest_block() const {
  return physical_.max_allocation / kBlockBytes * kBlockBytes;
}

uint64_t Device::pinned_held_bytes(uint64_t n) const {
  return round_up(n, kBlockBytes);
}

/// Larger for larger ranges: drivers allow few blocks.
uint64_t Device::granule_bytes(uint64_t reserved) const {
  uint64_t n = kPageBytes;
  while (n < 16 * kPageBytes && reserved / n > 128) n *= 2;
  return n;
}

Result<Block> Device::take_block(uint64_t bytes, MemoryKind kind, const char* what) const {
  SHARPI_TRY(usable());
  if (driver_ == nullptr) return Status::error(Code::kInternal, "the device is not open");
  SHARPI_TRY_ASSIGN(const Block b, driver_->allocate(bytes, kind, what));
  if (kind == MemoryKind::kHost) {
    std::memset(b.mapped, 0, bytes);
    return b;
  }
  live_.fetch_add(bytes, std::memory_order_relaxed);
  const Status cleared = driver_->run_now(
      [&](VkCommandBuffer c) { driver_->f().vkCmdFillBuffer(c, b.buffer, 0, VK_WHOLE_SIZE, 0); },
      what);
  if (cleared.is_ok()) return b;
  give_block(b, false);
  return cleared;
}

void Device::give_block(const Block& block, bool pinned) const noexcept {
  driver_->free(block);
  if (!pinned) live_.fetch_sub(block.bytes, std::memory_order_relaxed);
}

Result<std::byte*> Device::take(uint64_t bytes, const char* what) const {
  SHARPI_TRY_ASSIGN(const Block b, take_block(held_bytes(bytes), MemoryKind::kDevice, what));
  auto* data = reinterpret_cast<std::byte*>(b.address);
  const std::lock_guard<std::mutex> lock(taken_mutex_);
  taken_[data] = b;
  return data;
}

Result<std::byte*> Device::take_pinned(uint64_t bytes, const char* what) const {
  SHARPI_TRY_ASSIGN(const Block b, take_block(pinned_held_bytes(bytes), MemoryKind::kHost, what));
  const std::lock_guard<std::mutex> lock(pinned_mutex_);
  pinned_[b.mapped] = b;
  return b.mapped;
}

std::byte* Device::seen_by_kernels(std::byte* pinned) const {
  return reinterpret_cast<std::byte*>(driver().address_of_pinned(pinned));
}

void Device::give(std::byte* data, uint64_t) const noexcept {
  Block b;
  {
    const std::lock_guard<std::mutex> lock(taken_mutex_);
    b = taken_[data];
    taken_.erase(data);
  }
  give_block(b, false);
}

void Device::give_pinned(std::byte* data, uint64_t) const noexcept {
  Block b;
  {
    const std::lock_guard<std::mutex> lock(pinned_mutex_);
    b = pinned_[data];
    pinned_.erase(data);
  }
  give_block(b, true);
}

Result<device::Addresses> Device::reserve(uint64_t bytes, uint64_t granule,
                                          const char* what) const {
  SHARPI_TRY(usable());
  SHARPI_TRY_ASSIGN(const uint64_t address, driver_->pages().reserve(bytes, what));
  device::Addresses out;
  out.data = reinterpret_cast<std::byte*>(address);
  out.memory = std::make_unique<Granules>(*this, address, granule, bytes / granule, what);
  return out;
}

void Device::unreserve(const device::Addresses& addresses, uint64_t bytes) const noexcept {
  driver_->pages().unreserve(reinterpret_cast<uint64_t>(addresses.data), bytes);
}

Result<std::unique_ptr<device::Queue>> Device::create_queue() const {
  SHARPI_TRY_ASSIGN(std::unique_ptr<Queue> q, Queue::create(*driver_));
  return std::unique_ptr<device::Queue>(std::move(q));
}

Result<std::unique_ptr<device::Event>> Device::create_event() const {
  return std::unique_ptr<device::Event>(std::make_unique<Event>());
}

std::unique_ptr<device::PassKernels> Device::pass_kernels(const ModelShape& model) const {
  return make_pass_kernels(*this, model);
}

std::vector<std::shared_ptr<Device>> find_devices(uint32_t first, std::string* why,
                                                  const std::string& cache_folder) {
  std::vector<std::shared_ptr<Device>> out;
  const InstanceFunctions* f = instance_functions(why);
  if (f == nullptr) return out;
  for (const PhysicalDevice& p : find_physical_devices(*f, why))
    out.push_back(
        std::make_shared<Device>(p, first + static_cast<uint32_t>(out.size()), cache_folder));
  return out;
}

}  // namespace sharpi::vulkan
