// SPDX-License-Identifier: MIT
// Products of many rows through cuBLASLt: x as plain f16 under one power of two for all rows (norm
// and row scale applied), weights to f16 slice by slice, gated outputs in a pass of their own.
// Bound of what is here: memory, x twice, W once and its f16 form once, gated outputs three times.
#include <algorithm>

#include "cuda/kernels/launch.h"
#include "cuda/kernels/products/cublas_lt.h"
#include "cuda/kernels/products/gemm.h"
#include "cuda/kernels/products/gemm_tile.cuh"
#include "cuda/kernels/ptx.cuh"

namespace sharpi::cuda {
namespace {

constexpr uint32_t kThreads = 256;

/// Device values that the kernels and the library share.
struct Scalars {
  uint32_t largest;  // bits of the largest |input|
  float alpha, beta;
};

struct PlainParams {
  StageParams in;
  Scalars* scalars;
  float beta;
  __half* x;  // [n_rows][n_in]
};

__device__ __forceinline__ float4 load_weighted(const StageParams& p, const float* x, uint32_t c) {
  float4 v = *reinterpret_cast<const float4*>(x + c);
  if (p.norm_weight != nullptr) {
    const float4 w = *reinterpret_cast<const float4*>(p.norm_weight + c);
    v = {v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w};
  }
  return v;
}

/// One block per row: its factor, and the largest input of all rows.
__global__ void __launch_bounds__(kThreads)
    plain_stats_kernel(const __grid_constant__ PlainParams p) {
  __shared__ float2 part[kThreads / 32];
  const float* x = p.in.x + blockIdx.x * p.in.x_stride;
  float squares = 0.0f, amax = 0.0f;
  for (uint32_t c = threadIdx.x * 4; c < p.in.n_in; c += kThreads * 4) {
    const float4 raw = *reinterpret_cast<const float4*>(x + c), v = load_weighted(p.in, x, c);
    squares += raw.x * raw.x + raw.y * raw.y + raw.z * raw.z + raw.w * raw.w;
    amax = fmaxf(amax, fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))));
  }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    squares += __shfl_xor_sync(~0u, squares, d);
    amax = fmaxf(amax, __shfl_xor_sync(~0u, amax, d));
  }
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = {squares, amax};
  __syncthreads();
  if (threadIdx.x != 0) return;
  squares = amax = 0.0f;
  for (const float2 v : part) {
    squares += v.x;
    amax = fmaxf(amax, v.y);
  }
  float f = 1.0f;
  if (p.in.norm_weight != nullptr)
    f = rsqrtf(squares / static_cast<float>(p.in.n_in) + p.in.norm_eps);
  if (p.in.row_scale != nullptr) f *= p.in.row_scale[blockIdx.x];
  p.in.factor[blockIdx.x] = f;
  atomicMax(&p.scalars->largest, __float_as_uint(amax * fabsf(f)));
}

__global__ void __launch_bounds__(kThreads)
    plain_rows_kernel(const __grid_constant__ PlainParams p) {
  const uint32_t e = min(max(p.scalars->largest >> 23, 15u), 240u);
  const float scale = __uint_as_float((268u - e) << 23);
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    p.scalars->alpha = __uint_as_float((e - 14u) << 23) * (1.0f / kWeightUnit);
    p.scalars->beta = p.beta;
  }
  const float* x = p.in.x + blockIdx.x * p.in.x_stride;
  const float f = p.in.factor[blockIdx.x] * scale;
  __half* to = p.x + uint64_t{blockIdx.x} * p.in.n_in;
  for (uint32_t c = threadIdx.x * 4; c < p.in.n_in; c += kThreads * 4) {
    const float4 v = load_weighted(p.in, x, c);
    *reinterpret_cast<uint2*>(to + c) = {half2_bits(__floats2half2_rn(v.x * f, v.y * f)),
                                         half2_bits(__floats2half2_rn(v.z * f, v.w * f))};
  }
}

struct ActivationParams {
  float* y;  // gate in, result out
  const float* up;
  uint64_t y_stride, up_stride;
  uint32_t n;
  Epilogue epilogue;
};
/// Grid (columns, rows).
__global__ void __launch_bounds__(kThreads)
    gated_rows_kernel(const __grid_constant__ ActivationParams p) {
  const uint32_t c = blockIdx.x * kThreads + threadIdx.x;
  if (c >= p.n) return;
  float* y = p.y + blockIdx.y * p.y_stride + c;
  *y = gated_value(p.epilogue, *y, p.up[blockIdx.y * p.up_stride + c]);
}

