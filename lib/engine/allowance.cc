// SPDX-License-Identifier: MIT
#include "engine/allowance.h"

namespace sharpi {
namespace {

using ull = unsigned long long;

Status check_one(uint64_t more, uint64_t held, uint64_t limit, const char* memory) {
  if (limit == SHARPI_ALL_FREE || more == 0 || (held <= limit && more <= limit - held)) {
    return Status::ok();
  }
  return Status::error(Code::kDoesNotFit,
                       "the session would take %llu more bytes of %s memory, but the model and its "
                       "sessions hold %llu of the plan's %s_budget of %llu: %llu are missing",
                       static_cast<ull>(more), memory, static_cast<ull>(held), memory,
                       static_cast<ull>(limit), static_cast<ull>(held + more - limit));
}

}  // namespace

HeldBytes HeldBytes::of(const std::vector<MemoryRow>& rows) {
  HeldBytes b;
  for (const MemoryRow& r : rows) {
    if (r.kind == SHARPI_ROW_MAPPED || r.transient != 0) continue;
    (r.kind == SHARPI_ROW_DEVICE ? b.device : b.host) += r.held_bytes;
  }
  return b;
}

Allowance::Allowance(const Plan& plan) : limits_{plan.device_budget, plan.host_budget} {
  std::vector<MemoryRow> own;
  for (const MemoryRow& r : plan.rows) {
    if (r.per_session == 0) own.push_back(r);
  }
  held_ = HeldBytes::of(own);
}

Status Allowance::check_locked(const HeldBytes& more) const {
  SHARPI_TRY(check_one(more.device, held_.device, limits_.device, "device"));
  return check_one(more.host, held_.host, limits_.host, "host");
}

HeldBytes Allowance::held() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return held_;
}

Status Allowance::check(const HeldBytes& more) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return check_locked(more);
}

Status Allowance::take(const HeldBytes& more) {
  const std::lock_guard<std::mutex> lock(mutex_);
  SHARPI_TRY(check_locked(more));
  held_.device += more.device;
  held_.host += more.host;
  return Status::ok();
}

void Allowance::give(const HeldBytes& less) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  held_.device -= less.device;
  held_.host -= less.host;
}

Status Share::take(const HeldBytes& more) {
  SHARPI_TRY(of_->take(more));
  held_.device += more.device;
  held_.host += more.host;
  return Status::ok();
}

void Share::settle(const HeldBytes& now) noexcept {
  of_->give({held_.device - now.device, held_.host - now.host});
  held_ = now;
}

}  // namespace sharpi
