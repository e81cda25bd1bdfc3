// SPDX-License-Identifier: MIT
// Causal attention over stored KV rows, for prefill chunks and decode alike: tiles of 64 keys,
// online softmax, one pass over the rows (FlashAttention, arXiv 2205.14135). K and V rows are read
// in their codec, once per tile for all query heads of a KV head (and for a block of query rows in
// prefill). Long contexts are split into spans of a fixed number of keys, whose partial results are
// merged in ascending order (split-KV, flash-decoding): the borders of tiles and spans depend on
// slots (in sliding windows: positions) only, so a row's bits depend on which kernels it takes, but
// not on chunks, threads or the other rows of a batch.
//   o = sum_t softmax_t(scale * q.k_t) v_t
// Thread rule: one call at a time per scratch; the work is spread over the pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "base/thread_pool.h"
#include "cpu/kernel_set.h"
#include "kv/kv_view.h"

namespace sharpi::cpu {

/// The query rows of one sequence in one layer.
struct AttentionTask {
  const float* q = nullptr;  // [n_rows][q_stride]: head h at h * head_dim, after norm and RoPE
  uint64_t q_stride = 0;
  /// [n_rows][o_stride]: head h at h * head_dim. Holds the rotated queries on the way, where keys
  /// are stored rotated.
  float* o = nullptr;
  uint64_t o_stride = 0;
  uint32_t n_rows = 0;
  uint32_t n_heads = 0;  // query heads; head h reads KV head h / (n_heads / kv.n_heads)
  float scale = 0.0f;
  /// [n_heads]: a score of each head that every row sees beside its keys and that weighs no value;
  /// null: none.
  const float* sinks = nullptr;
  /// Full attention: row i sees slots [0, n_past + i], all in `kv` (the chunk is already appended).
  /// Windowed: row i has position pos0 + i and sees positions (p - window, p]; position t lies in
  /// `kv` at slot t % ring_slots when t < pos0, and in `chunk` at slot t - pos0 otherwise.
  /// Not causal: row i sees slots [0, n_rows) of `kv`, in a window those less than it away.
  bool causal = true;
  KvView kv;
  uint64_t n_past = 0;
  uint64_t first = 0;   // slots (windowed: positions) below are seen by no row
  uint32_t window = 0;  // 0 = full attention
  uint64_t pos0 = 0;
  uint32_t ring_slots = 0;
  KvView chunk;
};

/// Scratch for `attention` on tasks of up to these sizes (sum of rows over tasks <= max_rows).
uint64_t attention_scratch_bytes(const KernelSet& kernels, uint32_t n_threads, uint32_t max_rows,
                                 uint32_t max_heads, uint32_t max_head_dim, uint64_t max_slots);

/// kInternal for an unknown codec. All tasks share head counts, dims and codecs. Allocates nothing.
/// exact = f32 throughout; otherwise narrower products are allowed where they pay (bf16 tiles).
/// by_rows = tasks of one row and chunks may each take kernels of their own, so that a row's bits
/// depend on how many come with it. Never with exact.
Status attention(ThreadPool& pool, const KernelSet& kernels, bool exact,
                 std::span<const AttentionTask> tasks, std::byte* scratch, uint64_t scratch_bytes,
                 bool by_rows = false);

}  // namespace sharpi::cpu
