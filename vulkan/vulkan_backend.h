// SPDX-License-Identifier: MIT
// The Vulkan tier's backends: one per usable device of the machine. A machine without a loader, a
// driver or a device has none, which is no error. Thread rule: immutable after make_backends().
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tier/tier.h"

namespace sharpi::vulkan {

struct VulkanBackendOptions {
  /// Says why devices are left out.
  std::function<void(const std::string&)> log;
  uint32_t first_index = 1;  // of the first device in the context's list
};

class Device;
std::unique_ptr<Backend> make_backend(std::shared_ptr<Device> device);
Result<std::vector<std::unique_ptr<Backend>>> make_backends(const VulkanBackendOptions& options);

}  // namespace sharpi::vulkan
