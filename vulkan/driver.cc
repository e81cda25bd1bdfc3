// SPDX-License-Identifier: MIT
#include "vulkan/driver.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <vector>

#include "vulkan/cooperative_matrix.h"
#include "vulkan/pipelines.h"

namespace sharpi::vulkan {
namespace {

constexpr uint64_t kStagingBytes = 4ull << 20, kParameterBytes = 4096;

/// Open devices of the process, which stay.
struct Opened {
  std::mutex mutex;
  std::map<std::string, Driver*> by_id;
};
Opened& opened() {
  static auto* const all = new Opened();
  return *all;
}

}  // namespace

void barrier(const DeviceFunctions& f, VkCommandBuffer commands, bool host) {
  constexpr VkPipelineStageFlags kWork =
      VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT;
  VkMemoryBarrier b{};
  b.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER;
  b.srcAccessMask = VK_ACCESS_MEMORY_WRITE_BIT | VK_ACCESS_MEMORY_READ_BIT;
  b.dstAccessMask = VK_ACCESS_MEMORY_READ_BIT | VK_ACCESS_MEMORY_WRITE_BIT;
  if (host) b.dstAccessMask |= VK_ACCESS_HOST_READ_BIT;
  const VkPipelineStageFlags after =
      host ? kWork | VkPipelineStageFlags{VK_PIPELINE_STAGE_HOST_BIT} : kWork;
  f.vkCmdPipelineBarrier(commands, kWork, after, 0, 1, &b, 0, nullptr, 0, nullptr);
}

void kernel_barrier(const DeviceFunctions& f, VkCommandBuffer commands) {
  constexpr VkPipelineStageFlags kKernels = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT;
  VkMemoryBarrier b{};
  b.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER;
  b.srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT;
  b.dstAccessMask = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT;
  f.vkCmdPipelineBarrier(commands, kKernels, kKernels, 0, 1, &b, 0, nullptr, 0, nullptr);
}

Timeline::~Timeline() {
  driver_.f().vkDestroySemaphore(driver_.device(), semaphore_, nullptr);
}

Status Timeline::wait(uint64_t value, const char* what) const {
  VkSemaphoreWaitInfo info{};
  info.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO;
  info.semaphoreCount = 1;
  info.pSemaphores = &semaphore_;
  info.pValues = &value;
  return driver_.check(driver_.f().vkWaitSemaphores(driver_.device(), &info, UINT64_MAX), what);
}

Result<bool> Timeline::reached(uint64_t value, const char* what) const {
  uint64_t now = 0;
  SHARPI_TRY(driver_.check(
      driver_.f().vkGetSemaphoreCounterValue(driver_.device(), semaphore_, &now), what));
  return now >= value;
}

Result<Driver*> Driver::open(const PhysicalDevice& device, const std::string& cache_folder) {
  std::string why;
  const InstanceFunctions* from = instance_functions(&why);
  if (from == nullptr) return Status::error(Code::kDevice, "%s", why.c_str());
  Opened& all = opened();
  const std::lock_guard<std::mutex> lock(all.mutex);
  Driver*& known = all.by_id[device.id + "/" + std::to_string(device.queue_family)];
  if (known != nullptr && !known->lost()) return known;
  auto* made = new Driver();  // stays, as do its threads
  made->physical_ = device;
  SHARPI_TRY(made->create(*from, cache_folder));
  known = made;
  return made;
}

Status Driver::create(const InstanceFunctions& from, const std::string& cache_folder) {
  const float priority = 1.0f;
  VkDeviceQueueCreateInfo queue{};
  queue.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO;
  queue.queueFamilyIndex = physical_.queue_family;
  queue.queueCount = 1;
  queue.pQueuePriorities = &priority;
  VkPhysicalDeviceVulkan12Features v12{};
  v12.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES;
  v12.bufferDeviceAddress = v12.timelineSemaphore = v12.storageBuffer8BitAccess = VK_TRUE;
  VkPhysicalDeviceShaderIntegerDotProductFeatures dots{};
  dots.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES;
  dots.shaderIntegerDotProduct = VK_TRUE;
  std::vector<const char*> extensions;
  if (physical_.budget) extensions.push_back(VK_EXT_MEMORY_BUDGET_EXTENSION_NAME);
  if (physical_.byte_dots) {
    extensions.push_back(VK_KHR_SHADER_INTEGER_DOT_PRODUCT_EXTENSION_NAME);
    v12.pNext = &dots;
  }
  MatrixFeatures matrices;
  matrices.cooperativeMatrix = VK_TRUE;
  if (physical_.matrix.size() != 0) {
    extensions.push_back(kMatrixExtension);
    v12.shaderFloat16 = v12.vulkanMemoryModel = VK_TRUE;
    matrices.pNext = v12.pNext;
    v12.pNext = &matrices;
  }
  VkPhysicalDeviceVulkan11Features v11{};
  v11.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES;
  v11.pNext = &v12;
  v11.storageBuffer16BitAccess = VK_TRUE;
  VkPhysicalDeviceFeatures2 features{};
  features.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
  features.pNext = &v11;
  features.features.shaderInt64 = VK_TRUE;
  VkDeviceCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO;
  info.pNext = &features;
  info.queueCreateInfoCount = 1;
  info.pQueueCreateInfos = &queue;
  info.enabledExtensionCount = static_cast<uint32_t>(extensions.size());
  info.ppEnabledExtensionNames = extensions.data();
  const VkResult made = from.vkCreateDevice(physical_.handle, &info, nullptr, &device_);
  if (made != VK_SUCCESS) {
    return Status::native_error(Code::kDevice, made, "vkCreateDevice of %s failed: %s",
                                physical_.name.c_str(), result_text(made).c_str());
  }
  std::string missing;
  if (!f_.load(from, device_, &missing)) {
    return Status::error(Code::kUnsupported, "%s: %s", physical_.name.c_str(), missing.c_str());
  }
  profile_ = make_profile(physical_);
  return create_queue_and_pool(cache_folder);
}

Status Driver::create_queue_and_pool(const std::string& cache_folder) {
  f_.vkGetDeviceQueue(device_, physical_.queue_family, 0, &queue_);
  VkCommandPoolCreateInfo pool{};
  pool.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO;
  pool.flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT;
  pool.queueFamilyIndex = physical_.queue_family;
  SHARPI_TRY(check(f_.vkCreateCommandPool(device_, &pool, nullptr, &pool_), "vkCreateCommandPool"));
  VkCommandBufferAllocateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO;
  info.commandPool = pool_;
  info.level = VK_COMMAND_BUFFER_LEVEL_PRIMARY;
  info.commandBufferCount = 1;
  SHARPI_TRY(
      check(f_.vkAllocateCommandBuffers(device_, &info, &commands_), "vkAllocateCommandBuffers"));
  SHARPI_TRY_ASSIGN(timeline_, create_timeline());
  pipelines_ = std::make_unique<Pipelines>(*this);
  SHARPI_TRY(pipelines_->create(cache_folder));
  pages_ = std::make_unique<Pages>(*this);
  SHARPI_TRY(pages_->create());
  SHARPI_TRY_ASSIGN(parameters_, allocate(kParameterBytes, MemoryKind::kDevice, "parameters"));
  SHARPI_TRY_ASSIGN(staging_, allocate(kStagingBytes, MemoryKind::kHost, "staging"));
  return Status::ok();
}

Status Driver::check(VkResult result, const char* what) const {
  if (result == VK_SUCCESS) return Status::ok();
  const std::string text = result_text(result);
  Code code = Code::kDevice;
  if (result == VK_ERROR_DEVICE_LOST) {
    lost_.store(true);
    code = Code::kDeviceLost;
  } else if (result == VK_ERROR_OUT_OF_DEVICE_MEMORY || result == VK_ERROR_OUT_OF_HOST_MEMORY) {
    code = Code::kOutOfMemory;
  }
  return Status::native_error(code, result, "%s failed on %s: %s", what, physical_.name.c_str(),
                              text.c_str());
}

namespace {

using ull = unsigned long long;

Status no_memory(const PhysicalDevice& d, const char* what, uint64_t bytes, VkResult got) {
  return Status::native_error(Code::kOutOfMemory, got,
                              "there is no memory for %s: %llu bytes are needed on %s", what,
                              static_cast<ull>(bytes), d.name.c_str());
}

uint32_t type_of(const PhysicalDevice& d, MemoryKind kind) {
  if (kind == MemoryKind::kDevice) return d.device_type;
  return kind == MemoryKind::kHost ? d.host_type : d.table_type;
}

}  // namespace

Result<VkBuffer> Driver::create_buffer(uint64_t bytes, const char* what) const {
  if (bytes > physical_.max_allocation) {
    return Status::error(Code::kOutOfMemory,
                         "there is no memory for %s: %llu bytes are needed at once, and %s gives "
                         "at most %llu",
                         what, static_cast<ull>(bytes), physical_.name.c_str(),
                         static_cast<ull>(physical_.max_allocation));
  }
  VkBufferCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO;
  info.size = bytes;
  info.usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT |
               VK_BUFFER_USAGE_TRANSFER_DST_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT;
  VkBuffer buffer = VK_NULL_HANDLE;
  SHARPI_TRY(check(f_.vkCreateBuffer(device_, &info, nullptr, &buffer), what));
  VkMemoryRequirements needs{};
  f_.vkGetBufferMemoryRequirements(device_, buffer, &needs);
  if (needs.size == bytes) return buffer;
  f_.vkDestroyBuffer(device_, buffer, nullptr);
  return Status::error(Code::kUnsupported, "%s takes %llu bytes for a buffer of %llu",
                       physical_.name.c_str(), static_cast<ull>(needs.size),
                       static_cast<ull>(bytes));
}

/// Binds a new block's memory; the host sees all but kDevice.
Status Driver::bind(Block* b, MemoryKind kind) const {
  SHARPI_TRY(check(f_.vkBindBufferMemory(device_, b->buffer, b->memory, 0), "vkBindBufferMemory"));
  if (kind != MemoryKind::kDevice) {
    void* data = nullptr;
    SHARPI_TRY(
        check(f_.vkMapMemory(device_, b->memory, 0, VK_WHOLE_SIZE, 0, &data), "vkMapMemory"));
    b->mapped = static_cast<std::byte*>(data);
  }
  VkBufferDeviceAddressInfo at{};
  at.sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO;
  at.buffer = b->buffer;
  b->address = f_.vkGetBufferDeviceAddress(device_, &at);
  return Status::ok();
}

Result<Block> Driver::allocate(uint64_t bytes, MemoryKind kind, const char* what) const {
  Block b;
  b.bytes = bytes;
  SHARPI_TRY_ASSIGN(b.buffer, create_buffer(bytes, what));
  VkMemoryAllocateFlagsInfo flags{};
  flags.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO;
  flags.flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT;
  VkMemoryAllocateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO;
  info.pNext = &flags;
  info.allocationSize = bytes;
  info.memoryTypeIndex = type_of(physical_, kind);
  const VkResult got = f_.vkAllocateMemory(device_, &info, nullptr, &b.memory);
  if (got != VK_SUCCESS) {
    f_.vkDestroyBuffer(device_, b.buffer, nullptr);
    const bool none = got == VK_ERROR_OUT_OF_DEVICE_MEMORY || got == VK_ERROR_OUT_OF_HOST_MEMORY ||
                      got == VK_ERROR_TOO_MANY_OBJECTS;
    return none ? no_memory(physical_, what, bytes, got) : check(got, "vkAllocateMemory");
  }
  b.counts = kind != MemoryKind::kHost;
  if (b.counts) allocated_.fetch_add(bytes, std::memory_order_relaxed);
  Status bound = bind(&b, kind);
  if (!bound.is_ok()) {
    free(b);
    return bound;
  }
  const std::lock_guard<std::mutex> lock(blocks_mutex_);
  if (kind == MemoryKind::kHost) pinned_[reinterpret_cast<uint64_t>(b.mapped)] = b;
  if (kind == MemoryKind::kDevice) blocks_[b.address] = b;
  return b;
}

void Driver::free(const Block& block) const noexcept {
  {
    const std::lock_guard<std::mutex> lock(blocks_mutex_);
    pinned_.erase(reinterpret_cast<uint64_t>(block.mapped));
    blocks_.erase(block.address);
    if (block.counts) allocated_.fetch_sub(block.bytes, std::memory_order_relaxed);
  }
  f_.vkDestroyBuffer(device_, block.buffer, nullptr);
  f_.vkFreeMemory(device_, block.memory, nullptr);
}

namespace {

const Block* find_block(const std::map<uint64_t, Block>& all, uint64_t at) {
  auto it = all.upper_bound(at);
  if (it == all.begin()) return nullptr;
  --it;
  return at - it->first < it->second.bytes ? &it->second : nullptr;
}

bool place_in(const Block* b, uint64_t offset, Place* out) {
  if (b == nullptr) return false;
  *out = {b->buffer, offset, b->bytes - offset};
  return true;
}

}  // namespace

bool Driver::place(uint64_t address, Place* out) const {
  if ((address & kRangeBit) != 0) return pages_->place(address, out);
  const std::lock_guard<std::mutex> lock(blocks_mutex_);
  const Block* b = find_block(blocks_, address);
  return place_in(b, b == nullptr ? 0 : address - b->address, out);
}

bool Driver::host_place(const void* data, Place* out) const {
  const auto at = reinterpret_cast<uint64_t>(data);
  const std::lock_guard<std::mutex> lock(blocks_mutex_);
  const Block* b = find_block(pinned_, at);
  return place_in(b, b == nullptr ? 0 : at - reinterpret_cast<uint64_t>(b->mapped), out);
}

uint64_t Driver::address_of_pinned(const void* data) const {
  const auto at = reinterpret_cast<uint64_t>(data);
  const std::lock_guard<std::mutex> lock(blocks_mutex_);
  const Block* b = find_block(pinned_, at);
  return b == nullptr ? 0 : b->address + (at - reinterpret_cast<uint64_t>(b->mapped));
}

Result<std::shared_ptr<Timeline>> Driver::create_timeline() const {
  VkSemaphoreTypeCreateInfo type{};
  type.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO;
  type.semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE;
  VkSemaphoreCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO;
  info.pNext = &type;
  VkSemaphore made = VK_NULL_HANDLE;
  SHARPI_TRY(check(f_.vkCreateSemaphore(device_, &info, nullptr, &made), "vkCreateSemaphore"));
  return std::make_shared<Timeline>(*this, made);
}

Status Driver::submit(VkCommandBuffer commands, const Mark* waits, uint32_t n_waits,
                      const Mark& raises) const {
  constexpr uint32_t kMost = 64;  // of one submission; no memory is taken for them
  for (; n_waits > kMost; waits += kMost, n_waits -= kMost)
    SHARPI_TRY(submit(VK_NULL_HANDLE, waits, kMost, {}));
  std::array<VkSemaphore, kMost> semaphores;
  std::array<uint64_t, kMost> values;
  std::array<VkPipelineStageFlags, kMost> stages;
  stages.fill(VK_PIPELINE_STAGE_ALL_COMMANDS_BIT);
  for (uint32_t i = 0; i < n_waits; ++i) {
    semaphores[i] = waits[i].timeline->get();
    values[i] = waits[i].value;
  }
  const bool ends = raises.timeline != nullptr;
  const VkSemaphore raised = ends ? raises.timeline->get() : VK_NULL_HANDLE;
  VkTimelineSemaphoreSubmitInfo counts{};
  counts.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO;
  counts.waitSemaphoreValueCount = n_waits;
  counts.pWaitSemaphoreValues = values.data();
  counts.signalSemaphoreValueCount = ends ? 1 : 0;
  counts.pSignalSemaphoreValues = &raises.value;
  VkSubmitInfo info{};
  info.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO;
  info.pNext = &counts;
  info.waitSemaphoreCount = n_waits;
  info.pWaitSemaphores = semaphores.data();
  info.pWaitDstStageMask = stages.data();
  info.commandBufferCount = commands == VK_NULL_HANDLE ? 0 : 1;
  info.pCommandBuffers = &commands;
  info.signalSemaphoreCount = ends ? 1 : 0;
  info.pSignalSemaphores = &raised;
  const std::lock_guard<std::mutex> lock(submitting_);
  return check(f_.vkQueueSubmit(queue_, 1, &info, VK_NULL_HANDLE), "vkQueueSubmit");
}

Status Driver::run_now(const std::function<void(VkCommandBuffer)>& record, const char* what) const {
  const std::lock_guard<std::mutex> lock(now_);
  VkCommandBufferBeginInfo info{};
  info.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO;
  info.flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT;
  SHARPI_TRY(check(f_.vkBeginCommandBuffer(commands_, &info), what));
  barrier(f_, commands_);
  record(commands_);
  barrier(f_, commands_, true);
  SHARPI_TRY(check(f_.vkEndCommandBuffer(commands_), what));
  SHARPI_TRY(submit(commands_, nullptr, 0, {timeline_, ++value_}));
  return timeline_->wait(value_, what);
}

Status Driver::copy_now(uint64_t device, void* host, uint64_t bytes, bool to_host,
                        const char* what) const {
  const std::lock_guard<std::mutex> lock(staging_mutex_);
  auto* at = static_cast<std::byte*>(host);
  for (uint64_t done = 0; done < bytes;) {
    Place p;
    if (!place(device + done, &p)) {
      return Status::error(Code::kInternal, "%s: no memory of the device is at an address", what);
    }
    const uint64_t n = std::min({bytes - done, p.left, kStagingBytes});
    const VkBufferCopy in{p.offset, 0, n}, out{0, p.offset, n};
    if (!to_host) std::memcpy(staging_.mapped, at + done, n);
    SHARPI_TRY(run_now(
        [&](VkCommandBuffer c) {
          if (to_host) {
            f_.vkCmdCopyBuffer(c, p.buffer, staging_.buffer, 1, &in);
          } else {
            f_.vkCmdCopyBuffer(c, staging_.buffer, p.buffer, 1, &out);
          }
        },
        what));
    if (to_host) std::memcpy(at + done, staging_.mapped, n);
    done += n;
  }
  return Status::ok();
}

}  // namespace sharpi::vulkan
