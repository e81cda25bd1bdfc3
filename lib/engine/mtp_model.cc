// SPDX-License-Identifier: MIT
#include "engine/mtp_model.h"

#include <utility>

#include "plan/draft_mtp.h"

namespace sharpi {

Result<std::unique_ptr<MtpModel>> MtpModel::load(Backend& host, const Plan& whole) {
  std::unique_ptr<MtpModel> m(new MtpModel);
  m->whole_spec_ = whole.spec;
  m->whole_shape_ = whole.model;
  m->plan_ = std::make_shared<Plan>(make_mtp_plan(*whole.spec, whole.model, whole.session));
  SHARPI_TRY_ASSIGN(m->tier_, host.load(m->plan_, nullptr));
  m->segments_ = make_segments(m->spec(), m->plan_->placement);
  if (m->segments_.size() != 1) {
    return Status::error(Code::kInternal, "the MTP block was cut into %zu segments; it must be one",
                         m->segments_.size());
  }
  for (uint32_t i = 0; i < whole.model.max_concurrent; ++i) {
    SHARPI_TRY_ASSIGN(std::unique_ptr<Workspace> w, m->tier_->create_workspace());
    m->free_.push_back(std::move(w));
  }
  return m;
}

Result<std::unique_ptr<TierSession>> MtpModel::create_session(const SessionShape& shape) const {
  return tier_->create_session(make_mtp_plan(*whole_spec_, whole_shape_, shape).session);
}

Status MtpModel::run(const Submission& rows) const {
  std::unique_lock<std::mutex> lock(mutex_);
  freed_.wait(lock, [&] { return !free_.empty(); });
  std::unique_ptr<Workspace> w = std::move(free_.back());
  free_.pop_back();
  lock.unlock();
  const Status done = tier_->run(segments_[0], rows, *w);
  lock.lock();
  free_.push_back(std::move(w));
  lock.unlock();
  freed_.notify_one();
  return done;
}

std::vector<MemoryRow> MtpModel::as_own(std::vector<MemoryRow> rows) const {
  for (MemoryRow& r : rows) r = mtp_row(r, *whole_spec_);
  return rows;
}

}  // namespace sharpi
