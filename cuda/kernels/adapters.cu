// SPDX-License-Identifier: MIT
#include "base/limits.h"
#include "cuda/kernels/adapters.h"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/ptx.cuh"

namespace sharpi::cuda {
namespace {

constexpr uint32_t kWarp = 32;
/// Threads that multiply rows of A, such rows of a block; threads of B, an output each.
constexpr uint32_t kFirstThreads = 256, kFirstRows = 4, kSecondThreads = 128;

/// The pair of a row's k-th adapter for a weight, and its factor; false: there is none.
__device__ __forceinline__ bool find_pair(const AdapterParams& p, uint32_t row, uint32_t task,
                                          AdapterEntry* pair, float* scale) {
  const uint32_t sequence = p.rows[row].sequence;
  if (sequence == kNoSequence) return false;
  const BatchAdapter use = p.adapters[uint64_t{sequence} * kMaxAdapters + p.k];
  if (use.table == nullptr) return false;
  *pair = use.table[p.weights[task]];
  *scale = use.scale * pair->scale;
  return pair->a != nullptr;
}

/// Sums of N values over the block, in thread 0; the order of addition is fixed.
template <uint32_t N>
__device__ void sum_block(float (&v)[N], float (*parts)[N]) {
  const uint32_t warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
#pragma unroll
  for (uint32_t i = 0; i < N; ++i) {
#pragma unroll
    for (int o = 16; o > 0; o /= 2) v[i] += __shfl_xor_sync(0xffffffffu, v[i], o);
    if (lane == 0) parts[warp][i] = v[i];
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
#pragma unroll
  for (uint32_t i = 0; i < N; ++i) {
    v[i] = 0.0f;
    for (uint32_t w = 0; w < kFirstThreads / kWarp; ++w) v[i] += parts[w][i];
  }
}

/// Grid (kFirstRows rows of A, tasks, rows): t[row][task][j] = factor * (a[j] . norm(x[row])).
__global__ void __launch_bounds__(kFirstThreads)
    adapter_first_kernel(const __grid_constant__ AdapterParams p) {
  __shared__ float parts[kFirstThreads / kWarp][kFirstRows + 1];
  grid_dependents_launch();
  grid_dependency_wait();
  const uint32_t row = blockIdx.z, task = blockIdx.y, first = blockIdx.x * kFirstRows;
  AdapterEntry pair;
  float scale = 0.0f;
  if (!find_pair(p, row, task, &pair, &scale) || first >= pair.rank) return;
  const float* x = p.x + uint64_t{row} * p.n_in;
  const float* a[kFirstRows];
#pragma unroll
  for (uint32_t j = 0; j < kFirstRows; ++j)
    a[j] = pair.a + uint64_t{min(first + j, pair.rank - 1)} * p.n_in;
  float sums[kFirstRows + 1] = {};  // behind the products that of the squares
  for (uint32_t i = threadIdx.x; i < p.n_in; i += kFirstThreads) {
    const float v = x[i];
    const float w = p.norm_weight == nullptr ? v : v * p.norm_weight[i];
#pragma unroll
    for (uint32_t j = 0; j < kFirstRows; ++j) sums[j] = fmaf(a[j][i], w, sums[j]);
    sums[kFirstRows] = fmaf(v, v, sums[kFirstRows]);
  }
  sum_block(sums, parts);
  if (threadIdx.x != 0) return;
  if (p.norm_weight != nullptr)
    scale *= rsqrtf(sums[kFirstRows] / static_cast<float>(p.n_in) + p.norm_eps);
  float* t = p.t + (uint64_t{row} * kMaxAdapterTasks + task) * p.rank + first;
#pragma unroll
  for (uint32_t j = 0; j < kFirstRows; ++j)
    if (first + j < pair.rank) t[j] = scale * sums[j];
}

/// Grid (outputs of the widest task, tasks, rows): y[task][row][o] += share * sum_j t[j] b[j][o].
__global__ void __launch_bounds__(kSecondThreads)
    adapter_second_kernel(const __grid_constant__ AdapterParams p) {
  grid_dependents_launch();
  grid_dependency_wait();
  const uint32_t row = blockIdx.z, task = blockIdx.y;
  const uint32_t o = blockIdx.x * kSecondThreads + threadIdx.x, n_out = p.n_out[task];
  AdapterEntry pair;
  float scale = 0.0f;
  if (o >= n_out || !find_pair(p, row, task, &pair, &scale)) return;
  const float* t = p.t + (uint64_t{row} * kMaxAdapterTasks + task) * p.rank;
  const float* b = pair.b + o;
  float sum = 0.0f;
#pragma unroll 4
  for (uint32_t j = 0; j < pair.rank; ++j) sum = fmaf(t[j], b[uint64_t{j} * n_out], sum);
  if (p.shares != nullptr) sum *= p.shares[row];
  p.y[task][uint64_t{row} * n_out + o] += sum;
}

}  // namespace

Status launch_adapters(const AdapterParams& p, const OnStream& on) {
  uint32_t most = 0;
  for (uint32_t t = 0; t < p.n_tasks; ++t) most = p.n_out[t] > most ? p.n_out[t] : most;
  if (p.n_rows == 0 || most == 0 || p.rank == 0) return Status::ok();
  const dim3 first((p.rank + kFirstRows - 1) / kFirstRows, p.n_tasks, p.n_rows);
  const dim3 second((most + kSecondThreads - 1) / kSecondThreads, p.n_tasks, p.n_rows);
  SHARPI_TRY(launch_kernel("adapter_first",
                           LaunchShape{first, dim3(kFirstThreads), 0, on.stream, on.pdl},
                           adapter_first_kernel, p));
  return launch_kernel("adapter_second",
                       LaunchShape{second, dim3(kSecondThreads), 0, on.stream, on.pdl},
                       adapter_second_kernel, p);
}

}  // namespace sharpi::cuda
