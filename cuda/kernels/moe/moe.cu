// SPDX-License-Identifier: MIT
// Routed experts of many rows [rows, n_embd]: (row, j) pairs are sorted by expert, stably, into
// slots (groups start at multiples of 8), so that every expert's weights meet all its rows in one
// product (a grouped GEMM); gate and up with their activation (or up alone, squared), down, then
// y[r] (+)= sum_j weight[r][j] slot(r, j), j ascending. Each kernel of its own: group (one block
// per expert, every block counts all ids), stage, product, stage, product, sum. No host reads a
// count: grids are as large as the worst case. Bound: tensor cores.
#include <algorithm>

#include "cuda/kernels/launch.h"
#include "cuda/kernels/moe/router.h"
#include "cuda/kernels/products/gemm.h"
#include "cuda/kernels/products/stream.cuh"
#include "cuda/kernels/ptx.cuh"

namespace sharpi::cuda {
namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kAlign = 8;  // rows of an image tile start at multiples of it

struct GroupParams {
  const int32_t* ids;             // [n_pairs]
  const int32_t* slot_of_expert;  // MoeParams
  uint32_t n_pairs, n_used, n_experts, n_slots, row_tile;
  int32_t* slot_of;  // [n_pairs], negative: the pair is skipped
  int32_t* row_of;   // [n_slots], negative: empty
  RowTile* tiles;
  uint32_t* n_tiles;
};

/// Sum of v over the threads before this one; *all: over all of them.
__device__ __forceinline__ uint32_t exclusive_sum(uint32_t v, uint32_t* all) {
  __shared__ uint32_t part[kThreads / 32];
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t sum = v;
#pragma unroll
  for (uint32_t d = 1; d < 32; d *= 2) {
    const uint32_t other = __shfl_up_sync(~0u, sum, d);
    if (lane >= d) sum += other;
  }
  __syncthreads();  // the last round's parts have been read
  if (lane == 31) part[warp] = sum;
  __syncthreads();
  uint32_t before = sum - v;
  *all = 0;
#pragma unroll
  for (uint32_t w = 0; w < kThreads / 32; ++w) {
    before += w < warp ? part[w] : 0;
    *all += part[w];
  }
  return before;
}

__device__ __forceinline__ uint32_t round_up(uint32_t n) {
  return (n + kAlign - 1) / kAlign * kAlign;
}

/// Block e: expert e.
__global__ void __launch_bounds__(kThreads) group_kernel(const __grid_constant__ GroupParams p) {
  __shared__ uint32_t count[kMaxExperts];
  __shared__ uint32_t s_first, s_tile, s_id;
  grid_dependents_launch();
  const uint32_t e = blockIdx.x;
  for (uint32_t i = threadIdx.x; i < p.n_experts; i += kThreads) count[i] = 0;
  if (threadIdx.x == 0) s_first = s_tile = 0;
  grid_dependency_wait();
  __syncthreads();

#pragma unroll 4
  for (uint32_t i = threadIdx.x; i < p.n_pairs; i += kThreads) {
    const auto id =
        static_cast<uint32_t>(expert_slot(p.ids, p.slot_of_expert, i));  // negative: large
    if (id < p.n_experts) atomicAdd(&count[id], 1u);
    if (id >= p.n_experts && e == 0) p.slot_of[i] = -1;
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < e; i += kThreads) {
    atomicAdd(&s_first, round_up(count[i]));
    atomicAdd(&s_tile, (count[i] + p.row_tile - 1) / p.row_tile);
  }
  __syncthreads();
  const uint32_t first = s_first, tile = s_tile, n = count[e];
  const uint32_t tiles = (n + p.row_tile - 1) / p.row_tile;
  uint32_t at = first;  // in order: four neighbours per thread and round
  for (uint32_t begin = 0; begin < p.n_pairs && at < first + n; begin += kThreads * 4) {
    uint32_t mine = 0;
#pragma unroll
    for (uint32_t k = 0; k < 4; ++k) {
      const uint32_t i = begin + threadIdx.x * 4 + k;
      if (i < p.n_pairs && static_cast<uint32_t>(expert_slot(p.ids, p.slot_of_expert, i)) == e)
        mine |= 1u << k;
    }
    uint32_t all;
    uint32_t to = at + exclusive_sum(__popc(mine), &all);
    at += all;
#pragma unroll
    for (uint32_t k = 0; k < 4; ++k) {
      if ((mine >> k & 1u) == 0) continue;
      const uint32_t i = begin + threadIdx.x * 4 + k;
      s_id = static_cast<uint32_t>(p.ids[i]);  // the same for all of them
      p.slot_of[i] = static_cast<int32_t>(to);
      p.row_of[to++] = static_cast<int32_t>(i / p.n_used);
    }
  }
  __syncthreads();
  const bool last = e + 1 == p.n_experts;
  const uint32_t empty_end = last ? p.n_slots : first + round_up(n);
  for (uint32_t i = first + n + threadIdx.x; i < empty_end; i += kThreads) p.row_of[i] = -1;
  for (uint32_t i = threadIdx.x; i < tiles; i += kThreads) {
    p.tiles[tile + i] = {e, first + i * p.row_tile, min(p.row_tile, n - i * p.row_tile), s_id};
  }
  if (last && threadIdx.x == 0) *p.n_tiles = tile + tiles;
}

struct SumParams {
  const float* out;  // [slot][n_embd]
  const int32_t* slot_of;
  const float* weights;
  uint32_t n_used, n_embd;
  float* y;
  uint64_t y_stride;
  bool add;
};

/// Grid (columns / 1024, rows).
__global__ void __launch_bounds__(kThreads) sum_kernel(const __grid_constant__ SumParams p) {
  grid_dependents_launch();
  grid_dependency_wait();
  const uint32_t r = blockIdx.y, c = (blockIdx.x * kThreads + threadIdx.x) * 4;
  if (c >= p.n_embd) return;
  float sum[4] = {};
  for (uint32_t j = 0; j < p.n_used; ++j) {
    const int32_t slot = p.slot_of[r * p.n_used + j];
    if (slot < 0) continue;
    const float w = p.weights[r * p.n_used + j];
    const float4 v =
        *reinterpret_cast<const float4*>(p.out + static_cast<uint64_t>(slot) * p.n_embd + c);
    sum[0] = fmaf(w, v.x, sum[0]);
    sum[1] = fmaf(w, v.y, sum[1]);
    sum[2] = fmaf(w, v.z, sum[2]);
    sum[3] = fmaf(w, v.w, sum[3]);
  }
  float* y = p.y + r * p.y_stride + c;
#pragma unroll
  for (int k = 0; k < 4; ++k) y[k] = p.add ? y[k] + sum[k] : sum[k];
}

uint64_t align_up(uint64_t n) {
  return (n + 255) / 256 * 256;
}

/// Where things are in the workspace. The products of down lie where the input's image and the
/// activations were; those are dead by then.
struct Space {
  uint32_t n_pairs, n_slots, max_tiles, row_tile;
  uint64_t slot_of, row_of, tiles, n_tiles, factor, h_image, x_image, h, out, area, area_bytes,
      bytes;
};
Space make_space(const KernelConfig& config, bool exact, uint32_t n_rows, uint32_t n_embd,
                 uint32_t d_ff, uint32_t n_experts, uint32_t n_used) {
  Space s = {};
  s.n_pairs = n_rows * n_used;
  s.n_slots =
      (s.n_pairs + (kAlign - 1) * std::min(n_experts, s.n_pairs) + kAlign - 1) / kAlign * kAlign;
  s.row_tile = exact ? kF32RowTile : gemm_row_tile(config, s.n_pairs / n_experts);
  s.max_tiles = s.n_pairs / s.row_tile + std::min(n_experts, s.n_pairs);
  uint64_t at = 0;
  const auto take = [&at](uint64_t bytes) {
    const uint64_t here = at;
    at = align_up(at + bytes);
    return here;
  };
  s.slot_of = take(uint64_t{s.n_pairs} * sizeof(int32_t));
  s.row_of = take(uint64_t{s.n_slots} * sizeof(int32_t));
  s.n_tiles = take(sizeof(uint32_t));
  // For the smallest row tile, so that a bound on the rows is a bound on the bytes.
  s.tiles = take((uint64_t{s.n_pairs} / 32 + n_experts + 1) * sizeof(RowTile));
  s.factor = take(uint64_t{s.n_slots} * sizeof(float));
  s.h_image = take(image_bytes(s.n_slots, d_ff));
  s.x_image = take(image_bytes(s.n_slots, n_embd));
  s.h = take(uint64_t{s.n_slots} * d_ff * sizeof(float));
  s.out = s.x_image;
  at = std::max(at, align_up(s.out + uint64_t{s.n_slots} * n_embd * sizeof(float)));
  if (exact) {  // h is read while out is written
    s.out = align_up(s.h + uint64_t{s.n_slots} * d_ff * sizeof(float));
    at = align_up(s.out + uint64_t{s.n_slots} * n_embd * sizeof(float));
  }
  const uint64_t up = 2 * f16_panel_bytes(n_embd) * ((d_ff + kPanelRows - 1) / kPanelRows),
                 down = f16_panel_bytes(d_ff) * ((n_embd + kPanelRows - 1) / kPanelRows);
  s.area_bytes = exact ? 0 : std::max({up, down, std::min(kF16TileBytes, n_experts * up)});
  s.area = take(s.area_bytes);
  s.bytes = at;
  return s;
}

struct Run {
  const KernelConfig& config;
  const MoeParams& p;
  Space space;
  bool exact;
  uint8_t* base;
  cudaStream_t stream;
};

/// One grouped product; matrices without fragments of their own some experts at a time.
Status run_product(const Run& r, GemmParams g, const DeviceMatrix* const (&w)[2]) {
  g.tiles = reinterpret_cast<const RowTile*>(r.base + r.space.tiles);
  g.n_tiles = reinterpret_cast<const uint32_t*>(r.base + r.space.n_tiles);
  g.factor = reinterpret_cast<const float*>(r.base + r.space.factor);
  g.image_rows = r.space.n_slots;
  g.n_in = w[0]->n_in;
  g.n_image_blocks = image_blocks(g.n_in);
  g.n_experts = w[0]->n_experts;
  const float* const bias[2] = {g.tasks[0].bias, g.tasks[1].bias};
  if (r.exact) return launch_gemm_f32(r.config, g, r.space.max_tiles, r.stream);
  bool direct = true;
  for (uint32_t t = 0; t < g.n_tasks; ++t) {
    direct = direct && w[t]->layout == WeightLayout::kTiles && w[t]->type == w[0]->type;
  }
  if (direct) return launch_gemm(r.config, g, r.space.row_tile, r.space.max_tiles, r.stream);
  const uint64_t each =
      (w[0]->n_out + kPanelRows - 1) / kPanelRows * f16_panel_bytes(w[0]->n_in) * g.n_tasks;
  const auto at_a_time =
      static_cast<uint32_t>(std::clamp<uint64_t>(r.space.area_bytes / each, 1, w[0]->n_experts));
  for (uint32_t e = 0; e < w[0]->n_experts; e += at_a_time) {
    const uint32_t n = std::min(at_a_time, w[0]->n_experts - e);
    g.first_expert = e;
    g.n_experts = n;
    for (uint32_t t = 0; t < g.n_tasks; ++t) {
      uint8_t* to = r.base + r.space.area + t * (each / g.n_tasks) * at_a_time;
      SHARPI_TRY(convert_task(*w[t], 0, w[t]->n_out, e, n, to, &g.tasks[t], r.stream));
      g.tasks[t].bias = bias[t];
    }
    SHARPI_TRY(launch_gemm(r.config, g, r.space.row_tile, r.space.max_tiles, r.stream));
  }
  return Status::ok();
}

Status group(const Run& r) {
  GroupParams g = {};
  g.ids = r.p.ids;
  g.slot_of_expert = r.p.slot_of_expert;
  g.n_pairs = r.space.n_pairs;
  g.n_used = r.p.n_used;
  g.n_experts = r.p.up.n_experts;
  g.n_slots = r.space.n_slots;
  g.row_tile = r.space.row_tile;
  g.slot_of = reinterpret_cast<int32_t*>(r.base + r.space.slot_of);
  g.row_of = reinterpret_cast<int32_t*>(r.base + r.space.row_of);
  g.tiles = reinterpret_cast<RowTile*>(r.base + r.space.tiles);
  g.n_tiles = reinterpret_cast<uint32_t*>(r.base + r.space.n_tiles);
  LaunchShape shape;
  shape.grid = dim3(g.n_experts);
  shape.block = dim3(kThreads);
  shape.stream = r.stream;
  shape.pdl = r.config.pdl;
  return launch_kernel("moe_group", shape, group_kernel, g);
}

Status up_product(const Run& r) {
  StageParams s = {};
  s.x = r.p.x;
  s.x_stride = r.p.x_stride;
  s.norm_weight = r.p.norm_weight;
  s.norm_eps = r.p.norm_eps;
  s.row_ids = reinterpret_cast<const int32_t*>(r.base + r.space.row_of);
  s.n_rows = r.space.n_slots;
  s.n_in = r.p.up.n_in;
  s.image = r.exact ? nullptr : r.base + r.space.x_image;
  s.image_rows = r.space.n_slots;
  s.factor = reinterpret_cast<float*>(r.base + r.space.factor);
  SHARPI_TRY(launch_stage_image(s, r.config.pdl, r.stream));
  GemmParams g = {};
  auto* h = reinterpret_cast<float*>(r.base + r.space.h);
  g.image = s.image;
  g.epilogue = r.p.activation;
  const DeviceMatrix* w[2] = {};
  const auto add = [&](const DeviceMatrix& matrix, const float* bias) {
    w[g.n_tasks] = &matrix;
    g.tasks[g.n_tasks] = gemm_task(matrix, h, r.p.up.n_out);
    g.tasks[g.n_tasks++].bias = bias;
  };
  if (is_gated_epilogue(r.p.activation)) add(r.p.gate, r.p.gate_bias);
  add(r.p.up, r.p.up_bias);
  g.x = r.p.x;
  g.x_stride = r.p.x_stride;
  g.norm_weight = r.p.norm_weight;
  g.row_ids = s.row_ids;
  return run_product(r, g, w);
}

Status down_product(const Run& r) {
  auto* h = reinterpret_cast<float*>(r.base + r.space.h);
  StageParams s = {};
  s.x = h;
  s.x_stride = r.p.up.n_out;
  s.row_ids = reinterpret_cast<const int32_t*>(r.base + r.space.row_of);
  s.same_rows = true;
  s.n_rows = r.space.n_slots;
  s.n_in = r.p.down.n_in;
  s.image = r.exact ? nullptr : r.base + r.space.h_image;
  s.image_rows = r.space.n_slots;
  s.factor = reinterpret_cast<float*>(r.base + r.space.factor);
  SHARPI_TRY(launch_stage_image(s, r.config.pdl, r.stream));
  GemmParams g = {};
  g.image = s.image;
  g.epilogue = Epilogue::kStore;
  g.n_tasks = 1;
  g.tasks[0] = gemm_task(r.p.down, reinterpret_cast<float*>(r.base + r.space.out), r.p.down.n_out);
  g.tasks[0].bias = r.p.down_bias;
  g.x = h;
  g.x_stride = r.p.up.n_out;
  return run_product(r, g, {&r.p.down, nullptr});
}

Status weighted_sum(const Run& r) {
  SumParams s = {};
  s.out = reinterpret_cast<const float*>(r.base + r.space.out);
  s.slot_of = reinterpret_cast<const int32_t*>(r.base + r.space.slot_of);
  s.weights = r.p.weights;
  s.n_used = r.p.n_used;
  s.n_embd = r.p.down.n_out;
  s.y = r.p.y;
  s.y_stride = r.p.y_stride;
  s.add = r.p.add;
  LaunchShape shape;
  shape.grid = dim3((s.n_embd / 4 + kThreads - 1) / kThreads, r.p.n_rows);
  shape.block = dim3(kThreads);
  shape.stream = r.stream;
  shape.pdl = r.config.pdl;
  return launch_kernel("moe_sum", shape, sum_kernel, s);
}

}  // namespace

