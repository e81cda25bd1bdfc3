// SPDX-License-Identifier: MIT
// Softmax and top-k of router logits [rows, experts]: one warp per row, the probabilities in
// registers, 16 per lane at most; n_used rounds of a warp-wide maximum. And sigmoid(dot) per row:
// one block per row. Bound: latency; a row is a few KiB.
#include <cmath>

#include "cuda/kernels/launch.h"
#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/router.h"

namespace sharpi::cuda {
namespace {

constexpr uint32_t kRouterWarps = 4;
constexpr uint32_t kPerLane = kMaxExperts / 32;
constexpr uint32_t kGateThreads = 256;

__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, d));
  return v;
}
__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(~0u, v, d);
  return v;
}

/// Probabilities are never negative, so their bits order them; the lower id is the larger key.
__device__ __forceinline__ unsigned long long make_key(float p, uint32_t id) {
  return static_cast<unsigned long long>(__float_as_uint(p)) << 32 | (~id);
}

__global__ void __launch_bounds__(kRouterWarps * 32)
    router_kernel(const __grid_constant__ RouterParams p) {
  grid_dependents_launch();
  const uint32_t row = blockIdx.x * kRouterWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= p.n_rows) return;
  grid_dependency_wait();

  const float* logits = p.logits + row * p.stride;
  float v[kPerLane];
  float largest = -INFINITY;
#pragma unroll
  for (uint32_t n = 0; n < kPerLane; ++n) {
    const uint32_t id = n * 32 + lane;
    v[n] = id < p.n_experts ? logits[id] : -INFINITY;
    largest = fmaxf(largest, v[n]);
  }
  largest = warp_max(largest);
  float sum = 0.0f;
#pragma unroll
  for (uint32_t n = 0; n < kPerLane; ++n) {
    const float e = expf(v[n] - largest);
    v[n] = e >= 0.0f ? e : 0.0f;  // NaN ends here
    sum += v[n];
  }
  sum = warp_sum(sum);

  // Key 0 is taken or no expert: an expert's key is at least ~id, which is not 0.
  unsigned long long key[kPerLane];
#pragma unroll
  for (uint32_t n = 0; n < kPerLane; ++n) {
    const uint32_t id = n * 32 + lane;
    key[n] = id < p.n_experts ? make_key(v[n] / sum >= 0.0f ? v[n] / sum : 0.0f, id) : 0;
  }
  float chosen = 0.0f, total = 0.0f;
  uint32_t chosen_id = 0;
  for (uint32_t j = 0; j < p.n_used; ++j) {
    unsigned long long best = 0;
#pragma unroll
    for (uint32_t n = 0; n < kPerLane; ++n) best = key[n] > best ? key[n] : best;
#pragma unroll
    for (int d = 16; d > 0; d /= 2) {
      const unsigned long long other = __shfl_xor_sync(~0u, best, d);
      best = other > best ? other : best;
    }
#pragma unroll
    for (uint32_t n = 0; n < kPerLane; ++n) key[n] = key[n] == best ? 0 : key[n];
    const float prob = __uint_as_float(static_cast<uint32_t>(best >> 32));
    total += prob;  // in the order of the ids, as the CPU adds them
    if (lane == j) {
      chosen = prob;
      chosen_id = ~static_cast<uint32_t>(best);
    }
  }
  if (lane >= p.n_used) return;
  p.ids[row * p.n_used + lane] = static_cast<int32_t>(chosen_id);
  p.weights[row * p.n_used + lane] = p.renormalize ? chosen / fmaxf(total, 0x1p-14f) : chosen;
}

__global__ void __launch_bounds__(kGateThreads)
    sigmoid_gate_kernel(const __grid_constant__ SigmoidGateParams p) {
  __shared__ float2 part[kGateThreads / 32];
  grid_dependents_launch();
  grid_dependency_wait();
  const auto* x = reinterpret_cast<const float4*>(p.x + blockIdx.x * p.x_stride);
  const auto* w = reinterpret_cast<const float4*>(p.w);
  const auto* norm = reinterpret_cast<const float4*>(p.norm_weight);
  float dot = 0.0f, squares = 0.0f;
  for (uint32_t i = threadIdx.x; i < p.n_in / 4; i += kGateThreads) {
    const float4 a = x[i];
    float4 b = w[i];
    if (norm != nullptr) {
      const float4 n = norm[i];
      b = {b.x * n.x, b.y * n.y, b.z * n.z, b.w * n.w};
    }
    dot = fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, dot))));
    squares = fmaf(a.x, a.x, fmaf(a.y, a.y, fmaf(a.z, a.z, fmaf(a.w, a.w, squares))));
  }
  dot = warp_sum(dot);
  squares = warp_sum(squares);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = {dot, squares};
  __syncthreads();
  if (threadIdx.x != 0) return;
  float2 sum = {};
  for (const float2 v : part) sum = {sum.x + v.x, sum.y + v.y};
  if (norm != nullptr) {
    sum.x *= rsqrtf(sum.y / static_cast<float>(p.n_in) + p.norm_eps);
  }
  p.y[blockIdx.x] = 1.0f / (1.0f + expf(-sum.x));
}

bool aligned_16(const void* p) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

}  // namespace

Status launch_router(const RouterParams& p, cudaStream_t stream) {
  if (p.n_rows == 0 || p.n_experts == 0 || p.n_experts > kMaxExperts || p.n_used == 0 ||
      p.n_used > kMaxExpertsUsed || p.n_used > p.n_experts || p.logits == nullptr ||
      p.ids == nullptr || p.weights == nullptr) {
    return Status::error(Code::kInternal, "router: %u of %u experts, %u rows", p.n_used,
                         p.n_experts, p.n_rows);
  }
  LaunchShape shape;
  shape.grid = dim3((p.n_rows + kRouterWarps - 1) / kRouterWarps);
  shape.block = dim3(kRouterWarps * 32);
  shape.stream = stream;
  shape.pdl = p.pdl;
  return launch_kernel("router", shape, router_kernel, p);
}

Status launch_sigmoid_gate(const SigmoidGateParams& p, cudaStream_t stream) {
  if (p.n_rows == 0 || p.n_in == 0 || p.n_in % 4 != 0 || p.x_stride % 4 != 0 || p.y == nullptr ||
      !aligned_16(p.x) || !aligned_16(p.w) || !aligned_16(p.norm_weight)) {
    return Status::error(Code::kInternal, "sigmoid_gate: %u rows of %u", p.n_rows, p.n_in);
  }
  LaunchShape shape;
  shape.grid = dim3(p.n_rows);
  shape.block = dim3(kGateThreads);
  shape.stream = stream;
  shape.pdl = p.pdl;
  return launch_kernel("sigmoid_gate", shape, sigmoid_gate_kernel, p);
}

}  // namespace sharpi::cuda
