// SPDX-License-Identifier: MIT
// Multi-head latent attention: a stored row is one KV head's key and value (LatentSpec). Heads' own
// products are launches of matmul.h; here is what joins their parts, and attention for any number
// of query heads over rows of up to kMostLatentDim elements, in f32 throughout.
// All launchers check their arguments, allocate nothing and can be captured into a graph.
// Thread rule: pure functions.
#pragma once

#include "cuda/kernels/attention/attention.h"
#include "cuda/kernels/latent/latent_plan.h"
#include "cuda/kernels/products/weight_layout.h"

namespace sharpi::cuda {

/// Elements that RoPE turns come first in what attention reads, and last in what is projected.
struct LatentRowsParams {
  Batch batch;
  KvLayer kv;
  uint32_t n_heads = 0, key_dim = 0;
  const float* q = nullptr;  // [n_rows][q_stride]; head h: key_dim elements, then 2 n_half
  uint64_t q_stride = 0;
  const float* row = nullptr;   // [n_rows][head_dim]: the latent, then 2 n_half
  const float* norm = nullptr;  // of the latent
  float eps = 0.0f;
  const float *cos = nullptr, *sin = nullptr;  // [n_rows][n_half]
  uint32_t n_half = 0;
  bool neighbours = false;
  float* q_out = nullptr;     // [n_rows][n_heads * head_dim]; the latent's elements are there
  int64_t query_offset = -1;  // QkvParams
  bool by_head = false;
};
Status launch_latent_rows(const LatentRowsParams& p, bool pdl, cudaStream_t stream);

/// No gate and no sinks. Of p.workspace the counters of other kernels are left alone.
uint64_t latent_workspace_bytes(const KernelConfig& config, uint32_t n_heads, uint32_t head_dim);
Status launch_latent_attention(const KernelConfig& config, const AttentionParams& p,
                               cudaStream_t stream);

/// y[r][h * dim + first + i] = sum_j o[r][h * n_value + j] * map[j][i], zeros in front: rows of the
/// output projection as they meet stored rows, of one head h.
struct LatentFoldParams {
  const float* o = nullptr;    // [n_rows][o_stride]
  const float* map = nullptr;  // [n_value][rank]
  float* y = nullptr;          // [n_rows][y_stride]
  uint64_t o_stride = 0, y_stride = 0;
  uint32_t n_rows = 0, n_value = 0, rank = 0, first = 0, dim = 0;
};
Status launch_latent_fold(const LatentFoldParams& p, cudaStream_t stream);

}  // namespace sharpi::cuda
