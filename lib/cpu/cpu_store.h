// SPDX-License-Identifier: MIT
// The CPU tier's half of a session: KV rows in reserved address space, recurrent state, checkpoints
// and logits. Sizes come from kv_layout.h and the functions below, which the planner calls too.
// Thread rule: one owner (the session).
#pragma once

#include <memory>
#include <vector>

#include "base/memory.h"
#include "tier/session_layout.h"
#include "tier/tier.h"

namespace sharpi::cpu {

class CpuSession final : public TierSession, public KvStore {
 public:
  /// `logit_rows` = 0 when the head runs elsewhere.
  static Result<std::unique_ptr<CpuSession>> create(MemoryMeter* meter,
                                                    std::shared_ptr<const Plan> plan,
                                                    const SessionShape& shape);
  /// What create() will allocate.
  static std::vector<MemoryRow> plan_rows(const ModelSpec& spec, const Placement& placement,
                                          const ModelShape& model, const SessionShape& session);

  KvStore& store() override { return *this; }
  Status read_logits(uint32_t row, float* out) const override;
  Status write_logits(uint32_t row, const float* in) override;
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
  void discard_moves() noexcept override { staged_.clear(); }
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

  /// Committed (input) and working (output) state of a recurrent layer.
  float* state(uint32_t layer, StatePart part, bool working) const;
  float* logits() const { return logits_.as<float>(); }
  /// Index of how its rows are stored in the model's list of KV formats.
  uint32_t format_index = 0;
  uint32_t format() const override { return format_index; }

 private:
  CpuSession() = default;
  Status check_logits_row(uint32_t row) const;
  Status check_queries(uint32_t layer, uint32_t n) const;
  Result<std::byte*> checkpoint_at(uint32_t index) const;
  std::shared_ptr<const Plan> plan_;
  SessionShape shape_;
  KvLayout layout_;
  StateLayout state_layout_;
  std::vector<Reservation> ranges_;  // per group
  std::vector<uint32_t> capacity_;   // slots per group
  HostBuffer state_;                 // two copies
  HostBuffer checkpoints_;
  HostBuffer logits_;
  QueryLayout query_layout_;
  HostBuffer ring_, observer_;
  MemoryMeter* meter_ = nullptr;
  uint32_t current_ = 0;
  std::vector<KvMove> staged_;
};

}  // namespace sharpi::cpu
