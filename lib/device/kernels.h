// SPDX-License-Identifier: MIT
// The kernels of a GPU tier outside of passes, by what they do: layouts of weights, moves of rows,
// scores and choices for compaction, the best logits. What they are given is checked before; they
// are enqueued, allocate nothing, and their failures are settled by the device (Device::settle()).
// Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "device/device.h"
#include "device/kernel_params.h"
#include "model/model_spec.h"

namespace sharpi::device {

/// What matrices are aligned to in device memory.
inline constexpr uint64_t kWeightAlign = 256;

/// Matrices of experts that lie in slots, to where all matrices of their layer are side by side.
struct GatherParams {
  struct Pair {
    uint32_t slot, expert;
  };
  const std::byte* slots = nullptr;  // the matrix in slot 0, aligned to 16
  uint64_t stride = 0;               // between slots, a multiple of 16
  std::byte* to = nullptr;           // the matrix of expert 0, aligned to 16; others follow on
  uint64_t bytes = 0;                // of a matrix, a multiple of 16
  std::span<const Pair> pairs;       // none: nothing is launched
};

/// norms[g][t] = mean over the query heads h of group g of || W_o[:, h] v_t ||_1.
struct NormParams {
  KvView kv;  // device addresses, the table's too
  uint32_t n_slots = 0, n_heads = 0;
  uint32_t first_kv = 0, n_kv = 0;  // of the layer's KV heads, those of the view; n_kv = 0: all
  const TensorRef* o = nullptr;     // n_embd x (n_heads * head_dim), where it is:
  const std::byte* o_data = nullptr;
  uint32_t n_outputs = 0;  // of the rows of `o`, the first that count
  /// Where a stored row is a latent (LatentSpec): what makes each query head's value of its
  /// elements from map_first on; `o` is then n_embd x (n_heads * map->n_out). nullptr: the row is
  /// the value.
  const TensorRef* map = nullptr;
  const std::byte* map_data = nullptr;
  uint32_t map_first = 0;
  float* norms = nullptr;          // [kv heads][n_slots]
  std::byte* workspace = nullptr;  // DeviceKernels::norm_bytes(), aligned to 256
  uint64_t workspace_bytes = 0;
};

class DeviceKernels {
 public:
  virtual ~DeviceKernels() = default;
  /// Bytes of a weight that change places together on the way from the file's layout to the
  /// device's, which takes as many; 0: the file's layout is the device's.
  virtual uint64_t layout_unit(const TensorRef& w) const = 0;
  /// The most that layout_unit() can be for a weight of any type with rows of so many bytes.
  virtual uint64_t most_layout_unit(uint64_t row_bytes) const = 0;
  /// Whole units of `w` (experts may be joined), `bytes` in all; the two must not overlap.
  virtual Status lay_out(const TensorRef& w, const std::byte* from, std::byte* to, uint64_t bytes,
                         const Queue& queue) const = 0;
  /// Experts of a layer that gather() takes at most.
  virtual uint32_t max_gathered() const = 0;
  virtual Status gather(const GatherParams& p, const Queue& queue) const = 0;

  /// Compaction's moves; `jobs` in device memory, max_bytes = the largest KvMoveJob::bytes.
  virtual Status move_rows(const KvMoveJob* jobs, uint32_t n_jobs, uint32_t max_bytes,
                           const Queue& queue) const = 0;

  /// Whether rows may be in blocks of one KV head: then passes, the moves below, scores and norms
  /// read and write such rows. Elsewhere nobody asks for these moves.
  virtual bool keeps_by_head() const { return false; }
  /// move_rows() of jobs with tables.
  virtual Status move_head_rows(const KvMoveJob* jobs, uint32_t n_jobs, uint32_t max_bytes,
                                const Queue& queue) const;
  virtual Status take_apart(const ApartParams& p, const Queue& queue) const;
  virtual Status move_units(const UnitMoveParams& p, const Queue& queue) const;
  /// Makes what the moves launch (of rows by head, too), before they run: then nothing may fail.
  virtual Status prepare_moves(bool /*by_head*/, const Queue& /*queue*/) const {
    return Status::ok();
  }

  /// Rows on their way to an archive and back, and bounds of archived keys.
  virtual Status copy_rows(const RowCopyParams& p, const Queue& queue) const = 0;
  virtual Status bound_keys(const KeyBoundsParams& p, const Queue& queue) const = 0;
  virtual Status score_bounds(const BoundsParams& p, const Queue& queue) const = 0;
  /// Makes what the first two launch for such keys, when a session gets an archive.
  virtual Status prepare_archive(KvDtype /*keys*/, uint32_t /*head_dim*/,
                                 const Queue& /*queue*/) const {
    return Status::ok();
  }

  /// The largest k of BestParams; 0 = such rows are not searched.
  virtual uint32_t most_best(uint32_t n_vocab) const = 0;
  virtual uint64_t best_bytes(uint32_t n_rows, uint32_t n_vocab, uint32_t k) const = 0;
  virtual Status find_best(const BestParams& p, const Queue& queue) const = 0;
  /// Makes what find_best() launches, before the first token is drawn.
  virtual Status prepare_best(const Queue& /*queue*/) const { return Status::ok(); }

  virtual uint64_t score_bytes(uint32_t n_slots, uint32_t n_queries, uint32_t n_heads,
                               uint32_t n_kv_heads, uint32_t head_dim) const = 0;
  virtual Status score(const ScoreParams& p, const Queue& queue) const = 0;
  /// Where the tier's sizer refuses replay scores nobody asks.
  virtual Status replay_scores(const ReplayParams& p, const Queue& queue) const;
  virtual uint64_t norm_bytes(uint32_t n_heads, uint32_t n_kv_heads, uint32_t head_dim) const = 0;
  virtual Status value_norms(const NormParams& p, const Queue& queue) const = 0;
  virtual Status join_terms(const JoinParams& p, const Queue& queue) const = 0;
  /// shared[position] = max(shared[position], term) for every row. Terms are not negative.
  virtual Status share_hits(const HeldTerms& t, const RowPositions& at, float* shared,
                            const Queue& queue) const = 0;
  /// term = max(term, shared[position]) for every row.
  virtual Status take_hits(const HeldTerms& t, const RowPositions& at, const float* shared,
                           const Queue& queue) const = 0;
  virtual Status select(const SelectParams& p, const Queue& queue) const = 0;
};

}  // namespace sharpi::device
