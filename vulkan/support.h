// SPDX-License-Identifier: MIT
// What the kernels cannot do, by name. Thread rule: pure functions.
#pragma once

#include "plan/block_placement.h"
#include "plan/devices.h"

namespace sharpi::vulkan {

/// kUnsupported names the layer and what is wrong with it.
Status check_support(const ModelSpec& spec, const Placement& placement);

/// kUnsupported naming the first layer of full attention placed here, where a device of software
/// would read more of its rows than Mesa's goes round loops (docs/vulkan.md).
Status check_software_rows(const ModelSpec& spec, const Placement& placement, uint32_t n_rows);

}  // namespace sharpi::vulkan
