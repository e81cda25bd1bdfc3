// SPDX-License-Identifier: MIT
#include "plan/device_requests.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>

namespace sharpi {
namespace {

using ull = unsigned long long;
using Sizers = std::vector<const TierSizer*>;

const TierSizer* find(const Sizers& sizers, uint32_t index) {
  const auto it = std::find_if(sizers.begin(), sizers.end(),
                               [&](const TierSizer* s) { return s->device_index() == index; });
  return it == sizers.end() ? nullptr : *it;
}

Status no_device(uint32_t index, const Sizers& sizers) {
  return Status::error(Code::kNotFound, "device %u does not exist; this context has %zu devices",
                       index, sizers.size());
}

/// A budget says how much of a memory may be taken: there must be that much.
Status check_exists(const DeviceRequest& r) {
  if (r.sizer == nullptr || r.budget == SHARPI_ALL_FREE || r.budget <= r.sizer->total_bytes())
    return Status::ok();
  return Status::error(Code::kInvalidArgument, "%s is %llu bytes, but %s has only %llu",
                       r.budget_name.c_str(), static_cast<ull>(r.budget),
                       r.sizer->device_name().c_str(), static_cast<ull>(r.sizer->total_bytes()));
}

/// Fields for a plan with one device, where a list says the same of each.
Status check_one_way(const sharpi_plan_params& p, bool host_listed) {
  const struct {
    bool given;
    const char* name;
  } fields[] = {
      {p.device != SHARPI_UNSET, "device"},
      {p.device_budget != SHARPI_ALL_FREE, "device_budget"},
      {p.device_rate != 0, "device_rate"},
      {p.pcie_rate != 0, "pcie_rate"},
      {host_listed && p.host_budget != SHARPI_ALL_FREE, "host_budget"},
      {host_listed && p.host_rate != 0, "host_rate"},
  };
  for (const auto& f : fields) {
    if (!f.given) continue;
    return Status::error(Code::kInvalidArgument,
                         "%s is given beside a list of devices, which says it for each of them",
                         f.name);
  }
  return Status::ok();
}

Status check_layers(const sharpi_plan_params& p, const DeviceRequests& r) {
  int64_t pinned = 0;
  bool all = !r.devices.empty();
  for (const DeviceRequest& d : r.devices) {
    pinned += std::max(d.n_layers, 0);
    all = all && d.n_layers >= 0;
  }
  if (p.n_gpu_layers < 0 || pinned == 0) return Status::ok();
  if (all ? pinned == p.n_gpu_layers : pinned <= p.n_gpu_layers) return Status::ok();
  return Status::error(Code::kInvalidArgument,
                       "n_gpu_layers is %d, but the list of devices asks for %lld layers",
                       p.n_gpu_layers, static_cast<long long>(pinned));
}

/// One entry of a list, into what the request says of the host or of one more device.
Status add_listed(const Sizers& sizers, const sharpi_device_request& d, DeviceRequests* out) {
  const TierSizer* sizer = find(sizers, d.device);
  if (sizer == nullptr) return no_device(d.device, sizers);
  const bool host = is_host(sizer->device());
  const auto same = [&](const DeviceRequest& r) { return r.sizer == sizer; };
  if (host ? out->host.budget_name != "host_budget"
           : std::any_of(out->devices.begin(), out->devices.end(), same)) {
    return Status::error(Code::kInvalidArgument, "device %u is twice in the list of devices",
                         d.device);
  }
  const std::string name = "budget of device " + std::to_string(d.device);
  if (d.reserve != SHARPI_RESERVE_AUTO && d.budget != SHARPI_ALL_FREE) {
    return Status::error(Code::kInvalidArgument,
                         "device %u has a reserve, which is of a budget of all that is free, and a "
                         "budget of %llu",
                         d.device, static_cast<ull>(d.budget));
  }
  if (host && d.n_layers >= 0) {
    return Status::error(Code::kInvalidArgument,
                         "n_layers of device 0 is %d, but the host has what no other device has",
                         d.n_layers);
  }
  const DeviceRequest r{sizer, d.budget, d.reserve, d.n_layers, d.rate, d.link_rate, name};
  if (host) {
    out->host = r;
  } else {
    out->devices.push_back(r);
  }
  return Status::ok();
}

Status add_list(const Sizers& sizers, const sharpi_plan_params& p, DeviceRequests* out) {
  bool host_listed = false;
  for (uint32_t i = 0; i < p.n_devices; ++i) {
    host_listed = host_listed || p.devices[i].device == 0;
    SHARPI_TRY(add_listed(sizers, p.devices[i], out));
  }
  out->named = !out->devices.empty();
  SHARPI_TRY(check_one_way(p, host_listed));
  return check_layers(p, *out);
}

/// Whether ids that say the tier and the card (CUDA's "GPU-" and UUID, "vulkan-" and UUID) are of
/// one card.
bool same_card(const std::string& a, const std::string& b) {
  constexpr size_t kUuid = 36;
  return a.size() > kUuid && b.size() > kUuid &&
         a.compare(a.size() - kUuid, kUuid, b, b.size() - kUuid, kUuid) == 0;
}

/// Whether a device in front, which is preferred, is the same card: its memory is there once.
bool is_there(const DeviceRequests& all, const TierSizer& sizer) {
  return std::any_of(all.devices.begin(), all.devices.end(), [&](const DeviceRequest& d) {
    return same_card(d.sizer->device_id(), sizer.device_id());
  });
}

/// The one device that is named, or all.
Status add_one(const Sizers& sizers, const sharpi_plan_params& p, const std::string& environment,
               DeviceRequests* out) {
  uint32_t device = p.device;
  if (device == SHARPI_UNSET && !environment.empty()) {
    auto named = find_device(sizers, environment);
    if (!named.is_ok()) {
      return Status::error(named.status().code(), "SHARPI_DEVICE: %s",
                           named.status().text().c_str());
    }
    device = index_of(named.value());
  }
  const bool named = device != SHARPI_UNSET && device != 0;
  for (const TierSizer* s : sizers) {
    if (is_host(s->device()) || device == 0) continue;
    if (named ? s->device_index() != device : s->only_if_named() || is_there(*out, *s)) continue;
    out->devices.push_back(
        {s, p.device_budget, SHARPI_RESERVE_AUTO, -1, p.device_rate, p.pcie_rate, "device_budget"});
  }
  out->named = named;
  return named && out->devices.empty() && sizers.size() > 1 ? no_device(device, sizers)
                                                            : Status::ok();
}

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

}  // namespace

const TierSizer* find_host(const Sizers& sizers) {
  return find(sizers, 0);
}

Result<DeviceRequests> resolve_devices(const Sizers& sizers, const sharpi_plan_params& p,
                                       const std::string& environment) {
  if (p.split == SHARPI_SPLIT_TENSOR) {
    return Status::error(Code::kUnsupported,
                         "split is 2 (TENSOR), but this library has no tier that computes one "
                         "layer on several devices");
  }
  DeviceRequests out;
  out.all = p.split == SHARPI_SPLIT_ALL;
  out.host = {find_host(sizers), p.host_budget, SHARPI_RESERVE_AUTO, -1, p.host_rate, 0,
              "host_budget"};
  SHARPI_TRY(p.n_devices != 0 ? add_list(sizers, p, &out) : add_one(sizers, p, environment, &out));
  for (const DeviceRequest& d : out.devices) SHARPI_TRY(check_exists(d));
  SHARPI_TRY(check_exists(out.host));
  return out;
}

Result<DeviceIndex> find_device(const Sizers& sizers, const std::string& text) {
  const bool is_number =
      !text.empty() && text.size() < 10 &&
      std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
  if (is_number) {
    const auto index = static_cast<uint32_t>(std::strtoul(text.c_str(), nullptr, 10));
    if (find(sizers, index) == nullptr) return no_device(index, sizers);
    return DeviceIndex{index};
  }
  const std::string wanted = lower(text);
  std::vector<const TierSizer*> found;
  for (const TierSizer* s : sizers) {
    if (lower(s->device_id()) == wanted) return s->device();
    if (!wanted.empty() && lower(s->device_name()).find(wanted) != std::string::npos)
      found.push_back(s);
  }
  if (found.size() == 1) return found[0]->device();
  if (found.empty()) {
    return Status::error(Code::kNotFound, "no device has the id \"%s\" or that in its name",
                         text.c_str());
  }
  std::string list;
  for (const TierSizer* s : found)
    list += (list.empty() ? "" : ", ") + std::to_string(s->device_index()) + " (" + s->device_id() +
            ")";
  return Status::error(Code::kInvalidArgument,
                       "\"%s\" is in the names of several devices; name one by its index or id: %s",
                       text.c_str(), list.c_str());
}

}  // namespace sharpi
