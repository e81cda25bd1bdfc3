// SPDX-License-Identifier: MIT
// What the backends of GPU tiers have in common: sizes and loading of a model on one device. A tier
// adds what its device is called and has, and what its kernels cannot do.
// Thread rule: immutable.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "device/device.h"
#include "tier/tier.h"

namespace sharpi::device {

class DeviceBackend : public Backend, public TierSizer {
 public:
  const TierSizer& sizer() const final { return *this; }
  TierId tier() const final { return device_->tier(); }
  uint32_t device_index() const final { return device_->index(); }
  /// A tier asks this before what its kernels cannot do.
  Status check_model(const ModelSpec& spec, const Placement& placement) const override;
  /// A model is on several devices of one tier, if it is on several.
  Status check_beside(const ModelSpec& spec,
                      const std::vector<const TierSizer*>& others) const override;
  uint64_t expert_slot_bytes(const ModelSpec& spec, const Placement& placement) const final;
  uint32_t most_expert_slots(const ModelSpec& spec) const final;
  std::vector<MemoryRow> model_rows(const ModelSpec& spec, const Placement& placement,
                                    const ModelShape& model,
                                    const SessionShape& session) const final;
  std::vector<MemoryRow> session_rows(const ModelSpec& spec, const Placement& placement,
                                      const ModelShape& model,
                                      const SessionShape& session) const final;
  std::vector<MemoryRow> adapter_rows(const ModelSpec& spec, const Placement& placement,
                                      const ModelShape& model,
                                      const AdapterFile& adapter) const final;
  Result<std::unique_ptr<TierModel>> load(std::shared_ptr<const Plan> plan,
                                          const LoadProgress& progress) final;
  Result<std::unique_ptr<TierModel>> load_beside(TierModel& lender,
                                                 std::shared_ptr<const Plan> plan) final;

 protected:
  explicit DeviceBackend(std::shared_ptr<Device> device) : device_(std::move(device)) {}

 private:
  std::shared_ptr<Device> device_;
};

}  // namespace sharpi::device
