// SPDX-License-Identifier: MIT
// The Vulkan tier's backends: one per usable device of the machine. A machine without a loader, a
// driver or a device has none, which is no error. Thread rule: immutable after make_backends().
#pragma once

#include <memory>
#include <vector>

#include "tier/tier_module.h"

namespace sharpi::vulkan {

class Device;
std::unique_ptr<Backend> make_backend(std::shared_ptr<Device> device);
Result<std::vector<std::unique_ptr<Backend>>> make_backends(const TierModuleOptions& options);

}  // namespace sharpi::vulkan