uint64_t grouped_moe_bytes(const KernelConfig& config, uint32_t max_rows, uint32_t n_embd,
                           uint32_t d_ff, uint32_t n_experts, uint32_t n_used) {
  return make_space(config, config.exact, max_rows, n_embd, d_ff, n_experts, n_used).bytes;
}

Status launch_grouped_moe(const KernelConfig& config, const MoeParams& p, cudaStream_t stream) {
  const Run r = {
      config,
      p,
      make_space(config, config.exact, p.n_rows, p.up.n_in, p.up.n_out, p.up.n_experts, p.n_used),
      config.exact,
      reinterpret_cast<uint8_t*>(p.workspace),
      stream};
  if (p.up.n_experts > kMaxExperts || p.n_rows > 65535 || p.workspace_bytes < r.space.bytes ||
      reinterpret_cast<uintptr_t>(p.workspace) % 256 != 0) {
    return Status::error(Code::kInternal,
                         "the experts cannot take %u rows of %u experts with a workspace of %llu "
                         "bytes; %llu are needed",
                         p.n_rows, p.up.n_experts,
                         static_cast<unsigned long long>(p.workspace_bytes),
                         static_cast<unsigned long long>(r.space.bytes));
  }
  SHARPI_TRY(group(r));
  SHARPI_TRY(up_product(r));
  SHARPI_TRY(down_product(r));
  return weighted_sum(r);
}

}  // namespace sharpi::cuda
