// SPDX-License-Identifier: MIT
#include "api/session_price.h"

#include <utility>

#include "plan/drafter_plan.h"
#include "plan/encoder_plan.h"
#include "plan/mtp_plan.h"
#include "plan/session_plan.h"
#include "plan/token_checks.h"

namespace sharpi::api {
namespace {

Status check_free(const std::vector<MemoryRow>& rows, const TierSizer& sizer) {
  uint64_t total = 0;
  const MemoryRow* largest = nullptr;
  for (const MemoryRow& row : rows) {
    if (!is_of(row, sizer.device())) continue;
    total += row.held_bytes;
    if (largest == nullptr || row.held_bytes > largest->held_bytes) largest = &row;
  }
  const uint64_t free_now = sizer.free_bytes();
  if (largest == nullptr || total <= free_now) return Status::ok();
  return Status::error(Code::kDoesNotFit,
                       "a session needs %llu bytes of %s, but %llu are free: %llu are missing; the "
                       "largest row is \"%s\" with %llu",
                       static_cast<unsigned long long>(total), sizer.device_name().c_str(),
                       static_cast<unsigned long long>(free_now),
                       static_cast<unsigned long long>(total - free_now), largest->label,
                       static_cast<unsigned long long>(largest->held_bytes));
}

}  // namespace

Result<std::shared_ptr<const Plan>> price_session(const Model& model, const SessionShape& shape) {
  const Plan& base = model.plan();
  SHARPI_TRY(check_has_sessions(*base.spec));
  SHARPI_TRY(check_probe_length(shape.probe.size(), base.model.n_chunk));
  auto plan = std::make_shared<Plan>();
  plan->spec = base.spec;
  plan->draft_spec = base.draft_spec;
  plan->placement = base.placement;
  plan->devices = base.devices;
  for (PlanDevice& d : plan->devices) d.rate = d.link_rate = 0;  // a session's plan has no times
  plan->model = base.model;
  plan->model.n_sessions = 1;
  plan->session = shape;
  plan->session_only = true;
  plan->file_fingerprint = base.file_fingerprint;
  const auto sizers = model.context().sizers();
  for (const TierSizer* sizer : sizers) {
    if (!base.uses(*sizer)) continue;
    auto rows = plan->session_rows(*sizer, shape);
    plan->rows.insert(plan->rows.end(), rows.begin(), rows.end());
  }
  const auto mtp = mtp_session_rows(sizers, base, shape);
  plan->rows.insert(plan->rows.end(), mtp.begin(), mtp.end());
  const auto drafter = draft_rows(sizers, base, shape, true);
  plan->rows.insert(plan->rows.end(), drafter.begin(), drafter.end());
  const auto own = engine_session_rows(*base.spec, base.placement, shape, base.model.n_chunk);
  plan->rows.insert(plan->rows.end(), own.begin(), own.end());
  plan->capture_bytes = capture_bytes(sizers, *plan);
  SHARPI_TRY(model.allowance()->check(HeldBytes::of(plan->rows)));
  for (const TierSizer* sizer : sizers) {
    if (is_host(sizer->tier()) || base.uses(*sizer)) SHARPI_TRY(check_free(plan->rows, *sizer));
  }
  return std::shared_ptr<const Plan>(std::move(plan));
}

}  // namespace sharpi::api
