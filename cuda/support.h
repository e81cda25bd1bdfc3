// SPDX-License-Identifier: MIT
// What the kernels of the CUDA tier cannot do, said at planning, before anything is taken.
// Thread rule: pure functions.
#pragma once

#include "plan/plan.h"

namespace sharpi::cuda {

/// kUnsupported naming the layer and the limit.
Status check_support(const ModelSpec& spec, const Placement& placement);

}  // namespace sharpi::cuda
