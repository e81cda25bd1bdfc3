// SPDX-License-Identifier: MIT
// The backend of the tests' device: a tier over the room of GPU tiers (lib/device) where there is
// no GPU. Thread rule: as tier.h.
#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/backend.h"
#include "device/host_device.h"
#include "engine/inner_engine.h"

namespace sharpi::testing {

class HostTierBackend final : public device::DeviceBackend {
 public:
  HostTierBackend() : HostTierBackend(std::make_shared<HostDevice>(), "host device") {}
  HostTierBackend(std::shared_ptr<HostDevice> device, std::string name,
                  uint64_t bytes = uint64_t{4} << 30)
      : DeviceBackend(device),
        id_("posed-room-" + std::to_string(device->index())),
        name_(std::move(name)),
        bytes_(bytes) {}
  uint64_t free_bytes() const override { return bytes_; }
  uint64_t total_bytes() const override { return bytes_; }
  std::string device_name() const override { return name_; }
  std::string device_id() const override { return id_; }
  Status check_adapters() const override {
    if (!host_faults().refuses_adapters) return Status::ok();
    return Status::error(Code::kUnsupported, "the posed device takes no adapters");
  }
  Status describe(uint32_t, sharpi_device* out) const override {
    out->total_bytes = out->free_bytes = total_bytes();
    std::snprintf(out->name, sizeof out->name, "%s", name_.c_str());
    std::snprintf(out->id, sizeof out->id, "%s", id_.c_str());
    return Status::ok();
  }

 private:
  std::string id_, name_;
  uint64_t bytes_;
};

/// How far logits may be from those of another implementation.
inline constexpr double kNear = 2e-3;

/// A CPU tier of two threads, and this one.
inline Result<std::vector<std::unique_ptr<Backend>>> host_and_device(const BackendOptions&) {
  SHARPI_TRY_ASSIGN(std::unique_ptr<Backend> host, small_cpu());
  std::vector<std::unique_ptr<Backend>> out;
  out.push_back(std::move(host));
  out.push_back(std::make_unique<HostTierBackend>());
  return out;
}

}  // namespace sharpi::testing
