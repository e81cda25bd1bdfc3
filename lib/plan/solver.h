// SPDX-License-Identifier: MIT
// What the solver needs to know of a request, and what an automatic context takes at least and at
// most. Internal to the plan. Thread rule: plain values.
#pragma once

#include <vector>

#include "base/status.h"
#include "plan/device_requests.h"
#include "plan/placement.h"
#include "plan/plan.h"

namespace sharpi {

struct SolveInputs {
  const std::vector<const TierSizer*>& sizers;
  const sharpi_plan_params& params;
  const PlanEnvironment& environment;
  DeviceRequest host;
  std::vector<DeviceRequest> devices;  // that blocks may go to
  bool named = false, all = false;     // as DeviceRequests
  Status together;                     // why one model cannot be on several of them; ok = it can
  const PlanMachine* machine = nullptr;
};

/// Placement, context, dtypes, rows and rates of a plan whose model and session are set.
Status solve(const SolveInputs& inputs, PlacementLadder* ladder, Plan* plan);

/// An automatic context of fewer tokens serves nobody: what does not hold so many is refused.
inline constexpr uint32_t kLeastContext = 512;
/// An automatic context in host memory without a budget has these even where they take more than
/// the weights.
inline constexpr uint32_t kModestContext = 4096;

/// Bytes of a priced plan in the host's memory: what the sessions of the template take, the copies
/// of weights, and all.
struct MemoryShares {
  uint64_t sessions = 0, weights = 0, all = 0;
};
MemoryShares host_shares(const Plan& plan);
/// Weights of a priced plan, wherever they are.
uint64_t weight_bytes(const Plan& plan);

}  // namespace sharpi
