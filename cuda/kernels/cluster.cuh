// SPDX-License-Identifier: MIT
// Clusters of blocks (9.0 and later): blocks that run at the same time on neighbouring
// multiprocessors and reach each other's shared memory. Thread rule: device code.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace sharpi::cuda {

/// The block's number in its cluster.
__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
/// All threads of all blocks of the cluster; what they wrote before is seen by all afterwards.
__device__ __forceinline__ void cluster_sync() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}
/// The same place in the shared memory of block `rank`.
__device__ __forceinline__ uint32_t in_block(uint32_t shared_address, uint32_t rank) {
  uint32_t at;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_address), "r"(rank));
  return at;
}
/// Arrives at a barrier that in_block() found.
__device__ __forceinline__ void mbarrier_arrive_far(uint32_t bar) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(bar) : "memory");
}
/// One contiguous piece of the own shared memory, a multiple of 16 bytes, to another block's;
/// completes on a barrier there. Both addresses from in_block().
__device__ __forceinline__ void bulk_copy_far(uint32_t to, uint32_t from, uint32_t bytes,
                                              uint32_t bar) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(to),
      "r"(from), "r"(bytes), "r"(bar)
      : "memory");
}

}  // namespace sharpi::cuda
