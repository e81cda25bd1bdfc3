// SPDX-License-Identifier: MIT
#include "plan/pricing.h"

#include <algorithm>

#include "base/checked.h"
#include "plan/drafter_plan.h"
#include "plan/mtp_plan.h"
#include "plan/part_plan.h"
#include "plan/session_plan.h"

namespace sharpi {
namespace {

using ull = unsigned long long;

/// What a GPU's driver takes besides what is asked of it: images of kernels, graphs, its tables.
constexpr uint64_t kDriverReserve = 256ull << 20;

/// The row of a memory that is `short_by` bytes short: the largest that a request can change, else
/// the largest.
const MemoryRow* short_row(const Plan& plan, DeviceIndex device, uint64_t short_by,
                           uint64_t* bytes) {
  const MemoryRow* found[2] = {};
  uint64_t most[2] = {};
  for (const MemoryRow& r : plan.rows) {
    if (!is_of(r, device)) continue;
    const uint64_t n = saturating_mul(r.held_bytes, r.per_session ? plan.model.n_sessions : 1);
    const bool fixed = r.purpose == SHARPI_ROW_WEIGHTS || n < short_by;
    if (n > most[fixed]) most[fixed] = n, found[fixed] = &r;
  }
  *bytes = found[0] != nullptr ? most[0] : most[1];
  return found[0] != nullptr ? found[0] : found[1];
}

/// Slots of a device lie in one block, and drivers bound those.
Status check_slots(const Plan& plan, const MemoryLimit& limit) {
  const uint32_t n = is_host(limit.index) ? 0 : plan.placement.slots_on(limit.index);
  const uint32_t most =
      n == 0 || limit.sizer == nullptr ? UINT32_MAX : limit.sizer->most_expert_slots(*plan.spec);
  if (n <= most) return Status::ok();
  return Status::error(Code::kDoesNotFit,
                       "%u expert slots are too many%s: the device gives a block of memory for at "
                       "most %u of them",
                       n, limit.where.c_str(), most);
}

}  // namespace

void price(const std::vector<const TierSizer*>& sizers, Plan* plan) {
  plan->rows.clear();
  const auto add = [&](const std::vector<MemoryRow>& rows) {
    plan->rows.insert(plan->rows.end(), rows.begin(), rows.end());
  };
  for (const TierSizer* s : sizers) {
    if (!plan->model.copy_weights) break;
    add(s->copied_weight_plan_rows(*plan->spec, plan->placement.seen_from(s->device())));
  }
  for (const TierSizer* s : sizers) {
    if (!plan->uses(*s)) continue;
    add(plan->model_rows(*s));
    add(plan->session_rows(*s, plan->session));
  }
  for (const TierSizer* s : sizers) {
    if (plan->adapters == nullptr || !plan->uses(*s)) continue;
    for (const AdapterFile& a : *plan->adapters) add(plan->adapter_rows(*s, a));
  }
  add(part_rows(*plan->spec, plan->model));
  add(engine_session_rows(*plan->spec, plan->placement, plan->session, plan->model.n_chunk));
  add(mtp_model_rows(sizers, *plan, plan->session));
  add(mtp_session_rows(sizers, *plan, plan->session));
  for (const bool per_session : {false, true})
    add(draft_rows(sizers, *plan, plan->session, per_session));
}

MemoryLimit make_limit(const DeviceRequest& request) {
  MemoryLimit l;
  l.sizer = request.sizer;
  l.is_free_memory = request.budget == SHARPI_ALL_FREE;
  l.given = request.budget_name;
  l.n_layers = request.n_layers;
  l.bytes = request.budget;
  if (l.is_free_memory) l.bytes = l.sizer == nullptr ? 0 : l.sizer->free_bytes();
  if (l.sizer == nullptr) return l;
  l.index = l.sizer->device();
  uint64_t reserve = request.reserve;
  if (reserve == SHARPI_RESERVE_AUTO) reserve = is_host(l.index) ? 0 : kDriverReserve;
  if (l.is_free_memory) l.bytes -= std::min(l.bytes, reserve);
  if (is_host(l.index)) return l;
  l.memory = "device";
  l.where = " on " + l.sizer->device_name() + " (device " + std::to_string(index_of(l.index)) + ")";
  return l;
}

Status check_limit(const Plan& plan, const MemoryLimit& limit) {
  SHARPI_TRY(check_slots(plan, limit));
  const uint64_t need = peak_bytes(plan, limit.index);
  if (need <= limit.bytes) return Status::ok();
  uint64_t bytes = 0;
  const MemoryRow* row = short_row(plan, limit.index, need - limit.bytes, &bytes);
  return Status::error(Code::kDoesNotFit,
                       "the plan takes %llu bytes of %s memory%s, %llu more than the %s of %llu; "
                       "row \"%s\" with %llu bytes lacks them",
                       static_cast<ull>(need), limit.memory, limit.where.c_str(),
                       static_cast<ull>(need - limit.bytes), limit.name().c_str(),
                       static_cast<ull>(limit.bytes), row ? row->label : "?",
                       static_cast<ull>(bytes));
}

}  // namespace sharpi
