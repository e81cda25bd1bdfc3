// SPDX-License-Identifier: MIT
// y[r][o] = sum_i W[o][i] x[r][i] for 1 to 8 rows in f32: exact arithmetic, plain types, rare
// types, and matrices that are not in tiles. A block computes 16 outputs (32 when gated) of all
// rows: with tiles its 8 warps share the panel's columns, with rows each warp takes two of them.
// The RMS norm needs no pass of its own: y = norm * sum_i W[o][i] (w[i] x[i]), and the squares are
// summed on the way. Bound: reads W once, W bytes / memory bandwidth; x comes from the caches.
#include <algorithm>

#include "cuda/kernels/launch.h"
#include "cuda/kernels/products/matvec.h"
#include "cuda/kernels/products/rows.cuh"
#include "cuda/kernels/products/stream.cuh"
#include "cuda/kernels/products/tiles.cuh"
#include "cuda/kernels/products/weight_types.h"
#include "cuda/kernels/ptx.cuh"

namespace sharpi::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kRowsPerWarp = kPanelRows / kWarps;

/// What a warp accumulates: [row half or row of the warp][row of x], and the squares of x.
template <int kRows>
struct Sums {
  float y[2][kRows] = {};
  float squares[kRows] = {};
};

/// Adds four products of both row halves; w0 and w1 are weights, `at` the column of x.
template <int kRows>
__device__ __forceinline__ void add_four(const StreamParams& p, uint32_t at, float factor,
                                         float4 w0, float4 w1, Sums<kRows>& s) {
  if (p.norm_weight != nullptr) {
    const float4 n = *reinterpret_cast<const float4*>(p.norm_weight + at);
    w0 = {w0.x * n.x, w0.y * n.y, w0.z * n.z, w0.w * n.w};
    w1 = {w1.x * n.x, w1.y * n.y, w1.z * n.z, w1.w * n.w};
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (kRows > 1 && static_cast<uint32_t>(r) >= p.n_rows) break;
    float4 x = *reinterpret_cast<const float4*>(input_row(p, static_cast<uint32_t>(r)) + at);
    s.squares[r] = fmaf(x.x, x.x, fmaf(x.y, x.y, fmaf(x.z, x.z, fmaf(x.w, x.w, s.squares[r]))));
    x = {x.x * factor, x.y * factor, x.z * factor, x.w * factor};
    s.y[0][r] = fmaf(w0.x, x.x, fmaf(w0.y, x.y, fmaf(w0.z, x.z, fmaf(w0.w, x.w, s.y[0][r]))));
    s.y[1][r] = fmaf(w1.x, x.x, fmaf(w1.y, x.y, fmaf(w1.z, x.z, fmaf(w1.w, x.w, s.y[1][r]))));
  }
}

/// The warp's share of a panel in tiles: units w, w + 8, ... of each segment.
template <GgmlType kType, int kRows>
__device__ __forceinline__ void tile_sums(const StreamParams& p, const PanelRef& ref, uint32_t warp,
                                          int lane, Sums<kRows>& s) {
  using T = Tile<kType>;
  for (uint32_t u = warp; u < p.units * p.n_segments; u += kWarps) {
    const uint32_t segment = u / p.units, unit = u - segment * p.units;
    const uint8_t* data =
        ref.data + segment_offset(p, *ref.task, segment) + uint64_t{unit} * ref.task->unit_bytes;
    const float factor = segment_weight(p, segment);
    const typename T::Meta meta = T::meta(data, lane);
    const int n_blocks = static_cast<int>(min(8u, p.n_in / 32 - unit * 8));
    const uint32_t column = segment * p.n_in + unit * kUnitColumns + lane % 4 * 4;
#pragma unroll 4
    for (int b = 0; b < n_blocks; ++b) {
      uint32_t a[8];
      T::codes(data, b, lane, a);
      const Scales sc = T::scales(data, meta, b, lane);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        add_four<kRows>(p, column + static_cast<uint32_t>(32 * b + 16 * i), factor,
                        tile_values<kType>(a, sc, meta, 0, i),
                        tile_values<kType>(a, sc, meta, 1, i), s);
      }
    }
  }
}

