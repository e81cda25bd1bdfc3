// SPDX-License-Identifier: MIT
#include "engine/allowance.h"

namespace sharpi {
namespace {

using ull = unsigned long long;

Status check_one(uint64_t more, uint64_t held, uint64_t limit, const char* memory,
                 const char* budget) {
  if (limit == SHARPI_ALL_FREE || more == 0 || (held <= limit && more <= limit - held)) {
    return Status::ok();
  }
  return Status::error(Code::kDoesNotFit,
                       "the session would take %llu more bytes of %s memory, but the model and its "
                       "sessions hold %llu of the plan's %s of %llu: %llu are missing",
                       static_cast<ull>(more), memory, static_cast<ull>(held), budget,
                       static_cast<ull>(limit), static_cast<ull>(held + more - limit));
}

}  // namespace

HeldBytes HeldBytes::of(const std::vector<MemoryRow>& rows) {
  HeldBytes b;
  for (const MemoryRow& r : rows) {
    if (r.kind == SHARPI_ROW_MAPPED || r.transient != 0) continue;
    b.at(r.kind == SHARPI_ROW_DEVICE ? DeviceIndex{r.device} : DeviceIndex::kHost) += r.held_bytes;
  }
  return b;
}

Allowance::Allowance(const Plan& plan) {
  for (const PlanDevice& d : plan.devices) {
    const bool one = plan.devices.size() <= 2;
    limits_.push_back({d.index, d.budget,
                       is_host(d.index) ? "host_budget"
                       : one            ? "device_budget"
                                        : "budget of device " + std::to_string(index_of(d.index))});
  }
  std::vector<MemoryRow> own;
  for (const MemoryRow& r : plan.rows) {
    // Adapters take theirs when they are loaded.
    if (r.per_session == 0 && r.purpose != SHARPI_ROW_ADAPTERS) own.push_back(r);
  }
  held_ = HeldBytes::of(own);
}

/// Devices before the host.
Status Allowance::check_locked(const HeldBytes& more) const {
  for (const bool host : {false, true}) {
    for (const Limit& l : limits_) {
      if (is_host(l.device) != host) continue;
      SHARPI_TRY(check_one(more.at(l.device), held_.at(l.device), l.bytes, host ? "host" : "device",
                           l.name.c_str()));
    }
  }
  return Status::ok();
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
  held_ += more;
  return Status::ok();
}

void Allowance::give(const HeldBytes& less) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  held_ -= less;
}

Status Share::take(const HeldBytes& more) {
  SHARPI_TRY(of_->take(more));
  held_ += more;
  return Status::ok();
}

void Share::settle(const HeldBytes& now) noexcept {
  of_->give(held_ - now);
  held_ = now;
}

}  // namespace sharpi
