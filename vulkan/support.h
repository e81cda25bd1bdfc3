// SPDX-License-Identifier: MIT
// What the kernels cannot do, by name. Thread rule: pure functions.
#pragma once

#include "plan/block_placement.h"
#include "plan/devices.h"

namespace sharpi::vulkan {

/// kUnsupported names the layer and what is wrong with it.
Status check_support(const ModelSpec& spec, const Placement& placement);

}  // namespace sharpi::vulkan
