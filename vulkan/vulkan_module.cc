// SPDX-License-Identifier: MIT
// The one function of libsharpi-vulkan.so: the table by which the core finds this tier.
#include "tier/tier_interface.h"
#include "tier/tier_module.h"
#include "vulkan/vulkan_backend.h"

namespace sharpi::vulkan {
namespace {

constexpr TierModule kModule{"Vulkan", SHARPI_TIER_INTERFACE, &make_backends};

}  // namespace
}  // namespace sharpi::vulkan

extern "C" SHARPI_API const sharpi::TierModule* sharpi_tier_module();
const sharpi::TierModule* sharpi_tier_module() {
  sharpi::let_exceptions_through();
  return &sharpi::vulkan::kModule;
}
