// SPDX-License-Identifier: MIT
// What no GPU tier computes, whatever its kernels can do: parts of a layer that the passes of this
// room have no launches for. Thread rule: pure function.
#pragma once

#include "base/status.h"
#include "model/model_spec.h"
#include "tier/tier.h"

namespace sharpi::device {

/// kUnsupported naming the layer and the part, if the blocks placed here have one.
Status check_parts(const ModelSpec& spec, const Placement& placement);

}  // namespace sharpi::device
