// SPDX-License-Identifier: MIT
// The weights of one model on one device: which tensors lie where in one block, and how they get
// there. Every tensor takes its file bytes (repacking keeps sizes) plus alignment, so the plan
// follows from the spec.
// Thread rule: immutable after load().
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "device/memory.h"
#include "device/staged_copy.h"
#include "tier/tier.h"

namespace sharpi::device {

/// What a tensor serves: one plan row each.
enum class WeightPart : uint8_t { kEmbedding, kMixer, kFfn, kExperts, kHead, kCount };

struct WeightItem {
  TensorRef ref;
  WeightPart part = WeightPart::kMixer;
  uint64_t offset = 0;
};

/// The tensors of the blocks that `placement` puts on the GPU, each once, but for lent ones.
struct WeightPlan {
  std::vector<WeightItem> items;
  std::unordered_map<const GgufTensor*, uint64_t> offset_of;
  uint64_t part_bytes[static_cast<size_t>(WeightPart::kCount)] = {};
  uint64_t bytes = 0;    // of the tensors
  uint64_t aligned = 0;  // with the gaps between them
  uint64_t stage = 0;    // of each staging area while they are uploaded
};
WeightPlan make_weight_plan(const DeviceKernels& kernels, const ModelSpec& spec,
                            const Placement& placement);
std::vector<MemoryRow> weight_plan_rows(const WeightPlan& plan, const Device& device);
/// The memory rows that load() takes besides, until it returns.
std::vector<MemoryRow> load_rows(const WeightPlan& plan, const Device& device);

class Weights {
 public:
  /// Takes the block and uploads everything through pinned staging; kCancelled by `progress`.
  static Result<std::unique_ptr<Weights>> load(Device& device, const GgufFile& file,
                                               WeightPlan plan, const LoadProgress& progress);
  /// Null for a tensor that is absent or not here.
  const std::byte* at(const TensorRef& ref) const;
  const WeightPlan& plan() const { return plan_; }

 private:
  Weights() = default;
  WeightPlan plan_;
  DeviceBuffer memory_;
};

}  // namespace sharpi::device
