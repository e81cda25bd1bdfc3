// SPDX-License-Identifier: MIT
// How long stored values are behind the output projection (CriticalKV, arXiv 2502.03805): what
// policy VALUE multiplies its scores with. Of each row's value the L1 norm of what the output
// projection of a query head makes of it, mean over the query heads of the group.
// The products are what costs. So a work item takes many rows, for which weights are expanded once,
// and sums magnitudes in registers.
// Thread rule: one call at a time per scratch; work is spread over the pool. The same bits for any
// number of threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "base/thread_pool.h"
#include "cpu/kernel_set.h"
#include "gguf/ggml_type.h"
#include "kv/kv_view.h"

namespace sharpi::cpu {

/// norms[g][t] = mean over the query heads h of group g of || W_o[:, h] v_t ||_1.
/// `o` is the output projection: n_outputs rows of n_heads * head_dim elements.
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
  uint64_t o_row_bytes = 0, n_outputs = 0;  // of its rows, those that count
  float* norms = nullptr;                   // [n_kv_heads][n_slots]
};
/// max_dim: of stored rows of a head and of values.
uint64_t value_norm_scratch_bytes(uint32_t n_threads, uint32_t max_heads, uint32_t max_dim);
/// kInternal for an unknown codec, or too small a scratch.
Status value_norms(ThreadPool& pool, const KernelSet& kernels, const ValueNormTask& task,
                   std::byte* scratch, uint64_t scratch_bytes);

}  // namespace sharpi::cpu
