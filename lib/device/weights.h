// SPDX-License-Identifier: MIT
// The weights of one model on one device: which tensors lie where, in one block or in as many as
// the device gives at once, and how they get there. Every tensor takes its file bytes (repacking
// keeps sizes) plus alignment, so the plan follows from the spec.
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

/// Where a tensor lies: a block of the device, and its first byte there.
struct WeightPlace {
  uint32_t block = 0;
  uint64_t offset = 0;
};

struct WeightItem {
  TensorRef ref;
  WeightPart part = WeightPart::kMixer;
  WeightPlace place;
};

/// The tensors of the blocks that `placement` puts on the GPU, each once, but for lent ones.
struct WeightPlan {
  std::vector<WeightItem> items;
  std::unordered_map<const GgufTensor*, WeightPlace> place_of;
  uint64_t part_bytes[static_cast<size_t>(WeightPart::kCount)] = {};
  uint64_t bytes = 0;            // of the tensors
  std::vector<uint64_t> blocks;  // bytes of each, the gaps between tensors included
  uint64_t stage = 0;            // of each staging area while they are uploaded
};
WeightPlan make_weight_plan(const Device& device, const ModelSpec& spec,
                            const Placement& placement);
/// kUnsupported naming a tensor placed here that is larger than any block of the device.
Status check_weight_sizes(const Device& device, const ModelSpec& spec, const Placement& placement);
std::vector<MemoryRow> weight_plan_rows(const WeightPlan& plan, const Device& device);
/// The memory rows that load() takes besides, until it returns.
std::vector<MemoryRow> load_rows(const WeightPlan& plan, const Device& device);

class Weights {
 public:
  /// Takes the blocks and uploads everything through pinned staging; kCancelled by `progress`.
  static Result<std::unique_ptr<Weights>> load(Device& device, const GgufFile& file,
                                               WeightPlan plan, const LoadProgress& progress);
  /// Null for a tensor that is absent or not here.
  const std::byte* at(const TensorRef& ref) const;
  const WeightPlan& plan() const { return plan_; }

 private:
  Weights() = default;
  std::byte* at(const WeightPlace& place) const {
    return blocks_[place.block].data() + place.offset;
  }
  WeightPlan plan_;
  std::vector<DeviceBuffer> blocks_;
};

}  // namespace sharpi::device
