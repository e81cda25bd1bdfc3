// SPDX-License-Identifier: MIT
// Bound: two crossings of the bus, some microseconds.
#include "cuda/kernels/launch.h"
#include "cuda/kernels/moe/handover.h"
#include "cuda/kernels/ptx.cuh"

namespace sharpi::cuda {
namespace {

constexpr uint32_t kThreads = 512;

__device__ __forceinline__ uint32_t load_acquire(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}

__device__ __forceinline__ void store_release(uint32_t* p, uint32_t v) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

/// What the host wrote, not what a cache remembers.
__device__ __forceinline__ float4 load_fresh(const float4* p) {
  float4 v;
  asm volatile("ld.volatile.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(p)
               : "memory");
  return v;
}

/// One block.
__global__ void __launch_bounds__(kThreads)
    send_experts_kernel(const __grid_constant__ SendExpertsParams p) {
  __shared__ uint32_t misses;
  grid_dependents_launch();
  if (threadIdx.x == 0) misses = 0;
  grid_dependency_wait();
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < p.n_rows * p.n_used; i += kThreads) {
    const int32_t id = p.ids[i];
    p.to_ids[i] = id;
    p.to_weights[i] = p.weights[i];
    if (p.slot_of_expert == nullptr || p.slot_of_expert[id] < 0) misses = 1;
  }
  __syncthreads();
  const bool waits = misses != 0;
  if (waits) {
    const auto* x = reinterpret_cast<const float4*>(p.x);
    auto* to = reinterpret_cast<float4*>(p.to_x);
    for (uint32_t i = threadIdx.x; i < p.n_rows * p.n_embd / 4; i += kThreads) to[i] = x[i];
  }
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x != 0) return;
  const uint32_t sent = p.state->sent + 1;
  p.state->sent = sent;
  p.state->waits = waits ? 1 : 0;
  store_release(p.sent, sent);
}

/// Grid (columns / 2048, rows).
__global__ void __launch_bounds__(kThreads)
    add_answer_kernel(const __grid_constant__ AddAnswerParams p) {
  grid_dependents_launch();
  grid_dependency_wait();
  const uint32_t c = blockIdx.x * kThreads + threadIdx.x;
  const bool answered = p.state == nullptr || p.state->waits != 0;
  if (answered && p.state != nullptr && threadIdx.x == 0) {
    const uint32_t number = p.state->sent;
    while (static_cast<int32_t>(load_acquire(p.done) - number) < 0) __nanosleep(40);
  }
  __syncthreads();
  if (c >= p.n_embd / 4) return;
  float4 v = {};
  const uint64_t at = static_cast<uint64_t>(blockIdx.y) * (p.n_embd / 4) + c;
  if (answered) v = load_fresh(reinterpret_cast<const float4*>(p.answer) + at);
  float4* y = reinterpret_cast<float4*>(p.y) + at;
  if (p.add) {
    const float4 old = *y;
    v = {old.x + v.x, old.y + v.y, old.z + v.z, old.w + v.w};
  }
  *y = v;
}

bool misaligned(const void* p) {
  return reinterpret_cast<uintptr_t>(p) % 16 != 0;
}

}  // namespace

Status launch_send_experts(const SendExpertsParams& p, cudaStream_t stream) {
  if (p.n_rows == 0 || p.n_used == 0 || p.n_embd % 4 != 0 || misaligned(p.x) ||
      misaligned(p.to_x) || p.state == nullptr || p.sent == nullptr) {
    return Status::error(
        Code::kInternal,
        "kernel send_experts cannot take %u rows of %u, or an operand is missing or not aligned",
        p.n_rows, p.n_embd);
  }
  LaunchShape shape;
  shape.grid = dim3(1);
  shape.block = dim3(kThreads);
  shape.stream = stream;
  shape.pdl = p.pdl;
  return launch_kernel("send_experts", shape, send_experts_kernel, p);
}

Status launch_add_answer(const AddAnswerParams& p, cudaStream_t stream) {
  if (p.n_rows == 0 || p.n_rows > 65535 || p.n_embd % 4 != 0 || misaligned(p.answer) ||
      misaligned(p.y) || (p.state != nullptr && p.done == nullptr)) {
    return Status::error(
        Code::kInternal,
        "kernel add_answer cannot take %u rows of %u, or an operand is missing or not aligned",
        p.n_rows, p.n_embd);
  }
  LaunchShape shape;
  shape.grid = dim3((p.n_embd / 4 + kThreads - 1) / kThreads, p.n_rows);
  shape.block = dim3(kThreads);
  shape.stream = stream;
  shape.pdl = p.pdl;
  return launch_kernel("add_answer", shape, add_answer_kernel, p);
}

}  // namespace sharpi::cuda
