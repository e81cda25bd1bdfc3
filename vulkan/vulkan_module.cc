// SPDX-License-Identifier: MIT
// The one function of libsharpi-vulkan.so: the table by which the core finds this tier.
#include "tier/tier_interface.h"
#include "tier/tier_module.h"
#include "vulkan/vulkan_backend.h"

namespace sharpi::vulkan {
namespace {

Result<std::vector<std::unique_ptr<Backend>>> make_module_backends(
    const TierModuleOptions& options) {
  return make_backends(VulkanBackendOptions{options.log, options.first_index});
}

constexpr TierModule kModule{"Vulkan", SHARPI_TIER_INTERFACE, &make_module_backends};

}  // namespace
}  // namespace sharpi::vulkan

extern "C" SHARPI_API const sharpi::TierModule* sharpi_tier_module();
const sharpi::TierModule* sharpi_tier_module() {
  sharpi::let_exceptions_through();
  return &sharpi::vulkan::kModule;
}
