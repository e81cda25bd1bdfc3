// SPDX-License-Identifier: MIT
// A tier: a backend that owns weights, KV and scratch, and runs segments of blocks. The engine
// knows tiers only through these classes.
//   Backend        one per device and context: sizes things, loads models
//   TierModel      the weights of the blocks placed there, and the workspaces (max_concurrent)
//   TierSession    one session's KV rows, recurrent state and logits there
// Thread rule: Backend and TierModel are immutable but for workspaces, which have one user at a
// time; a TierSession has one owner.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "kv/kv_store.h"
#include "kv/ledger.h"
#include "kv/policy.h"
#include "plan/plan.h"
#include "tier/adapter_weights.h"
#include "tier/expert_cache.h"
#include "tier/expert_host.h"
#include "tier/meanwhile.h"
#include "tier/pass_progress.h"
#include "tier/score_request.h"
#include "tier/segment.h"
#include "tier/submission.h"

namespace sharpi {

class CompactTables;
class HostWeights;
class PipelineStage;
class RemoteRows;
enum class RecallStep : uint8_t;
struct RecallTables;
class TierSession;
class Workspace;

class TierSession {
 public:
  virtual ~TierSession() = default;
  /// Queries that the ring / the observer rows can hold; 0 = none.
  virtual uint32_t query_rows(Capture which) const = 0;
  /// Takes observer rows for n queries where the template was priced for fewer, until
  /// release_observer(): observer_bytes(n) of them.
  virtual Status reserve_observer(uint32_t n) = 0;
  virtual uint64_t observer_bytes(uint32_t n) const = 0;
  virtual void release_observer() noexcept = 0;
  /// Captured queries of a full-attention layer at positions [first, first + n), f32, one row of
  /// n_heads * head_dim each. Pre: n <= query_rows(kRing). For saved sessions.
  virtual Status read_queries(uint32_t layer, uint64_t first, uint32_t n, float* out) const;
  virtual Status write_queries(uint32_t layer, uint64_t first, uint32_t n, const float* in);
  /// Replay scores, by slot, of layers of full attention that own rows, where this tier has them:
  /// of a head's slots [first, first + n); and all of a layer, [n_kv_heads][*stride], in host
  /// memory, null if they are elsewhere.
  virtual bool has_replay_scores(uint32_t layer) const = 0;
  virtual Status read_replay_scores(uint32_t layer, uint32_t head, uint32_t first, uint32_t n,
                                    float* out) const;
  virtual Status write_replay_scores(uint32_t layer, uint32_t head, uint32_t first, uint32_t n,
                                     const float* in);
  virtual float* host_replay_scores(uint32_t, uint64_t*) const { return nullptr; }
  /// The way of rows to an archive and back; null: they are in host memory.
  virtual RemoteRows* remote_rows() { return nullptr; }
  /// Sessions of one submission must be of one format: that is what a tier's kernels can mix.
  virtual uint32_t format() const { return 0; }
  virtual KvStore& store() = 0;
  const KvStore& store() const { return const_cast<TierSession*>(this)->store(); }
  /// Copies one logits row of the last submission to out[n_vocab]. Only on the head's tier.
  virtual Status read_logits(uint32_t row, float* out) const = 0;
  virtual Status write_logits(uint32_t row, const float* in) = 0;
  /// The k largest logits of a row, descending, equal ones by id, where moving the row would cost
  /// more than finding them. max_best() = the largest k that this tier finds, 0 = it does not.
  /// `allowed`: a mask, at most one bit for each token of the vocabulary; tokens that it does not
  /// allow, those behind it among them, count as -inf. Null = all are allowed.
  virtual uint32_t max_best() const { return 0; }
  virtual Status read_best(uint32_t row, uint32_t k, const std::span<const uint32_t>* allowed,
                           float* values, int32_t* ids) const;
  /// Takes over what `from` holds, a session of the same template on the same tier whose capacities
  /// are at most this one's: the first n_slots rows of every group (rings whole), the committed
  /// state, checkpoints, logits and captured queries. Nothing leaves the tier's memory. For forks.
  virtual Status copy_from(const TierSession& from, uint32_t n_slots) = 0;
  virtual std::vector<MemoryRow> memory_rows() const = 0;
};

/// Scratch of one call in flight.
class Workspace {
 public:
  virtual ~Workspace() = default;
  /// Memory for max_rows hidden rows that every tier can copy from and to at full speed; null where
  /// another tier's serves and this one need not know it. Of a model that is split, the first
  /// device of the route brings it.
  virtual float* handover() const { return nullptr; }
  /// Device memory from which a segment takes hidden rows that are not handed over; null = a tier
  /// without memory of its own.
  virtual float* landing() const { return nullptr; }
  /// The same in a pipeline, where the pass in front may still compute; null = none.
  virtual float* arrival() const { return nullptr; }
};

class TierModel {
 public:
  virtual ~TierModel() = default;
  virtual Result<std::unique_ptr<TierSession>> create_session(const SessionShape& shape) = 0;
  /// `handover`: where hidden rows are handed over, if another tier's workspace for the same calls
  /// brings it (Workspace::handover()); it outlives this one's use.
  virtual Result<std::unique_ptr<Workspace>> create_workspace(float* handover) = 0;
  /// Whether run() can leave hidden rows at the landing() of another device's workspace.
  virtual bool reaches(DeviceIndex) const { return false; }
  /// Runs the blocks on the workspace's hidden rows, or on those that are handed over. The ledger
  /// is not changed; KV rows past the ledger's length and the working recurrent state are.
  /// kCancelled leaves committed state intact.
  virtual Status run(const Segment& segment, const Submission& rows, Workspace& workspace) = 0;
  /// This tier's part in pipelines; null = it takes part in none.
  virtual const PipelineStage* pipeline_stage() const { return nullptr; }
  /// y[n_rows][n_out] = products of rows of the caller's with a weight of the head's block, in f32:
  /// for what comes behind the pooling of rows. At most max_rows() of them.
  virtual Status product(const TensorRef& w, const float* x, uint32_t n_rows, float* y,
                         Workspace& workspace) const;
  /// Scores the live rows of a full-attention layer that owns its KV, with the queries of every
  /// layer that reads them. `out` points into scratch that lives until the next call with it;
  /// replay scores stay for the compaction where rows can be kept by head.
  virtual Status score(TierSession& session, const ScoreRequest& request, ScoreScratch& scratch,
                       LayerScores* out) const = 0;
  /// out[head * stride + b]: what the logarithm of an unnormalised term of a request's queries is
  /// at most in block b of a head's archived rows of the layer.
  virtual Status score_bounds(TierSession& session, const ScoreRequest& request,
                              const RowArchive& archive, ScoreScratch& scratch, float* out,
                              uint32_t stride) const;
  /// out[head * stride + i]: the largest term of a request's queries at each of these archived
  /// rows, which every query sees, and behind them at the session's own, all in one softmax, as in
  /// LayerScores::max.
  virtual Status score_beside(TierSession& session, const ScoreRequest& request,
                              const ArchivedRows& archived, ScoreScratch& scratch, float* out,
                              uint32_t stride) const;
  /// Gives the rows of tokens from ledger.scored_tokens() on their replay scores in a layer.
  virtual Status score_waiting(TierSession& session, const KvLedger& ledger, uint32_t layer,
                               ScoreScratch& scratch) const;
  virtual Result<std::unique_ptr<ScoreScratch>> create_score_scratch(
      const ScoreShape& shape) const = 0;
  /// What create_score_scratch() takes.
  virtual std::vector<MemoryRow> score_scratch_rows(const ScoreShape& shape) const = 0;
  /// Choosing rows by a policy that has a keep set for each head, the same way for every tier: for
  /// every layer hold_terms(), then share_hits() if the policy shares them, then choose(). The
  /// versions here copy a layer's scores to the host by score() and keep its terms in `tables`; a
  /// tier that can choose in its own memory overrides all three. Scores a layer and holds the
  /// policy's terms; may return while that is under way.
  virtual Status hold_terms(TierSession& session, const ScoreRequest& request, sharpi_policy policy,
                            ScoreScratch& scratch, CompactTables& tables) const;
  /// tables.shared()[p] = max(that, the largest held term at position p), over this tier's layers.
  virtual Status share_hits(const KvLedger& ledger, std::span<const uint32_t> layers,
                            ScoreScratch& scratch, CompactTables& tables) const;
  /// Fills the keep lists in `tables` of layers that are held, as select_rows() says.
  virtual Status choose(const KvLedger& ledger, std::span<const ChooseRequest> layers,
                        ScoreScratch& scratch, CompactTables& tables) const;
  /// A recall in three steps, each of all layers and then take_recalled(): the best blocks of a
  /// layer's archived rows; the largest terms of their rows and of the session's, by position; the
  /// rows of either that may change places, by what tables.by_position says. The versions here do
  /// it by score_bounds() and score_beside(); a tier that can choose in its own memory overrides
  /// all four, and may have the work of a step under way until take_recalled().
  virtual Status recall_blocks(TierSession& session, const ScoreRequest& request,
                               const RowArchive& archive, ScoreScratch& scratch,
                               RecallTables& tables) const;
  virtual Status recall_terms(TierSession& session, const ScoreRequest& request,
                              const RowArchive& archive, ScoreScratch& scratch,
                              RecallTables& tables) const;
  virtual Status recall_rows(TierSession& session, const ScoreRequest& request,
                             const RowArchive& archive, ScoreScratch& scratch,
                             RecallTables& tables) const;
  /// What the tier found in a step is in `tables` when it returns.
  virtual Status take_recalled(RecallStep step, ScoreScratch& scratch, RecallTables& tables) const;
  /// A host for routed experts whose layers run on another tier, with a workspace of its own tier
  /// that no other call uses meanwhile.
  virtual Result<std::unique_ptr<ExpertHost>> create_expert_host(Workspace& workspace);
  /// Calls with this workspace ask `host` for experts that are elsewhere. Before the first call.
  virtual void use_expert_host(Workspace&, ExpertHost*) {}
  /// False: this tier asks nobody.
  virtual bool expert_stats(sharpi_expert_stats*) const { return false; }
  /// Uses of each expert of a layer, as far as this tier asks for them.
  virtual std::vector<uint64_t> expert_uses(uint32_t) const { return {}; }
  /// Makes experts resident, now and for good. Waits for calls in flight.
  virtual Status pin_experts(std::span<const ExpertId> experts);
  /// What an adapter of this model takes by TierSizer::adapter_rows(); null where that is nothing.
  virtual Result<std::unique_ptr<const AdapterPart>> load_adapter(const AdapterFile& adapter);
  virtual std::vector<MemoryRow> memory_rows() const = 0;
  /// Which kernels run, as text: "q4_k:int8-dot/bf16-amx ...".
  virtual std::string paths() const = 0;
  /// What a step of one row does in a segment of this tier, a line for layers that are alike.
  virtual std::vector<std::string> step_text(const Segment& segment) const;
};

using LoadProgress = std::function<bool(uint64_t done, uint64_t total)>;  // false = cancel

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const TierSizer& sizer() const = 0;
  virtual Status describe(uint32_t flags, sharpi_device* out) const = 0;
  virtual Result<std::unique_ptr<TierModel>> load(std::shared_ptr<const Plan> plan,
                                                  const LoadProgress& progress) = 0;
  /// The same of a model with ModelSpec::lent tensors, which `lender`, loaded here, has; it
  /// outlives the other. Where all tensors are in the file's memory there is nothing to lend.
  virtual Result<std::unique_ptr<TierModel>> load_beside(TierModel& lender,
                                                         std::shared_ptr<const Plan> plan);
  /// Copies of the weights that host memory serves (host_weights.h). Null: another backend's
  /// business.
  virtual Result<std::unique_ptr<HostWeights>> copy_weights(const Plan& plan,
                                                            const LoadProgress& progress);
};

}  // namespace sharpi
