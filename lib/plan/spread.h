// SPDX-License-Identifier: MIT
// Layers over devices: which of a plan's devices has which of the blocks that are not on the host.
// Devices take runs of layers in the order of the list, the embedding goes with the first layer,
// the head with the last one; each layer's KV rows, FFN block and experts go with it, and layers
// that share KV rows stay together. Thread rule: pure functions.
#pragma once

#include <vector>

#include "plan/plan.h"
#include "plan/pricing.h"

namespace sharpi {

/// Puts every block of plan->placement that is on some device on one of `devices`: each takes as
/// many layers as it has to, or as fit its limit by its own sizes; what fits nowhere is the last
/// one's. With `all`, devices are filled to equal shares of their limits. One device takes
/// everything, whatever its limit. Leaves the plan's rows as they were.
void spread(const std::vector<MemoryLimit>& devices, bool all, Plan* plan);

/// Shares slots for single experts out by how many experts each device may ask the host for.
void spread_slots(uint32_t n_slots, const std::vector<MemoryLimit>& devices, Plan* plan);

/// kUnsupported: a layer is on another device than the KV rows that it reads, as a list of devices
/// pins layers.
Status check_shared_rows(const Plan& plan);

}  // namespace sharpi
