// SPDX-License-Identifier: MIT
// The CUDA tier's model: weights on one device, and the forward pass over segments of blocks. It
// reads LayerSpecs; it knows mixers and FFNs, not architectures. A call's tokens, lengths and
// session addresses reach the kernels through one table, so a decode step is a captured graph.
// Thread rule: immutable after create() but for the list of KV formats, which a mutex guards; run()
// needs a workspace of its own.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cuda/cuda_experts.h"
#include "cuda/cuda_score.h"
#include "cuda/cuda_store.h"
#include "cuda/cuda_workspace.h"
#include "cuda/kernels/elementwise.h"
#include "cuda/kernels/kv/kv_score.h"
#include "cuda/kernels/kv/kv_select.h"
#include "cuda/kernels/products/chain.h"
#include "cuda/kernels/products/matmul.h"
#include "cuda/pass.h"
#include "cuda/step_launches.h"
#include "cuda/weight_stream.h"
#include "cuda/weights.h"
#include "tier/rope_tables.h"
#include "tier/tier.h"

namespace sharpi::cuda {

class Binding;
struct DeltaNetParams;
struct QkvParams;
/// What a scoring scratch takes (cuda_score.cc).
std::vector<MemoryRow> score_rows(uint32_t device, const ModelSpec& spec,
                                  const Placement& placement, const ScoreShape& shape);

/// A session's recurrent state and what it has to apply to it (calls.cc).
BatchSequence pending_sequence(const CudaSession& session);

class CudaModel final : public TierModel, public StateReplay {
 public:
  static Result<std::unique_ptr<CudaModel>> create(std::shared_ptr<Device> device,
                                                   std::shared_ptr<const Plan> plan,
                                                   const LoadProgress& progress);
  static std::vector<MemoryRow> plan_rows(const Device& device, const ModelSpec& spec,
                                          const Placement& placement, const ModelShape& model,
                                          const SessionShape& session);

  Result<std::unique_ptr<TierSession>> create_session(const SessionShape& shape) override;
  Result<std::unique_ptr<Workspace>> create_workspace() override;
  Status run(const Segment& segment, const Submission& rows, Workspace& workspace) override;
  Status score(TierSession& session, const ScoreRequest& request, ScoreScratch& scratch,
               LayerScores* out) const override;
  Result<std::unique_ptr<ScoreScratch>> create_score_scratch(
      const ScoreShape& shape) const override;
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
  std::vector<MemoryRow> memory_rows() const override;
  std::string paths() const override;
  std::vector<std::string> step_text(const Segment& segment) const override;
  Status replay(const CudaSession& session, uint32_t layer) const override;

 private:
  CudaModel() = default;
  const ModelSpec& spec() const { return *plan_->spec; }
  /// A resident weight, or where a streamed one is while it is here; empty for any other.
  const std::byte* weight(const TensorRef& w) const {
    const std::byte* data = weights_->at(w);
    return data == nullptr && stream_weights_ ? stream_weights_->at(w) : data;
  }
  DeviceMatrix matrix(const TensorRef& w) const {
    const std::byte* data = weight(w);
    if (data == nullptr) return {};
    return make_device_matrix(w.tensor->type, w.n_in, w.n_out, w.n_experts, data);
  }
  const float* floats(const TensorRef& w) const {
    return reinterpret_cast<const float*>(weight(w));
  }
  Lane lane(const Pass& p) const { return {p.ws.lane(), p.config.pdl}; }
  Status upload_ropes();
  // cuda_score.cc, cuda_choose.cc
  Status send_queries(const ScoreRequest& request, CudaScoreScratch& s,
                      const CudaScoreScratch::Layer& layer, ScoreParams* t) const;
  Status start_score(CudaSession& own, const ScoreRequest& request, CudaScoreScratch& s,
                     const ScoreOut& out) const;
  Status send_positions(const KvLedger& ledger, const CudaScoreScratch& s,
                        const CudaScoreScratch::Layer& layer, RowPositions* out) const;
  Status send_hits(std::span<const float> shared, const CudaScoreScratch& s) const;
  Status send_lists(const KvLedger& ledger, std::span<const ChooseRequest> layers,
                    CudaScoreScratch& s, SelectParams* out) const;
  Status read_lists(const KvLedger& ledger, std::span<const ChooseRequest> layers,
                    CudaScoreScratch& scratch, CompactTables& tables) const;
  uint32_t format_of(const SessionShape& shape);
  /// Chains fetch weights while what comes before them still runs, so their steps overlap.
  const MatmulConfig& step_config(uint32_t n_rows) const {
    return n_rows == 1 && has_chains(config_) ? config_ : step_config_;
  }

