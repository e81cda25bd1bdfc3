// SPDX-License-Identifier: MIT
// The loaded block for multi-token prediction (MTP): a model of one layer, on the tier that has the
// head of the model it drafts for, with scratch for as many concurrent calls as that model. Thread
// rule: immutable; run() blocks until one of its workspaces is free.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "tier/tier.h"

namespace sharpi {

class MtpModel {
 public:
  /// `backend`: of the head's tier. `trunk`: the model there, which lends weights and outlives the
  /// block. `whole`: the plan of the model, with the spec that it is loaded by. Without scratch.
  static Result<std::unique_ptr<MtpModel>> load(Backend& backend, TierModel& trunk,
                                                std::shared_ptr<const Plan> whole);
  /// Once, when all weights that share the tier's memory are loaded.
  Status create_workspaces();
  const ModelSpec& spec() const { return *plan_->spec; }
  uint32_t n_chunk() const { return plan_->model.n_chunk; }
  /// For a session of this shape.
  Result<std::unique_ptr<TierSession>> create_session(const SessionShape& shape) const;
  /// Like TierModel::run(), over all blocks, from hidden_in and the tokens.
  Status run(const Submission& rows) const;
  /// TierModel::paths() and the segments, for what a model says about itself.
  std::string paths() const { return tier_->paths(); }
  std::span<const Segment> segments() const { return segments_; }
  std::vector<std::string> step_text(const Segment& s) const { return tier_->step_text(s); }
  /// As rows of the model that it belongs to.
  std::vector<MemoryRow> memory_rows() const { return as_own(tier_->memory_rows()); }
  std::vector<MemoryRow> as_own(std::vector<MemoryRow> rows) const;

 private:
  MtpModel() = default;
  std::unique_ptr<Workspace> acquire() const;
  void release(std::unique_ptr<Workspace> w) const noexcept;
  std::shared_ptr<const Plan> whole_, plan_;
  std::unique_ptr<TierModel> tier_;
  std::vector<Segment> segments_;
  mutable std::mutex mutex_;
  mutable std::condition_variable freed_;
  mutable std::vector<std::unique_ptr<Workspace>> free_;
};

}  // namespace sharpi
