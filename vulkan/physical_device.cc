// SPDX-License-Identifier: MIT
#include "vulkan/physical_device.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "vulkan/cooperative_matrix.h"

namespace sharpi::vulkan {
namespace {

constexpr uint32_t kLeastPush = 128, kLeastShared = 16384, kLeastInvocations = 128;

DeviceKind kind_of(VkPhysicalDeviceType type) {
  switch (type) {
    case VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU:
      return DeviceKind::kDiscrete;
    case VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU:
      return DeviceKind::kIntegrated;
    case VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU:
      return DeviceKind::kVirtual;
    default:
      return DeviceKind::kSoftware;
  }
}

std::string uuid_text(const uint8_t* bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (uint32_t i = 0; i < VK_UUID_SIZE; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += kDigits[bytes[i] >> 4];
    text += kDigits[bytes[i] & 15];
  }
  return text;
}

bool has_extension(const InstanceFunctions& f, VkPhysicalDevice device, const char* name) {
  uint32_t n = 0;
  if (f.vkEnumerateDeviceExtensionProperties(device, nullptr, &n, nullptr) != VK_SUCCESS)
    return false;
  std::vector<VkExtensionProperties> all(n);
  const VkResult got = f.vkEnumerateDeviceExtensionProperties(device, nullptr, &n, all.data());
  return (got == VK_SUCCESS || got == VK_INCOMPLETE) &&
         std::any_of(all.begin(), all.end(), [&](const VkExtensionProperties& e) {
           return std::strcmp(e.extensionName, name) == 0;
         });
}

/// What the kernels need, by name; empty: nothing is missing.
std::string missing_features(const InstanceFunctions& f, VkPhysicalDevice device) {
  VkPhysicalDeviceVulkan12Features v12{};
  v12.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES;
  VkPhysicalDeviceVulkan11Features v11{};
  v11.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES;
  v11.pNext = &v12;
  VkPhysicalDeviceFeatures2 all{};
  all.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
  all.pNext = &v11;
  f.vkGetPhysicalDeviceFeatures2(device, &all);
  const struct {
    VkBool32 has;
    const char* name;
  } needed[] = {{v12.bufferDeviceAddress, "bufferDeviceAddress"},
                {v12.timelineSemaphore, "timelineSemaphore"},
                {v12.storageBuffer8BitAccess, "storageBuffer8BitAccess"},
                {v11.storageBuffer16BitAccess, "storageBuffer16BitAccess"},
                {all.features.shaderInt64, "shaderInt64"}};
  std::string missing;
  for (const auto& n : needed) {
    if (n.has == VK_FALSE) missing += std::string(missing.empty() ? "" : ", ") + n.name;
  }
  return missing;
}

/// The largest of the shapes that kernels take.
MatrixShape shape_of_halves(const InstanceFunctions& f, VkPhysicalDevice device) {
  const auto get = reinterpret_cast<GetMatrixProperties>(
      f.vkGetInstanceProcAddr(f.instance, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR"));
  uint32_t n = 0;
  if (get == nullptr || get(device, &n, nullptr) != VK_SUCCESS) return {};
  std::vector<MatrixProperties> all(n);
  const VkResult got = get(device, &n, all.data());
  if (got != VK_SUCCESS && got != VK_INCOMPLETE) return {};
  MatrixShape best;
  const auto taken = [](uint32_t side) { return side == 8 || side == 16; };
  for (const MatrixProperties& p : all) {
    const MatrixShape shape{p.m, p.n, p.k};
    if (taken(p.m) && taken(p.n) && taken(p.k) && p.a == kHalf && p.b == kHalf && p.c == kFloat &&
        p.result == kFloat && p.scope == kSubgroupScope && shape.size() > best.size())
      best = shape;
  }
  return best;
}

MatrixShape matrix_shape(const InstanceFunctions& f, VkPhysicalDevice device) {
  if (!has_extension(f, device, kMatrixExtension)) return {};
  MatrixFeatures matrices;
  VkPhysicalDeviceVulkan12Features v12{};
  v12.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES;
  v12.pNext = &matrices;
  VkPhysicalDeviceFeatures2 all{};
  all.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
  all.pNext = &v12;
  f.vkGetPhysicalDeviceFeatures2(device, &all);
  const bool has = matrices.cooperativeMatrix != VK_FALSE && v12.shaderFloat16 != VK_FALSE &&
                   v12.vulkanMemoryModel != VK_FALSE;
  return has ? shape_of_halves(f, device) : MatrixShape();
}

/// What makes kernels faster and may be missing.
void find_extras(const InstanceFunctions& f, PhysicalDevice* d) {
  d->budget = has_extension(f, d->handle, VK_EXT_MEMORY_BUDGET_EXTENSION_NAME);
  d->matrix = matrix_shape(f, d->handle);
  if (!has_extension(f, d->handle, VK_KHR_SHADER_INTEGER_DOT_PRODUCT_EXTENSION_NAME)) return;
  VkPhysicalDeviceShaderIntegerDotProductFeatures dots{};
  dots.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES;
  VkPhysicalDeviceFeatures2 all{};
  all.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
  all.pNext = &dots;
  f.vkGetPhysicalDeviceFeatures2(d->handle, &all);
  d->byte_dots = dots.shaderIntegerDotProduct != VK_FALSE;
}

std::optional<uint32_t> compute_family(const InstanceFunctions& f, VkPhysicalDevice device) {
  uint32_t n = 0;
  f.vkGetPhysicalDeviceQueueFamilyProperties(device, &n, nullptr);
  std::vector<VkQueueFamilyProperties> all(n);
  f.vkGetPhysicalDeviceQueueFamilyProperties(device, &n, all.data());
  for (uint32_t i = 0; i < n; ++i) {
    if ((all[i].queueFlags & VK_QUEUE_COMPUTE_BIT) != 0 && all[i].queueCount != 0) return i;
  }
  return std::nullopt;
}

/// The first memory type with these properties, and with as many of the wanted ones as there are.
std::optional<uint32_t> memory_type(const VkPhysicalDeviceMemoryProperties& m,
                                    VkMemoryPropertyFlags needed, VkMemoryPropertyFlags wanted) {
  std::optional<uint32_t> found;
  for (uint32_t i = 0; i < m.memoryTypeCount; ++i) {
    const VkMemoryPropertyFlags has = m.memoryTypes[i].propertyFlags;
    if ((has & needed) != needed) continue;
    if ((has & wanted) == wanted) return i;
    if (!found) found = i;
  }
  return found;
}

bool find_memory(PhysicalDevice* d, std::string* why) {
  const auto device = memory_type(d->memory, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT, 0);
  const VkMemoryPropertyFlags seen =
      VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
  const auto host = memory_type(d->memory, seen, VK_MEMORY_PROPERTY_HOST_CACHED_BIT);
  const auto table = memory_type(d->memory, seen, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT);
  if (!device || !host || !table) {
    *why = "it has no memory that the host sees";
    return false;
  }
  d->device_type = *device;
  d->host_type = *host;
  d->table_type = *table;
  d->total_bytes = d->memory.memoryHeaps[d->memory.memoryTypes[*device].heapIndex].size;
  return true;
}

/// False: *why says what it lacks.
bool read_properties(const InstanceFunctions& f, PhysicalDevice* d, std::string* why) {
  VkPhysicalDeviceSubgroupProperties subgroup{};
  subgroup.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES;
  VkPhysicalDeviceMaintenance3Properties most{};
  most.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES;
  most.pNext = &subgroup;
  VkPhysicalDeviceIDProperties id{};
  id.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES;
  id.pNext = &most;
  VkPhysicalDeviceProperties2 all{};
  all.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2;
  all.pNext = &id;
  f.vkGetPhysicalDeviceProperties2(d->handle, &all);
  const VkPhysicalDeviceProperties& p = all.properties;
  d->name = p.deviceName;
  d->kind = kind_of(p.deviceType);
  d->version = p.apiVersion;
  d->vendor = p.vendorID;
  d->model = p.deviceID;
  d->driver_version = p.driverVersion;
  std::memcpy(d->driver_cache, p.pipelineCacheUUID, sizeof d->driver_cache);
  if (p.apiVersion < VK_API_VERSION_1_2) {
    *why = "its driver is for Vulkan " + std::to_string(VK_API_VERSION_MAJOR(p.apiVersion)) + "." +
           std::to_string(VK_API_VERSION_MINOR(p.apiVersion)) + ", 1.2 is the least";
    return false;
  }
  d->id = "vulkan-" + uuid_text(id.deviceUUID);
  d->subgroup_size = subgroup.subgroupSize;
  d->shared_bytes = p.limits.maxComputeSharedMemorySize;
  d->max_push_bytes = p.limits.maxPushConstantsSize;
  d->max_invocations = p.limits.maxComputeWorkGroupInvocations;
  d->max_allocation = most.maxMemoryAllocationSize;
  if ((subgroup.supportedStages & VK_SHADER_STAGE_COMPUTE_BIT) == 0 ||
      (subgroup.supportedOperations & VK_SUBGROUP_FEATURE_ARITHMETIC_BIT) == 0) {
    *why = "it has no arithmetic over subgroups";
  } else if ((subgroup.supportedOperations & VK_SUBGROUP_FEATURE_SHUFFLE_BIT) == 0) {
    *why = "it has no shuffles over subgroups";
  } else if (d->max_push_bytes < kLeastPush || d->shared_bytes < kLeastShared ||
             d->max_invocations < kLeastInvocations) {
    *why = "its limits are below Vulkan's own";
  } else {
    const std::string missing = missing_features(f, d->handle);
    if (missing.empty()) return true;
    *why = "it lacks " + missing;
  }
  return false;
}

/// Two drivers may have the same card, which would be taken twice.
bool is_another(const std::vector<PhysicalDevice>& known, const PhysicalDevice& d,
                std::string* why) {
  const auto same = std::find_if(known.begin(), known.end(),
                                 [&](const PhysicalDevice& k) { return k.id == d.id; });
  if (same == known.end()) return true;
  *why = "it is the device " + same->id + ", which another driver has too";
  return false;
}

}  // namespace

const char* kind_name(DeviceKind kind) {
  static constexpr const char* kNames[] = {"discrete", "integrated", "virtual", "software"};
  return kNames[static_cast<size_t>(kind)];
}

std::vector<PhysicalDevice> find_physical_devices(const InstanceFunctions& f, std::string* why) {
  uint32_t n = 0;
  std::vector<PhysicalDevice> out;
  if (f.vkEnumeratePhysicalDevices(f.instance, &n, nullptr) != VK_SUCCESS) n = 0;
  std::vector<VkPhysicalDevice> handles(n);
  if (n != 0 && f.vkEnumeratePhysicalDevices(f.instance, &n, handles.data()) != VK_SUCCESS) n = 0;
  if (n == 0) *why = "no Vulkan device (no driver has one)";
  for (uint32_t i = 0; i < n; ++i) {
    PhysicalDevice d;
    d.handle = handles[i];
    VkPhysicalDeviceMemoryProperties2 memory{};
    memory.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2;
    f.vkGetPhysicalDeviceMemoryProperties2(d.handle, &memory);
    d.memory = memory.memoryProperties;
    const auto family = compute_family(f, d.handle);
    std::string lacks;
    if (!family) {
      lacks = "it has no queue that computes";
    } else {
      d.queue_family = *family;
    }
    find_extras(f, &d);
    if (read_properties(f, &d, &lacks) && family && find_memory(&d, &lacks) &&
        is_another(out, d, &lacks)) {
      out.push_back(d);
    } else {
      *why += (why->empty() ? "" : "; ") + d.name + " is left out: " + lacks;
    }
  }
  std::stable_sort(out.begin(), out.end(), [](const PhysicalDevice& a, const PhysicalDevice& b) {
    return a.kind < b.kind;
  });
  return out;
}

uint64_t free_bytes(const InstanceFunctions& f, const PhysicalDevice& device) {
  if (!device.budget) return device.total_bytes;
  VkPhysicalDeviceMemoryBudgetPropertiesEXT budget{};
  budget.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT;
  VkPhysicalDeviceMemoryProperties2 memory{};
  memory.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2;
  memory.pNext = &budget;
  f.vkGetPhysicalDeviceMemoryProperties2(device.handle, &memory);
  const uint32_t heap = device.memory.memoryTypes[device.device_type].heapIndex;
  return budget.heapBudget[heap] - std::min(budget.heapBudget[heap], budget.heapUsage[heap]);
}

}  // namespace sharpi::vulkan
