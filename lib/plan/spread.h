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

/// Gives every block that plan->placement has on a device to one of `devices`: as few of the first
/// ones as hold them by their own sizes, or, with `all`, every one. Several are filled to the same
/// share of their limits, so that all are busy when chunks of a prompt pass them; but where layers
/// are pinned, each takes its own and others take what fits, one after the other. What fits none
/// goes to the last one. Where there is one device it takes everything, whatever its limit. Does
/// not price the plan again.
void spread(const std::vector<MemoryLimit>& devices, bool all, Plan* plan);

/// Divides slots among devices by how many experts of each the host computes.
void spread_slots(uint32_t n_slots, const std::vector<MemoryLimit>& devices, Plan* plan);

/// kUnsupported where the pins of a list of devices part a layer from the KV rows that it reads.
Status check_shared_rows(const Plan& plan);

}  // namespace sharpi
