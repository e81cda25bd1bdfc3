// SPDX-License-Identifier: MIT
#include "engine/mtp_model.h"

#include <algorithm>
#include <utility>

#include "plan/mtp_plan.h"

namespace sharpi {

Result<std::unique_ptr<MtpModel>> MtpModel::load(Backend& backend, TierModel& trunk,
                                                 std::shared_ptr<const Plan> whole) {
  std::unique_ptr<MtpModel> m(new MtpModel);
  m->whole_ = std::move(whole);
  m->plan_ = std::make_shared<Plan>(make_mtp_plan(*m->whole_, m->whole_->session));
  SHARPI_TRY_ASSIGN(m->tier_,
                    backend.load_beside(trunk, seen_from(backend.sizer().device(), m->plan_)));
  m->segments_ = make_segments(m->spec(), m->plan_->placement);
  if (m->segments_.size() != 1) {
    return Status::error(Code::kInternal, "the MTP block was cut into %zu segments; it must be one",
                         m->segments_.size());
  }
  return m;
}

Status MtpModel::create_workspaces() {
  for (uint32_t i = 0; i < plan_->model.max_concurrent; ++i) {
    SHARPI_TRY_ASSIGN(std::unique_ptr<Workspace> w, tier_->create_workspace(nullptr));
    free_.push_back(std::move(w));
  }
  return Status::ok();
}

Result<std::unique_ptr<TierSession>> MtpModel::create_session(const SessionShape& shape) const {
  return tier_->create_session(make_mtp_plan(*whole_, shape).session);
}

std::unique_ptr<Workspace> MtpModel::acquire() const {
  std::unique_lock<std::mutex> lock(mutex_);
  freed_.wait(lock, [&] { return !free_.empty(); });
  std::unique_ptr<Workspace> w = std::move(free_.back());
  free_.pop_back();
  return w;
}

/// free_ has room for all that there are.
void MtpModel::release(std::unique_ptr<Workspace> w) const noexcept {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(std::move(w));
  }
  freed_.notify_one();
}

Status MtpModel::run(const Submission& rows) const {
  struct Lease {
    const MtpModel* model;
    std::unique_ptr<Workspace> workspace;
    ~Lease() { model->release(std::move(workspace)); }
  } lease{this, acquire()};
  Workspace& w = *lease.workspace;
  Submission here = rows;
  if (float* ours = w.handover(); ours != nullptr) {  // where the tier can take them from
    std::copy_n(rows.hidden_in, uint64_t{rows.n_rows} * spec().n_embd, ours);
    here.hidden_in = ours;
    float* embedded = ours + uint64_t{plan_->model.max_rows()} * spec().n_embd;
    for (uint32_t r = 0; spec().pair.table_on_host && r < rows.n_rows; ++r)
      embed_token(spec(), rows.tokens[r], embedded + uint64_t{r} * spec().n_embd);
  }
  return tier_->run(segments_[0], here, w);
}

std::vector<MemoryRow> MtpModel::as_own(std::vector<MemoryRow> rows) const {
  for (MemoryRow& r : rows) r = mtp_row(r, *whole_->spec);
  return rows;
}

}  // namespace sharpi
