// SPDX-License-Identifier: MIT
// How a block of matvec.cu gets several rows whose columns are in parts: rows that are too long to
// lie in shared memory at once beside the rings of weights, which are thereby read once all the
// same. Thread rule: device code.
#pragma once

#include "cuda/kernels/products/matvec_block.cuh"

namespace sharpi::cuda::matvec {

/// The parts of several rows on their way from where stage_rows_kernel left them into the block's
/// buffers. With bulk copies the warp that is the last to be done with a part sends for the one
/// that takes its place; without them all warps copy, between two barriers.
class Parts {
 public:
  __device__ __forceinline__ Parts(const StreamParams& p, const View& view, uint32_t barriers)
      : p_(p),
        view_(view),
        barriers_(barriers),
        n_done_(reinterpret_cast<uint32_t*>(view.shared + view.map.barriers +
                                            (p.n_warps * p.n_stages + 2) * 8)) {}

  /// Once, by one thread and before the block's first barrier.
  __device__ __forceinline__ void init() {
    mbarrier_init(barriers_, 1);
    mbarrier_init(barriers_ + 8, 1);
    n_done_[0] = n_done_[1] = 0;
  }
  /// Sends for the squares and the first parts. All threads, when the rows are staged.
  __device__ __forceinline__ void begin() {
    if constexpr (kHasBulkCopy) {
      if (threadIdx.x != 0) return;
      fetch(0, 0, view_.image.first_part + view_.image.part_bytes);
      if (p_.buffers > 1) fetch(1, offset(1), view_.image.part_bytes);
    }
  }
  /// Waits for a part; returns where it is. All threads.
  __device__ __forceinline__ const uint8_t* wait(uint32_t part) {
    const uint32_t buffer = part % p_.buffers;
    uint8_t* to = view_.shared + view_.map.image + offset(buffer);
    if constexpr (kHasBulkCopy) {
      mbarrier_wait(barriers_ + buffer * 8, part / p_.buffers % 2);
    } else {
      if (part != 0) __syncthreads();
      if (part == 0) copy(view_.shared + view_.map.image, p_.image, view_.image.first_part);
      copy(to, p_.image + offset(part), view_.image.part_bytes);
      __syncthreads();
    }
    return to;
  }
  /// The warp needs the part no more.
  __device__ __forceinline__ void done(uint32_t part) {
    if constexpr (kHasBulkCopy) {
      const uint32_t buffer = part % p_.buffers;
      if (part + p_.buffers >= p_.n_parts) return;
      __syncwarp();
      if (view_.lane != 0) return;
      __threadfence_block();
      if (atomicAdd(n_done_ + buffer, 1) != p_.n_warps - 1) return;
      __threadfence_block();
      n_done_[buffer] = 0;
      fetch(buffer, offset(part + p_.buffers), view_.image.part_bytes);
    }
  }

 private:
  __device__ __forceinline__ uint32_t offset(uint32_t part) const {
    return view_.image.first_part + part * view_.image.part_bytes;
  }
  __device__ __forceinline__ void fetch(uint32_t buffer, uint32_t from, uint32_t bytes) {
    const uint32_t to = shared_address(view_.shared) + view_.map.image;
    mbarrier_expect(barriers_ + buffer * 8, bytes);
    bulk_copy(to + (from == 0 ? 0 : offset(buffer)), p_.image + from, bytes,
              barriers_ + buffer * 8);
  }
  __device__ __forceinline__ void copy(uint8_t* to, const uint8_t* from, uint32_t bytes) {
    for (uint32_t i = threadIdx.x * 16; i < bytes; i += blockDim.x * 16)
      *reinterpret_cast<uint4*>(to + i) = *reinterpret_cast<const uint4*>(from + i);
  }

  const StreamParams& p_;
  const View& view_;
  uint32_t barriers_;
  uint32_t* n_done_;
};

}  // namespace sharpi::cuda::matvec
