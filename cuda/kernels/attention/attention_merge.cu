// SPDX-License-Identifier: MIT
// The merge of split-KV attention (the combine kernel of flash-decoding) as a launch of its own,
// for calls where one block would have too much to add up: a block takes 64 columns of one query
// vector, groups of threads take splits round-robin, and a thread issues all its loads before it
// uses any.
#include "cuda/kernels/attention/attention_common.cuh"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/ptx.cuh"

namespace sharpi::cuda {
namespace {

constexpr uint32_t kMergeThreads = 256, kMergeGroups = 16;
constexpr uint32_t kMergeWide = kMergeThreads / kMergeGroups, kMergeColumns = 4 * kMergeWide;
constexpr uint32_t kMergeEach = kMostSplits / kMergeGroups;  // splits of a thread
static_assert(kMergeEach * kMergeGroups == kMostSplits);

/// Sums of some splits, in units of their largest maximum.
struct Merged {
  float4 sum;
  float top, all;
};

/// The splits of the thread's group. `top`: the vector's maximum of split 0, `all` behind it.
__device__ __forceinline__ Merged merge_some(const float* column, const float* tops, uint32_t n,
                                             uint64_t stride, uint32_t group, uint32_t n_splits) {
  float4 x[kMergeEach];
  float m[kMergeEach], l[kMergeEach];
  load_splits(column, tops, n, stride, group, kMergeGroups, n_splits, x, m, l);
  Merged r = {{}, -INFINITY, 0.0f};
#pragma unroll
  for (uint32_t j = 0; j < kMergeEach; ++j) r.top = fmaxf(r.top, m[j]);
#pragma unroll
  for (uint32_t j = 0; j < kMergeEach; ++j) {
    const float w = m[j] == -INFINITY ? 0.0f : exp2f(m[j] - r.top);
    r.sum = fma4(w, x[j], r.sum);
    r.all = fmaf(w, l[j], r.all);
  }
  return r;
}

__global__ void __launch_bounds__(kMergeThreads)
    attention_merge_kernel(const __grid_constant__ AttentionArgs a) {
  __shared__ Merged groups[kMergeGroups][kMergeWide];
  grid_dependents_launch();
  const uint32_t n_kv = a.p.kv.n_heads, dim = a.p.kv.head_dim, kv = blockIdx.x % n_kv;
  const uint32_t pieces = (dim + kMergeColumns - 1) / kMergeColumns;
  const uint32_t v = blockIdx.y / pieces, column = threadIdx.x % kMergeWide;
  const uint32_t d = blockIdx.y % pieces * kMergeColumns + column * 4;
  const uint32_t group = threadIdx.x / kMergeWide;
  RowBlock b;
  const bool some = find_rows(a, blockIdx.x / n_kv, &b) && v < b.n * a.group;
  uint32_t n_splits = 0;
  if (some) {
    find_keys(a, &b);
    n_splits = split_count(a, b, kSplitTile, a.least_tiles);
  }
  grid_dependency_wait();
  if (n_splits < 2) return;
  const uint32_t vectors = b.n * a.group;
  const uint64_t stride = part_floats(a.block_rows * a.group, dim);
  const float* parts = a.parts + uint64_t{blockIdx.x} * a.max_splits * stride;
  Merged r = {{}, -INFINITY, 0.0f};
  if (d < dim) {
    r = merge_some(parts + v * dim + d, parts + vectors * dim + v, vectors, stride, group,
                   n_splits);
  }
  groups[group][column] = r;
  __syncthreads();
  if (group != 0 || d >= dim) return;
  float top = -INFINITY, all = 0.0f;
#pragma unroll
  for (uint32_t g = 0; g < kMergeGroups; ++g) top = fmaxf(top, groups[g][column].top);
  float4 sum = {};
#pragma unroll
  for (uint32_t g = 0; g < kMergeGroups; ++g) {
    const Merged& x = groups[g][column];
    const float w = x.top == -INFINITY ? 0.0f : exp2f(x.top - top);
    sum = fma4(w, x.sum, sum);
    all = fmaf(w, x.all, all);
  }
  const uint64_t row = a.p.batch.table.sequences[b.sequence].first_row + b.row0 + v / a.group;
  const uint32_t head = kv * a.group + v % a.group;
  store_result(a.p, row, head, d, fma4(inverse_sum(a.p, head, top, all), sum, {}));
}

}  // namespace

Status launch_attention_merge(const AttentionArgs& a, bool pdl, cudaStream_t stream) {
  const uint32_t pieces = (a.p.kv.head_dim + kMergeColumns - 1) / kMergeColumns;
  const LaunchShape shape = {dim3(a.n_blocks * a.p.kv.n_heads, a.block_rows * a.group * pieces),
                             dim3(kMergeThreads), 0, stream, pdl};
  return launch_kernel("attention_merge", shape, attention_merge_kernel, a);
}

}  // namespace sharpi::cuda
