// SPDX-License-Identifier: MIT
// Two neighbouring blocks (a cluster of two) stage the rows of a chain for each other: each reads
// half of the rows and writes what it makes of them into the shared memory of both, so that the
// values that links hand on cross the device's second cache half as often. Reading them is most of
// what rows behind the first cost. A barrier of each block counts its own warps and the bytes that
// come from the other block, another one says that the other block is done with the rows before.
// Thread rule: device code.
#pragma once

#include "cuda/kernels/products/chain_stage.cuh"

namespace sharpi::cuda {

/// The address of the same place of shared memory in the cluster's other block.
__device__ __forceinline__ uint32_t twin_address(uint32_t shared, uint32_t rank) {
  uint32_t to = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(shared), "r"(rank));
#endif
  return to;
}
/// All threads of both blocks; what they wrote before can be read behind it.
__device__ __forceinline__ void meet_twin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
#endif
}
/// `bar`: of either block, as twin_address() gives it.
__device__ __forceinline__ void arrive_in_cluster(uint32_t bar) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(bar)
               : "memory");
#endif
}

/// `bar`: of this block. What threads of either block wrote before they arrived can be read then.
__device__ __forceinline__ void wait_for_cluster(uint32_t bar, uint32_t parity) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(bar),
      "r"(parity)
      : "memory");
#endif
}

/// A place in the other block's shared memory, of which a barrier there counts the bytes that
/// arrive: nobody waits for what is written to have arrived but who waits at that barrier.
struct TwinImage {
  uint32_t image, bar;
  __device__ __forceinline__ void put(uint32_t at, float v) const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(
            image + at),
        "f"(v), "r"(bar)
        : "memory");
#endif
  }
  __device__ __forceinline__ void put(uint32_t at, uint2 v) const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, "
        "[%3];" ::"r"(image + at),
        "r"(v.x), "r"(v.y), "r"(bar)
        : "memory");
#endif
  }
};

/// Whose rows a block stages. Alone (!kPairs): all of them, and the block's warps meet.
template <bool kPairs>
struct Staging {
  static constexpr uint32_t kStride = kPairs ? 2 : 1;
  uint32_t rank = 0;  // of the block in its pair: the first row that it stages
  uint32_t staged = 0, freed = 0;

  /// Before all threads of both blocks meet; needed once.
  __device__ __forceinline__ void begin(const ChainLaunch& p, const ChainView& view) {
    if constexpr (!kPairs) return;
    rank = blockIdx.x % 2;
    staged = shared_address(&progress_of(p, view).staged);
    freed = shared_address(&progress_of(p, view).freed);
    if (threadIdx.x == 0) {
      mbarrier_init(staged, kShareWarps + 1);
      mbarrier_init(freed, 1);
      mbarrier_init_fence();
    }
  }
  __device__ __forceinline__ TwinImage twin(const uint8_t* image) const {
    if constexpr (!kPairs) return {};
    return {twin_address(shared_address(image), rank ^ 1), twin_address(staged, rank ^ 1)};
  }
  /// By all warps, before they write: so many bytes of rows come from the other block.
  __device__ __forceinline__ void expect(uint32_t bytes_of_row, uint32_t n_rows) const {
    if (kPairs && threadIdx.x == 0) mbarrier_expect(staged, bytes_of_row * ((n_rows + rank) / 2));
  }
  /// The k-th product may be staged: nobody reads the rows of the one before any more.
  __device__ __forceinline__ void wait_free(uint32_t k) const {
    if (kPairs && k != 0) wait_for_cluster(freed, (k - 1) % 2);
  }
  /// Behind the last write of a warp; behind it all rows of the k-th product are there.
  __device__ __forceinline__ void wait_staged(uint32_t k, uint32_t lane) const {
    if constexpr (kPairs) {
      __syncwarp();
      if (lane == 0) mbarrier_arrive(staged);
      wait_for_cluster(staged, k % 2);
    } else {
      meet();
    }
  }
  /// The block's warps have met behind their last read of the rows.
  __device__ __forceinline__ void set_free() const {
    if (kPairs && threadIdx.x == 0) arrive_in_cluster(twin_address(freed, rank ^ 1));
  }
  /// Whether this block leaves the n-th of all units that are left once.
  __device__ __forceinline__ bool leaves(uint32_t n) const {
    return n % (gridDim.x / kStride) == blockIdx.x / kStride;
  }
};

}  // namespace sharpi::cuda
