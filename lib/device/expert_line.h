// SPDX-License-Identifier: MIT
// How a call hands routed experts over to the CPU (expert offloading): the pinned memory, and the
// queue of requests that a captured decode step makes. Thread rule: one call at a time.
#pragma once

#include "device/expert_slots.h"

namespace sharpi::device {

/// The hand-over of one workspace.
struct ExpertHandover {
  HandoverLayout layout;
  PinnedBuffer memory;
  std::unique_ptr<Event> sent;  // rows of a request that is no part of a graph are in `memory`
  ExpertHost* host = nullptr;   // the engine's
  template <class T>
  T* at(uint64_t offset) const {
    return reinterpret_cast<T*>(memory.data() + offset);
  }
  /// Where a recorded step leaves the ids (weights) of a layer. Each layer has a place of its own:
  /// a layer whose experts are all in slots goes on before the host has read its ids.
  int32_t* layer_ids(uint32_t layer) const { return at<int32_t>(layout.ids) + place(layer); }
  float* layer_weights(uint32_t layer) const { return at<float>(layout.weights) + place(layer); }

 private:
  uint64_t place(uint32_t layer) const {
    return static_cast<uint64_t>(layout.place_of_layer[layer]) * layout.layer_ids;
  }
};

/// The requests of a graph that runs: an object made before the graph's launch and served after it.
/// While it waits for the next request, it copies coming experts to staging. Unless the device is
/// lost it makes no call of the device's driver: who holds the driver's locks may be waiting for
/// this very graph. Where a recording runs in parts (Queue::runs_in_parts()), nothing waits for the
/// host while the device works, and the line asks the queue instead of the memory.
class GraphLine final : public ExpertLine {
 public:
  /// The graph runs `segment` on n_rows rows on `stream`.
  GraphLine(const Device& device, ExpertHandover& handover, ExpertSlots& slots,
            const ModelSpec& spec, const Segment& segment, uint32_t n_rows, bool use_slots,
            const Queue& stream);
  /// Afterwards nothing on the device waits for this line any longer.
  ~GraphLine() override;
  const ExpertRequest* next() override;
  void answer() override;
  /// Why the line ended too early, if it did.
  Status status() const;

 private:
  bool asks(const Block& b) const {
    return b.kind == BlockKind::kFfn && handover_.layout.place_of_layer[b.layer] >= 0;
  }
  Result<bool> has_come(uint32_t number) const;
  bool wait_for(uint32_t number);
  void publish(uint32_t number);
  bool go_on();
  const Device& device_;
  ExpertHandover& handover_;
  ExpertSlots& slots_;
  const ModelSpec& spec_;
  const Segment& segment_;
  const uint32_t n_rows_;
  const bool use_slots_;
  uint32_t number_ = 0;  // of the last request that was looked at
  size_t at_ = 0;        // block
  const Queue& stream_;
  ExpertRequest request_;
  bool unanswered_ = false;  // request_ is
  Status status_;
};

/// Replaces the id of each expert that has a slot by ~id. False: no other expert is left.
bool leave_out_resident(const ExpertSlots& slots, uint32_t layer, int32_t* ids, uint32_t n);

}  // namespace sharpi::device
