// SPDX-License-Identifier: MIT
// Scratch of one call in flight on a device: activations at fixed offsets of one block, the batch
// table with its pinned mirror, and the stream. Fixed addresses keep captured graphs valid. The
// layout follows from the spec alone, so the planner prices it exactly.
// Thread rule: one call at a time.
#pragma once

#include <memory>
#include <vector>

#include "device/batch.h"
#include "device/buffers.h"
#include "device/device.h"
#include "device/expert_line.h"
#include "device/layers_ahead.h"
#include "device/memory.h"
#include "device/pass_kernels.h"
#include "device/stage_marks.h"
#include "tier/buffer_layout.h"
#include "tier/rope_tables.h"
#include "tier/tier.h"

namespace sharpi::device {

/// What one upload carries besides the batch: tokens, picked rows, where logits go.
struct CallTable {
  BatchShape batch;
  uint32_t max_head_rows = 0;
  uint64_t tokens = 0, head_rows = 0, logits = 0, adapters = 0, rows = 0;  // offsets
  uint64_t bytes = 0;
  uint64_t upload_bytes(uint32_t n_rows) const { return rows + batch_upload_bytes(batch, n_rows); }
};

/// Offsets as blocks of device memory are aligned.
struct WorkspaceLayout : BufferLayout<Buf, 256> {
  uint32_t max_rows = 0;
  uint32_t n_half = 0;  // widest rope table
  uint64_t chunk_slot_bytes = 0;
  uint64_t ple_row_bytes = 0;  // of the raw per-layer table
  CallTable table;
  bool hands_over = false;      // hidden rows between tiers, and to and from an MTP block
  uint64_t handover_bytes = 0;  // pinned, for those; 0 where another device's memory serves
  uint32_t n_passes = 1;        // of a pipeline, that may be under way at once; 1 = none
  uint64_t pinned_bytes() const { return n_passes * table.bytes + size_of(Buf::kPleRaw); }
};

WorkspaceLayout make_workspace_layout(const ModelSpec& spec, const Placement& placement,
                                      const ModelShape& model, const SessionShape& session,
                                      const PassKernels& kernels, bool shares_pinned);
std::vector<MemoryRow> workspace_rows(const WorkspaceLayout& layout, uint32_t n,
                                      const Device& device);

class DeviceWorkspace final : public Workspace {
 public:
  static Result<std::unique_ptr<DeviceWorkspace>> create(const Device& device,
                                                         const WorkspaceLayout& layout,
                                                         float* handover);
  ~DeviceWorkspace() override;
  float* handover() const override { return hand_; }
  /// Rows that are handed over in memory that the device's queues cannot copy: the host takes them
  /// from there to handover(), and what the device leaves in handover() back there.
  bool is_relayed(const float* rows) const { return rows != nullptr && rows == relayed_; }
  float* landing() const override { return get(Buf::kX); }
  float* arrival() const override {
    return size(Buf::kArrival) == 0 ? nullptr : get(Buf::kArrival);
  }
  /// Where in a pipeline a pass leaves the hidden rows that an MTP block wants, by its call table.
  float* hidden_rows(uint32_t table, uint32_t n_embd) const {
    const uint64_t n_behind = layout_.n_passes - 2 + table;  // hand-overs, and passes in front
    return hand_ + n_behind * layout_.max_rows * n_embd;
  }
  /// Passes of a pipeline that are under way here.
  StageMarks stage;
  template <class T = float>
  T* get(Buf b) const {
    return reinterpret_cast<T*>(memory_.data() + layout_.offset_of(b));
  }
  uint64_t size(Buf b) const { return layout_.size_of(b); }
  const WorkspaceLayout& layout() const { return layout_; }
  const Queue& queue() const { return *stream_; }
  /// For LayersAhead: records the end of one of the layers under way.
  Status record(uint32_t event) const {
    return queue().record(*layers_[event], "the end of a layer");
  }
  Status wait(uint32_t event) const { return layers_[event]->wait("waiting for a layer"); }

  // The pinned mirror of the table (in a pipeline, of the pass that is being given), and the
  // table's parts on the device.
  int32_t* host_tokens() const { return mirror<int32_t>(layout_.table.tokens); }
  uint32_t* host_head_rows() const { return mirror<uint32_t>(layout_.table.head_rows); }
  float** host_logits() const { return mirror<float*>(layout_.table.logits); }
  /// [sequences][kMaxAdapters], where the plan has adapters.
  BatchAdapter* host_adapters() const { return mirror<BatchAdapter>(layout_.table.adapters); }
  BatchTable host_batch() const;
  std::byte* host_ple() const { return pinned_.data() + layout_.n_passes * layout_.table.bytes; }
  const int32_t* tokens() const { return device_part<int32_t>(layout_.table.tokens); }
  const uint32_t* head_rows() const { return device_part<uint32_t>(layout_.table.head_rows); }
  float* const* logits() const { return device_part<float*>(layout_.table.logits); }
  const BatchAdapter* adapters() const { return device_part<BatchAdapter>(layout_.table.adapters); }
  BatchTable batch() const;

  /// Layer whose chunk rows wait in kKvChunk for their ring, -1 = none. Rows go to the ring only
  /// when the scratch is needed again or the pass ends: layers that share KV read both until then.
  int32_t pending_ring = -1;
  ExpertHandover experts;
  /// Recorded steps, where step_index() says (calls.h); null = not yet.
  std::vector<std::unique_ptr<Recording>> recordings;

 private:
  DeviceWorkspace() = default;
  template <class T>
  T* mirror(uint64_t offset) const {
    return reinterpret_cast<T*>(pinned_.data() + stage.table() * layout_.table.bytes + offset);
  }
  template <class T>
  T* device_part(uint64_t offset) const {
    return reinterpret_cast<T*>(get<std::byte>(Buf::kTable) + offset);
  }
  const Device* device_ = nullptr;
  WorkspaceLayout layout_;
  DeviceBuffer memory_;
  PinnedBuffer pinned_, handover_;
  float* hand_ = nullptr;     // in handover_, or another workspace's
  float* relayed_ = nullptr;  // another workspace's, beside handover_
  std::unique_ptr<Queue> stream_;
  std::unique_ptr<Event> layers_[kLayersAhead];
};

}  // namespace sharpi::device
