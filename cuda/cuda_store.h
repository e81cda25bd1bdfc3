// SPDX-License-Identifier: MIT
// The CUDA tier's half of a session: KV rows in reserved device addresses, recurrent state, logits
// and observed queries on the device, checkpoints in pinned host memory. No KV row has a host copy.
// Sizes come from tier/session_layout.h and the functions here, which the planner calls too.
// Thread rule: one owner (the session); work runs on the model's stream and has ended when a call
// returns.
#pragma once

#include <memory>
#include <vector>

#include "cuda/device_memory.h"
#include "cuda/kernels/kv_move.h"
#include "cuda/stream.h"
#include "tier/session_layout.h"
#include "tier/tier.h"

namespace sharpi::cuda {

/// Bytes of the lists that the largest compaction of such a session uploads.
uint64_t move_list_bytes(const KvLayout& layout);

class CudaSession final : public TierSession, public KvStore {
 public:
  /// `device` and `stream` outlive the session (they are the model's).
  static Result<std::unique_ptr<CudaSession>> create(const Device& device, const Stream& stream,
                                                     std::shared_ptr<const Plan> plan,
                                                     const SessionShape& shape);
  /// What create() will allocate.
  static std::vector<MemoryRow> plan_rows(uint32_t device, const ModelSpec& spec,
                                          const Placement& placement, const ModelShape& model,
                                          const SessionShape& session);

  KvStore& store() override { return *this; }
  Status read_logits(uint32_t row, float* out) const override;
  Status write_logits(uint32_t row, const float* in) override;
  uint32_t max_best() const override;
  Status read_best(uint32_t row, uint32_t k, float* values, int32_t* ids) const override;
  std::vector<MemoryRow> memory_rows() const override;
  uint32_t query_rows(Capture which) const override;
  Status reserve_observer(uint32_t n) override;
  Status read_queries(uint32_t layer, uint64_t first, uint32_t n, float* out) const override;
  Status write_queries(uint32_t layer, uint64_t first, uint32_t n, const float* in) override;
  /// [query_rows][dim] of one layer; ring rows at position % query_rows. Null if there is none.
  float* queries(uint32_t layer, Capture which) const;

  const KvLayout& layout() const override { return layout_; }
  KvView view(uint32_t layer) const override;
  uint32_t capacity(uint32_t group) const override { return capacity_[group]; }
  uint64_t held_bytes(uint32_t group) const override { return ranges_[group].committed(); }
  uint64_t held_bytes_of(uint32_t group, uint32_t n_slots) const override;
  Status reserve(uint32_t group, uint32_t n_slots) override;
  void shrink(uint32_t group, uint32_t n_slots) noexcept override;
  Status stage_moves(std::span<const KvMove> moves) override;
  void apply_moves() noexcept override;
  void discard_moves() noexcept override;
  Status read_rows(uint32_t layer, bool value, uint32_t first, uint32_t n,
                   void* out) const override;
  Status write_rows(uint32_t layer, bool value, uint32_t first, uint32_t n,
                    const void* in) override;
  uint64_t state_bytes(uint32_t layer, StatePart part) const override;
  Status read_state(uint32_t layer, StatePart part, void* out) const override;
  Status write_state(uint32_t layer, StatePart part, const void* in) override;
  void commit_state() noexcept override { current_ ^= 1; }
  void clear_state() noexcept override;
  Status save_checkpoint(uint32_t index) override;
  Status load_checkpoint(uint32_t index) override;
  uint64_t checkpoint_bytes() const override { return state_layout_.bytes; }
  Status read_checkpoint(uint32_t index, void* out) const override;
  Status write_checkpoint(uint32_t index, const void* in) override;

  /// Committed (input) and working (output) state of a recurrent layer, on the device.
  float* state(uint32_t layer, StatePart part, bool working) const;
  /// The same without the layer: base of the committed (false) or working (true) copy.
  std::byte* state_base(bool working) const;
  /// The queries of all layers; null if there are none.
  float* query_base(Capture which) const {
    return (which == Capture::kRing ? ring_ : observer_).as<float>();
  }
  float* logits() const { return logits_.as<float>(); }
  /// First byte of a group's rows.
  std::byte* group_base(uint32_t group) const { return ranges_[group].data(); }
  /// Index of how its rows are stored in the model's list of KV formats.
  uint32_t format_index = 0;
  uint32_t format() const override { return format_index; }

 private:
  enum class Way : uint8_t { kToHost, kToDevice };
  CudaSession() = default;
  Status allocate(const SessionShape& shape);
  Status check_logits_row(uint32_t row) const;
  Status check_checkpoint(uint32_t index) const;
  Status copy(void* to, const void* from, uint64_t bytes, cudaMemcpyKind kind,
              const char* what) const;
  Status copy_queries(uint32_t layer, uint64_t first, uint32_t n, std::byte* host, Way way) const;
  Status copy_rows(uint32_t layer, bool value, uint32_t first, uint32_t n, std::byte* host,
                   Way way) const;
  const Device* device_ = nullptr;
  const Stream* stream_ = nullptr;
  std::shared_ptr<const Plan> plan_;
  SessionShape shape_;
  KvLayout layout_;
  StateLayout state_layout_;
  QueryLayout query_layout_;
  std::vector<DeviceRange> ranges_;  // per group
  std::vector<uint32_t> capacity_;   // slots per group
  DeviceBuffer state_;               // two copies
  PinnedBuffer checkpoints_;
  DeviceBuffer logits_;
  PinnedBuffer logits_host_;  // one row on its way out
  DeviceBuffer best_;         // scratch of the best logits, and they themselves
  DeviceBuffer ring_, observer_;
  uint32_t current_ = 0;
  DeviceBuffer move_lists_;          // room for jobs and keep lists, priced by the template
  DeviceBuffer call_moves_;          // the same for moves that were not priced, until they are done
  const KvMoveJob* jobs_ = nullptr;  // staged, in one of the two
  uint32_t n_moves_ = 0, move_bytes_ = 0;
};

}  // namespace sharpi::cuda
