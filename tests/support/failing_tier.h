// SPDX-License-Identifier: MIT
// A backend whose passes fail when they are told to, at a chosen run. Everything else goes to the
// backend that it wraps. Thread rule: as tier.h; what is to go wrong belongs to one test.
#pragma once

#include <functional>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "engine/inner_engine.h"
#include "tier/host_weights.h"
#include "tier/tier.h"

namespace sharpi::testing {

/// What is to go wrong in the runs of one tier.
struct RunFaults {
  int fail_at = 0;  // counted down by runs of at least `least_rows` rows
  uint32_t least_rows = 0;
  bool throws = false;                 // std::bad_alloc instead of a status
  bool behind = false;                 // when the run has done its work
  uint32_t n_layers = 0;               // of models of so many layers only; 0 = of all
  std::function<void()> at_transient;  // called in front of runs that leave nothing behind
};
inline RunFaults g_run;

class FailingModel final : public TierModel {
 public:
  FailingModel(std::unique_ptr<TierModel> in, uint32_t n_layers)
      : in_(std::move(in)), n_layers_(n_layers) {}
  Result<std::unique_ptr<TierSession>> create_session(const SessionShape& s) override {
    return in_->create_session(s);
  }
  Result<std::unique_ptr<Workspace>> create_workspace(float* handover) override {
    return in_->create_workspace(handover);
  }
  Status run(const Segment& segment, const Submission& rows, Workspace& w) override {
    if (rows.transient && g_run.at_transient) g_run.at_transient();
    if (g_run.fail_at == 0 || rows.n_rows < g_run.least_rows ||
        (g_run.n_layers != 0 && g_run.n_layers != n_layers_) || --g_run.fail_at != 0) {
      return in_->run(segment, rows, w);
    }
    if (g_run.behind) SHARPI_TRY(in_->run(segment, rows, w));
    if (g_run.throws) throw std::bad_alloc();
    return Status::error(Code::kOutOfMemory, "injected failure of a pass");
  }
  Status score(TierSession& s, const ScoreRequest& q, ScoreScratch& c,
               LayerScores* out) const override {
    return in_->score(s, q, c, out);
  }
  Result<std::unique_ptr<ScoreScratch>> create_score_scratch(const ScoreShape& s) const override {
    return in_->create_score_scratch(s);
  }
  std::vector<MemoryRow> score_scratch_rows(const ScoreShape& s) const override {
    return in_->score_scratch_rows(s);
  }
  std::vector<MemoryRow> memory_rows() const override { return in_->memory_rows(); }
  std::string paths() const override { return in_->paths(); }

 private:
  std::unique_ptr<TierModel> in_;
  uint32_t n_layers_;
};

class FailingBackend final : public Backend {
 public:
  explicit FailingBackend(std::unique_ptr<Backend> in) : in_(std::move(in)) {}
  const TierSizer& sizer() const override { return in_->sizer(); }
  Status describe(uint32_t flags, sharpi_device* out) const override {
    return in_->describe(flags, out);
  }
  Result<std::unique_ptr<TierModel>> load(std::shared_ptr<const Plan> plan,
                                          const LoadProgress& progress) override {
    const uint32_t n_layers = plan->spec->n_layers();
    SHARPI_TRY_ASSIGN(std::unique_ptr<TierModel> m, in_->load(std::move(plan), progress));
    return std::unique_ptr<TierModel>(new FailingModel(std::move(m), n_layers));
  }
  Result<std::unique_ptr<HostWeights>> copy_weights(const Plan& plan,
                                                    const LoadProgress& progress) override {
    return in_->copy_weights(plan, progress);
  }

 private:
  std::unique_ptr<Backend> in_;
};

inline Result<std::unique_ptr<Backend>> failing_cpu() {
  SHARPI_TRY_ASSIGN(std::unique_ptr<Backend> inner, small_cpu());
  return std::unique_ptr<Backend>(new FailingBackend(std::move(inner)));
}

}  // namespace sharpi::testing
