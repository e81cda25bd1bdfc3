// SPDX-License-Identifier: MIT
// Several rows of matvec.cu's input, staged in global memory by a launch in front of it; and the
// same of rows that something is added to first, which would else be a launch more.
// Bound: latency; the rows come from the second cache. Thread rule: any.
#include "cuda/kernels/launch.h"
#include "cuda/kernels/products/matvec_plan.h"
#include "cuda/kernels/products/stage.cuh"
#include "cuda/kernels/ptx.cuh"

namespace sharpi::cuda {
namespace {

constexpr uint32_t kMaxSumUnits = 32;  // of a row: a warp each

/// Unit u of all of a row to where its part of the columns is.
__device__ __forceinline__ void stage_in_parts(const StreamParams& p, uint8_t* image, uint32_t u,
                                               uint32_t row, const LaneInputs& in,
                                               const LaneInputs& weight, uint32_t lane) {
  const ImageMap map = image_map(p.n_rows, p.units, p.n_parts);
  const uint32_t part = divide(u, p.by_units), before = part * p.units;
  stage_unit(reinterpret_cast<float*>(image), image + map.first_part + part * map.part_bytes, map,
             p.n_rows, before, u - before, row, in, weight, lane);
}

/// Grid (units, rows), one warp each.
__global__ void __launch_bounds__(32)
    stage_rows_kernel(const __grid_constant__ StreamParams p, uint8_t* image) {
  grid_dependents_launch();
  const uint32_t u = blockIdx.x, row = blockIdx.y, c = u * kUnitColumns + threadIdx.x * 4;
  const LaneInputs weight = load_input_weights(p, 0, c);
  grid_dependency_wait();
  const LaneInputs in = load_inputs(p.x + row * p.x_stride, c, p.n_in);
  stage_in_parts(p, image, u, row, in, weight, threadIdx.x);
}

/// x += y w factor, then times scale.
__device__ __forceinline__ void add_branch(float4& x, const float4& y, const float4& w,
                                           float factor, float scale) {
  x = {(x.x + y.x * factor * w.x) * scale, (x.y + y.y * factor * w.y) * scale,
       (x.z + y.z * factor * w.z) * scale, (x.w + y.w * factor * w.w) * scale};
}

/// Grid (rows), a warp for each unit of a row. x_out may be x: a block reads and writes its row
/// alone.
__global__ void __launch_bounds__(kMaxSumUnits * 32)
    stage_sums_kernel(const __grid_constant__ StreamParams p, const __grid_constant__ ChainBranch b,
                      uint8_t* image) {
  __shared__ float squares[kMaxSumUnits];
  grid_dependents_launch();
  const uint32_t u = threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.x,
                 c = u * kUnitColumns + lane * 4;
  const LaneInputs weight = load_input_weights(p, 0, c);
  LaneInputs add = {{{1.0f, 1.0f, 1.0f, 1.0f}, {1.0f, 1.0f, 1.0f, 1.0f}}};
  if (b.weight != nullptr) add = load_inputs(b.weight, c, p.n_in);
  grid_dependency_wait();
  LaneInputs in = load_inputs(p.x + row * p.x_stride, c, p.n_in);
  const LaneInputs y = load_inputs(b.y + row * uint64_t{p.n_in}, c, p.n_in);
  float factor = 1.0f;
  if (b.weight != nullptr) {
    const float of_unit = lanes_sum(squares_of(y.v[0]) + squares_of(y.v[1]));
    if (lane == 0) squares[u] = of_unit;
    __syncthreads();
    const float sum = lanes_sum(lane < blockDim.x / 32 ? squares[lane] : 0.0f);
    factor = rsqrtf(sum / static_cast<float>(p.n_in) + b.eps);
  }
#pragma unroll
  for (uint32_t k = 0; k < 2; ++k) {
    add_branch(in.v[k], y.v[k], add.v[k], factor, b.scale);
    if (c + 128 * k < p.n_in) {
      *reinterpret_cast<float4*>(b.x_out + row * uint64_t{p.n_in} + c + 128 * k) = in.v[k];
    }
  }
  stage_in_parts(p, image, u, row, in, weight, lane);
}

}  // namespace

bool stages_sums(uint32_t n_in) {
  return n_in <= kMaxSumUnits * kUnitColumns;
}

Status launch_stage_rows(const KernelConfig& config, const StreamParams& p,
                         const ChainBranch* branch, uint8_t* image, cudaStream_t stream) {
  const uint32_t units = p.units * p.n_parts - p.n_absent;
  LaunchShape shape;
  shape.stream = stream;
  shape.pdl = config.pdl;
  shape.grid = branch == nullptr ? dim3(units, p.n_rows) : dim3(p.n_rows);
  shape.block = dim3(branch == nullptr ? 32 : 32 * units);
  return branch == nullptr
             ? launch_kernel("stage_rows", shape, stage_rows_kernel, p, image)
             : launch_kernel("stage_sums", shape, stage_sums_kernel, p, *branch, image);
}

}  // namespace sharpi::cuda
