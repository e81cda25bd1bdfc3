// SPDX-License-Identifier: MIT
// Which devices a request names or leaves to the planner, and with what limits.
// Thread rule: pure functions, plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "plan/tier_sizer.h"

namespace sharpi {

/// A device that a plan may use.
struct DeviceRequest {
  const TierSizer* sizer = nullptr;
  uint64_t budget = SHARPI_ALL_FREE;
  uint64_t reserve = SHARPI_RESERVE_AUTO;  // of what is free; the budget being all that is free
  int32_t n_layers = -1;                   // that it has to have; -1 = as many as fit
  double rate = 0, link_rate = 0;          // 0 = measured where it is needed
  std::string budget_name;                 // for refusals: "device_budget"
};

struct DeviceRequests {
  DeviceRequest host;
  std::vector<DeviceRequest> devices;  // in the order in which layers go to them
  bool named = false;  // by the request; else they are all that there are, and it may take any
  bool all = false;    // layers go to all of them, even where fewer hold them
};

/// The host's sizer; null = the list has none.
const TierSizer* find_host(const std::vector<const TierSizer*>& sizers);

/// What a request says of devices, checked against those that there are. `environment`: the device
/// that SHARPI_DEVICE names, for a request that names none. kNotFound: no such device;
/// kInvalidArgument: fields that contradict each other, or a budget above what there is;
/// kUnsupported: a way to split a model that there is not.
Result<DeviceRequests> resolve_devices(const std::vector<const TierSizer*>& sizers,
                                       const sharpi_plan_params& params,
                                       const std::string& environment);

/// The device that a text names: an index, an id, or a name or a part of one, in any case. "cpu" is
/// the host. kNotFound: none; kInvalidArgument: several.
Result<DeviceIndex> find_device(const std::vector<const TierSizer*>& sizers,
                                const std::string& text);

}  // namespace sharpi
