// SPDX-License-Identifier: MIT
#include "device/weights.h"

#include <algorithm>

#include "base/checked.h"
#include "device/kernels.h"
#include "tier/block_tensors.h"

namespace sharpi::device {
namespace {

constexpr uint64_t kStage = 8ull << 20;  // of a slot at most: the bus runs at full rate
constexpr uint32_t kStages = 8;          // several wait for the bus while one is filled
constexpr uint32_t kLoadThreads = 8;     // fewer read the page cache slower than the bus takes

StagedCopyShape load_shape(const WeightPlan& plan) {
  return {plan.stage, kStages, kLoadThreads};
}

class PlanBuilder {
 public:
  PlanBuilder(const Device& device, const ModelSpec& spec, WeightPlan* plan)
      : device_(device), spec_(spec), plan_(plan) {}
  void add(const TensorRef& ref, WeightPart part) {
    if (!ref || plan_->place_of.contains(ref.tensor)) return;
    if (std::find(spec_.lent.begin(), spec_.lent.end(), ref.tensor) != spec_.lent.end()) return;
    const WeightPlace place = next_place(ref.bytes());
    plan_->place_of[ref.tensor] = place;
    plan_->items.push_back({ref, part, place});
    plan_->part_bytes[static_cast<size_t>(part)] += ref.bytes();
    plan_->bytes += ref.bytes();
    const uint64_t unit = std::max<uint64_t>(device_.kernels().layout_unit(ref), 1);
    const uint64_t stage = std::min(kStage, round_up(round_up(ref.bytes(), unit), 4096));
    plan_->stage = std::max(plan_->stage, stage);
  }

 private:
  /// Behind the last tensor, or in a block of its own where that one has no room left.
  WeightPlace next_place(uint64_t bytes) {
    std::vector<uint64_t>& blocks = plan_->blocks;
    const uint64_t n = round_up(bytes, kWeightAlign), most = device_.largest_block();
    if (blocks.empty() || n > most || blocks.back() > most - n) blocks.push_back(0);
    const WeightPlace place{static_cast<uint32_t>(blocks.size() - 1), blocks.back()};
    blocks.back() += n;
    return place;
  }

  const Device& device_;
  const ModelSpec& spec_;
  WeightPlan* plan_;
};

WeightPart part_of(BlockKind kind) {
  switch (kind) {
    case BlockKind::kEmbedding:
      return WeightPart::kEmbedding;
    case BlockKind::kMixer:
      return WeightPart::kMixer;
    case BlockKind::kFfn:
      return WeightPart::kFfn;
    case BlockKind::kExperts:
      return WeightPart::kExperts;
    case BlockKind::kHead:
      break;
  }
  return WeightPart::kHead;
}

}  // namespace

WeightPlan make_weight_plan(const Device& device, const ModelSpec& spec,
                            const Placement& placement) {
  WeightPlan plan;
  PlanBuilder b(device, spec, &plan);
  if (spec.d_ple != 0 && placement.uses(DeviceIndex::kHere)) {
    // Layers here make their per-layer inputs of the embedded rows, wherever those come from.
    b.add(spec.ple_model_proj, WeightPart::kEmbedding);
    b.add(spec.ple_proj_norm, WeightPart::kEmbedding);
  }
  each_block(spec, placement, [&](const Block& block, DeviceIndex device) {
    if (device != DeviceIndex::kHere) return;
    for (const TensorRef& t : block_tensors(spec, block)) b.add(t, part_of(block.kind));
  });
  return plan;
}

std::vector<MemoryRow> weight_plan_rows(const WeightPlan& plan, const Device& device) {
  static const char* const kLabels[] = {"embedding", "mixers", "FFN", "routed experts", "head"};
  std::vector<MemoryRow> rows;
  const auto push = [&](const char* label, uint64_t bytes) {
    if (bytes == 0) return;
    rows.push_back(device.row(SHARPI_ROW_WEIGHTS, SHARPI_ROW_DEVICE, label, bytes, bytes));
  };
  for (size_t p = 0; p < std::size(kLabels); ++p) push(kLabels[p], plan.part_bytes[p]);
  uint64_t held = 0;
  for (const uint64_t n : plan.blocks) held += device.held_bytes(n);
  push("alignment of weights", held - plan.bytes);
  return rows;
}

Status check_weight_sizes(const Device& device, const ModelSpec& spec, const Placement& placement) {
  if (device.largest_block() == UINT64_MAX) return Status::ok();
  for (const WeightItem& item : make_weight_plan(device, spec, placement).items) {
    if (round_up(item.ref.bytes(), kWeightAlign) <= device.largest_block()) continue;
    return Status::error(Code::kUnsupported,
                         "tensor %.*s takes %llu bytes, and the device gives at most %llu at once",
                         static_cast<int>(item.ref.tensor->name.size()),
                         item.ref.tensor->name.data(),
                         static_cast<unsigned long long>(item.ref.bytes()),
                         static_cast<unsigned long long>(device.largest_block()));
  }
  return Status::ok();
}

std::vector<MemoryRow> load_rows(const WeightPlan& plan, const Device& device) {
  if (plan.stage == 0) return {};
  const uint64_t n = load_shape(plan).bytes();
  std::vector<MemoryRow> rows{
      device.row(SHARPI_ROW_STAGING, SHARPI_ROW_DEVICE, "load staging", n, device.held_bytes(n)),
      device.row(SHARPI_ROW_STAGING, SHARPI_ROW_PINNED, "load staging", n,
                 device.pinned_held_bytes(n))};
  for (MemoryRow& r : rows) r.transient = 1;
  return rows;
}

Result<std::unique_ptr<Weights>> Weights::load(Device& device, const GgufFile& file,
                                               WeightPlan plan, const LoadProgress& progress) {
  std::unique_ptr<Weights> w(new Weights());
  w->plan_ = std::move(plan);
  for (const uint64_t n : w->plan_.blocks) {
    SHARPI_TRY_ASSIGN(DeviceBuffer block, DeviceBuffer::allocate(device, n, "weights"));
    w->blocks_.push_back(std::move(block));
  }
  const DeviceScope scope(device);
  if (w->plan_.items.empty()) return w;
  SHARPI_TRY_ASSIGN(std::unique_ptr<StagedCopy> copy,
                    StagedCopy::create(device, load_shape(w->plan_), "load staging"));
  uint64_t done = 0;
  const auto advance = [&](uint64_t n) {
    done += n;
    if (progress && !progress(done, w->plan_.bytes))
      return Status::error(Code::kCancelled, "loading the model was cancelled");
    return Status::ok();
  };
  std::vector<StagedItem> items;
  for (const WeightItem& item : w->plan_.items) items.push_back({item.ref, w->at(item.place)});
  const Status sent = copy->send_all(file, items, advance);
  const Status finished = copy->wait();  // also after a failure: staging is in use until then
  SHARPI_TRY(sent);
  SHARPI_TRY(finished);
  return w;
}

const std::byte* Weights::at(const TensorRef& ref) const {
  if (!ref) return nullptr;
  const auto it = plan_.place_of.find(ref.tensor);
  return it == plan_.place_of.end() ? nullptr : at(it->second);
}

}  // namespace sharpi::device
