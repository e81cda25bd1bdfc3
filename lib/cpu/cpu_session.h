// SPDX-License-Identifier: MIT
// The CPU tier's half of a session: KV rows in reserved address space, recurrent state, checkpoints
// and logits. Sizes come from tier/session_layout.h and the functions here, which the planner calls
// too. Thread rule: one owner (the session).
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "base/reservation.h"
#include "cpu/replay.h"
#include "tier/stored_session.h"

namespace sharpi::cpu {

class CpuSession;

/// Applies rows to the state of a recurrent layer, whose weights it knows.
class StateReplay {
 public:
  virtual ~StateReplay() = default;
  /// The state of a layer after the session's pending rows, to state[] and conv[]. May throw
  /// std::bad_alloc. Thread rule: any thread; reads the session.
  virtual void replay(const CpuSession& session, uint32_t layer, float* state,
                      float* conv) const = 0;
};

class CpuSession final : public StoredSession<HostBuffer, HostBuffer, Reservation> {
 public:
  static Result<std::unique_ptr<CpuSession>> create(MemoryMeter* meter,
                                                    std::shared_ptr<const Plan> plan,
                                                    const SessionShape& shape,
                                                    const StateReplay* replay);
  /// What create() will allocate.
  static std::vector<MemoryRow> plan_rows(const ModelSpec& spec, const Placement& placement,
                                          const ModelShape& model, const SessionShape& session);

  Status read_logits(uint32_t row, float* out) const override;
  Status write_logits(uint32_t row, const float* in) override;
  std::vector<MemoryRow> memory_rows() const override;
  Status reserve_observer(uint32_t n) override;
  uint64_t observer_bytes(uint32_t n) const override;
  Status read_queries(uint32_t layer, uint64_t first, uint32_t n, float* out) const override;
  Status write_queries(uint32_t layer, uint64_t first, uint32_t n, const float* in) override;

  float* host_replay_scores(uint32_t layer, uint64_t* stride) const override {
    return replay_scores(layer, stride);
  }
  Status read_replay_scores(uint32_t layer, uint32_t head, uint32_t first, uint32_t n,
                            float* out) const override;
  Status write_replay_scores(uint32_t layer, uint32_t head, uint32_t first, uint32_t n,
                             const float* in) override;

  /// Of the rows of `source` by queries of `layer`, which reads them: all but which rows and
  /// queries.
  ReplayTask replay_task(uint32_t source, const KvLedger& ledger, const AttentionSpec& of,
                         const ReplayTurns& turns, uint32_t layer) const;
  /// The part of it that is one KV head's, of a source whose rows are in blocks of one head.
  ReplayTask replay_task_of_head(const ReplayTask& all, uint32_t source, uint32_t head,
                                 const KvLedger& ledger) const;

  uint64_t held_bytes_of(uint32_t group, uint32_t n_slots) const override;
  bool can_keep_by_head() const override { return true; }
  uint64_t head_table_bytes() const override;
  bool has_head_tables() const override { return tables_.bytes() != 0; }
  Status take_head_tables() override;
  void drop_head_tables() noexcept override;
  Status read_head_rows(uint32_t layer, uint32_t head, bool value, uint32_t first, uint32_t n,
                        void* out) const override;
  Status write_head_rows(uint32_t layer, uint32_t head, bool value, uint32_t first, uint32_t n,
                         const void* in) override;
  Status stage_moves(std::span<const KvMove> moves) override;
  void apply_moves() noexcept override;
  void discard_moves() noexcept override { staged_.clear(); }
  Status read_rows(uint32_t layer, bool value, uint32_t first, uint32_t n,
                   void* out) const override;
  Status write_rows(uint32_t layer, bool value, uint32_t first, uint32_t n,
                    const void* in) override;
  Status read_state(uint32_t layer, StatePart part, void* out) const override;
  Status write_state(uint32_t layer, StatePart part, const void* in) override;
  void clear_state() noexcept override;
  Status save_checkpoint(uint32_t index) override;
  Status load_checkpoint(uint32_t index) override;

 private:
  Status copy_within(void* to, const void* from, uint64_t bytes) const override {
    if (bytes != 0) std::memcpy(to, from, bytes);
    return Status::ok();
  }
  CpuSession(MemoryMeter* meter, std::shared_ptr<const Plan> plan, const SessionShape& shape,
             const StateReplay* replay);
  void move_replay_scores(const KvMove& move) noexcept;
  void move_rows(const KvMove& move) noexcept;
  void keep_by_head(uint32_t group) noexcept;
  MemoryMeter* meter_;
  const StateReplay* replay_;
  std::vector<KvMove> staged_;
  HostBuffer tables_;  // of blocks of one head, of all groups
};

}  // namespace sharpi::cpu
