// SPDX-License-Identifier: MIT
#include "engine/pipeline.h"

#include <algorithm>

#include "base/no_throw.h"
#include "tier/pipeline_stage.h"

namespace sharpi {

Pipeline::Pipeline(const Model& model, std::span<TierSession* const> sessions, uint32_t n_rows)
    : model_(model),
      lease_(&model),
      sessions_(sessions),
      n_passes_(std::min<uint32_t>(model.passes_under_way(n_rows), kMostPasses)) {}

Pipeline::~Pipeline() {
  const auto took = std::chrono::steady_clock::now() - begin_;
  for (size_t i = 0; i < model_.placed_.segments.size(); ++i) {
    const size_t t = model_.tier_index(model_.placed_.segments[i].device);
    const Status ended = no_throw(
        [&] { return model_.tiers_[t]->pipeline_stage()->drain(*lease_.slot->workspaces[t]); });
    (void)ended.is_ok();  // start() and finish() have said what failed
    model_.placed_.times[i].nanoseconds.fetch_add(
        static_cast<uint64_t>(std::chrono::nanoseconds(took).count()), std::memory_order_relaxed);
  }
}

/// The pass as the device of a segment gets it. Hand-overs through the host's memory have a place
/// of their own each, because several devices hand over at once.
Submission Pipeline::on_its_way(const Submission& rows, size_t segment) const {
  const std::vector<Segment>& segments = model_.placed_.segments;
  const auto& workspaces = lease_.slot->workspaces;
  const auto tier_of = [&](size_t i) { return model_.tier_index(segments[i].device); };
  const auto place = [&](size_t behind) -> float* {  // where that segment's rows are handed over
    const size_t from = tier_of(behind), to = tier_of(behind + 1);
    if (model_.direct_[from * model_.tiers_.size() + to]) return workspaces[to]->arrival();
    return lease_.slot->handover +
           behind * uint64_t{model_.plan().model.max_rows()} * model_.spec().n_embd;
  };
  Submission here = rows;
  if (segment != 0) {
    here.from = workspaces[tier_of(segment - 1)].get();
    here.hidden_in = place(segment - 1);
  }
  if (segment + 1 != segments.size()) {
    here.to = workspaces[tier_of(segment + 1)].get();
    here.hidden_out = place(segment);
  }
  return here;
}

Status Pipeline::start(const Submission& rows) {
  const std::vector<Segment>& segments = model_.placed_.segments;
  SequenceRows q = rows.sequences[0];
  q.passes_ahead = static_cast<uint32_t>(n_started_ - n_finished_);
  q.rows_ahead = n_rows_;
  q.position += n_rows_;
  for (size_t i = 0; i < segments.size(); ++i) {
    const size_t t = model_.tier_index(segments[i].device);
    q.session = sessions_[t];
    Submission here = on_its_way(rows, i);
    here.sequences = {&q, 1};
    SHARPI_TRY(no_throw([&] {
      return model_.tiers_[t]->pipeline_stage()->start(segments[i], here,
                                                       *lease_.slot->workspaces[t]);
    }));
  }
  passes_[n_started_++ % n_passes_] = {q, rows.n_rows};
  n_rows_ += rows.n_rows;
  return Status::ok();
}

Status Pipeline::finish_on(size_t segment, const Under& pass, float* hidden) const {
  const Segment& s = model_.placed_.segments[segment];
  const size_t t = model_.tier_index(s.device);
  SequenceRows q = pass.rows;
  q.session = sessions_[t];
  if (q.hidden != nullptr) q.hidden = hidden;
  Submission rows;
  rows.n_rows = pass.n_rows;
  rows.sequences = {&q, 1};
  SHARPI_TRY(no_throw([&] {
    return model_.tiers_[t]->pipeline_stage()->finish(s, rows, *lease_.slot->workspaces[t]);
  }));
  SegmentTimes& times = model_.placed_.times[segment];
  times.n_calls.fetch_add(1, std::memory_order_relaxed);
  times.n_rows.fetch_add(pass.n_rows, std::memory_order_relaxed);
  return Status::ok();
}

/// The last device has ended a pass when all others have.
Status Pipeline::finish(float* hidden) {
  const Under pass = passes_[n_finished_ % n_passes_];
  for (size_t i = model_.placed_.segments.size(); i-- > 0;) SHARPI_TRY(finish_on(i, pass, hidden));
  ++n_finished_;
  n_rows_ -= pass.n_rows;
  return Status::ok();
}

}  // namespace sharpi
