// SPDX-License-Identifier: MIT
// The CPU tier's model: weights in place in the mapped file, kernels chosen by type, and the
// forward pass over segments of blocks. It reads LayerSpecs; it knows mixers and FFNs, not
// architectures. Thread rule: immutable after create() but for the list of KV formats, which a
// mutex guards; run() needs a workspace of its own.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/memory.h"
#include "base/thread_pool.h"
#include "cpu/cpu_paths.h"
#include "cpu/cpu_scorer.h"
#include "cpu/cpu_store.h"
#include "cpu/cpu_workspace.h"
#include "cpu/delta_net.h"
#include "tier/tier.h"

namespace sharpi::cpu {

/// One pass of one submission over one segment: what every operation gets.
struct Pass {
  const Submission& rows;
  CpuWorkspace& ws;
  MatmulInput normed = {};  // rows that an FFN's operations share: x under its norm
};

/// A tensor that every file stores as f32; null where there is none.
inline const float* f32_weights(const TensorRef& w) {
  return w ? reinterpret_cast<const float*>(w.tensor->data) : nullptr;
}

/// Slot of a (row, choice) that no expert here serves.
constexpr uint32_t kNoSlot = 0xFFFFFFFFu;

class CpuModel final : public TierModel, public StateReplay {
 public:
  static Result<std::unique_ptr<CpuModel>> create(MemoryMeter* meter, ThreadPool* pool, Isa isa,
                                                  std::shared_ptr<const Plan> plan,
                                                  const LoadProgress& progress);
  static std::vector<MemoryRow> plan_rows(const ModelSpec& spec, const Placement& placement,
                                          const ModelShape& model, const SessionShape& session,
                                          Isa isa, uint32_t n_threads);

  Result<std::unique_ptr<TierSession>> create_session(const SessionShape& shape) override;
  Result<std::unique_ptr<Workspace>> create_workspace() override;
  Status run(const Segment& segment, const Submission& rows, Workspace& workspace) override;
  Status score(TierSession& session, const ScoreRequest& request, ScoreScratch& scratch,
               LayerScores* out) const override {
    return scorer_.score(session, request, scratch, out);
  }
  Result<std::unique_ptr<ScoreScratch>> create_score_scratch(
      const ScoreShape& shape) const override {
    return scorer_.create_scratch(shape);
  }
  Result<std::unique_ptr<ExpertHost>> create_expert_host(Workspace& workspace) override;
  std::vector<MemoryRow> memory_rows() const override;
  std::string paths() const override { return kernel_paths(config_, *pool_, *plan_); }
  const ModelSpec& spec() const { return *plan_->spec; }

  // Parts of a request for experts, in the workspace's buffers (forward_ffn.cc).
  /// Groups its slots by expert; how many there are.
  uint32_t group_request(const ExpertRequest& r, CpuWorkspace& ws) const;
  /// Normalised and prepared rows of few rows, on the calling thread.
  MatmulInput norm_request(const ExpertRequest& r, CpuWorkspace& ws) const;
  void compute_experts(const ExpertRequest& r, CpuWorkspace& ws) const;

 private:
  CpuModel(MemoryMeter* meter, ThreadPool* pool, Isa isa, std::shared_ptr<const Plan> plan);
  const Matmul& mm(Pass& p) const { return p.ws.matmul(); }

  /// Sessions of one batch must store rows alike: attention takes one codec a call.
  uint32_t format_of(const SessionShape& shape);

