// SPDX-License-Identifier: MIT
// A GPU tier's half of a session: KV rows in reserved device addresses, recurrent state, logits and
// observed queries on the device, checkpoints in pinned host memory. No KV row has a host copy.
// Sizes come from tier/session_layout.h and the functions here, which the planner calls too. Thread
// rule: one owner (the session); several const calls may run at once. Work runs on the model's
// stream and has ended when a call returns.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "device/archive_rows.h"
#include "device/batch.h"
#include "device/best_logits.h"
#include "device/device.h"
#include "device/head_tables.h"
#include "device/kv_moves.h"
#include "device/memory.h"
#include "device/session_copies.h"
#include "tier/stored_session.h"

namespace sharpi::device {

class LoadedModel;

class DeviceSession final : public StoredSession<DeviceBuffer, PinnedBuffer, DeviceRange> {
 public:
  /// The model outlives the session.
  static Result<std::unique_ptr<DeviceSession>> create(const LoadedModel& model,
                                                       const SessionShape& shape);
  /// What create() will allocate.
  static std::vector<MemoryRow> plan_rows(const Device& device, const ModelSpec& spec,
                                          const Placement& placement, const ModelShape& model,
                                          const SessionShape& session);

  Status read_logits(uint32_t row, float* out) const override;
  Status write_logits(uint32_t row, const float* in) override;
  uint32_t max_best() const override;
  Status read_best(uint32_t row, uint32_t k, const std::span<const uint32_t>* allowed,
                   float* values, int32_t* ids) const override;
  /// For a pass under way on that stream: the k best of its first n rows of logits go to the host
  /// too, where read_best() finds them once best_arrived() was called.
  Status send_best(uint32_t n, uint32_t k, const Queue& pass);
  void best_arrived() { best_.arrive(); }
  void forget_best() { best_.forget(); }
  std::vector<MemoryRow> memory_rows() const override;
  Status reserve_observer(uint32_t n) override;
  uint64_t observer_bytes(uint32_t n) const override;
  Status read_queries(uint32_t layer, uint64_t first, uint32_t n, float* out) const override;
  Status write_queries(uint32_t layer, uint64_t first, uint32_t n, const float* in) override;

  Status read_replay_scores(uint32_t layer, uint32_t head, uint32_t first, uint32_t n,
                            float* out) const override;
  Status write_replay_scores(uint32_t layer, uint32_t head, uint32_t first, uint32_t n,
                             const float* in) override;
  /// SessionShape::replay_every.
  uint32_t replay_every() const { return shape_.replay_every; }

  uint64_t held_bytes_of(uint32_t group, uint32_t n_slots) const override;
  uint64_t stage_bytes(std::span<const KvMove> moves) const override;
  Status stage_moves(std::span<const KvMove> moves) override;
  void apply_moves() noexcept override;
  void discard_moves() noexcept override;
  bool can_keep_by_head() const override;
  uint64_t head_table_bytes() const override;
  uint64_t head_table_host_bytes() const override;
  bool has_head_tables() const override { return tables_.are_here(); }
  Status take_head_tables() override;
  void drop_head_tables() noexcept override;
  Status read_head_rows(uint32_t layer, uint32_t head, bool value, uint32_t first, uint32_t n,
                        void* out) const override;
  Status write_head_rows(uint32_t layer, uint32_t head, bool value, uint32_t first, uint32_t n,
                         const void* in) override;
  /// Before kernels read rows that are by head: what the device has of the tables is up to date.
  Status send_tables();
  /// Of a layer that is by head: what a call's table says of its rows; a head's rows, for kernels.
  const KvHeadRows* head_rows(uint32_t layer) const;
  KvView kernel_view(uint32_t layer, uint32_t head) const;

  RemoteRows* remote_rows() override { return &archive_rows_; }
  const ArchiveRows& archive_rows() const { return archive_rows_; }

  CopyRoom copy_room() const override;
  Status start_reading(uint32_t layer, bool value, uint32_t first, uint32_t n,
                       void* out) const override;
  Status start_writing(uint32_t layer, bool value, uint32_t first, uint32_t n,
                       const void* in) override;
  Status finish_copies() const override { return copies_.wait(); }
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
  DeviceSession(const LoadedModel& model, const SessionShape& shape);
  Status allocate();
  Status apply_pending(uint32_t layer) const;
  Status copy_within(void* to, const void* from, uint64_t bytes) const override;
  QueryRing query_ring(uint32_t layer) const;
  MoveList list_of(std::span<const KvMove> moves) const;
  uint64_t least_room(std::span<const KvMove> moves) const;
  Status move_all();
  Status keep_by_head(uint32_t group);
  const LoadedModel& model_;
  const Device* device_;
  const Queue* stream_;
  SessionCopies copies_;
  BestLogits best_;
  KvMoves moves_;
  std::vector<KvMove> staged_;
  HeadTables tables_;
  ArchiveRows archive_rows_;
  mutable std::mutex way_out_;                // of what const calls share: the next one
  PinnedBuffer logits_host_;                  // one row on its way out
  mutable std::atomic<bool> in_room_{false};  // rows_host_ is taken
  PinnedBuffer rows_host_;                    // two pieces of rows on their way
};

/// A session's recurrent state, and the pending rows that have to be applied to it: behind so many
/// passes that are under way.
BatchSequence pending_sequence(const DeviceSession& session, uint32_t passes_ahead = 0);

}  // namespace sharpi::device
