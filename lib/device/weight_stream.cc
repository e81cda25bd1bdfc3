// SPDX-License-Identifier: MIT
#include "device/weight_stream.h"

#include <algorithm>

#include "base/checked.h"
#include "device/kernels.h"
#include "os/processors.h"
#include "tier/block_tensors.h"

namespace sharpi::device {
namespace {

constexpr uint64_t kSlotBytes = 8ull << 20;  // the bus runs at full rate from a few MiB on
constexpr uint32_t kSlots = 8;               // several wait for the bus while one is filled
// Reading the page cache and writing pinned memory outruns the bus with this many of 16 cores, not
// with 8; with all of them it crawls (docs/performance.md).
constexpr uint32_t kCopyThreads = 12;

/// Bytes of a slot: at most kSlotBytes, but a unit of the layout at least.
uint64_t slot_bytes(const DeviceKernels& kernels, const std::vector<TensorRef>& tensors) {
  uint64_t largest = 0, panel = 0;
  for (const TensorRef& t : tensors) {
    largest = std::max(largest, t.bytes());
    panel = std::max(panel, std::min(t.bytes(), kernels.most_layout_unit(t.row_bytes())));
  }
  return round_up(std::max(panel, std::min(kSlotBytes, largest)), kWeightAlign);
}

}  // namespace

StreamPlan make_stream_plan(const DeviceKernels& kernels, const ModelSpec& spec,
                            const Placement& placement, const ModelShape& model) {
  StreamPlan plan;
  const Placement many = streamed_placement(spec, placement, model);
  std::vector<TensorRef> all;
  uint32_t n_layers = 0;
  for (const Segment& segment : make_segments(spec, many, &placement)) {
    for (const Block& block : segment.blocks) {
      if (!block.streamed) continue;
      const auto [at, is_new] = plan.layers.try_emplace(block.layer);
      if (is_new) at->second.half = n_layers++ % 2;
      for (const TensorRef& t : block_tensors(spec, block)) {
        at->second.tensors.push_back(t);
        all.push_back(t);
      }
    }
  }
  if (plan.empty()) return plan;
  plan.n_halves = std::min(2u, n_layers);
  std::vector<std::pair<const GgufTensor*, std::pair<uint32_t, uint64_t>>> places;
  for (const auto& [index, layer] : plan.layers) {
    uint64_t bytes = 0;
    for (const TensorRef& t : layer.tensors) {
      places.push_back({t.tensor, {layer.half, bytes}});
      bytes = round_up(bytes + t.bytes(), kWeightAlign);
    }
    plan.half_bytes = std::max(plan.half_bytes, bytes);
  }
  for (const auto& [tensor, place] : places) {
    plan.offset_of[tensor] = place.first * plan.half_bytes + place.second;
  }
  plan.copy.slot_bytes = slot_bytes(kernels, all);
  plan.copy.n_slots = kSlots;
  plan.copy.n_threads = kCopyThreads;
  return plan;
}

std::vector<MemoryRow> stream_rows(const StreamPlan& plan, const Device& device) {
  if (plan.empty()) return {};
  const uint64_t halves = plan.n_halves * plan.half_bytes, slots = plan.copy.bytes();
  return {device.row(SHARPI_ROW_STAGING, SHARPI_ROW_DEVICE, "streamed weights", halves + slots,
                     device.held_bytes(halves) + device.held_bytes(slots)),
          device.row(SHARPI_ROW_STAGING, SHARPI_ROW_PINNED, "streamed weights", slots,
                     device.pinned_held_bytes(slots))};
}

Result<std::unique_ptr<WeightStream>> WeightStream::create(const Device& device, StreamPlan plan) {
  std::unique_ptr<WeightStream> s(new WeightStream());
  s->device_ = &device;
  const uint32_t n_cpus = os::usable_cpus();
  plan.copy.n_threads = std::min(plan.copy.n_threads, std::max(1u, n_cpus * 3 / 4));
  s->plan_ = std::move(plan);
  SHARPI_TRY_ASSIGN(
      s->memory_,
      DeviceBuffer::allocate(device, s->plan_.n_halves * s->plan_.half_bytes, "streamed weights"));
  for (Half& h : s->halves_) {
    SHARPI_TRY_ASSIGN(h.free, device.create_event());
  }
  SHARPI_TRY_ASSIGN(s->gather_, device.create_queue());
  SHARPI_TRY_ASSIGN(s->gathered_, device.create_event());
  SHARPI_TRY_ASSIGN(s->copy_, StagedCopy::create(device, s->plan_.copy, "streamed weights"));
  return s;
}

Status WeightStream::load(uint32_t layer, const ExpertSlots* experts, const Queue& stream) {
  const StreamPlan::Layer& l = plan_.layers.at(layer);
  const Half& half = halves_[l.half];
  const Event* after = half.used ? half.free.get() : nullptr;
  if (after != nullptr) {
    SHARPI_TRY(gather_->wait_for(*after, "experts from slots"));
  }
  for (const TensorRef& t : l.tensors) {
    const bool slabs = experts != nullptr && t.n_experts > 1;
    SHARPI_TRY(send(t, slabs ? experts->residents(layer, t) : ExpertSlots::Residents{}, after));
  }
  SHARPI_TRY(gather_->record(*gathered_, "experts from slots"));
  SHARPI_TRY(stream.wait_for(*gathered_, "experts from slots"));
  return copy_->join(stream);
}

/// What is resident is copied on the device; what lies between goes over the bus in one piece.
Status WeightStream::send(const TensorRef& t, const ExpertSlots::Residents& residents,
                          const Event* after) {
  std::byte* to = memory_.data() + plan_.offset_of.at(t.tensor);
  if (residents.data == nullptr || t.n_experts > device_->kernels().max_gathered())
    return copy_->send(t, to, after);
  std::vector<GatherParams::Pair> pairs;
  GatherParams g;
  g.slots = residents.data;
  g.stride = residents.stride;
  g.to = to;
  g.bytes = t.bytes() / t.n_experts;
  for (uint32_t e = 0; e < t.n_experts; ++e) {
    if (residents.place[e] < 0) continue;
    pairs.push_back({static_cast<uint32_t>(residents.place[e]), e});
  }
  g.pairs = pairs;
  SHARPI_TRY(device_->kernels().gather(g, *gather_));
  uint64_t first = 0;
  for (uint32_t i = 0; i <= pairs.size(); ++i) {
    const uint64_t last = i == pairs.size() ? t.bytes() : pairs[i].expert * g.bytes;
    SHARPI_TRY(copy_->send_part(t, first, last, to, after));
    first = last + g.bytes;
  }
  return Status::ok();
}

Status WeightStream::done(uint32_t layer, const Queue& stream) {
  Half& half = halves_[plan_.layers.at(layer).half];
  SHARPI_TRY(stream.record(*half.free, "weight staging"));
  half.used = true;
  return Status::ok();
}

const std::byte* WeightStream::at(const TensorRef& ref) const {
  if (!ref) return nullptr;
  const auto it = plan_.offset_of.find(ref.tensor);
  return it == plan_.offset_of.end() ? nullptr : memory_.data() + it->second;
}

Status WeightStream::drain() const {
  const Status gathered = gather_->wait(), sent = copy_->wait();
  return gathered.is_ok() ? sent : gathered;
}

std::string WeightStream::text() const {
  return "weights streamed through " + std::to_string(plan_.copy.n_slots) + " x " +
         std::to_string(plan_.copy.slot_bytes >> 10) + " KiB of pinned memory, " +
         std::to_string(plan_.copy.n_threads) + " threads";
}

}  // namespace sharpi::device
