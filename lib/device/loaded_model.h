// SPDX-License-Identifier: MIT
// What a model has on its device once it is loaded: weights, tables, layouts, settings of kernels.
// The parts of the tier that work with it (forward.h, calls.h, scoring.h, choosing.h) hold a
// reference. Thread rule: immutable after load() but for the list of KV formats, which a mutex
// guards.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "device/expert_slots.h"
#include "device/pass.h"
#include "device/pass_kernels.h"
#include "device/weight_stream.h"
#include "device/weights.h"
#include "device/workspace.h"
#include "tier/rope_tables.h"
#include "tier/session_layout.h"
#include "tier/tier.h"

namespace sharpi::device {

class LoadedModel {
 public:
  /// `lender`: has ModelSpec::lent; outlives the model. nullptr: nothing is lent.
  static Result<std::unique_ptr<LoadedModel>> load(std::shared_ptr<Device> device,
                                                   std::shared_ptr<const Plan> plan,
                                                   const LoadProgress& progress,
                                                   const LoadedModel* lender);
  const ModelSpec& spec() const { return *plan->spec; }
  /// A resident weight, its own or lent, or where a streamed one is while it is here; empty for any
  /// other.
  const std::byte* weight(const TensorRef& w) const {
    const std::byte* data = weights->at(w);
    if (data == nullptr && lender != nullptr) data = lender->weights->at(w);
    return data == nullptr && stream_weights ? stream_weights->at(w) : data;
  }
  const float* floats(const TensorRef& w) const {
    return reinterpret_cast<const float*>(weight(w));
  }
  /// Whether recorded steps of n_rows rows go in few launches, whose blocks may wait for each
  /// other.
  bool fuses(uint32_t n_rows) const { return kernels->fuses(n_rows); }
  /// Whether the routed experts of a layer are on the CPU; whether a segment has such a layer and
  /// asks for them; whether calls of n_rows rows use expert slots.
  bool parts_experts(uint32_t layer) const { return plan->placement.parts_experts(spec(), layer); }
  bool asks_for_experts(const Segment& segment) const;
  bool uses_slots(uint32_t n_rows) const;
  /// The number of the sessions' format, and the format of a number.
  uint32_t format_of(const SessionShape& shape);
  const KvFormat& format(uint32_t index) const;

  std::shared_ptr<Device> device;
  std::shared_ptr<const Plan> plan;
  std::unique_ptr<PassKernels> kernels;
  bool blocks_meet = false;    // in kernels of steps that fuse: Device::launch_mutex()
  bool leaves_hidden = false;  // keeps_hidden()
  std::unique_ptr<Weights> weights;
  const LoadedModel* lender = nullptr;
  std::unique_ptr<WeightStream> stream_weights;  // null when nothing streams
  std::unique_ptr<ExpertSlots> experts;
  WorkspaceLayout workspace_layout;
  QueryLayout query_layout;
  StateLayout state_layout;
  DraftLayout draft_layout;  // of sessions with as many drafts as the plan priced
  std::vector<RopeTable> ropes;
  std::vector<int32_t> rope_of_layer;
  std::vector<uint64_t> rope_offset;  // in doubles
  DeviceBuffer rope_memory;
  /// By which queries are turned that make replay scores: of each table n_half cosines, then as
  /// many sines, at twice rope_offset. Empty where the plan's sessions capture none.
  DeviceBuffer replay_turns;
  std::unique_ptr<Queue> stream;  // of sessions' own work
  std::vector<Segment> segments;

 private:
  LoadedModel() = default;
  Status upload_ropes();
  Status upload_turns();
  mutable std::mutex formats_mutex_;
  std::vector<std::unique_ptr<KvFormat>> formats_;
};

}  // namespace sharpi::device
