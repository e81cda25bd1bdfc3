// SPDX-License-Identifier: MIT
// The rates that a plan goes by: those that the request gives, and measured ones where they are
// needed. Thread rule: as PlanMachine.
#pragma once

#include <vector>

#include "base/status.h"
#include "plan/device_requests.h"
#include "plan/plan.h"

namespace sharpi {

/// Sets plan->rates and those of the plan's devices. `devices`: those that blocks may go to. A rate
/// that is not given is measured if it is needed and there is a machine; else it stays 0.
Status set_rates(const DeviceRequest& host, const std::vector<DeviceRequest>& devices,
                 const sharpi_plan_params& params, const PlanMachine* machine, bool needed,
                 Plan* plan);

}  // namespace sharpi
