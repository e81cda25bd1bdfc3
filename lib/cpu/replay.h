// SPDX-License-Identifier: MIT
// Replay scores: how much a row would be looked at if its text were read a second time. A query of
// a prompt is turned as if it came kReplayDistance positions later and looks at its chunk, the 256
// positions around it, and at the first rows; beside them it sees its own reading, the rows of the
// chunk up to itself with the query unturned, so that what it has before its eyes competes with
// what it would look up. A row's score is the largest of the weights that it gets, over the queries
// of its pass and the query heads of its KV head. Nothing of a query stays.
// The same bits for any number of threads, because a maximum does not depend on the order.
// Thread rule: one call at a time per scratch; work is spread over the pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "cpu/kernel_set.h"
#include "kv/kv_view.h"
#include "model/model_spec.h"

namespace sharpi::cpu {

/// The angles by which queries of each layer are turned.
class ReplayTurns {
 public:
  explicit ReplayTurns(const ModelSpec& spec);
  /// [n_rot / 2] each; null without RoPE.
  const float* cos(uint32_t layer) const { return at(layer, cos_); }
  const float* sin(uint32_t layer) const { return at(layer, sin_); }

 private:
  const float* at(uint32_t layer, const std::vector<std::vector<float>>& from) const {
    const int32_t table = table_of_layer_[layer];
    return table < 0 ? nullptr : from[static_cast<size_t>(table)].data();
  }
  std::vector<int32_t> table_of_layer_;
  std::vector<std::vector<float>> cos_, sin_;
};

/// Rows that were read together, at slots [first_slot, first_slot + n_rows) and positions from
/// first_position on, and their queries.
struct ReplayTask {
  KvView kv;
  uint32_t first_slot = 0, n_rows = 0;
  uint64_t first_position = 0;
  uint32_t tail_slot = 0;    // from here to first_slot slots hold consecutive positions, too
  const float* q = nullptr;  // [n_rows][q_stride], head h at h * head_dim, after norm and RoPE
  uint64_t q_stride = 0;
  uint32_t n_heads = 0, every = 1;  // queries at positions that this divides are asked
  float scale = 0.0f;
  const RopeSpec* rope = nullptr;
  const float *cos = nullptr, *sin = nullptr;  // of the layer, from ReplayTurns
  float* scores = nullptr;                     // [n_kv_heads][stride], by slot: those of the rows
  uint64_t stride = 0;
  bool add = false;  // scores are raised; otherwise they start from 0
};

uint64_t replay_scratch_bytes(uint32_t n_threads, uint32_t max_rows, uint32_t max_kv_heads,
                              uint32_t max_head_dim);
/// kInternal for an unknown codec, or scratch that is too small.
Status score_replay(ThreadPool& pool, const KernelSet& kernels, const ReplayTask& task,
                    std::byte* scratch, uint64_t scratch_bytes);

}  // namespace sharpi::cpu
