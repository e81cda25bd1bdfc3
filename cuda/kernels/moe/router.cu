// SPDX-License-Identifier: MIT
// Softmax and top-k of router logits [rows, experts]: one warp per row, the probabilities in
// registers, 4, 8 or 16 per lane; n_used rounds of a warp-wide maximum. And sigmoid(dot) per row:
// one block per row. Bound: latency; a row is a few KiB.
#include <cmath>

#include "cuda/kernels/launch.h"
#include "cuda/kernels/moe/route_row.cuh"
#include "cuda/kernels/moe/router.h"
#include "cuda/kernels/ptx.cuh"

namespace sharpi::cuda {
namespace {

constexpr uint32_t kRouterWarps = 4;
constexpr uint32_t kGateThreads = 256;

template <uint32_t kPerLane>
__global__ void __launch_bounds__(kRouterWarps * 32)
    router_kernel(const __grid_constant__ RouterParams p) {
  grid_dependents_launch();
  const uint32_t row = blockIdx.x * kRouterWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= p.n_rows) return;
  grid_dependency_wait();

  const float* logits = p.logits + row * p.stride;
  float v[kPerLane];
#pragma unroll
  for (uint32_t n = 0; n < kPerLane; ++n) {
    const uint32_t id = n * 32 + lane;
    v[n] = id < p.n_experts ? logits[id] * p.logit_scale : -INFINITY;
  }
  const Choice c = route_row<kPerLane>(v, p.n_experts, p.n_used, p.renormalize, lane);
  if (lane >= p.n_used) return;
  p.ids[row * p.n_used + lane] = static_cast<int32_t>(c.id);
  const float factor = p.factors == nullptr ? 1.0f : p.factors[c.id];
  p.weights[row * p.n_used + lane] = c.weight * factor;
}

/// Numbers of any sign as integers of the same order, above 0; NaN is the lowest.
__device__ __forceinline__ uint32_t order_of(float x) {
  const uint32_t bits = __float_as_uint(x);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 1;
  return (bits >> 31 != 0 ? ~bits : bits | 0x80000000u) + 1;
}

/// The same for the routers that choose by other numbers. Taken experts have order 0.
template <uint32_t kPerLane>
__global__ void __launch_bounds__(kRouterWarps * 32)
    choose_experts_kernel(const __grid_constant__ RouterParams p) {
  grid_dependents_launch();
  const uint32_t row = blockIdx.x * kRouterWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= p.n_rows) return;
  grid_dependency_wait();
  const float* logits = p.logits + row * p.stride;
  float v[kPerLane], largest = -INFINITY, sum = 0.0f;
  uint32_t key[kPerLane];
#pragma unroll
  for (uint32_t n = 0; n < kPerLane; ++n) {
    const uint32_t id = n * 32 + lane;
    v[n] = id < p.n_experts ? logits[id] * p.logit_scale : -INFINITY;
    largest = fmaxf(largest, v[n]);
  }
  largest = warp_max(largest);
#pragma unroll
  for (uint32_t n = 0; n < kPerLane; ++n) {
    v[n] = p.sigmoid ? 1.0f / (1.0f + expf(-v[n])) : expf(v[n] - largest);
    sum += v[n];
  }
  sum = warp_sum(sum);
#pragma unroll
  for (uint32_t n = 0; n < kPerLane; ++n) {
    const uint32_t id = n * 32 + lane;
    if (!p.sigmoid) v[n] /= sum;
    const float bias = id < p.n_experts && p.choice_bias != nullptr ? p.choice_bias[id] : 0.0f;
    key[n] = id < p.n_experts ? order_of(v[n] + bias) : 0;
  }
  float chosen = 0.0f, total = 0.0f;
  uint32_t chosen_id = 0;
  for (uint32_t j = 0; j < p.n_used; ++j) {
    uint32_t most = 0, at = 0;
    float share = 0.0f;
#pragma unroll
    for (uint32_t n = 0; n < kPerLane; ++n) {
      if (key[n] > most) most = key[n], at = n * 32 + lane, share = v[n];
    }
    const uint32_t best = __reduce_max_sync(~0u, most);
    const uint32_t id = __reduce_min_sync(~0u, most == best ? at : ~0u);
    share = __shfl_sync(~0u, share, static_cast<int>(id % 32));
#pragma unroll
    for (uint32_t n = 0; n < kPerLane; ++n) key[n] = n * 32 + lane == id ? 0 : key[n];
    total += share;
    if (lane == j) chosen = share, chosen_id = id;
  }
  if (lane >= p.n_used) return;
  p.ids[row * p.n_used + lane] = static_cast<int32_t>(chosen_id);
  float weight = p.renormalize ? chosen / fmaxf(total, 0x1p-14f) : chosen;
  weight *= p.share_scale;
  p.weights[row * p.n_used + lane] = p.factors == nullptr ? weight : weight * p.factors[chosen_id];
}

template <uint32_t kPerLane>
void (*router_for(const RouterParams& p))(RouterParams) {
  return p.chooses_by_shares() ? router_kernel<kPerLane> : choose_experts_kernel<kPerLane>;
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
    return Status::error(
        Code::kInternal,
        "kernel router cannot choose %u of %u experts for %u rows, or lacks an operand", p.n_used,
        p.n_experts, p.n_rows);
  }
  LaunchShape shape;
  shape.grid = dim3((p.n_rows + kRouterWarps - 1) / kRouterWarps);
  shape.block = dim3(kRouterWarps * 32);
  shape.stream = stream;
  shape.pdl = p.pdl;
  return launch_kernel("router", shape,
                       p.n_experts <= 128   ? router_for<4>(p)
                       : p.n_experts <= 256 ? router_for<8>(p)
                                            : router_for<kMaxExperts / 32>(p),
                       p);
}

Status launch_sigmoid_gate(const SigmoidGateParams& p, cudaStream_t stream) {
  if (p.n_rows == 0 || p.n_in == 0 || p.n_in % 4 != 0 || p.x_stride % 4 != 0 || p.y == nullptr ||
      !aligned_16(p.x) || !aligned_16(p.w) || !aligned_16(p.norm_weight)) {
    return Status::error(
        Code::kInternal,
        "kernel sigmoid_gate cannot take %u rows of %u, or an operand is missing or not aligned",
        p.n_rows, p.n_in);
  }
  LaunchShape shape;
  shape.grid = dim3(p.n_rows);
  shape.block = dim3(kGateThreads);
  shape.stream = stream;
  shape.pdl = p.pdl;
  return launch_kernel("sigmoid_gate", shape, sigmoid_gate_kernel, p);
}

}  // namespace sharpi::cuda
