// SPDX-License-Identifier: MIT
// A GPU tier's model: weights on one device, and what tiers do with them. It reads LayerSpecs;
// it knows mixers and FFNs, not architectures. What is loaded stands in loaded_model.h, a call's
// way to kernels in calls.h and forward.h, compaction in scoring.h and choosing.h. A call's
// tokens, lengths and session addresses reach the kernels through one table, so a decode step is
// recorded once.
// Thread rule: immutable after create() but for the list of KV formats, which a mutex guards; run()
// needs a workspace of its own.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device/calls.h"
#include "device/choosing.h"
#include "device/forward.h"
#include "device/loaded_model.h"
#include "device/recall.h"
#include "device/scoring.h"
#include "device/session.h"
#include "tier/tier.h"

namespace sharpi::device {

class DeviceModel final : public TierModel {
 public:
  static Result<std::unique_ptr<DeviceModel>> create(std::shared_ptr<Device> device,
                                                     std::shared_ptr<const Plan> plan,
                                                     const LoadProgress& progress,
                                                     const DeviceModel* lender = nullptr);
  static std::vector<MemoryRow> plan_rows(const Device& device, const ModelSpec& spec,
                                          const Placement& placement, const ModelShape& model,
                                          const SessionShape& session);

  Result<std::unique_ptr<TierSession>> create_session(const SessionShape& shape) override;
  Result<std::unique_ptr<Workspace>> create_workspace(float* handover) override;
  bool reaches(DeviceIndex other) const override { return m_->device->reaches(index_of(other)); }
  Status run(const Segment& segment, const Submission& rows, Workspace& workspace) override {
    return calls_.run(segment, rows, workspace);
  }
  const PipelineStage* pipeline_stage() const override { return &calls_; }
  Status score(TierSession& session, const ScoreRequest& request, ScoreScratch& scratch,
               LayerScores* out) const override {
    return scoring_.score(session, request, scratch, out);
  }
  Status recall_blocks(TierSession& session, const ScoreRequest& request, const RowArchive& archive,
                       ScoreScratch& scratch, RecallTables& tables) const override {
    return recalls_.find_blocks(session, request, archive, scratch, tables);
  }
  Status recall_terms(TierSession& session, const ScoreRequest& request, const RowArchive& archive,
                      ScoreScratch& scratch, RecallTables& tables) const override {
    return recalls_.score_blocks(session, request, archive, scratch, tables);
  }
  Status recall_rows(TierSession& session, const ScoreRequest& request, const RowArchive& archive,
                     ScoreScratch& scratch, RecallTables& tables) const override {
    return recalls_.choose_rows(session, request, archive, scratch, tables);
  }
  Status take_recalled(RecallStep step, ScoreScratch& scratch,
                       RecallTables& tables) const override {
    return recalls_.take(step, scratch, tables);
  }
  Status score_waiting(TierSession& session, const KvLedger& ledger, uint32_t layer,
                       ScoreScratch& scratch) const override;
  Result<std::unique_ptr<ScoreScratch>> create_score_scratch(
      const ScoreShape& shape) const override {
    return scoring_.create_scratch(shape);
  }
  std::vector<MemoryRow> score_scratch_rows(const ScoreShape& shape) const override {
    return scoring_.scratch_rows(shape);
  }
  Status hold_terms(TierSession& session, const ScoreRequest& request, sharpi_policy policy,
                    ScoreScratch& scratch, CompactTables& tables) const override;
  Status share_hits(const KvLedger& ledger, std::span<const uint32_t> layers, ScoreScratch& scratch,
                    CompactTables& tables) const override;
  Status choose(const KvLedger& ledger, std::span<const ChooseRequest> layers,
                ScoreScratch& scratch, CompactTables& tables) const override;
  void use_expert_host(Workspace& workspace, ExpertHost* host) override;
  bool expert_stats(sharpi_expert_stats* out) const override;
  std::vector<uint64_t> expert_uses(uint32_t layer) const override;
  Status pin_experts(std::span<const ExpertId> experts) override;
  Result<std::unique_ptr<const AdapterPart>> load_adapter(const AdapterFile& adapter) override;
  std::vector<MemoryRow> memory_rows() const override;
  std::string paths() const override;
  std::vector<std::string> step_text(const Segment& segment) const override {
    return forward_.step_text(segment);
  }

 private:
  explicit DeviceModel(std::unique_ptr<LoadedModel> loaded)
      : m_(std::move(loaded)),
        forward_(*m_),
        calls_(*m_, forward_),
        replay_(*m_),
        scoring_(*m_),
        choosing_(*m_, scoring_),
        recalls_(*m_, scoring_) {}

  std::unique_ptr<LoadedModel> m_;
  Forward forward_;
  Calls calls_;
  Replay replay_;
  Scoring scoring_;
  Choosing choosing_;
  Recalls recalls_;
  uint32_t n_workspaces_ = 0;
};

}  // namespace sharpi::device
