// SPDX-License-Identifier: MIT
#include "plan/plan_rates.h"

#include <algorithm>

#include "plan/pricing.h"

namespace sharpi {
namespace {

/// The rate that blocks which give way to devices' limits are priced by: the mean by what each may
/// hold; 0 = one is not known.
double mean_rate(const std::vector<DeviceRequest>& devices, const Plan& plan) {
  double bytes = 0, seconds = 0;
  for (const DeviceRequest& d : devices) {
    const double rate = plan.device(d.sizer->device())->rate;
    if (devices.size() == 1 || rate == 0) return rate;
    const auto own = static_cast<double>(make_limit(d).bytes);
    bytes += own;
    seconds += own / rate;
  }
  return seconds > 0 ? bytes / seconds : 0;
}

}  // namespace

Status set_rates(const DeviceRequest& host, const std::vector<DeviceRequest>& devices,
                 const sharpi_plan_params& params, const PlanMachine* machine, bool needed,
                 Plan* plan) {
  plan->rates = {params.device_rate, params.pcie_rate, host.rate};
  double link = 0;
  for (const DeviceRequest& d : devices) {
    double rate = d.rate, link_rate = d.link_rate;
    if (needed && machine != nullptr && (rate == 0 || link_rate == 0 || plan->rates.host == 0)) {
      SHARPI_TRY_ASSIGN(const Rates measured, machine->measured_rates(d.sizer->device_index()));
      if (rate == 0) rate = measured.device;
      if (link_rate == 0) link_rate = measured.pcie;
      if (plan->rates.host == 0) plan->rates.host = measured.host;
    }
    for (PlanDevice& of : plan->devices) {
      if (of.index != d.sizer->device()) continue;
      of.rate = rate;
      of.link_rate = link_rate;
    }
    link = link == 0 ? link_rate : std::min(link, link_rate);
  }
  if (!plan->devices.empty()) plan->devices[0].rate = plan->rates.host;
  if (devices.empty()) return Status::ok();
  plan->rates.device = mean_rate(devices, *plan);
  plan->rates.pcie = link;
  return Status::ok();
}

}  // namespace sharpi
