// SPDX-License-Identifier: MIT
// The Vulkan devices of this machine before anything is taken of them: what they are called, what
// they have, and why one cannot be used. Thread rule: pure functions, plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "vulkan/functions.h"

namespace sharpi::vulkan {

enum class DeviceKind : uint8_t { kDiscrete, kIntegrated, kVirtual, kSoftware };
const char* kind_name(DeviceKind kind);

/// What a subgroup multiplies at once: m x k by k x n. Kernels take 8 or 16 of each; 0: nothing.
struct MatrixShape {
  uint32_t m = 0, n = 0, k = 0;
  bool is_square() const { return m == n && n == k; }
  uint32_t size() const { return m * n * k; }
};

struct PhysicalDevice {
  VkPhysicalDevice handle = VK_NULL_HANDLE;
  DeviceKind kind = DeviceKind::kDiscrete;
  std::string name, id;  // id: the UUID as text
  uint32_t version = 0;  // of Vulkan
  uint32_t vendor = 0, model = 0, driver_version = 0;
  uint8_t driver_cache[VK_UUID_SIZE] = {};  // which caches of pipelines the driver takes
  uint32_t queue_family = 0;
  bool budget = false;     // VK_EXT_memory_budget
  bool byte_dots = false;  // VK_KHR_shader_integer_dot_product
  MatrixShape matrix;      // VK_KHR_cooperative_matrix, halves to floats, in a subgroup
  uint32_t subgroup_size = 0;
  uint32_t shared_bytes = 0, max_push_bytes = 0, max_invocations = 0;
  uint64_t max_allocation = 0;
  VkPhysicalDeviceMemoryProperties memory{};
  uint32_t device_type = 0;  // memory type of blocks that only the device reads and writes
  uint32_t host_type = 0;    // of memory that both see and the host reads fast
  uint32_t table_type = 0;   // of memory that the host writes and the device reads
  uint64_t total_bytes = 0;  // of the heap of device_type
};

/// Usable ones, discrete before integrated before virtual before software. `why` collects, for each
/// that is not usable, its name and what it lacks.
std::vector<PhysicalDevice> find_physical_devices(const InstanceFunctions& f, std::string* why);

/// What is free in the heap of device_type, as far as the driver says; else the whole heap.
uint64_t free_bytes(const InstanceFunctions& f, const PhysicalDevice& device);

}  // namespace sharpi::vulkan
