// SPDX-License-Identifier: MIT
// Model: loaded weights on every device, the text side, and the workspaces that calls in flight
// share. Thread rule: immutable; acquire() blocks until one of max_concurrent workspaces is free,
// in the order in which calls come.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "engine/allowance.h"
#include "engine/context.h"
#include "engine/mtp_model.h"
#include "engine/rank_link.h"
#include "plan/plan.h"
#include "text/text_model.h"
#include "tier/tier.h"

namespace sharpi {

/// One call's scratch on every tier.
struct CallSlot {
  std::vector<std::unique_ptr<Workspace>> workspaces;  // parallel to Model::tiers()
  float* handover = nullptr;  // a workspace's, for [max_rows][n_embd]; null with one
  std::vector<std::unique_ptr<ExpertHost>> experts;  // of the host's, one for each tier that asks
};

/// What one segment has cost so far.
struct SegmentTimes {
  std::atomic<uint64_t> n_calls{0}, n_rows{0}, nanoseconds{0};
};

/// The segments of a call from first to last.
struct Route {
  std::vector<Segment> segments;
  std::unique_ptr<SegmentTimes[]> times;  // parallel
  static Route create(std::vector<Segment> segments);
};

class Model {
 public:
  ~Model();
  static Result<std::shared_ptr<Model>> load(std::shared_ptr<Context> context,
                                             std::shared_ptr<const Plan> plan,
                                             const LoadProgress& progress);
  /// The plan's part of a model, of which every rank of the group loads its own: all of them have
  /// it, or none.
  static Result<std::shared_ptr<Model>> load_part(std::shared_ptr<Context> context,
                                                  std::shared_ptr<const Plan> plan,
                                                  const LoadProgress& progress,
                                                  std::shared_ptr<Group> group);
  const Context& context() const { return *context_; }
  const Plan& plan() const { return *plan_; }
  const ModelSpec& spec() const { return *plan_->spec; }
  const std::shared_ptr<const TextModel>& text() const { return text_; }
  const std::vector<std::unique_ptr<TierModel>>& tiers() const { return tiers_; }
  /// Which device each tier is on; of tiers() that with the blocks of a device.
  const std::vector<DeviceIndex>& devices() const { return devices_; }
  size_t tier_index(DeviceIndex device) const;
  /// The block for multi-token prediction; null where the plan has none.
  const MtpModel* mtp() const { return mtp_.get(); }
  /// The smaller model that drafts for it; null where the plan has none.
  const std::shared_ptr<const Model>& draft() const { return draft_; }
  /// The other processes that have layers of it; null where it has all of them.
  RankLink* ranks() const { return ranks_.get(); }
  /// What its sessions may still take.
  const std::shared_ptr<Allowance>& allowance() const { return allowance_; }
  std::vector<MemoryRow> memory_rows() const;
  /// kMismatch if the file's size or time of modification are no longer those of the plan.
  Status check_unchanged() const;
  /// Which kernels run, and what streams.
  const std::string& paths() const { return paths_; }
  /// Rows of a call from which weights stream to another tier; SHARPI_UNSET = never.
  uint32_t stream_rows() const { return stream_rows_; }
  /// Segments with their times, and the same with placement and paths as JSON (model_stats.cc).
  std::vector<sharpi_segment_info> segment_stats() const;
  std::string json() const;
  /// Of layers whose experts are on another tier than their router; all zero without any.
  sharpi_expert_stats expert_stats() const;
  std::vector<uint64_t> expert_uses(uint32_t layer) const;
  Status pin_experts(std::span<const ExpertId> experts) const;

  /// How many passes over n_rows rows of a session may be under way at once (pipeline.h); 1 = there
  /// is no pipeline for so many.
  uint32_t passes_under_way(uint32_t n_rows) const;
  /// kBusy: this thread is in a callback of a call that computes.
  static Status check_may_compute();
  /// Runs all segments for a submission whose sequences hold one TierSession list each
  /// ([sequence][tier]); waits for a workspace. Nothing is committed. Sessions whose formats differ
  /// take turns.
  Status run(const Submission& rows,
             std::span<const std::span<TierSession* const>> tier_sessions) const;
  /// The same for texts of an encoder, whose sequences have no sessions.
  Status run_texts(const Submission& rows) const { return run(rows, {}); }
  /// TierModel::product() of the head's tier; waits for a workspace.
  Status product(const TensorRef& w, const float* x, uint32_t n_rows, float* y) const;

 private:
  friend class Pipeline;
  struct SlotLease {
    const Model* model;
    CallSlot* slot;
    explicit SlotLease(const Model* of);
    ~SlotLease();
    SlotLease(const SlotLease&) = delete;
    SlotLease& operator=(const SlotLease&) = delete;
  };
  using TierSessions = std::span<const std::span<TierSession* const>>;
  Model() = default;
  Result<std::shared_ptr<const Plan>> place_weights(const Plan& plan, const LoadProgress& progress);
  static Result<std::shared_ptr<Model>> load_here(std::shared_ptr<Context> context,
                                                  std::shared_ptr<const Plan> plan,
                                                  const LoadProgress& progress,
                                                  std::shared_ptr<RankLink> ranks);
  Status load_mtp();
  Status load_draft(const LoadProgress& progress);
  Status create_slots();
  std::vector<size_t> by_route() const;
  void find_direct_ways();
  bool goes_directly(size_t from, size_t to, uint32_t n_rows) const;
  std::string describe_paths() const;
  size_t tier_asking(uint32_t layer, std::span<const size_t> asking) const;
  const Route& route_for(uint32_t n_rows) const {
    return n_rows >= stream_rows_ ? streamed_ : placed_;
  }
  Status run_route(const Submission& rows, TierSessions tier_sessions, CallSlot& slot) const;
  Status run_part(const Submission& rows, TierSessions tier_sessions, CallSlot& slot) const;
  Status run_by_format(const Submission& rows, TierSessions tier_sessions, CallSlot& slot) const;
  // stream_threshold.cc
  Status find_stream_rows();
  Result<double> time_block(const Segment& segment, uint32_t n_rows, CallSlot& slot) const;
  Status connect_experts(CallSlot* slot) const;
  bool is_few(uint32_t n_rows) const;
  bool is_wanted() const;
  CallSlot* acquire() const;
  void release(CallSlot* slot) const;
  std::shared_ptr<Context> context_;
  std::shared_ptr<const Plan> plan_;
  std::shared_ptr<Allowance> allowance_;
  std::shared_ptr<const TextModel> text_;
  std::shared_ptr<RankLink> ranks_;
  std::unique_ptr<HostWeights> host_weights_;  // with SHARPI_LOAD_COPY; outlives the tiers
  std::vector<std::unique_ptr<TierModel>> tiers_;
  std::vector<DeviceIndex> devices_;  // parallel
  std::vector<bool> direct_;  // [from][to]: rows of chunks go from tier to tier without the host
  std::unique_ptr<MtpModel> mtp_;
  std::shared_ptr<const Model> draft_;
  Route placed_;    // where the plan put them
  Route streamed_;  // calls of stream_rows_ rows and more; empty when nothing streams
  uint32_t stream_rows_ = SHARPI_UNSET;
  std::string paths_;
  mutable std::mutex slots_mutex_;
  mutable std::condition_variable slots_free_;
  mutable std::vector<std::unique_ptr<CallSlot>> slots_;
  mutable std::vector<CallSlot*> free_;
  mutable uint64_t n_came_ = 0, n_served_ = 0;  // calls that wait for a slot, or did
};

}  // namespace sharpi
