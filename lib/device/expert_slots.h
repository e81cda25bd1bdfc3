// SPDX-License-Identifier: MIT
// The expert cache of a GPU: slots of one size in device memory for routed experts whose weights
// are otherwise in host memory, the table of which expert is in which slot, and the copies into
// slots. Between calls the policy (tier/expert_cache.h) decides which experts come and go. The
// bytes of a coming expert are copied in pieces from the file to pinned staging memory, in the time
// that a decoded token waits for the GPU, and go to the device on a stream of their own. The table
// changes only while no call is running, so host and kernels agree about hits without asking each
// other.
// Thread rule: any thread; a mutex guards everything that changes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "device/device.h"
#include "device/memory.h"
#include "tier/expert_cache.h"
#include "tier/expert_host.h"
#include "tier/tier.h"

namespace sharpi::device {

/// Experts on their way to the device at a time.
constexpr uint32_t kExpertsStaged = 8;

/// Where the matrices of an expert lie in a slot. They keep their file's bytes.
struct SlotLayout {
  struct Layer {
    uint64_t up = 0, down = 0, end = 0;  // gate (or gate and up in one) comes first
  };
  std::vector<Layer> layers;
  uint64_t bytes = 0;                  // of a slot: what the model's largest expert takes
  uint32_t n_experts = 0, n_used = 0;  // most of a layer, most of a row
  uint64_t table_bytes() const { return layers.size() * n_experts * sizeof(int32_t); }
  /// The matrices before slot 0 are zero: kernels that skip an expert read them.
  uint64_t pool_bytes(uint32_t n_slots) const { return n_slots == 0 ? 0 : (n_slots + 1) * bytes; }
};
SlotLayout make_slot_layout(const ModelSpec& spec);

/// Pinned memory in which a call hands rows to the experts' host and takes the answer back.
struct HandoverLayout {
  uint64_t sent = 0, done = 0, x = 0, y = 0, ids = 0, weights = 0;  // offsets
  uint64_t bytes = 0;                   // 0: no layer of this placement asks
  uint32_t layer_ids = 0;               // ids of one layer of a recorded step
  std::vector<int32_t> place_of_layer;  // among the layers that ask, -1 = it does not
};
HandoverLayout make_handover_layout(const ModelSpec& spec, const Placement& placement,
                                    const ModelShape& model);

/// The memory rows of slots, tables and staging, and of the hand-over of each of n_workspaces.
std::vector<MemoryRow> expert_rows(const ModelSpec& spec, const Placement& placement,
                                   const ModelShape& model, uint32_t n_workspaces,
                                   const Device& device);

class ExpertSlots {
 public:
  /// Takes the memory and fills the slots with experts, evenly over layers. Null result: the
  /// placement has no slots.
  static Result<std::unique_ptr<ExpertSlots>> create(Device& device,
                                                     std::shared_ptr<const Plan> plan);
  ~ExpertSlots();

  /// Comes before a call's first kernel: experts that have arrived enter the table, and staged ones
  /// are sent. Work that is enqueued on `stream` from now on sees the table of this call.
  Status begin(const Queue& stream);
  /// Comes after the call's last kernel has ended. `step`: the call asked for experts, so that the
  /// counts of their uses age.
  void end(bool step = true);
  /// Copies a piece of an expert to staging; false when nothing waits. Takes some microseconds.
  bool copy_piece();
  /// Counts uses: rows of a layer were routed to these experts, given as id or as ~id. `served`:
  /// those with a slot are computed from it.
  void note(uint32_t layer, const int32_t* ids, uint32_t n, bool served);
  /// Brings experts in now and keeps them. Waits for running calls to end.
  Status pin(std::span<const ExpertId> experts);

  /// Matrix of each expert of a layer among those of matrices(), -1 = none: device memory (null
  /// without slots), and as running calls see it.
  const int32_t* table(uint32_t layer) const;
  const int32_t* host_table(uint32_t layer) const;
  /// Slots one behind the other, the first of which is zero: an expert in slot i has its matrices
  /// where layout() says from (i + 1) * layout().bytes on.
  const DeviceBuffer& pool() const { return slots_; }
  const SlotLayout& layout() const { return layout_; }
  /// Matrix `w` of a layer's experts as far as slots hold them, for a call that has begun: expert e
  /// is at data + e's entry * stride, unless that is -1. No data: none has a slot.
  struct Residents {
    const std::byte* data = nullptr;
    uint64_t stride = 0;
    const int32_t* place = nullptr;
  };
  Residents residents(uint32_t layer, const TensorRef& w) const;
  sharpi_expert_stats stats() const;
  /// Uses of each expert of a layer.
  std::vector<uint64_t> uses(uint32_t layer) const;

 private:
  struct Staged {
    enum class State : uint8_t { kFree, kCopying, kReady, kMoving } state = State::kFree;
    ExpertFill fill;
    uint64_t copied = 0;
    std::unique_ptr<Event> moved;
  };
  ExpertSlots() = default;
  Status fill();
  Status settle_arrivals();
  Status finish_arrivals();
  Status send(uint32_t index);
  Status load_now(const ExpertFill& fill, uint32_t index);
  void copy_bytes(Staged& s, uint32_t index, uint64_t limit);
  void put(const ExpertId& id, int32_t slot);
  const ModelSpec& spec() const { return *plan_->spec; }

  Device* device_ = nullptr;
  std::shared_ptr<const Plan> plan_;
  SlotLayout layout_;
  DeviceBuffer slots_, table_, staged_;
  PinnedBuffer host_table_, pinned_;
  std::unique_ptr<Queue> stream_;  // after what its work uses
  std::unique_ptr<Event> table_ready_;
  mutable std::mutex mutex_;
  std::condition_variable idle_;
  std::unique_ptr<ExpertCache> cache_;
  std::vector<Staged> staged_experts_;
  std::atomic<uint32_t> n_copying_{0};
  uint32_t n_running_ = 0;
  bool stepped_ = false;  // one of the calls that run, or ran beside them, was a step
  bool dirty_ = false, frozen_ = false;
  uint64_t n_promotions_ = 0, promoted_bytes_ = 0, n_unserved_ = 0;
};

}  // namespace sharpi::device