  // forward.cc
  Status run_program(const Segment& segment, Pass& p) const;
  Status run_op(const Op& op, Pass& p) const;
  void embed(Pass& p, Buf to) const;
  void embed_per_layer(Pass& p, Buf embedded) const;
  void embed_pairs(Pass& p) const;
  void keep_hidden(const Pass& p) const;
  void head(Pass& p) const;
  void rope_tables(Pass& p) const;
  void norm_rows(Pass& p, const float* x, const TensorRef& w, float* y) const;
  /// x += post_norm(y), row by row; post_norm may be absent.
  void add_residual(Pass& p, const TensorRef& post_norm) const;
  MatmulInput input(Pass& p, Buf rows, uint64_t width, uint32_t n_rows, Buf prepared) const;
  MatmulTask task(const TensorRef& w, const MatmulInput& in, float* y, uint64_t y_stride,
                  bool force_f32 = false) const;

  // forward_mixer.cc
  Status run_mixer_op(const Op& op, Pass& p) const;
  Status attention_rows(Pass& p, uint32_t layer) const;
  void attention_out(Pass& p, uint32_t layer) const;
  void project_qkv(Pass& p, uint32_t layer) const;
  void norm_and_rope(Pass& p, uint32_t layer) const;
  void capture_queries(Pass& p, uint32_t layer) const;
  Status append_rows(Pass& p, uint32_t layer) const;
  Status attend(Pass& p, uint32_t layer) const;
  Status flush_ring(Pass& p) const;
  KvView chunk_view(Pass& p, const KvView& like, uint32_t sequence) const;
  void delta_in(Pass& p, uint32_t layer) const;
  void delta_out(Pass& p, uint32_t layer) const;
  DeltaNetTask delta_task(const CpuSession& session, uint32_t layer) const;
  DeltaNetTask pending_task(const CpuSession& session, uint32_t layer, float* scratch) const;
  /// The recurrence over one session's rows, and over those that an earlier pass left.
  void delta_rows(Pass& p, const SequenceRows& q, uint32_t layer) const;
  void replay(const CpuSession& session, uint32_t layer, float* state, float* conv) const override;

  // forward_ffn.cc
  Status run_ffn_op(const Op& op, Pass& p) const;
  void norm_ffn(Pass& p, const LayerSpec& l) const;
  void gate_up(Pass& p, const FfnSpec& f, const TensorRef& gate, const TensorRef& up,
               uint64_t width) const;
  void down(Pass& p, const TensorRef& down, uint64_t width) const;
  void route(Pass& p, const LayerSpec& l) const;
  uint32_t group_by_expert(CpuWorkspace& ws, uint32_t n_rows, const FfnSpec& f) const;
  size_t expert_tasks(Pass& p, const TensorRef& w, const MatmulInput& in, const uint32_t* rows,
                      float* y, uint64_t y_stride, size_t n_tasks) const;
  void experts(Pass& p, const FfnSpec& f, const MatmulInput& in) const;
  void shared_expert(Pass& p, const FfnSpec& f) const;
  void scale_layer(Pass& p, const LayerSpec& l) const;
  void per_layer_injection(Pass& p, uint32_t layer) const;
  void activate(Pass& p, const FfnSpec& f, const float* gate, const float* up, uint64_t stride_in,
                uint64_t width, uint64_t n_rows, float* out) const;

  /// body(row) for every row of the submission, spread over the pool when there are several.
  template <class F>
  void each_row(uint64_t n_rows, F&& body) const {
    if (n_rows == 1) {
      body(uint64_t{0});
      return;
    }
    pool_->for_range(n_rows, 1, [&](uint64_t b, uint64_t e) {
      for (uint64_t r = b; r < e; ++r) body(r);
    });
  }

  MemoryMeter* const meter_;
  ThreadPool* const pool_;
  const std::shared_ptr<const Plan> plan_;
  const Isa isa_;
  const MatmulConfig config_;
  const WorkspaceLayout workspace_layout_;
  const CpuScorer scorer_;
  std::vector<int32_t> rope_of_layer_;
  const std::vector<RopeTable> ropes_;
  uint32_t n_workspaces_ = 0;
  std::mutex formats_mutex_;
  std::vector<std::vector<KvDtypePair>> formats_;  // of the layers here that store rows
};

}  // namespace sharpi::cpu
