// SPDX-License-Identifier: MIT
// Bound: the device's memory; a block copies a piece of one matrix.
#include "cuda/kernels/launch.h"
#include "cuda/kernels/moe/gather_experts.h"

namespace sharpi::cuda {
namespace {

constexpr uint32_t kThreads = 256, kPieces = 8;
constexpr uint64_t kBlockBytes = uint64_t{kThreads} * kPieces * sizeof(uint4);

__global__ void __launch_bounds__(kThreads)
    gather_experts_kernel(const __grid_constant__ GatherExpertsParams p) {
  const auto* from = reinterpret_cast<const uint4*>(p.slots + p.slot[blockIdx.y] * p.stride);
  auto* to = reinterpret_cast<uint4*>(p.to + p.expert[blockIdx.y] * p.bytes);
  const uint64_t n = p.bytes / sizeof(uint4);
  const uint64_t first = uint64_t{blockIdx.x} * kThreads * kPieces + threadIdx.x;
  uint4 held[kPieces];
#pragma unroll
  for (uint32_t k = 0; k < kPieces; ++k) {
    if (first + k * kThreads < n) held[k] = from[first + k * kThreads];
  }
#pragma unroll
  for (uint32_t k = 0; k < kPieces; ++k) {
    if (first + k * kThreads < n) to[first + k * kThreads] = held[k];
  }
}

}  // namespace

Status launch_gather_experts(const GatherExpertsParams& p, cudaStream_t stream) {
  if (p.n == 0) return Status::ok();
  LaunchShape s;
  s.grid = dim3(static_cast<uint32_t>((p.bytes + kBlockBytes - 1) / kBlockBytes), p.n);
  s.block = kThreads;
  s.stream = stream;
  return launch_kernel("gather_experts", s, gather_experts_kernel, p);
}

}  // namespace sharpi::cuda
