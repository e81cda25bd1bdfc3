// SPDX-License-Identifier: MIT
// A block owns a column of bytes of one job and walks its kept rows upwards in batches: a batch
// reads all its rows into registers, then writes them. keep[i] >= i, so what a batch overwrites was
// read in this batch or before, and no other block touches the column.
#include "cuda/kernels/kv/kv_codecs.cuh"
#include "cuda/kernels/kv/kv_move.h"
#include "cuda/kernels/launch.h"

namespace sharpi::cuda {
namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kColumnBytes = 128;
constexpr int kPieces = 8;  // per thread and batch

/// Largest power of two up to 16 that divides every address of the job.
__device__ __forceinline__ uint32_t job_granule(const KvMoveJob& j) {
  const uint64_t bits =
      reinterpret_cast<uintptr_t>(j.rows) | j.block_stride | j.row_bytes | j.offset | j.bytes | 16u;
  return static_cast<uint32_t>(bits & (~bits + 1));
}

template <class T>
__device__ __forceinline__ void move_column(const KvMoveJob& j, uint32_t first, uint32_t bytes) {
  const uint32_t per_row = bytes / sizeof(T);
  const uint32_t batch_rows = kThreads * kPieces / per_row;
  const auto at = [&](uint32_t slot, uint32_t piece) {
    return reinterpret_cast<T*>(j.rows + slot / kKvBlockSlots * j.block_stride +
                                uint64_t{slot % kKvBlockSlots} * j.row_bytes + j.offset + first) +
           piece;
  };
  for (uint32_t i0 = 0; i0 < j.n_keep; i0 += batch_rows) {
    const uint32_t n = min(batch_rows, j.n_keep - i0) * per_row;
    T held[kPieces];
#pragma unroll
    for (int k = 0; k < kPieces; ++k) {
      const uint32_t i = threadIdx.x + static_cast<uint32_t>(k) * kThreads;
      if (i < n) held[k] = *at(j.keep[i0 + i / per_row], i % per_row);
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kPieces; ++k) {
      const uint32_t i = threadIdx.x + static_cast<uint32_t>(k) * kThreads;
      if (i < n) *at(i0 + i / per_row, i % per_row) = held[k];
    }
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kThreads) kv_move_kernel(const KvMoveJob* jobs) {
  const KvMoveJob j = jobs[blockIdx.y];
  const uint32_t first = blockIdx.x * kColumnBytes;
  if (first >= j.bytes) return;
  const uint32_t bytes = min(kColumnBytes, j.bytes - first);
  switch (job_granule(j)) {
    case 16:
      return move_column<uint4>(j, first, bytes);
    case 8:
      return move_column<uint2>(j, first, bytes);
    case 4:
      return move_column<uint32_t>(j, first, bytes);
    case 2:
      return move_column<uint16_t>(j, first, bytes);
    default:
      return move_column<uint8_t>(j, first, bytes);
  }
}

/// Where pair i of the bytes of a row's canonical form, in which a block's scales come before its
/// values, is in the stored row. Both are even numbers of bytes, so pairs stay pairs.
template <KvDtype kType>
__device__ __forceinline__ uint32_t stored_pair(uint32_t i, uint32_t n_elements) {
  if constexpr (kKvPlanes<kType> == 1) {
    return i;
  } else {
    using Codec = KvCodecTraits<kType>;
    static_assert(kKvPlanes<kType> == 2);
    constexpr KvPlane plane = Codec::kPlanes[1];
    constexpr uint32_t values = kv_value_bytes<kType>(Codec::kBlock),
                       scales = Codec::kBlock / plane.elements * plane.bytes;
    static_assert(values % 2 == 0 && scales % 2 == 0);
    const uint32_t b = 2 * i, block = b / (scales + values), in = b % (scales + values);
    const uint32_t behind = static_cast<uint32_t>(kv_value_bytes<kType>(n_elements));
    return (in < scales ? behind + block * scales + in : block * values + in - scales) / 2;
  }
}

__global__ void __launch_bounds__(kThreads)
    kv_canonical_kernel(const __grid_constant__ KvCanonicalParams p) {
  const uint32_t slot = p.first + blockIdx.x;
  auto* row = reinterpret_cast<uint16_t*>(p.rows + slot / kKvBlockSlots * p.block_stride +
                                          uint64_t{slot % kKvBlockSlots} * p.row_bytes);
  auto* canonical = reinterpret_cast<uint16_t*>(p.canonical + uint64_t{blockIdx.x} * p.row_bytes);
  for (uint32_t i = threadIdx.x; i < p.row_bytes / 2; i += kThreads) {
    uint32_t at = 0;
    with_kv_codec(p.dtype, [&]<KvDtype kType>() { at = stored_pair<kType>(i, p.n_elements); });
    if (p.to_store) {
      row[at] = canonical[i];
    } else {
      canonical[i] = row[at];
    }
  }
}

}  // namespace

Status launch_kv_move(const KvMoveJob* jobs, uint32_t n_jobs, uint32_t max_bytes,
                      cudaStream_t stream) {
  if (n_jobs == 0 || max_bytes == 0) return Status::ok();
  if (jobs == nullptr || n_jobs > 65535) {
    return Status::error(Code::kInternal, "kernel kv_move cannot take %u jobs, or lacks their list",
                         n_jobs);
  }
  const LaunchShape shape = {dim3((max_bytes + kColumnBytes - 1) / kColumnBytes, n_jobs),
                             dim3(kThreads), 0, stream, false};
  return launch_kernel("kv_move", shape, kv_move_kernel, jobs);
}

Status launch_kv_canonical(const KvCanonicalParams& p, cudaStream_t stream) {
  if (p.n == 0) return Status::ok();
  if (p.rows == nullptr || p.canonical == nullptr || kv_codec(p.dtype) == nullptr ||
      p.row_bytes != kv_row_bytes(p.dtype, p.n_elements)) {
    return Status::error(Code::kInternal,
                         "kernel kv_canonical cannot take rows of %u bytes, or lacks an operand",
                         p.row_bytes);
  }
  const LaunchShape shape = {dim3(p.n), dim3(kThreads), 0, stream, false};
  return launch_kernel("kv_canonical", shape, kv_canonical_kernel, p);
}

}  // namespace sharpi::cuda