  // calls.cc: submissions to tables, graphs.
  bool takes_turn(const Segment& segment, const Submission& rows) const;
  Status run_format(const Segment& segment, const Submission& rows, CudaWorkspace& ws,
                    uint32_t format) const;
  Status run_streamed(const Segment& segment, const Submission& rows, CudaWorkspace& ws,
                      uint32_t format) const;
  Status fill_table(const Submission& rows, CudaWorkspace& ws) const;
  uint32_t fill_head_rows(const Submission& rows, CudaWorkspace& ws, bool* in_order) const;
  void fill_ple(const Submission& rows, CudaWorkspace& ws) const;
  Status upload(Pass& p) const;
  Status run_segment(const Segment& segment, Pass& p) const;
  void place(const Segment& segment, const float* in, float* out, Pass* p) const;
  Status run_graph(const Segment& segment, Pass& p, uint32_t format) const;
  Status capture(const Segment& segment, Pass& p, cudaGraphExec_t* out) const;
  bool records(const Segment& segment) const;
  Status warm_up_rows(CudaWorkspace& ws, uint32_t n, bool drafted) const;
  Status warm_up(CudaWorkspace& ws) const;

  // forward.cc: a segment's operations as a list of launches, and those of the ends and of
  // products.
  class PassBinding;
  StepFacts facts(const Pass& p) const;
  Status run_program(const Segment& segment, Pass& p) const;
  Status launch(Pass& p, const Binding& at, const LaunchList& list, const Launch& l) const;
  Status embed(Pass& p) const;
  Status per_layer_table(Pass& p) const;
  Status combine_per_layer(Pass& p) const;
  Status pick_head_rows(Pass& p) const;
  Status send_logits(Pass& p) const;
  Status rope_tables(Pass& p) const;
  Status launch_steps(Pass& p, const Binding& at, const LaunchList& list, const Launch& l) const;
  Status add_sum(Pass& p, const RowSum& sum) const;
  std::string chain_path() const;

  // forward_mixer.cc
  Status store_rows(Pass& p, uint32_t layer) const;
  QkvParams describe_rows(Pass& p, uint32_t layer) const;
  Status attend(Pass& p, uint32_t layer) const;
  Status flush_ring(Pass& p) const;
  KvLayer kv_layer(Pass& p, uint32_t layer) const;
  DeltaNetParams delta_net(uint32_t layer) const;
  Status delta_net(Pass& p, uint32_t layer) const;

  // forward_ffn.cc
  Status launch_experts(Pass& p, const Binding& at, const LaunchList& list, const Launch& l) const;
  Status choose_experts(Pass& p, const FfnSpec& f) const;
  Status shared_gate(Pass& p, const LayerSpec& l) const;
  Status per_layer_gate(Pass& p, uint32_t layer) const;
  /// Whether one row's router and experts go in one launch.
  bool takes_moe_step(uint32_t layer) const;

  std::string block_paths() const;  // paths.cc

  // forward_experts.cc: experts that are on the CPU
  bool parts_experts(uint32_t layer) const { return plan_->placement.parts_experts(spec(), layer); }
  bool asks_for_experts(const Segment& segment) const;
  bool uses_slots(uint32_t n_rows) const;
  Status send_rows(Pass& p, uint32_t layer) const;
  /// Answers from slots and from the host; the latter's are the last to be added.
  Status resident_experts(Pass& p, uint32_t layer, MoeParams m) const;
  Status answered_experts(Pass& p, uint32_t layer, Buf to, bool add) const;
  Status serve_graph(const Segment& segment, Pass& p, cudaGraphExec_t graph) const;

  std::shared_ptr<Device> device_;
  std::shared_ptr<const Plan> plan_;
  MatmulConfig config_;
  MatmulConfig step_config_;  // of captured decode steps without chains
  MatmulConfig call_config_;  // of calls that are no steps
  bool blocks_meet_ = false;  // in kernels of one row: Device::turn()
  std::unique_ptr<Weights> weights_;
  std::unique_ptr<WeightStream> stream_weights_;  // null when nothing streams
  std::unique_ptr<ExpertSlots> experts_;
  WorkspaceLayout workspace_layout_;
  QueryLayout query_layout_;
  StateLayout state_layout_;
  DraftLayout draft_layout_;  // of sessions with as many drafts as the plan priced
  std::vector<RopeTable> ropes_;
  std::vector<int32_t> rope_of_layer_;
  std::vector<uint64_t> rope_offset_;  // in doubles
  DeviceBuffer rope_memory_;
  Stream stream_;  // of sessions' own work
  std::vector<Segment> segments_;
  mutable std::mutex formats_mutex_;
  std::vector<std::unique_ptr<KvFormat>> formats_;
  mutable std::atomic<uint32_t> chains_launched_{0}, chains_apart_{0};  // of all recordings
  uint32_t n_workspaces_ = 0;
};

}  // namespace sharpi::cuda