/// Rows 2 w and 2 w + 1 of the panel, eight columns per lane at a time.
template <int kRows>
__device__ __forceinline__ void row_sums(const StreamParams& p, const PanelRef& ref, uint32_t warp,
                                         int lane, Sums<kRows>& s) {
  const uint32_t row0 = warp * kRowsPerWarp, left = ref.task->n_out - ref.panel * kPanelRows;
  if (row0 >= left) return;
  const uint64_t row_bytes = ref.task->panel_bytes / kPanelRows;
  for (uint32_t segment = 0; segment < p.n_segments; ++segment) {
    const uint8_t* first = ref.data + segment_offset(p, *ref.task, segment) + row0 * row_bytes;
    const uint8_t* second = row0 + 1 < left ? first + row_bytes : first;
    const float factor = segment_weight(p, segment);
    for (uint32_t k = static_cast<uint32_t>(lane) * 8; k < p.n_in; k += 256) {
      float v[8], w[8];
      row_values(ref.task->type, first, k, v);
      row_values(ref.task->type, second, k, w);
      const uint32_t at = segment * p.n_in + k;
      add_four<kRows>(p, at, factor, {v[0], v[1], v[2], v[3]}, {w[0], w[1], w[2], w[3]}, s);
      add_four<kRows>(p, at + 4, factor, {v[4], v[5], v[6], v[7]}, {w[4], w[5], w[6], w[7]}, s);
    }
  }
}

template <int kRows>
__device__ __forceinline__ void panel_sums(const StreamParams& p, const PanelRef& ref,
                                           uint32_t warp, int lane, Sums<kRows>& s) {
  if (ref.task->layout == WeightLayout::kRows) {
    return row_sums<kRows>(p, ref, warp, lane, s);
  }
  with_type_of<TiledTypes>(
      ref.task->type, [&]<GgmlType kType>() { tile_sums<kType, kRows>(p, ref, warp, lane, s); });
}

/// Sum over all lanes, or over the four lanes of a quad.
__device__ __forceinline__ float lane_sum(float v, int lanes) {
  for (int d = lanes / 2; d > 0; d /= 2) v += __shfl_xor_sync(~0u, v, d);
  return v;
}

template <int kRows>
__global__ void __launch_bounds__(kThreads)
    stream_f32_kernel(const __grid_constant__ StreamParams p) {
  __shared__ float part[2][kWarps][kRows][kPanelRows];
  __shared__ float squares[kWarps][kRows];
  const uint32_t warp = threadIdx.x / 32, members = is_gated_epilogue(p.epilogue) ? 2 : 1;
  const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4;
  grid_dependents_launch();
  grid_dependency_wait();

  bool rows_layout = false;
  for (uint32_t m = 0; m < members; ++m) {
    const PanelRef ref = find_panel<true>(p, blockIdx.x, m);
    Sums<kRows> s;
    panel_sums<kRows>(p, ref, warp, lane, s);
    rows_layout = ref.task->layout == WeightLayout::kRows;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float sq = lane_sum(s.squares[r], rows_layout ? 32 : 4);
      if (m == 0 && lane == 0) squares[warp][r] = sq;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float y = lane_sum(s.y[h][r], rows_layout ? 32 : 4);
        if (rows_layout) {  // complete sums; the other warps' places are zero
          if (lane < kPanelRows) {
            const bool mine =
                lane / kRowsPerWarp == static_cast<int>(warp) && lane % kRowsPerWarp == h;
            if (h == 0 || mine) part[m][warp][r][lane] = mine ? y : 0.0f;
          }
        } else if (lane % 4 == 0) {
          part[m][warp][r][g + 8 * h] = y;
        }
      }
    }
  }
  __syncthreads();

  const PanelRef ref = find_panel<true>(p, blockIdx.x, 0);
  const bool first_rows = ref.task->layout == WeightLayout::kRows;
  for (uint32_t e = threadIdx.x; e < kPanelRows * p.n_rows; e += kThreads) {
    const uint32_t i = e % kPanelRows, r = e / kPanelRows, o = ref.panel * kPanelRows + i;
    if (o >= ref.task->n_out) continue;
    float sum[2] = {}, sq = 0.0f;
    for (uint32_t m = 0; m < members; ++m) {
      for (int w = 0; w < kWarps; ++w) sum[m] += part[m][w][r][i];
    }
    float norm = 1.0f;
    if (p.norm_weight != nullptr) {
      // With rows every warp that has any saw the whole input; warp 0 always has.
      for (int w = 0; w < (first_rows ? 1 : kWarps); ++w) sq += squares[w][r];
      norm = rsqrtf(sq / static_cast<float>(p.n_in) + p.norm_eps);
    }
    float2 bias = {};
    if (p.biased) bias = biases_of(p, blockIdx.x, i);
    float* y = ref.task->y + output_row(p, ref, r) * ref.task->y_stride + o;
    store_output(p, y, p.mode == StreamMode::kDense ? r : blockIdx.y, sum[0] * norm + bias.x,
                 sum[1] * norm + bias.y, y);
  }
}

/// F32 matrices (routers, small projections): two rows of W per block, four warps each, so that
/// little matrices spread over the chip. The weights are on their way before the grid dependency
/// resolves.
constexpr uint32_t kSplit = 4;  // warps per row of W
constexpr int kKept = 8;        // float4s of a row that a lane holds: 4096 columns in all

