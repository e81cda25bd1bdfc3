// SPDX-License-Identifier: MIT
#include "cuda/cuda_backend.h"

#include <algorithm>
#include <cstdio>

#include "cuda/device.h"
#include "cuda/support.h"
#include "device/backend.h"

namespace sharpi::cuda {
namespace {

using namespace device;

class CudaBackend final : public DeviceBackend {
 public:
  explicit CudaBackend(std::shared_ptr<Device> device)
      : DeviceBackend(device), device_(std::move(device)) {}

  uint64_t free_bytes() const override { return device_->free_bytes(); }
  uint64_t total_bytes() const override { return device_->total_bytes(); }
  std::string device_name() const override { return device_->name(); }
  std::string device_id() const override { return device_->id(); }
  Status check_model(const ModelSpec& spec, const Placement& placement) const override {
    SHARPI_TRY(device_->usable());  // else its memory would be 0, and no reason be given
    SHARPI_TRY(DeviceBackend::check_model(spec, placement));
    return check_support(device_->profile(), device_->name(), spec, placement);
  }

  Status check_session(const ModelSpec& spec, const Placement& placement,
                       const SessionShape& session) const override {
    if (session.replay_every == 0) return Status::ok();
    return check_replay(device_->profile(), device_->name(), spec, placement);
  }

  Status describe(uint32_t flags, sharpi_device* out) const override {
    out->n_cores = static_cast<uint32_t>(device_->profile().n_sm);
    out->total_bytes = device_->total_bytes();
    out->free_bytes = device_->free_bytes();
    std::snprintf(out->name, sizeof out->name, "%s", device_->name().c_str());
    std::snprintf(out->isa, sizeof out->isa, "sm_%d", device_->capability());
    std::snprintf(out->id, sizeof out->id, "%s", device_->id().c_str());
    out->bandwidth = out->link_bandwidth = 0;
    out->held_bytes = device_->live_bytes();
    const uint64_t used = out->total_bytes - std::min(out->total_bytes, out->free_bytes);
    out->other_bytes = used - std::min(used, out->held_bytes);
    if ((flags & SHARPI_DEVICE_MEASURE) != 0) {
      SHARPI_TRY_ASSIGN(out->bandwidth, measure_device_bandwidth(*device_));
      SHARPI_TRY_ASSIGN(out->link_bandwidth, measure_link_bandwidth(*device_));
    }
    return Status::ok();
  }

 private:
  std::shared_ptr<Device> device_;
};

}  // namespace

std::unique_ptr<Backend> make_backend(std::shared_ptr<Device> device) {
  return std::make_unique<CudaBackend>(std::move(device));
}

Result<std::vector<std::unique_ptr<Backend>>> make_backends(const TierModuleOptions& options) {
  std::string why;
  std::vector<std::unique_ptr<Backend>> out;
  for (auto& device : find_devices(options.first_index, &why)) {
    out.push_back(make_backend(std::move(device)));
  }
  if (!why.empty() && options.log) options.log("CUDA: " + why);
  return out;
}

}  // namespace sharpi::cuda
