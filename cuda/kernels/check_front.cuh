// SPDX-License-Identifier: MIT
// What stands around a small kernel in a step of one row: before it a launch of one block a
// multiprocessor that takes all its shared memory, reads weights and writes the kernel's input.
// Thread rule: one thread.
#pragma once

#include "cuda/kernels/check_util.h"
#include "cuda/kernels/ptx.cuh"

namespace sharpi::cuda::check {
namespace {

struct FrontArgs {
  const uint4* weights;
  uint32_t n_weights;  // of a launch
  const float* from;
  float* to;
  uint32_t n;
  uint32_t* sink;
};

constexpr uint32_t kFrontThreads = 512, kFrontRoom = 200 << 10;

__global__ void __launch_bounds__(kFrontThreads, 1)
    front_kernel(const __grid_constant__ FrontArgs a) {
  extern __shared__ __align__(16) uint32_t room[];
  grid_dependents_launch();
  const uint32_t first = blockIdx.x * kFrontThreads + threadIdx.x,
                 stride = gridDim.x * kFrontThreads;
  uint32_t sum = 0;
#pragma unroll 8
  for (uint32_t i = first; i < a.n_weights; i += stride) {
    const uint4 v = __ldcs(a.weights + i);
    sum ^= v.x ^ v.y ^ v.z ^ v.w;
  }
  room[threadIdx.x] = sum;
  grid_dependency_wait();
  for (uint32_t i = first; i < a.n; i += stride) a.to[i] = a.from[i];
  if (room[threadIdx.x] == 0x9E3779B9u) *a.sink = sum;
}

/// Launches with 8 MiB of weights each, from memory that no cache holds.
class Front {
 public:
  static constexpr uint32_t kWeights = (8u << 20) / sizeof(uint4), kPlaces = 64;
  explicit Front(const KernelConfig& config) : n_sm_(static_cast<uint32_t>(config.device.n_sm)) {
    must(
        cudaFuncSetAttribute(front_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kFrontRoom),
        "front");
  }
  /// n floats, from `from` to `to`.
  void launch(const float* from, float* to, uint64_t n, cudaStream_t stream) {
    const uint4* at = weights_.p + uint64_t{turn_++ % kPlaces} * kWeights;
    const LaunchShape shape = {dim3(n_sm_), dim3(kFrontThreads), kFrontRoom, stream, true};
    const FrontArgs a = {at, kWeights, from, to, static_cast<uint32_t>(n), sink_.p};
    must(launch_kernel("front", shape, front_kernel, a), "front");
  }

 private:
  uint32_t n_sm_, turn_ = 0;
  Buffer<uint4> weights_{uint64_t{kWeights} * kPlaces, 0};
  Buffer<uint32_t> sink_{1};
};

/// Microseconds that `body` adds to a launch in front of it, of `n` layers in turn.
inline double time_behind_front(uint32_t n,
                                const std::function<void(uint32_t, cudaStream_t)>& front,
                                const std::function<void(uint32_t, cudaStream_t)>& body) {
  const auto run = [&](bool both) {
    return time_graph([&](cudaStream_t s) {
      for (uint32_t i = 0; i < n; ++i) {
        front(i, s);
        if (both) body(i, s);
      }
    });
  };
  const double alone = run(false);
  return (run(true) - alone) * 1000 / n;
}

}  // namespace
}  // namespace sharpi::cuda::check
