// SPDX-License-Identifier: MIT
#include "vulkan/vulkan_backend.h"

#include <algorithm>
#include <cstdio>

#include "device/backend.h"
#include "vulkan/support.h"
#include "vulkan/vulkan_device.h"

namespace sharpi::vulkan {
namespace {

class VulkanBackend final : public device::DeviceBackend {
 public:
  explicit VulkanBackend(std::shared_ptr<Device> device)
      : DeviceBackend(device), device_(std::move(device)) {}

  uint64_t free_bytes() const override { return device_->free_now(); }
  uint64_t total_bytes() const override { return device_->physical().total_bytes; }
  std::string device_name() const override { return device_->physical().name; }
  std::string device_id() const override { return device_->physical().id; }
  bool only_if_named() const override { return device_->physical().kind == DeviceKind::kSoftware; }
  Status check_model(const ModelSpec& spec, const Placement& placement) const override {
    SHARPI_TRY(device_->usable());  // else its memory would be 0, and no reason be given
    SHARPI_TRY(DeviceBackend::check_model(spec, placement));
    return check_support(spec, placement);
  }
  Status check_session(const ModelSpec& spec, const Placement& placement,
                       const SessionShape& session) const override {
    if (!only_if_named()) return Status::ok();
    return check_software_rows(spec, placement,
                               session.kv_budget != 0 ? session.kv_budget : session.n_ctx);
  }
  Status describe(uint32_t flags, sharpi_device* out) const override;

 private:
  std::shared_ptr<Device> device_;
};

Status VulkanBackend::describe(uint32_t flags, sharpi_device* out) const {
  const PhysicalDevice& p = device_->physical();
  out->total_bytes = p.total_bytes;
  out->free_bytes = device_->free_now();
  std::snprintf(out->name, sizeof out->name, "%s", p.name.c_str());
  std::snprintf(out->isa, sizeof out->isa, "vulkan_%u_%u", VK_API_VERSION_MAJOR(p.version),
                VK_API_VERSION_MINOR(p.version));
  std::snprintf(out->id, sizeof out->id, "%s", p.id.c_str());
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

}  // namespace

std::unique_ptr<Backend> make_backend(std::shared_ptr<Device> device) {
  return std::make_unique<VulkanBackend>(std::move(device));
}

Result<std::vector<std::unique_ptr<Backend>>> make_backends(const TierModuleOptions& options) {
  std::string why;
  std::vector<std::unique_ptr<Backend>> out;
  for (auto& device : find_devices(options.first_index, &why, options.cache_folder))
    out.push_back(make_backend(std::move(device)));
  if (!why.empty() && options.log) options.log("Vulkan: " + why);
  return out;
}

}  // namespace sharpi::vulkan
