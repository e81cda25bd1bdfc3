// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>

#include "cuda/kernels/elementwise.h"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/products/stream.cuh"
#include "cuda/kernels/ptx.cuh"

namespace sharpi::cuda {
namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kNormThreads = 512;  // of a row: one block each
constexpr uint32_t kWarp = 32;

__device__ float warp_sum(float v) {
#pragma unroll
  for (int o = 16; o > 0; o /= 2) v += __shfl_xor_sync(0xffffffffu, v, o);
  return v;
}

/// The sum over the block, in every thread; the order of addition is fixed.
__device__ float block_sum(float v) {
  __shared__ float part[kWarp];
  const uint32_t warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  v = warp_sum(v);
  if (lane == 0) part[warp] = v;
  __syncthreads();
  v = warp_sum(lane < blockDim.x / kWarp ? part[lane] : 0.0f);
  __syncthreads();
  return v;
}

__device__ float rms_scale(const float* row, uint32_t n, float eps) {
  float s = 0.0f;
  for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) s = fmaf(row[i], row[i], s);
  return rsqrtf(block_sum(s) / static_cast<float>(n) + eps);
}

__device__ float gelu_tanh(float x) {
  constexpr float kRootTwoOverPi = 0.7978845608028654f;
  return 0.5f * x * (1.0f + tanhf(kRootTwoOverPi * x * (1.0f + 0.044715f * x * x)));
}

__global__ void __launch_bounds__(kNormThreads) norm_rows_kernel(NormRowsParams p) {
  grid_dependents_launch();
  grid_dependency_wait();
  const uint64_t from = p.ids != nullptr ? p.ids[blockIdx.x] : blockIdx.x;
  const float* x = p.x + from * p.width;
  float* y = p.y + uint64_t{blockIdx.x} * p.width;
  const float scale = rms_scale(x, p.width, p.eps);
  for (uint32_t i = threadIdx.x; i < p.width; i += blockDim.x) y[i] = x[i] * scale * p.weight[i];
}

__global__ void __launch_bounds__(kNormThreads) pair_rows_kernel(PairRowsParams p) {
  grid_dependents_launch();
  grid_dependency_wait();
  const bool second = blockIdx.y != 0;
  const float* x = (second ? p.second : p.first) + uint64_t{blockIdx.x} * p.width;
  const float* weight = second ? p.second_weight : p.first_weight;
  float* y = p.y + (uint64_t{blockIdx.x} * 2 + blockIdx.y) * p.width;
  const float scale = rms_scale(x, p.width, p.eps);
  for (uint32_t i = threadIdx.x; i < p.width; i += blockDim.x) y[i] = x[i] * scale * weight[i];
}

__global__ void __launch_bounds__(kNormThreads) residual_kernel(ResidualParams p) {
  grid_dependents_launch();
  grid_dependency_wait();
  const float* x = p.x == nullptr ? nullptr : p.x + uint64_t{blockIdx.x} * p.width;
  float* to = p.to + uint64_t{blockIdx.x} * p.width;
  if (p.y == nullptr) {
    for (uint32_t i = threadIdx.x; i < p.width; i += blockDim.x) to[i] = x[i] * p.scale;
    return;
  }
  const float* y = p.y + uint64_t{blockIdx.x} * p.width;
  const float norm = p.weight != nullptr ? rms_scale(y, p.width, p.eps) : 1.0f;
  for (uint32_t i = threadIdx.x; i < p.width; i += blockDim.x) {
    const float add = p.weight != nullptr ? y[i] * norm * p.weight[i] : y[i];
    to[i] = (x == nullptr ? p.share * add : fmaf(p.share, add, x[i])) * p.scale;
  }
}

__global__ void logit_rows_kernel(LogitRowsParams p) {
  grid_dependents_launch();
  grid_dependency_wait();
  float* to = p.to[blockIdx.y];
  if (to == nullptr) return;
  const float* from = p.logits + uint64_t{blockIdx.y} * p.n_vocab;
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < p.n_vocab;
       i += gridDim.x * blockDim.x) {
    const float v = p.scale * from[i];
    to[i] = p.softcap != 0.0f ? p.softcap * tanhf(v / p.softcap) : v;
  }
}

__global__ void ple_combine_kernel(PleCombineParams p) {
  grid_dependents_launch();
  grid_dependency_wait();
  const uint64_t at = (uint64_t{blockIdx.y} * p.n_slices + blockIdx.x) * p.width;
  float* c = p.c + at;
  const float* table = p.table + at;
  float s = 0.0f;
  for (uint32_t i = threadIdx.x; i < p.width; i += blockDim.x) {
    const float v = c[i] * p.to_unit;
    s = fmaf(v, v, s);
  }
  const float norm = rsqrtf(block_sum(s) / static_cast<float>(p.width) + p.eps);
  for (uint32_t i = threadIdx.x; i < p.width; i += blockDim.x) {
    const float unit = c[i] * p.to_unit * norm * p.weight[i];
    c[i] = fmaf(table[i], p.table_scale, unit) * p.half;
  }
}

