// SPDX-License-Identifier: MIT
#include <algorithm>

#include "cuda/kernels/kv/kv_archive.h"
#include "cuda/kernels/kv/kv_rows.cuh"
#include "cuda/kernels/launch.h"

namespace sharpi::cuda {
namespace {

using device::KeyBoundsJob;
using device::KeyBoundsParams;
using device::RowCopyJob;
using device::RowCopyParams;

constexpr uint32_t kThreads = 256;

/// Largest power of two up to 16 that divides every address of the job. Blocks that a table names
/// lie at multiples of 16.
__device__ __forceinline__ uint32_t copy_granule(const RowCopyJob& j) {
  const bool by_head = (j.flags & RowCopyJob::kByHead) != 0;
  const uint64_t bits = reinterpret_cast<uintptr_t>(j.rows) | reinterpret_cast<uintptr_t>(j.flat) |
                        (by_head ? 0 : j.block_stride) | j.row_bytes | j.flat_bytes | j.bytes | 16u;
  return static_cast<uint32_t>(bits & (~bits + 1));
}

/// Rows [first, first + n) of a job, in pieces of T.
template <class T>
__device__ __forceinline__ void copy_part(const RowCopyJob& j, uint32_t first, uint32_t n) {
  const bool by_head = (j.flags & RowCopyJob::kByHead) != 0,
             to_rows = (j.flags & RowCopyJob::kToRows) != 0;
  const uint32_t per_row = j.bytes / sizeof(T);
#pragma unroll 4
  for (uint32_t piece = threadIdx.x; piece < n * per_row; piece += kThreads) {
    const uint32_t i = first + piece / per_row, at = piece % per_row;
    const uint32_t slot = j.slots != nullptr ? j.slots[i] : i, block = slot / kKvBlockSlots;
    std::byte* row = j.rows + (by_head ? j.table[block] : block * j.block_stride) +
                     uint64_t{slot % kKvBlockSlots} * j.row_bytes;
    T* stored = reinterpret_cast<T*>(row) + at;
    T* flat = reinterpret_cast<T*>(j.flat + uint64_t{i} * j.flat_bytes) + at;
    if (to_rows) {
      *stored = *flat;
    } else {
      *flat = *stored;
    }
  }
}

/// A block has 64 rows of a job.
__global__ void __launch_bounds__(kThreads) kv_copy_kernel(const RowCopyJob* jobs) {
  const RowCopyJob j = jobs[blockIdx.y];
  const uint32_t first = blockIdx.x * kKvBlockSlots;
  if (first >= j.n) return;
  const uint32_t n = min(kKvBlockSlots, j.n - first);
  switch (copy_granule(j)) {
    case 16:
      return copy_part<uint4>(j, first, n);
    case 8:
      return copy_part<uint2>(j, first, n);
    case 4:
      return copy_part<uint32_t>(j, first, n);
    case 2:
      return copy_part<uint16_t>(j, first, n);
    default:
      return copy_part<uint8_t>(j, first, n);
  }
}

constexpr uint32_t kWarpLanes = 32;
constexpr uint32_t kKeyThreads = 128, kMostElements = 1024;

/// The nearest bf16 that is at least (`up`) or at most a number.
__device__ __forceinline__ uint16_t bf16_beyond(float x, bool up) {
  const uint32_t u = __float_as_uint(x);
  const bool away = (u & 0xFFFFu) != 0 && (x > 0.0f) == up;
  return static_cast<uint16_t>((u >> 16) + (away ? 1 : 0));
}

/// A block has a job: its keys one after the other in shared memory, the bounds of some elements in
/// each thread's registers.
__global__ void __launch_bounds__(kKeyThreads)
    kv_key_bounds_kernel(const __grid_constant__ KeyBoundsParams p) {
  __shared__ float key[kMostElements];
  constexpr uint32_t kPer = kMostElements / kKeyThreads;
  const KeyBoundsJob j = p.jobs[blockIdx.x];
  const uint32_t dim = p.head_dim, rotation = is_rotated(p.dtype) ? device_rotation(dim) : 0;
  float low[kPer], high[kPer];
#pragma unroll
  for (uint32_t k = 0; k < kPer; ++k) {
    const uint32_t e = threadIdx.x + k * kKeyThreads;
    const bool has = j.begins == 0 && e < dim;
    low[k] = has ? __uint_as_float(uint32_t{j.bounds[e]} << 16) : INFINITY;
    high[k] = has ? __uint_as_float(uint32_t{j.bounds[dim + e]} << 16) : -INFINITY;
  }
  for (uint32_t i = 0; i < j.n; ++i) {
    const std::byte* row = j.keys + uint64_t{i} * j.row_bytes;
    __syncthreads();
    for (uint32_t e = 8 * threadIdx.x; e < dim; e += 8 * kKeyThreads) {
      float v[8];
      load_elements(p.dtype, row, dim, e, v);
#pragma unroll
      for (uint32_t k = 0; k < 8; ++k) key[e + k] = v[k];
    }
    __syncthreads();
    if (rotation != 0) {
      rotate_floats<true>(key, dim, rotation, threadIdx.x / kWarpLanes, kKeyThreads / kWarpLanes);
      __syncthreads();
    }
#pragma unroll
    for (uint32_t k = 0; k < kPer; ++k) {
      const uint32_t e = threadIdx.x + k * kKeyThreads;
      if (e >= dim) break;
      low[k] = fminf(low[k], key[e]);
      high[k] = fmaxf(high[k], key[e]);
    }
  }
#pragma unroll
  for (uint32_t k = 0; k < kPer; ++k) {
    const uint32_t e = threadIdx.x + k * kKeyThreads;
    if (e >= dim) break;
    j.bounds[e] = bf16_beyond(low[k], false);
    j.bounds[dim + e] = bf16_beyond(high[k], true);
  }
}

}  // namespace

Status launch_kv_copy(const RowCopyParams& p, cudaStream_t stream) {
  if (p.n_jobs == 0 || p.most_rows == 0) return Status::ok();
  if (p.jobs == nullptr || p.n_jobs > 65535) {
    return Status::error(Code::kInternal, "kernel kv_copy cannot take %u jobs, or lacks their list",
                         p.n_jobs);
  }
  const LaunchShape shape = {dim3((p.most_rows + kKvBlockSlots - 1) / kKvBlockSlots, p.n_jobs),
                             dim3(kThreads), 0, stream, false};
  return launch_kernel("kv_copy", shape, kv_copy_kernel, p.jobs);
}

Status launch_key_bounds(const KeyBoundsParams& p, cudaStream_t stream) {
  if (p.n_jobs == 0) return Status::ok();
  if (p.jobs == nullptr || p.head_dim > kMostElements || p.head_dim % 8 != 0) {
    return Status::error(Code::kInternal,
                         "kernel key_bounds cannot take heads of %u elements, or lacks its jobs",
                         p.head_dim);
  }
  const LaunchShape shape = {dim3(p.n_jobs), dim3(kKeyThreads), 0, stream, false};
  return launch_kernel("key_bounds", shape, kv_key_bounds_kernel, p);
}

}  // namespace sharpi::cuda
