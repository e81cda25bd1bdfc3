// SPDX-License-Identifier: MIT
// What the kernels of the CUDA tier cannot do, said at planning, before anything is taken.
// Thread rule: pure functions.
#pragma once

#include <string>

#include "cuda/kernels/device_profile.h"
#include "plan/block_placement.h"
#include "plan/devices.h"

namespace sharpi::cuda {

/// kUnsupported naming the layer and the limit: what no device computes, or what this one has no
/// room for. `name`: the device's.
Status check_support(const DeviceProfile& device, const std::string& name, const ModelSpec& spec,
                     const Placement& placement);

/// The same of replay scores: kUnsupported naming the first layer that would have some.
Status check_replay(const DeviceProfile& device, const std::string& name, const ModelSpec& spec,
                    const Placement& placement);

}  // namespace sharpi::cuda
