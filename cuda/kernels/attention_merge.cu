// SPDX-License-Identifier: MIT
// The merge of a split launch as a launch of its own, where one block would have too much to add
// up: blocks take columns of the result, groups of threads take splits in turn.
#include "cuda/kernels/attention_common.cuh"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/ptx.cuh"

namespace sharpi::cuda {
namespace {

constexpr int kMergeThreads = 256, kMergeGroups = 16;  // groups of threads take splits in turn
constexpr uint32_t kMergeColumns = kMergeThreads / kMergeGroups * 4;

__global__ void __launch_bounds__(kMergeThreads)
    attention_merge_kernel(const __grid_constant__ AttentionArgs a) {
  __shared__ float weights[kMergeFloats];
  __shared__ float4 sums[kMergeGroups - 1][kMergeThreads / kMergeGroups];
  grid_dependents_launch();
  grid_dependency_wait();
  const uint32_t n_kv = a.p.kv.n_heads, dim = a.p.kv.head_dim, kv = blockIdx.x % n_kv;
  RowBlock b;
  if (!find_rows(a, blockIdx.x / n_kv, &b)) return;
  find_keys(a, &b);
  const uint32_t n_splits = split_count(a, b, kSplitTile, kLeastSplitTiles),
                 vectors = b.n * a.group;
  if (n_splits == 1 || blockIdx.y * kMergeColumns >= vectors * dim) return;
  const uint64_t stride = part_floats(a.block_rows * a.group, dim);
  const float* parts = a.parts + uint64_t{blockIdx.x} * a.max_splits * stride;
  merge_weights(parts, stride, vectors, dim, 0, vectors, n_splits, weights);
  const uint32_t column = threadIdx.x % (kMergeThreads / kMergeGroups);
  const uint32_t turn = threadIdx.x / (kMergeThreads / kMergeGroups);
  const uint32_t i = blockIdx.y * kMergeColumns + column * 4, v = i / dim;
  float4 sum = {};
  if (i < vectors * dim) {
#pragma unroll 8
    for (uint32_t s = turn; s < n_splits; s += kMergeGroups) {
      const float4 x = __ldcg(reinterpret_cast<const float4*>(parts + s * stride + i));
      const float w = weights[s * 2 * vectors + v];
      sum.x = fmaf(w, x.x, sum.x);
      sum.y = fmaf(w, x.y, sum.y);
      sum.z = fmaf(w, x.z, sum.z);
      sum.w = fmaf(w, x.w, sum.w);
    }
  }
  if (turn != 0) sums[turn - 1][column] = sum;
  __syncthreads();
  if (turn != 0 || i >= vectors * dim) return;
#pragma unroll
  for (int g = 0; g < kMergeGroups - 1; ++g) {
    const float4 x = sums[g][column];
    sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
  }
  const uint64_t row = a.p.batch.table.sequences[b.sequence].first_row + b.row0 + v / a.group;
  const uint32_t head = kv * a.group + v % a.group, d = i % dim;
  store_result(a.p, row, head, d, sum.x);
  store_result(a.p, row, head, d + 1, sum.y);
  store_result(a.p, row, head, d + 2, sum.z);
  store_result(a.p, row, head, d + 3, sum.w);
}

}  // namespace

Status launch_attention_merge(const AttentionArgs& a, bool pdl, cudaStream_t stream) {
  const uint32_t columns = a.block_rows * a.group * a.p.kv.head_dim;
  const LaunchShape shape = {
      dim3(a.n_blocks * a.p.kv.n_heads, (columns + kMergeColumns - 1) / kMergeColumns),
      dim3(kMergeThreads), 0, stream, pdl};
  return launch_kernel("attention_merge", shape, attention_merge_kernel, a);
}

}  // namespace sharpi::cuda
