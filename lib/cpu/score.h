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
#include "gguf/ggml_type.h"
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

/// norms[g][t] = mean over the query heads h of group g of || W_o[:, h] v_t ||_1.
/// `o` is the output projection: n_embd rows of n_heads * head_dim elements.
/// With a map, v_t of head h is map[h] r_t, r_t being a row's elements from map.first on, and `o`
/// has n_heads * map.n_out elements in a row.
struct ValueNormTask {
  struct Map {
    GgmlType type = GgmlType::kF32;
    const std::byte* data = nullptr;          // null: none
    uint64_t n_in = 0, n_out = 0, first = 0;  // n_out rows of n_in elements for each query head
  };
  Map map;
  /// Elements of a value that the output projection reads.
  uint64_t value_dim() const { return map.data != nullptr ? map.n_out : kv.head_dim; }
  KvView kv;
  uint32_t n_slots = 0, n_heads = 0;
  uint32_t group = 0, first_kv = 0;  // query heads to a KV head; which one `kv` begins with
  GgmlType o_type = GgmlType::kF32;
  const std::byte* o_data = nullptr;
  uint64_t o_row_bytes = 0, n_embd = 0;
  float* norms = nullptr;  // [n_kv_heads][n_slots]
};
/// max_dim: of stored rows of a head and of values.
uint64_t value_norm_scratch_bytes(uint32_t n_threads, uint32_t max_heads, uint32_t max_dim);
Status value_norms(ThreadPool& pool, const KernelSet& kernels, const ValueNormTask& task,
                   std::byte* scratch, uint64_t scratch_bytes);

}  // namespace sharpi::cpu