template <int kRows>
__global__ void __launch_bounds__(kThreads)
    f32_rows_kernel(const __grid_constant__ StreamParams p) {
  __shared__ float2 part[kWarps][kRows];
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  grid_dependents_launch();
  const uint32_t flat = blockIdx.x * (kWarps / kSplit) + warp / kSplit;  // over all tasks' rows
  uint32_t t = 0, row = flat;
  while (t + 1 < p.n_tasks && row >= p.tasks[t].n_out) row -= p.tasks[t++].n_out;
  const StreamTask& task = p.tasks[t];
  const bool valid = row < task.n_out;
  const auto* w =
      reinterpret_cast<const float4*>(task.data) + uint64_t{valid ? row : 0} * (p.n_in / 4);
  const uint32_t n4 = p.n_in / 4, first = warp % kSplit * 32 + lane;
  float4 kept[kKept];
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const uint32_t i = first + k * kSplit * 32;
    kept[k] = i < n4 ? w[i] : float4{};
    if (p.norm_weight != nullptr && i < n4) {
      const float4 n = reinterpret_cast<const float4*>(p.norm_weight)[i];
      kept[k] = {kept[k].x * n.x, kept[k].y * n.y, kept[k].z * n.z, kept[k].w * n.w};
    }
  }
  const float bias = task.bias != nullptr && valid ? task.bias[row] : 0.0f;
  grid_dependency_wait();

#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (kRows > 1 && static_cast<uint32_t>(r) >= p.n_rows) break;
    const auto* x = reinterpret_cast<const float4*>(input_row(p, static_cast<uint32_t>(r)));
    float2 sum = {};
    const auto add = [&](float4 a, float4 v) {
      sum.x = fmaf(a.x, v.x, fmaf(a.y, v.y, fmaf(a.z, v.z, fmaf(a.w, v.w, sum.x))));
      sum.y = fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, sum.y))));
    };
#pragma unroll
    for (int k = 0; k < kKept; ++k) {
      const uint32_t i = first + k * kSplit * 32;
      if (i < n4) add(kept[k], x[i]);
    }
    for (uint32_t i = first + kKept * kSplit * 32; i < n4; i += kSplit * 32) {
      float4 a = w[i];
      if (p.norm_weight != nullptr) {
        const float4 n = reinterpret_cast<const float4*>(p.norm_weight)[i];
        a = {a.x * n.x, a.y * n.y, a.z * n.z, a.w * n.w};
      }
      add(a, x[i]);
    }
    sum = {lane_sum(sum.x, 32), lane_sum(sum.y, 32)};
    if (lane == 0) part[warp][r] = sum;
  }
  __syncthreads();

  if (warp % kSplit != 0 || lane >= p.n_rows || !valid) return;
  float2 sum = {};
  for (uint32_t k = 0; k < kSplit; ++k) {
    sum.x += part[warp + k][lane].x;
    sum.y += part[warp + k][lane].y;
  }
  if (p.norm_weight != nullptr) {
    sum.x *= rsqrtf(sum.y / static_cast<float>(p.n_in) + p.norm_eps);
  }
  float* y = task.y + lane * task.y_stride + row;
  store_output(p, y, lane, sum.x + bias, 0.0f, y);
}

/// Plain dense products of F32 matrices that are not gated.
bool all_f32_rows(const StreamParams& p) {
  bool all = p.mode == StreamMode::kDense && p.epilogue <= Epilogue::kAdd;
  for (uint32_t t = 0; t < p.n_tasks; ++t) all = all && p.tasks[t].type == GgmlType::kF32;
  return all;
}

}  // namespace

Status launch_matvec_f32(const KernelConfig& config, const StreamParams& p, uint32_t grid_rows,
                         cudaStream_t stream) {
  for (uint32_t t = 0; t < p.n_tasks; ++t)
    SHARPI_TRY(check_weights("matvec_f32", p.tasks[t].type, p.tasks[t].layout));
  LaunchShape shape;
  shape.grid = dim3(p.n_groups, grid_rows);
  shape.block = dim3(kThreads);
  shape.stream = stream;
  shape.pdl = config.pdl;
  if (all_f32_rows(p)) {
    uint32_t rows = 0;
    for (uint32_t t = 0; t < p.n_tasks; ++t) rows += p.tasks[t].n_out;
    shape.grid.x = (rows + kWarps / kSplit - 1) / (kWarps / kSplit);
    return launch_kernel("matvec_f32", shape,
                         p.n_rows == 1 ? f32_rows_kernel<1> : f32_rows_kernel<8>, p);
  }
  return launch_kernel("matvec_f32", shape,
                       p.n_rows == 1 ? stream_f32_kernel<1> : stream_f32_kernel<8>, p);
}

}  // namespace sharpi::cuda
