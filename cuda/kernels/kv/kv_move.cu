// SPDX-License-Identifier: MIT
// A block owns a column of bytes of one job and walks its kept rows upwards in batches: a batch
// reads all its rows into registers, then writes them. keep[i] >= i, so what a batch overwrites was
// read in this batch or before, and no other block touches the column.
#include "cuda/kernels/kv/kv_codecs.cuh"
#include "cuda/kernels/kv/kv_move.h"
#include "cuda/kernels/launch.h"

namespace sharpi::cuda {
namespace {

using device::ApartLayer;
using device::ApartParams;
using device::UnitMoveParams;

constexpr uint32_t kThreads = 256;
constexpr uint32_t kColumnBytes = 128;
constexpr int kPieces = 8;  // per thread and batch

/// Largest power of two up to 16 that divides every address of the job. Blocks that a table names
/// lie at multiples of 16.
template <bool kByHead>
__device__ __forceinline__ uint32_t job_granule(const KvMoveJob& j) {
  const uint64_t bits = reinterpret_cast<uintptr_t>(j.rows) | (kByHead ? 0 : j.block_stride) |
                        j.row_bytes | j.offset | j.bytes | 16u;
  return static_cast<uint32_t>(bits & (~bits + 1));
}

template <bool kByHead>
__device__ __forceinline__ std::byte* block_of(const KvMoveJob& j, uint32_t block) {
  if constexpr (kByHead) return j.rows + j.table[block];
  return j.rows + block * j.block_stride;
}

template <bool kByHead, class T>
__device__ __forceinline__ void move_column(const KvMoveJob& j, uint32_t first, uint32_t bytes) {
  const uint32_t per_row = bytes / sizeof(T);
  const uint32_t batch_rows = kThreads * kPieces / per_row;
  const auto at = [&](uint32_t slot, uint32_t piece) {
    return reinterpret_cast<T*>(block_of<kByHead>(j, slot / kKvBlockSlots) +
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

template <bool kByHead>
__global__ void __launch_bounds__(kThreads) kv_move_kernel(const KvMoveJob* jobs) {
  const KvMoveJob j = jobs[blockIdx.y];
  const uint32_t first = blockIdx.x * kColumnBytes;
  if (first >= j.bytes) return;
  const uint32_t bytes = min(kColumnBytes, j.bytes - first);
  switch (job_granule<kByHead>(j)) {
    case 16:
      return move_column<kByHead, uint4>(j, first, bytes);
    case 8:
      return move_column<kByHead, uint2>(j, first, bytes);
    case 4:
      return move_column<kByHead, uint32_t>(j, first, bytes);
    case 2:
      return move_column<kByHead, uint16_t>(j, first, bytes);
    default:
      return move_column<kByHead, uint8_t>(j, first, bytes);
  }
}

constexpr uint32_t kApartThreads = 512;

/// Where a byte of a layer's 64 rows of K, then of V, belongs, counted from the same place.
__device__ __forceinline__ uint64_t apart_place(const ApartLayer& l, uint32_t byte) {
  const uint32_t k_bytes = kKvBlockSlots * l.row_bytes[0];
  const uint32_t value = byte < k_bytes ? 0 : 1;
  const uint32_t at = byte - value * k_bytes, row = at / l.row_bytes[value],
                 in_row = at % l.row_bytes[value];
  const uint32_t first = l.part_bytes[value][0], plane = in_row < first * l.n_heads ? 0 : 1;
  const uint32_t in_plane = in_row - plane * first * l.n_heads, part = l.part_bytes[value][plane];
  const uint32_t head = in_plane / part;
  const uint64_t block = uint64_t{kKvBlockSlots} * (l.row_bytes[0] + l.row_bytes[1]) / l.n_heads;
  return head * block + value * (k_bytes / l.n_heads) + row * (l.row_bytes[value] / l.n_heads) +
         plane * first + in_plane % part;
}

template <class T>
__device__ __forceinline__ void take_layer_apart(const ApartLayer& l, std::byte* rows,
                                                 std::byte* desk) {
  const uint32_t n = kKvBlockSlots * (l.row_bytes[0] + l.row_bytes[1]) / sizeof(T);
#pragma unroll 4
  for (uint32_t i = threadIdx.x; i < n; i += kApartThreads)
    reinterpret_cast<T*>(desk)[i] = reinterpret_cast<const T*>(rows)[i];
  __syncthreads();
#pragma unroll 4
  for (uint32_t i = threadIdx.x; i < n; i += kApartThreads)
    *reinterpret_cast<T*>(rows + apart_place(l, i * sizeof(T))) =
        reinterpret_cast<const T*>(desk)[i];
  __syncthreads();
}

/// A block has a desk and takes layers' parts of blocks in turn.
template <class T>
__global__ void __launch_bounds__(kApartThreads)
    kv_take_apart_kernel(const __grid_constant__ ApartParams p) {
  std::byte* desk = p.desks + blockIdx.x * p.desk_bytes;
  for (uint32_t i = blockIdx.x; i < p.n_layers * p.most_blocks; i += gridDim.x) {
    const ApartLayer l = p.layers[i % p.n_layers];
    const uint32_t block = i / p.n_layers;
    if (block < l.n_blocks)
      take_layer_apart<T>(l, p.base + block * p.block_stride + l.offset, desk);
  }
}

constexpr uint32_t kUnitPieces = kColumnBytes / sizeof(uint4);
static_assert(UnitMoves::kBatch * kUnitPieces == kThreads * kPieces);

/// A block owns a column of bytes of all units and goes through the batches: what one writes was
/// read in it or before, and no other block touches the column.
__global__ void __launch_bounds__(kThreads)
    kv_move_units_kernel(const __grid_constant__ UnitMoveParams p) {
  const uint64_t first = uint64_t{blockIdx.x} * kColumnBytes;
  const auto at = [&](uint32_t unit, uint32_t piece) {
    std::byte* of = unit == p.n_units ? p.room : p.base + unit * p.unit_bytes;
    return reinterpret_cast<uint4*>(of + first) + piece;
  };
  for (uint32_t i0 = 0; i0 < p.n_moves; i0 += UnitMoves::kBatch) {
    uint4 held[kPieces];
    UnitMove moves[kPieces];
#pragma unroll
    for (int k = 0; k < kPieces; ++k) {
      const uint32_t i = threadIdx.x + static_cast<uint32_t>(k) * kThreads,
                     move = i0 + i / kUnitPieces, piece = i % kUnitPieces;
      const bool inside = move < p.n_moves && first + (piece + 1) * sizeof(uint4) <= p.unit_bytes;
      moves[k] = inside ? p.moves[move] : UnitMove{kNoUnit, 0};
      if (moves[k].from != kNoUnit) held[k] = *at(moves[k].from, piece);
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kPieces; ++k) {
      if (moves[k].from != kNoUnit) *at(moves[k].to, threadIdx.x % kUnitPieces) = held[k];
    }
    __syncthreads();
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

namespace {

template <bool kByHead>
Status launch_moves(const KvMoveJob* jobs, uint32_t n_jobs, uint32_t max_bytes,
                    cudaStream_t stream) {
  if (n_jobs == 0 || max_bytes == 0) return Status::ok();
  if (jobs == nullptr || n_jobs > 65535) {
    return Status::error(Code::kInternal, "kernel kv_move cannot take %u jobs, or lacks their list",
                         n_jobs);
  }
  const LaunchShape shape = {dim3((max_bytes + kColumnBytes - 1) / kColumnBytes, n_jobs),
                             dim3(kThreads), 0, stream, false};
  return launch_kernel("kv_move", shape, kv_move_kernel<kByHead>, jobs);
}

}  // namespace

Status launch_kv_move(const KvMoveJob* jobs, uint32_t n_jobs, uint32_t max_bytes,
                      cudaStream_t stream) {
  return launch_moves<false>(jobs, n_jobs, max_bytes, stream);
}

Status launch_kv_head_move(const KvMoveJob* jobs, uint32_t n_jobs, uint32_t max_bytes,
                           cudaStream_t stream) {
  return launch_moves<true>(jobs, n_jobs, max_bytes, stream);
}

Status launch_kv_take_apart(const ApartParams& p, cudaStream_t stream) {
  if (p.n_layers == 0 || p.most_blocks == 0) return Status::ok();
  if (p.base == nullptr || p.layers == nullptr || p.desks == nullptr || p.n_desks == 0) {
    return Status::error(Code::kInternal, "kernel kv_take_apart lacks an operand");
  }
  const LaunchShape shape = {dim3(p.n_desks), dim3(kApartThreads), 0, stream, false};
  switch (p.granule) {
    case 16:
      return launch_kernel("kv_take_apart", shape, kv_take_apart_kernel<uint4>, p);
    case 8:
      return launch_kernel("kv_take_apart", shape, kv_take_apart_kernel<uint2>, p);
    case 4:
      return launch_kernel("kv_take_apart", shape, kv_take_apart_kernel<uint32_t>, p);
    default:
      return launch_kernel("kv_take_apart", shape, kv_take_apart_kernel<uint16_t>, p);
  }
}

Status launch_kv_move_units(const UnitMoveParams& p, cudaStream_t stream) {
  if (p.n_moves == 0) return Status::ok();
  if (p.base == nullptr || p.moves == nullptr || p.room == nullptr || p.unit_bytes == 0 ||
      p.unit_bytes % sizeof(uint4) != 0) {
    return Status::error(
        Code::kInternal,
        "kernel kv_move_units cannot take units of %llu bytes, or lacks an operand",
        static_cast<unsigned long long>(p.unit_bytes));
  }
  const LaunchShape shape = {
      dim3(static_cast<uint32_t>((p.unit_bytes + kColumnBytes - 1) / kColumnBytes)), dim3(kThreads),
      0, stream, false};
  return launch_kernel("kv_move_units", shape, kv_move_units_kernel, p);
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
