// SPDX-License-Identifier: MIT
// Weight streaming (weight offload): weights of blocks that are placed on the CPU are copied to the
// GPU for calls of many rows. A staging area has two halves (double buffering), one layer's blocks
// each, so that a layer is copied while the one before it is computed. A layer always goes to the
// same half, so its matrices have fixed addresses and the forward pass reads them like resident
// ones. Routed experts that have a slot are copied from there, so the bus only carries the others.
// Thread rule: the holder of lock() may load.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "device/expert_slots.h"
#include "device/memory.h"
#include "device/staged_copy.h"
#include "tier/tier.h"

namespace sharpi::device {

/// Which tensors stream, and where they lie in the staging area.
struct StreamPlan {
  struct Layer {
    uint32_t half = 0;
    std::vector<TensorRef> tensors;
  };
  std::unordered_map<uint32_t, Layer> layers;
  std::unordered_map<const GgufTensor*, uint64_t> offset_of;
  uint64_t half_bytes = 0;  // the largest layer
  uint32_t n_halves = 0;
  StagedCopyShape copy;
  bool empty() const { return layers.empty(); }
};
StreamPlan make_stream_plan(const DeviceKernels& kernels, const ModelSpec& spec,
                            const Placement& placement, const ModelShape& model);
std::vector<MemoryRow> stream_rows(const StreamPlan& plan, const Device& device);

class WeightStream {
 public:
  static Result<std::unique_ptr<WeightStream>> create(const Device& device, StreamPlan plan);
  /// One call streams at a time; the next waits.
  std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }
  bool has(uint32_t layer) const { return plan_.layers.contains(layer); }
  /// Sends a layer's tensors, those of `experts` (null = none has a slot) from their slots; work
  /// enqueued on `stream` afterwards finds them in place.
  Status load(uint32_t layer, const ExpertSlots* experts, const Queue& stream);
  /// The work enqueued on `stream` so far is the last that reads the layer.
  Status done(uint32_t layer, const Queue& stream);
  /// Waits for everything under way (after a failure).
  Status drain() const;
  /// Where a streamed tensor is while its layer is loaded; null for any other.
  const std::byte* at(const TensorRef& ref) const;
  /// "weights streamed through 4 x 16 MiB pinned, 8 threads".
  std::string text() const;

 private:
  struct Half {
    std::unique_ptr<Event> free;
    bool used = false;  // the event was recorded
  };
  WeightStream() = default;
  Status send(const TensorRef& tensor, const ExpertSlots::Residents& residents, const Event* after);
  const Device* device_ = nullptr;
  StreamPlan plan_;
  DeviceBuffer memory_;
  Half halves_[2];
  std::unique_ptr<StagedCopy> copy_;
  std::unique_ptr<Queue> gather_;  // of experts from their slots
  std::unique_ptr<Event> gathered_;
  std::mutex mutex_;
};

}  // namespace sharpi::device
