// SPDX-License-Identifier: MIT
// Functions of Vulkan, found at run time: nothing of a loader is linked, so a machine without one
// has no Vulkan device and no other trouble. Thread rule: immutable once loaded.
#pragma once

#define VK_NO_PROTOTYPES 1
#include <vulkan/vulkan.h>

#include <string>

#include "os/dynamic_library.h"

namespace sharpi::vulkan {

// What the loader gives without an instance, what it gives with one, and what a device gives.
#define SHARPI_VULKAN_GLOBAL(X) \
  X(vkEnumerateInstanceVersion) \
  X(vkCreateInstance)
#define SHARPI_VULKAN_INSTANCE(X)             \
  X(vkDestroyInstance)                        \
  X(vkEnumeratePhysicalDevices)               \
  X(vkGetPhysicalDeviceProperties2)           \
  X(vkGetPhysicalDeviceFeatures2)             \
  X(vkGetPhysicalDeviceMemoryProperties2)     \
  X(vkGetPhysicalDeviceQueueFamilyProperties) \
  X(vkEnumerateDeviceExtensionProperties)     \
  X(vkCreateDevice)                           \
  X(vkGetDeviceProcAddr)
#define SHARPI_VULKAN_DEVICE(X)    \
  X(vkDestroyDevice)               \
  X(vkGetDeviceQueue)              \
  X(vkQueueSubmit)                 \
  X(vkAllocateMemory)              \
  X(vkFreeMemory)                  \
  X(vkMapMemory)                   \
  X(vkCreateBuffer)                \
  X(vkDestroyBuffer)               \
  X(vkBindBufferMemory)            \
  X(vkGetBufferMemoryRequirements) \
  X(vkGetBufferDeviceAddress)      \
  X(vkCreateSemaphore)             \
  X(vkDestroySemaphore)            \
  X(vkWaitSemaphores)              \
  X(vkGetSemaphoreCounterValue)    \
  X(vkCreateCommandPool)           \
  X(vkDestroyCommandPool)          \
  X(vkAllocateCommandBuffers)      \
  X(vkFreeCommandBuffers)          \
  X(vkBeginCommandBuffer)          \
  X(vkEndCommandBuffer)            \
  X(vkResetCommandBuffer)          \
  X(vkCmdCopyBuffer)               \
  X(vkCmdFillBuffer)               \
  X(vkCmdUpdateBuffer)             \
  X(vkCmdPipelineBarrier)          \
  X(vkCmdBindPipeline)             \
  X(vkCmdPushConstants)            \
  X(vkCmdDispatch)                 \
  X(vkCreateShaderModule)          \
  X(vkDestroyShaderModule)         \
  X(vkCreatePipelineLayout)        \
  X(vkDestroyPipelineLayout)       \
  X(vkCreatePipelineCache)         \
  X(vkDestroyPipelineCache)        \
  X(vkGetPipelineCacheData)        \
  X(vkCreateComputePipelines)      \
  X(vkDestroyPipeline)

#define SHARPI_VULKAN_POINTER(name) PFN_##name name = nullptr;

/// Of the process: the loader, and one instance.
struct InstanceFunctions {
  SHARPI_VULKAN_POINTER(vkGetInstanceProcAddr)
  SHARPI_VULKAN_GLOBAL(SHARPI_VULKAN_POINTER)
  SHARPI_VULKAN_INSTANCE(SHARPI_VULKAN_POINTER)
  VkInstance instance = VK_NULL_HANDLE;
};

struct DeviceFunctions {
  SHARPI_VULKAN_DEVICE(SHARPI_VULKAN_POINTER)
  /// False, and the first name that is missing.
  bool load(const InstanceFunctions& from, VkDevice device, std::string* missing);
};
#undef SHARPI_VULKAN_POINTER

/// A loader by the name of its file, and an instance of it. False: *why says why there is no
/// device. `library` stays open as long as the functions are used.
bool open_loader(const std::string& file, os::DynamicLibrary* library, InstanceFunctions* out,
                 std::string* why);

/// The loader and an instance of version 1.2 or later, which stay until the process ends. Null:
/// *why says why there is none. Any thread; where there was none it is looked for again.
const InstanceFunctions* instance_functions(std::string* why);

/// "VK_ERROR_DEVICE_LOST" and so on; others by number.
std::string result_text(VkResult result);

}  // namespace sharpi::vulkan