Status stage_plain(const PlainParams& p, cudaStream_t stream) {
  SHARPI_TRY(kernel_status(cudaMemsetAsync(p.scalars, 0, sizeof(Scalars), stream), "plain_stats"));
  LaunchShape shape;
  shape.grid = dim3(p.in.n_rows);
  shape.block = dim3(kThreads);
  shape.stream = stream;
  SHARPI_TRY(launch_kernel("plain_stats", shape, plain_stats_kernel, p));
  return launch_kernel("plain_rows", shape, plain_rows_kernel, p);
}

Status activate(const ActivationParams& p, uint32_t n_rows, cudaStream_t stream) {
  LaunchShape shape;
  shape.grid = dim3((p.n + kThreads - 1) / kThreads, n_rows);
  shape.block = dim3(kThreads);
  shape.stream = stream;
  return launch_kernel("gated_rows", shape, gated_rows_kernel, p);
}

/// Rows [first, first + n) of a matrix times all rows of x.
Status slice_product(const CublasRun& r, const DeviceMatrix& w, uint32_t first, uint32_t n,
                     float* y, uint64_t y_stride, cudaStream_t stream) {
  F16TilesParams f = {};
  f.data = reinterpret_cast<const uint8_t*>(w.data) + first * ggml_row_bytes(w.type, w.n_in);
  f.type = w.type;
  f.layout = w.layout;
  f.n_in = w.n_in;
  f.n_out = n;
  f.dst = r.weights;
  f.n_experts = 1;
  f.plain = true;
  SHARPI_TRY(w.layout == WeightLayout::kTiles ? launch_plain_tiles(f, stream)
                                              : launch_f16_tiles(f, stream));
  const auto* scalars = reinterpret_cast<const Scalars*>(r.scalars);
  CublasProduct p;
  p.n_rows = r.in.n_rows;
  p.n_in = w.n_in;
  p.n_out = n;
  p.x = r.x;
  p.w = r.weights;
  p.y = y;
  p.y_stride = y_stride;
  p.alpha = &scalars->alpha;
  p.beta = &scalars->beta;
  p.workspace = r.workspace;
  return r.library->run(p, stream);
}

}  // namespace

Status run_cublas(const CublasRun& r, const MatmulParams& p, cudaStream_t stream) {
  PlainParams plain = {};
  plain.in = r.in;
  plain.scalars = reinterpret_cast<Scalars*>(r.scalars);
  plain.beta = p.epilogue == Epilogue::kAdd ? 1.0f : 0.0f;
  plain.x = reinterpret_cast<__half*>(r.x);
  SHARPI_TRY(stage_plain(plain, stream));
  const bool gated = is_gated_epilogue(p.epilogue);
  const uint64_t row_bytes = uint64_t{r.in.n_in} * sizeof(__half);
  auto slice = static_cast<uint32_t>(std::min<uint64_t>(r.weight_bytes / row_bytes, 1u << 20) /
                                     kPanelRows * kPanelRows);
  if (gated) slice = std::min(slice, kCublasGatedSlice);
  if (slice == 0) {
    return Status::error(Code::kInternal,
                         "the product has no room in its workspace for rows of %u columns",
                         r.in.n_in);
  }
  for (uint32_t t = 0; t < (gated ? 1 : p.n_tasks); ++t) {
    const MatmulTask& task = p.tasks[t];
    for (uint32_t first = 0; first < task.w.n_out; first += slice) {
      const uint32_t n = std::min(slice, task.w.n_out - first);
      SHARPI_TRY(slice_product(r, task.w, first, n, task.y + first, task.y_stride, stream));
      if (!gated) continue;
      const uint64_t pitch = (n + 3) / 4 * 4;
      SHARPI_TRY(slice_product(r, p.tasks[1].w, first, n, r.up, pitch, stream));
      SHARPI_TRY(activate({task.y + first, r.up, task.y_stride, pitch, n, p.epilogue}, r.in.n_rows,
                          stream));
    }
  }
  return Status::ok();
}

}  // namespace sharpi::cuda
