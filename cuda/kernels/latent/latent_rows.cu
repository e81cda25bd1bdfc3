// SPDX-License-Identifier: MIT
// A block has a query head of a row, or the row that is stored: norm, RoPE, captured queries, the
// codec's rotation. Bound: latency. And rows of output projections times heads' matrices, of which
// a thread has an element.
#include "cuda/kernels/attention/qkv_heads.cuh"
#include "cuda/kernels/kv/kv_rows.cuh"
#include "cuda/kernels/latent/latent.h"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/ptx.cuh"

namespace sharpi::cuda {
namespace {

constexpr uint32_t kThreads = 128;

__device__ __forceinline__ void store_latent(const LatentRowsParams& p, const BatchRow& br,
                                             const float* x) {
  const BatchGroup& g = p.batch.table.groups[br.sequence * p.batch.table.n_groups + p.kv.group];
  const KvHeadRows* own = p.by_head ? head_rows(g, 0) : nullptr;
  std::byte* to = own != nullptr
                      ? head_row(p.kv, *own, uint64_t{g.n_slots} - own->lag + br.index, false)
                      : store_row(p.kv, g, uint64_t{g.n_slots} + br.index, false);
  encode_row(p.kv.k_dtype, x, p.kv.head_dim, {to, nullptr});
}

__global__ void __launch_bounds__(kThreads)
    latent_rows_kernel(const __grid_constant__ LatentRowsParams p) {
  __shared__ float x[kMostLatentDim];
  grid_dependents_launch();
  grid_dependency_wait();
  const uint32_t row = blockIdx.x, h = blockIdx.y, dim = p.kv.head_dim, n_rot = 2 * p.n_half;
  const BatchRow br = p.batch.table.rows[row];
  if (br.sequence == kNoSequence) return;
  const bool query = h < p.n_heads;
  const uint64_t width = uint64_t{p.n_heads} * dim;
  float* to = p.q_out + row * width + uint64_t{h} * dim;
  if (query) {
    const float* turned = p.q + row * p.q_stride + uint64_t{h} * (p.key_dim + n_rot) + p.key_dim;
    for (uint32_t i = threadIdx.x; i < dim; i += kThreads) x[i] = i < n_rot ? turned[i] : to[i];
  } else {
    const uint32_t rank = dim - n_rot;
    const float* from = p.row + uint64_t{row} * dim;
    const float r = block_inverse_rms(from, rank, p.eps);
    for (uint32_t i = threadIdx.x; i < dim; i += kThreads)
      x[i] = i < n_rot ? from[rank + i] : from[i - n_rot] * r * p.norm[i - n_rot];
  }
  __syncthreads();
  if (threadIdx.x < 32)
    rotate_head(x, p.n_half, p.neighbours, p.cos + uint64_t{row} * p.n_half,
                p.sin + uint64_t{row} * p.n_half);
  __syncthreads();
  if (query) {
    float* captured =
        captured_queries(p.query_offset, br, p.batch.table.sequences[br.sequence], width);
    for (uint32_t i = threadIdx.x; captured != nullptr && i < dim; i += kThreads)
      captured[uint64_t{h} * dim + i] = x[i];
    __syncthreads();
  }
  if (is_rotated(p.kv.k_dtype)) {
    rotate_floats<false>(x, dim, device_rotation(dim), threadIdx.x / 32, kThreads / 32);
    __syncthreads();
  }
  if (!query) return store_latent(p, br, x);
  for (uint32_t i = threadIdx.x; i < dim; i += kThreads) to[i] = x[i];
}

__global__ void __launch_bounds__(kThreads)
    latent_fold_kernel(const __grid_constant__ LatentFoldParams p) {
  const uint32_t r = blockIdx.x, i = blockIdx.y * kThreads + threadIdx.x;
  if (i >= p.dim) return;
  const float* o = p.o + r * p.o_stride;
  float sum = 0.0f;
  if (i >= p.first) {
    for (uint32_t j = 0; j < p.n_value; ++j)
      sum = fmaf(o[j], p.map[uint64_t{j} * p.rank + i - p.first], sum);
  }
  p.y[r * p.y_stride + i] = sum;
}

}  // namespace

Status launch_latent_rows(const LatentRowsParams& p, bool pdl, cudaStream_t stream) {
  const uint32_t dim = p.kv.head_dim;
  if (p.batch.n_rows == 0) return Status::ok();
  if (p.kv.n_heads != 1 || dim > kMostLatentDim || dim % 8 != 0 || 2 * p.n_half >= dim ||
      p.kv.window != 0 || p.q == nullptr || p.row == nullptr || p.norm == nullptr) {
    return Status::error(Code::kInternal,
                         "kernel latent_rows cannot take rows of %u elements, or lacks an operand",
                         dim);
  }
  const LaunchShape shape = {dim3(p.batch.n_rows, p.n_heads + 1), dim3(kThreads), 0, stream, pdl};
  return launch_kernel("latent_rows", shape, latent_rows_kernel, p);
}

Status launch_latent_fold(const LatentFoldParams& p, cudaStream_t stream) {
  const LaunchShape shape = {dim3(p.n_rows, (p.dim + kThreads - 1) / kThreads), dim3(kThreads), 0,
                             stream, false};
  return launch_kernel("latent_fold", shape, latent_fold_kernel, p);
}

}  // namespace sharpi::cuda
