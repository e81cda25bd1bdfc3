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

/// The shortest automatic context. A plan that cannot hold it is refused.
inline constexpr uint32_t kLeastContext = 512;
/// Without a host budget, sessions with automatic contexts take no more host memory than the
/// weights do. A context of so many tokens is allowed all the same.
inline constexpr uint32_t kModestContext = 4096;

/// Bytes that a priced plan takes of the host's memory: for the template's sessions, for copies of
/// weights, and altogether.
struct MemoryShares {
  uint64_t sessions = 0, weights = 0, all = 0;
};
MemoryShares host_shares(const Plan& plan);
/// Weights of a priced plan, wherever they are.
uint64_t weight_bytes(const Plan& plan);

}  // namespace sharpi
