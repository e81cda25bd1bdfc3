// SPDX-License-Identifier: MIT
// Scoring for compaction (the attention scores of SnapKV): which softmax weight observed queries
// give every live row of a layer. Causal softmax of each query over all rows it sees; per KV head
// and row the sum and the (weighted) maximum over the group's heads and the queries. One pass per
// layer in tiles (two sweeps: normalisers, then weights), any codec, fixed reduction order: the
// same bits for any number of threads.
// Thread rule: one call at a time per scratch; work is spread over the pool.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "base/thread_pool.h"
#include "cpu/kernel_set.h"
#include "kv/kv_view.h"

namespace sharpi::cpu {

struct ScoreTask {
  KvView kv;
  uint32_t n_slots = 0;
  const float* q = nullptr;  // [n_queries][q_stride], head h at h * head_dim, after norm and RoPE
  uint64_t q_stride = 0;
  uint32_t n_queries = 0, n_heads = 0;
  float scale = 0.0f;
  const float* sinks = nullptr;  // [n_heads], as in AttentionTask; null: none
  /// [n_kv_heads][n_queries] rows a query sees: slots [0, visible).
  const uint32_t* visible = nullptr;
  float* sum = nullptr;  // [n_kv_heads][n_slots], added to
  float* max = nullptr;  // [n_kv_heads][n_slots], raised
  /// [n_queries] factors of the terms in `max`; null = 1.
  const float* weight = nullptr;
};

uint64_t score_scratch_bytes(uint32_t n_threads, uint32_t max_queries, uint32_t max_heads,
                             uint32_t max_head_dim, uint32_t max_slots);
/// kInternal for an unknown codec.
Status score_rows(ThreadPool& pool, const KernelSet& kernels, const ScoreTask& task,
                  std::byte* scratch, uint64_t scratch_bytes);

}  // namespace sharpi::cpu
