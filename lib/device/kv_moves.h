// SPDX-License-Identifier: MIT
// The moves of a compaction on the device: which rows of a session's KV move where, uploaded as one
// block (stage), then carried out by one launch (apply). Room for the block is priced by the plan;
// a compaction that the template did not foresee takes more until it is done.
// Thread rule: one owner (the session). Work runs on the model's stream and has ended when a call
// returns.
#pragma once

#include <span>
#include <vector>

#include "device/device.h"
#include "device/kernel_params.h"
#include "device/memory.h"
#include "kv/kv_layout.h"
#include "tier/tier.h"

namespace sharpi::device {

/// Bytes of the lists that the largest compaction of such a session uploads; `scores`: rows have
/// replay scores.
uint64_t move_list_bytes(const KvLayout& layout, bool scores);

/// The jobs of a compaction and the keep lists that they read, as one block for the device.
class MoveList {
 public:
  void add(const KvView& v, const KvMove& m);
  /// Rows of one KV head that are in blocks of their own; v: for kernels.
  void add_rows(const KvView& v, std::span<const uint32_t> keep);
  /// One number a row of a KV head, by slot.
  void add_scores(float* scores, std::span<const uint32_t> keep);
  /// Those of add_rows() stand behind the others.
  const std::vector<KvMoveJob>& jobs() const { return jobs_; }
  uint32_t n_by_head() const { return n_by_head_; }
  uint64_t bytes() const { return job_bytes() + lists_.size() * sizeof(uint32_t); }
  uint32_t max_bytes() const { return max_bytes_; }
  /// The block for the device address `base`.
  std::vector<std::byte> image(const std::byte* base);

 private:
  uint64_t job_bytes() const;
  uint64_t add_list(std::span<const uint32_t> keep);
  void add_job(const KvView& v, bool value, uint64_t list, size_t n, uint32_t offset,
               uint32_t bytes);
  void put(const KvMoveJob& job, bool by_head, uint64_t list);
  /// One head's part of every row.
  void add_head(const KvView& v, bool value, uint64_t list, size_t n, uint32_t head);
  std::vector<KvMoveJob> jobs_;
  std::vector<uint64_t> list_of_;  // first entry of a job's list
  std::vector<uint32_t> lists_;
  struct Known {  // a list that is there already
    std::span<const uint32_t> keep;
    uint64_t at = 0;
  };
  std::vector<Known> known_;
  uint32_t max_bytes_ = 0, n_by_head_ = 0;
};

class KvMoves {
 public:
  /// `device` and `stream` outlive it.
  KvMoves(const Device& device, const Queue& stream) : device_(&device), stream_(&stream) {}
  /// Takes the priced room: move_list_bytes() or 0.
  Status allocate(uint64_t bytes);
  /// Bytes of the priced room.
  uint64_t bytes() const { return lists_.bytes(); }
  /// Uploads `list`, whose rows apply() then moves; in place of what was staged before. An error
  /// leaves nothing staged. Memory of `least` bytes or more is there until discard().
  Status stage(MoveList* list, uint64_t least);
  /// What that takes beside the priced room.
  uint64_t stage_bytes(const MoveList& list, uint64_t least) const;
  Status apply() const;
  void discard() noexcept;
  /// The memory of the lists, which nobody reads once they are applied.
  std::span<std::byte> room() const {
    const DeviceBuffer& b = call_lists_.bytes() != 0 ? call_lists_ : lists_;
    return {b.data(), b.bytes()};
  }

 private:
  const Device* device_;
  const Queue* stream_;
  DeviceBuffer lists_;               // room for jobs and keep lists, priced by the template
  DeviceBuffer call_lists_;          // the same for moves that were not priced, until they are done
  const KvMoveJob* jobs_ = nullptr;  // staged, in one of the two
  uint32_t n_moves_ = 0, n_by_head_ = 0, move_bytes_ = 0;
};

}  // namespace sharpi::device
