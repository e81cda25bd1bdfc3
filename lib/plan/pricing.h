// SPDX-License-Identifier: MIT
// All rows of a plan, and whether they fit what it may take of each device's memory.
// Thread rule: pure functions, plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "plan/device_requests.h"
#include "plan/plan.h"

namespace sharpi {

/// Writes plan->rows: what each device of `sizers` takes for the plan's placement and shapes, and
/// what the engine takes.
void price(const std::vector<const TierSizer*>& sizers, Plan* plan);

/// What a plan may take of one device's memory.
struct MemoryLimit {
  const TierSizer* sizer = nullptr;  // null: the machine lacks the device, so nothing is held there
  DeviceIndex index = DeviceIndex::kHost;
  uint64_t bytes = 0;
  bool is_free_memory = false;
  int32_t n_layers = -1;  // that it has to have; -1 = as many as fit
  const char* memory = "host";
  std::string where;  // of a device: " on NAME (device 2)"
  std::string given;  // "device_budget", or "budget of device 2"
  std::string name() const { return is_free_memory ? "free memory" : given; }
};
MemoryLimit make_limit(const DeviceRequest& request);

/// Ok, or kDoesNotFit: how many bytes the priced plan is over, and of which row.
Status check_limit(const Plan& plan, const MemoryLimit& limit);

}  // namespace sharpi