__global__ void ple_gate_kernel(PleGateParams p) {
  grid_dependents_launch();
  grid_dependency_wait();
  const uint64_t n = uint64_t{p.n_rows} * p.width;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n;
       i += uint64_t{gridDim.x} * blockDim.x) {
    p.t[i] = gelu_tanh(p.t[i]) * p.c[i / p.width * p.stride + i % p.width];
  }
}

__global__ void square_kernel(SquareParams p) {
  grid_dependents_launch();
  grid_dependency_wait();
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < p.n;
       i += uint64_t{gridDim.x} * blockDim.x) {
    const float v = fmaxf(p.x[i], 0.0f);
    p.x[i] = v * v;
  }
}

__global__ void gate_kernel(GateParams p) {
  grid_dependents_launch();
  grid_dependency_wait();
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < p.n;
       i += uint64_t{gridDim.x} * blockDim.x) {
    p.gate[i] = gated_value(p.epilogue, p.gate[i], p.up[i]);
  }
}

__global__ void read_stream_kernel(const uint4* data, uint64_t n, uint32_t* sink) {
  constexpr uint32_t kAhead = 8;  // loads in flight a thread
  uint32_t sum = 0;
  const uint64_t stride = uint64_t{gridDim.x} * blockDim.x;
  uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + (kAhead - 1) * stride < n; i += kAhead * stride) {
    uint4 v[kAhead];
#pragma unroll
    for (uint32_t j = 0; j < kAhead; ++j) v[j] = __ldcs(data + i + j * stride);
#pragma unroll
    for (uint32_t j = 0; j < kAhead; ++j) sum ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  for (; i < n; i += stride) {
    const uint4 v = __ldcs(data + i);
    sum ^= v.x ^ v.y ^ v.z ^ v.w;
  }
  if (sum == 0x9E3779B9u) *sink = sum;  // practically never: the sums are not to be optimised away
}

LaunchShape shape_of(const OnStream& on, dim3 grid, uint32_t threads) {
  LaunchShape s;
  s.grid = grid;
  s.block = dim3(threads);
  s.stream = on.stream;
  s.pdl = on.pdl;
  return s;
}

/// Blocks for n elements, bounded: the kernels loop.
dim3 blocks_for(uint64_t n) {
  return dim3(static_cast<uint32_t>(std::min<uint64_t>((n + kThreads - 1) / kThreads, 65535)));
}

}  // namespace

Status launch_norm_rows(const NormRowsParams& p, const OnStream& on) {
  if (p.n_rows == 0) return Status::ok();
  return launch_kernel("norm_rows", shape_of(on, dim3(p.n_rows), kNormThreads), norm_rows_kernel,
                       p);
}

Status launch_pair_rows(const PairRowsParams& p, const OnStream& on) {
  if (p.n_rows == 0) return Status::ok();
  return launch_kernel("pair_rows", shape_of(on, dim3(p.n_rows, 2), kNormThreads), pair_rows_kernel,
                       p);
}

Status launch_residual(const ResidualParams& p, const OnStream& on) {
  if (p.n_rows == 0) return Status::ok();
  return launch_kernel("residual", shape_of(on, dim3(p.n_rows), kNormThreads), residual_kernel, p);
}

Status launch_logit_rows(const LogitRowsParams& p, const OnStream& on) {
  if (p.n_rows == 0) return Status::ok();
  const dim3 grid(std::min((p.n_vocab + kThreads - 1) / kThreads, 256u), p.n_rows);
  return launch_kernel("logit_rows", shape_of(on, grid, kThreads), logit_rows_kernel, p);
}

Status launch_ple_combine(const PleCombineParams& p, const OnStream& on) {
  if (p.n_rows == 0 || p.n_slices == 0) return Status::ok();
  return launch_kernel("ple_combine", shape_of(on, dim3(p.n_slices, p.n_rows), 128),
                       ple_combine_kernel, p);
}

Status launch_ple_gate(const PleGateParams& p, const OnStream& on) {
  const uint64_t n = uint64_t{p.n_rows} * p.width;
  if (n == 0) return Status::ok();
  return launch_kernel("ple_gate", shape_of(on, blocks_for(n), kThreads), ple_gate_kernel, p);
}

Status launch_square(const SquareParams& p, const OnStream& on) {
  if (p.n == 0) return Status::ok();
  return launch_kernel("square", shape_of(on, blocks_for(p.n), kThreads), square_kernel, p);
}

Status launch_gate(const GateParams& p, const OnStream& on) {
  if (p.n == 0) return Status::ok();
  return launch_kernel("gate", shape_of(on, blocks_for(p.n), kThreads), gate_kernel, p);
}

Status launch_read_stream(const std::byte* data, uint64_t bytes, uint32_t* sink, int n_sm,
                          cudaStream_t stream) {
  LaunchShape s;
  s.grid = dim3(static_cast<uint32_t>(n_sm) * 8);
  s.block = dim3(kThreads);
  s.stream = stream;
  return launch_kernel("read_stream", s, read_stream_kernel, reinterpret_cast<const uint4*>(data),
                       bytes / sizeof(uint4), sink);
}

}  // namespace sharpi::cuda
