// SPDX-License-Identifier: MIT
// Scoring for compaction: how observed queries look at every live row of a layer, to nearly f32
// accuracy, reduction orders fixed. Semantics of cpu/score.h: causal softmax of each (query, head)
// over the rows that it sees; per KV head and row the sum and the maximum over the group's heads
// and the queries. All launchers check their arguments and allocate nothing; addresses are the
// session's own. Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "cuda/kernels/device_profile.h"
#include "cuda/kernels/products/weight_layout.h"
#include "cuda/kernels/stream_handle.h"
#include "device/kernel_params.h"
#include "kv/kv_view.h"

namespace sharpi::cuda {

using device::ScoreParams;

uint64_t score_workspace_bytes(uint32_t n_slots, uint32_t n_queries, uint32_t n_heads,
                               uint32_t n_kv_heads, uint32_t head_dim);
Status launch_score(const DeviceProfile& device, const ScoreParams& p, cudaStream_t stream);

/// norms[g][t] = mean over the query heads h of group g of || W_o[:, h] v_t ||_1.
struct ValueNormParams {
  KvView kv;
  uint32_t n_slots = 0, n_heads = 0;
  uint32_t first_kv = 0, n_kv = 0;  // device::NormParams
  DeviceMatrix o;                   // n_embd x (n_heads * head_dim), any type, any layout
  DeviceMatrix map;                 // device::NormParams; o then has its n_out for head_dim
  uint32_t map_first = 0;
  uint32_t n_outputs = 0;          // of its rows, the first that count
  float* norms = nullptr;          // [kv heads][n_slots]
  std::byte* workspace = nullptr;  // value_norm_workspace_bytes(), aligned to 256
  uint64_t workspace_bytes = 0;
};
uint64_t value_norm_workspace_bytes(uint32_t n_heads, uint32_t n_kv_heads, uint32_t head_dim);
Status launch_value_norms(const DeviceProfile& device, const ValueNormParams& p,
                          cudaStream_t stream);

}  // namespace sharpi::cuda
