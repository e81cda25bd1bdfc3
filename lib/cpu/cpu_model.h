// SPDX-License-Identifier: MIT
// The CPU tier's model: the weights in host memory, and what is created from them: sessions,
// workspaces, and expert hosts for layers on a GPU. The forward pass is the class Forward, which
// reads LayerSpecs: the tier knows mixers and FFNs, not architectures.
// Thread rule: immutable after create() but for the list of KV formats, which a mutex guards; run()
// needs a workspace of its own.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/memory.h"
#include "base/thread_pool.h"
#include "cpu/cpu_paths.h"
#include "cpu/cpu_scorer.h"
#include "cpu/cpu_session.h"
#include "cpu/cpu_workspace.h"
#include "cpu/forward.h"
#include "tier/tier.h"

namespace sharpi::cpu {

class CpuModel final : public TierModel {
 public:
  /// kInternal names a weight of this tier's blocks whose data are not in memory.
  static Result<std::unique_ptr<CpuModel>> create(MemoryMeter* meter, ThreadPool* pool,
                                                  const KernelSet& kernels,
                                                  std::shared_ptr<const Plan> plan,
                                                  const LoadProgress& progress);
  static std::vector<MemoryRow> plan_rows(const ModelSpec& spec, const Placement& placement,
                                          const ModelShape& model, const SessionShape& session,
                                          const KernelSet& kernels, uint32_t n_threads);

  Result<std::unique_ptr<TierSession>> create_session(const SessionShape& shape) override;
  Result<std::unique_ptr<Workspace>> create_workspace(float* handover) override;
  Status run(const Segment& segment, const Submission& rows, Workspace& workspace) override {
    return forward_.run(segment, rows, static_cast<CpuWorkspace&>(workspace));
  }
  Status product(const TensorRef& w, const float* x, uint32_t n_rows, float* y,
                 Workspace& workspace) const override {
    return forward_.product(w, x, n_rows, y, static_cast<CpuWorkspace&>(workspace));
  }
  Status score(TierSession& session, const ScoreRequest& request, ScoreScratch& scratch,
               LayerScores* out) const override {
    return scorer_.score(session, request, scratch, out);
  }
  Result<std::unique_ptr<ScoreScratch>> create_score_scratch(
      const ScoreShape& shape) const override {
    return scorer_.create_scratch(shape);
  }
  Status score_bounds(TierSession& session, const ScoreRequest& request, const RowArchive& archive,
                      ScoreScratch& scratch, float* out, uint32_t stride) const override {
    return scorer_.score_bounds(session, request, archive, scratch, out, stride);
  }
  Status score_beside(TierSession& session, const ScoreRequest& request,
                      const ArchivedRows& archived, ScoreScratch& scratch, float* out,
                      uint32_t stride) const override {
    return scorer_.score_beside(session, request, archived, scratch, out, stride);
  }
  Status score_waiting(TierSession& session, const KvLedger& ledger, uint32_t layer,
                       ScoreScratch& scratch) const override {
    return scorer_.score_waiting(session, ledger, layer, scratch);
  }
  std::vector<MemoryRow> score_scratch_rows(const ScoreShape& shape) const override {
    return scorer_.scratch_rows(shape);
  }
  Result<std::unique_ptr<ExpertHost>> create_expert_host(Workspace& workspace) override;
  Result<std::unique_ptr<const AdapterPart>> load_adapter(const AdapterFile& adapter) override;
  std::vector<MemoryRow> memory_rows() const override;
  std::string paths() const override { return kernel_paths(config_, *pool_, *plan_); }

 private:
  CpuModel(MemoryMeter* meter, ThreadPool* pool, const KernelSet& kernels,
           std::shared_ptr<const Plan> plan);
  const ModelSpec& spec() const { return *plan_->spec; }
  /// Sessions of one batch must store rows alike: attention takes one codec a call.
  uint32_t format_of(const SessionShape& shape);

  MemoryMeter* const meter_;
  ThreadPool* const pool_;
  const std::shared_ptr<const Plan> plan_;
  const MatmulConfig config_;
  const WorkspaceLayout workspace_layout_;
  const Forward forward_;
  const CpuScorer scorer_;
  uint32_t n_workspaces_ = 0;
  std::mutex formats_mutex_;
  std::vector<std::vector<KvDtypePair>> formats_;  // of the layers here that store rows
};

}  // namespace sharpi::cpu
