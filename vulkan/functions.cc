// SPDX-License-Identifier: MIT
#include "vulkan/functions.h"

#include <memory>
#include <mutex>

namespace sharpi::vulkan {
namespace {

constexpr uint32_t kLeastVersion = VK_API_VERSION_1_2;

std::string version_text(uint32_t version) {
  return std::to_string(VK_API_VERSION_MAJOR(version)) + "." +
         std::to_string(VK_API_VERSION_MINOR(version));
}

template <class F>
bool find(F* to, PFN_vkVoidFunction found, const char* name, std::string* why) {
  *to = reinterpret_cast<F>(found);
  if (found != nullptr) return true;
  *why = std::string("the loader has no ") + name;
  return false;
}

bool find_global(InstanceFunctions* f, std::string* why) {
#define SHARPI_FIND(name) \
  if (!find(&f->name, f->vkGetInstanceProcAddr(nullptr, #name), #name, why)) return false;
  SHARPI_VULKAN_GLOBAL(SHARPI_FIND)
#undef SHARPI_FIND
  return true;
}

bool find_instance(InstanceFunctions* f, std::string* why) {
#define SHARPI_FIND(name) \
  if (!find(&f->name, f->vkGetInstanceProcAddr(f->instance, #name), #name, why)) return false;
  SHARPI_VULKAN_INSTANCE(SHARPI_FIND)
#undef SHARPI_FIND
  return true;
}

bool make_instance(InstanceFunctions* f, std::string* why) {
  uint32_t version = 0;
  if (f->vkEnumerateInstanceVersion(&version) != VK_SUCCESS || version < kLeastVersion) {
    *why = "the loader is for Vulkan " + version_text(version) + ", 1.2 is the least";
    return false;
  }
  VkApplicationInfo app{};
  app.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO;
  app.pEngineName = "sharpi";
  app.apiVersion = kLeastVersion;
  VkInstanceCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO;
  info.pApplicationInfo = &app;
  const VkResult made = f->vkCreateInstance(&info, nullptr, &f->instance);
  if (made == VK_SUCCESS) return find_instance(f, why);
  *why = made == VK_ERROR_INCOMPATIBLE_DRIVER ? "no driver of Vulkan is installed"
                                              : "vkCreateInstance: " + result_text(made);
  return false;
}

/// What was opened stays: threads of drivers may be in it when the process ends.
struct Loaded {
  std::mutex mutex;
  os::DynamicLibrary library;
  InstanceFunctions functions;
  bool usable = false;
};
Loaded& loaded() {
  static auto* const all = new Loaded();
  return *all;
}

}  // namespace

bool open_loader(const std::string& file, os::DynamicLibrary* library, InstanceFunctions* out,
                 std::string* why) {
  if (!library->open({file})) {
    *why = "no Vulkan device (no " + file + ")";
    return false;
  }
  InstanceFunctions f;
  f.vkGetInstanceProcAddr =
      reinterpret_cast<PFN_vkGetInstanceProcAddr>(library->symbol("vkGetInstanceProcAddr"));
  std::string missing = file + " has no vkGetInstanceProcAddr";
  if (f.vkGetInstanceProcAddr == nullptr || !find_global(&f, &missing) ||
      !make_instance(&f, &missing)) {
    *why = "no Vulkan device (" + missing + ")";
    return false;
  }
  *out = f;
  return true;
}

const InstanceFunctions* instance_functions(std::string* why) {
  Loaded& all = loaded();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (all.usable) return &all.functions;
#if defined(_WIN32)
  const std::string file = "vulkan-1.dll";
#else
  const std::string file = os::library_file("vulkan", "1");
#endif
  all.usable = open_loader(file, &all.library, &all.functions, why);
  return all.usable ? &all.functions : nullptr;
}

bool DeviceFunctions::load(const InstanceFunctions& from, VkDevice device, std::string* missing) {
#define SHARPI_FIND(name) \
  if (!find(&name, from.vkGetDeviceProcAddr(device, #name), #name, missing)) return false;
  SHARPI_VULKAN_DEVICE(SHARPI_FIND)
#undef SHARPI_FIND
  return true;
}

std::string result_text(VkResult result) {
  switch (result) {
    case VK_ERROR_OUT_OF_HOST_MEMORY:
      return "VK_ERROR_OUT_OF_HOST_MEMORY";
    case VK_ERROR_OUT_OF_DEVICE_MEMORY:
      return "VK_ERROR_OUT_OF_DEVICE_MEMORY";
    case VK_ERROR_INITIALIZATION_FAILED:
      return "VK_ERROR_INITIALIZATION_FAILED";
    case VK_ERROR_DEVICE_LOST:
      return "VK_ERROR_DEVICE_LOST";
    case VK_ERROR_TOO_MANY_OBJECTS:
      return "VK_ERROR_TOO_MANY_OBJECTS";
    case VK_TIMEOUT:
      return "VK_TIMEOUT";
    default:
      return "VkResult " + std::to_string(static_cast<int>(result));
  }
}

}  // namespace sharpi::vulkan
