// SPDX-License-Identifier: MIT
#include "device/backend.h"

#include <algorithm>

#include "device/adapter.h"
#include "device/check_parts.h"
#include "device/expert_slots.h"
#include "device/model.h"
#include "device/scoring.h"
#include "device/session.h"
#include "device/weights.h"

namespace sharpi::device {

Status DeviceBackend::check_model(const ModelSpec& spec, const Placement& placement) const {
  SHARPI_TRY(check_parts(spec, placement));
  return check_weight_sizes(*device_, spec, placement);
}

Status DeviceBackend::check_beside(const ModelSpec& spec,
                                   const std::vector<const TierSizer*>& others) const {
  for (const TierSizer* o : others) {
    if (o->tier() == tier()) continue;
    return Status::error(Code::kUnsupported,
                         "%s cannot share a model with %s: a model is on several GPUs of one tier, "
                         "and these are of \"%s\" and \"%s\"",
                         device_name().c_str(), o->device_name().c_str(),
                         tier_name(static_cast<uint32_t>(tier())),
                         tier_name(static_cast<uint32_t>(o->tier())));
  }
  if (spec.d_ple == 0) return Status::ok();
  return Status::error(Code::kUnsupported,
                       "%s cannot share a model with %s: layers of this %s model take per-layer "
                       "embeddings, which a GPU makes only where it has the first layer",
                       device_name().c_str(), others.front()->device_name().c_str(),
                       spec.architecture.c_str());
}

uint64_t DeviceBackend::expert_slot_bytes(const ModelSpec& spec, const Placement&) const {
  return make_slot_layout(spec).bytes;
}

/// They lie in one block, behind an empty one.
uint32_t DeviceBackend::most_expert_slots(const ModelSpec& spec) const {
  const uint64_t bytes = make_slot_layout(spec).bytes;
  if (bytes == 0 || device_->largest_block() == UINT64_MAX) return UINT32_MAX;
  const uint64_t blocks = std::max<uint64_t>(1, device_->largest_block() / bytes);
  return static_cast<uint32_t>(std::min<uint64_t>(UINT32_MAX, blocks - 1));
}

std::vector<MemoryRow> DeviceBackend::model_rows(const ModelSpec& spec, const Placement& placement,
                                                 const ModelShape& model,
                                                 const SessionShape& session) const {
  // Which libraries there are decides about workspaces. A device that does not open says so when
  // the plan is used.
  const Status opened = device_->open();
  (void)opened.is_ok();
  return DeviceModel::plan_rows(*device_, spec, placement, model, session);
}

std::vector<MemoryRow> DeviceBackend::session_rows(const ModelSpec& spec,
                                                   const Placement& placement,
                                                   const ModelShape& model,
                                                   const SessionShape& session) const {
  std::vector<MemoryRow> rows = DeviceSession::plan_rows(*device_, spec, placement, model, session);
  const uint32_t queries = score_queries(session);
  if (queries == 0) return rows;
  for (const MemoryRow& r :
       score_rows(*device_, spec, placement,
                  {session.capacity(model.n_chunk), queries, session.n_ctx,
                   policy_needs_values(session.policy), session.replay_every != 0})) {
    rows.push_back(r);
  }
  return rows;
}

std::vector<MemoryRow> DeviceBackend::adapter_rows(const ModelSpec& spec,
                                                   const Placement& placement,
                                                   const ModelShape& model,
                                                   const AdapterFile& adapter) const {
  return DeviceAdapter::plan_rows(*device_, spec, placement, model, adapter);
}

Result<std::unique_ptr<TierModel>> DeviceBackend::load(std::shared_ptr<const Plan> plan,
                                                       const LoadProgress& progress) {
  SHARPI_TRY_ASSIGN(std::unique_ptr<DeviceModel> m,
                    DeviceModel::create(device_, std::move(plan), progress));
  return std::unique_ptr<TierModel>(std::move(m));
}

Result<std::unique_ptr<TierModel>> DeviceBackend::load_beside(TierModel& lender,
                                                              std::shared_ptr<const Plan> plan) {
  SHARPI_TRY_ASSIGN(
      std::unique_ptr<DeviceModel> m,
      DeviceModel::create(device_, std::move(plan), nullptr, static_cast<DeviceModel*>(&lender)));
  return std::unique_ptr<TierModel>(std::move(m));
}

}  // namespace sharpi::device
