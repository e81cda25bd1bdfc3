// SPDX-License-Identifier: MIT
// A mixture-of-experts block of one row: y (+)= sum_j w_j down_j(act(gate_j x) * up_j x), the
// shared expert among the j; before it the mixer's output product, after it the next mixer's input
// products, if the caller has them. One block per multiprocessor, all of them at once:
//   x += W m | router rows -> logits | top-k in every block, so that nobody waits for one | pairs
//   of gate and up panels -> h | panels of down over all experts as one long row -> y | products of
//   y
// Block b takes panels (pairs, rows) b, b + grid, ... Between phases values go through device
// memory and all blocks meet.
// The 16 warps of a block share each phase's units (16 x 256) evenly and stream them through rings
// of their own: constant weights from before the grid dependency resolves, experts' from the moment
// they are known; copies run ahead through all phases. Arithmetic of the units as in matvec.cu.
// Bound: weights of the active experts / memory bandwidth, and a chain of latencies.
#include <algorithm>

#include "cuda/kernels/gemm.h"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/moe_step.cuh"
#include "cuda/kernels/moe_step.h"
#include "cuda/kernels/route_row.cuh"

namespace sharpi::cuda {
namespace {

using namespace step;

/// Eight columns of a lane.
__device__ __forceinline__ LaneInputs fresh_inputs(const float* x, uint32_t column, uint32_t n) {
  LaneInputs r;
#pragma unroll
  for (uint32_t k = 0; k < 2; ++k) {
    const uint32_t c = column + 128 * k;
    r.v[k] = c < n ? fresh(x + c) : float4{};
  }
  return r;
}
__device__ __forceinline__ LaneInputs all_of(float w) {
  return {{{w, w, w, w}, {w, w, w, w}}};
}

/// Unit u of the long row of down: the shared expert's, then the routed ones'.
__device__ __forceinline__ LaneInputs hidden_inputs(const StepArgs& p, const View& v, uint32_t u) {
  const uint32_t lane4 = v.lane * 4;
  if (u >= p.row_units) return {};
  if (u < p.shared_units) return fresh_inputs(p.shared_h, u * kUnitColumns + lane4, p.d_shared);
  const uint32_t r = u - p.shared_units, j = divide(r, p.by_ff_units);
  if (v.misc->slot[j] < 0) return {};
  return fresh_inputs(p.h + j * p.d_ff, (r - j * p.ff_units) * kUnitColumns + lane4, p.d_ff);
}
__device__ __forceinline__ float hidden_weight(const StepArgs& p, const View& v, uint32_t u) {
  if (u < p.shared_units) return v.misc->weight[p.n_used];
  return v.misc->weight[divide(u - p.shared_units, p.by_ff_units)];
}

/// A warp's slice of one of the block's router rows.
struct RouterShare {
  const float4* w;
  uint32_t begin, end;  // float4s
  __device__ __forceinline__ RouterShare(const StepArgs& p, uint32_t warp) {
    const uint32_t row = blockIdx.x + warp / p.slices * gridDim.x, n4 = p.n_embd / 4;
    const float* data = row < p.n_experts ? p.router + uint64_t{row} * p.n_embd : p.shared_gate;
    w = reinterpret_cast<const float4*>(data);
    const uint32_t slice = warp % p.slices, each = (n4 + p.slices - 1) / p.slices;
    begin = min(slice * each, n4);
    end = row < p.router_rows ? min(begin + each, n4) : begin;
  }
  __device__ __forceinline__ float4 weight(const StepArgs& p, uint32_t i) const {
    if (i >= end) return {};
    float4 a = w[i];
    if (p.norm_weight != nullptr) {
      const float4 n = reinterpret_cast<const float4*>(p.norm_weight)[i];
      a = {a.x * n.x, a.y * n.y, a.z * n.z, a.w * n.w};
    }
    return a;
  }
};

/// Partial dot product and squares of a warp's slice of x.
__device__ __forceinline__ float2 router_slice(const StepArgs& p, const RouterShare& share,
                                               const float4 (&kept)[kKept], const float* row,
                                               uint32_t lane) {
  float2 sum = {};
  const auto add = [&](float4 a, float4 x) {
    sum.x = fmaf(a.x, x.x, fmaf(a.y, x.y, fmaf(a.z, x.z, fmaf(a.w, x.w, sum.x))));
    sum.y = fmaf(x.x, x.x, fmaf(x.y, x.y, fmaf(x.z, x.z, fmaf(x.w, x.w, sum.y))));
  };
  float4 x[kKept];
#pragma unroll
  for (uint32_t k = 0; k < kKept; ++k) {
    const uint32_t i = share.begin + lane + 32 * k;
    x[k] = i < share.end ? fresh(row + 4 * i) : float4{};
  }
#pragma unroll
  for (uint32_t k = 0; k < kKept; ++k) add(kept[k], x[k]);
  for (uint32_t i = share.begin + lane + 32 * kKept; i < share.end; i += 32)
    add(share.weight(p, i), fresh(row + 4 * i));
  return {warp_sum(sum.x), warp_sum(sum.y)};
}

/// Warp 0: the block's logits to everybody. Lane r * slices + k: slice k of the block's row r.
__device__ __forceinline__ void leave_logits(const StepArgs& p, const View& v) {
  float2 sum = v.lane < kWarps ? v.misc->router[v.lane] : float2{};
  for (uint32_t d = 1; d < p.slices; d *= 2) {
    sum.x += __shfl_xor_sync(~0u, sum.x, static_cast<int>(d));
    sum.y += __shfl_xor_sync(~0u, sum.y, static_cast<int>(d));
  }
  const uint32_t row = blockIdx.x + v.lane / p.slices * gridDim.x;
  if (v.lane >= kWarps || v.lane % p.slices != 0 || row >= p.router_rows) return;
  if (p.norm_weight != nullptr) sum.x *= rsqrtf(sum.y / static_cast<float>(p.n_embd) + p.norm_eps);
  p.logits[row] = row == p.n_experts ? 1.0f / (1.0f + expf(-sum.x)) : sum.x;
}

template <uint32_t kPerLane>
__device__ __forceinline__ Choice choose(const StepArgs& p, const View& v) {
  float logit[kPerLane];
#pragma unroll
  for (uint32_t n = 0; n < kPerLane; ++n) {
    const uint32_t id = n * 32 + v.lane;
    logit[n] = id < p.n_experts ? __ldcg(p.logits + id) : 0.0f;
  }
  return route_row<kPerLane>(logit, p.n_experts, p.n_used, p.renormalize, v.lane);
}
/// Warp 0: the experts.
__device__ __forceinline__ void choose_experts(const StepArgs& p, const View& v, Misc& misc) {
  const float scale = p.shared_gate != nullptr ? __ldcg(p.logits + p.n_experts) : 1.0f;
  const Choice c = p.n_experts <= 128   ? choose<4>(p, v)
                   : p.n_experts <= 256 ? choose<8>(p, v)
                                        : choose<kMaxExperts / 32>(p, v);
  if (v.lane == 0) misc.weight[p.n_used] = scale;
  if (v.lane >= p.n_used) return;
  const auto id = static_cast<int32_t>(c.id);
  misc.slot[v.lane] = p.slot_of_expert != nullptr ? p.slot_of_expert[id] : id;
  misc.weight[v.lane] = c.weight;
  if (blockIdx.x == 0) {
    p.ids[v.lane] = id;
    p.weights[v.lane] = c.weight;
  }
}

/// Fetches the code of the units' arithmetic while there is nothing to do: half of the warps the
/// one, half the other. What it computes of nothing in particular is dropped.
__device__ __forceinline__ void warm_up(const StepArgs& p, const View& v) {
  const uint32_t slab = v.warp < kWarps / 2 ? kGateSlab : kDownSlab;
  const uint8_t* own =
      v.shared + v.warp * p.n_stages * p.stage_bytes;  // nothing is under way there
  const float2 nothing =
      add_unit(p.slabs[slab].type, own, 1, {own, own, reinterpret_cast<const float*>(own)}, own,
               static_cast<int>(v.lane), {});
  asm volatile("" ::"f"(nothing.x), "f"(nothing.y));
}

/// Stages `row` under a norm; warps from `first` on.
__device__ __forceinline__ void stage_row(const StepArgs& p, const View& v, const float* row,
                                          uint32_t n_in, uint32_t units, const float* weight,
                                          uint32_t first) {
  const ImageMap map = image_map(1, units);
  for (uint32_t u = v.warp - first; u < units; u += kWarps - first) {
    const uint32_t c = u * kUnitColumns + v.lane * 4;
    const LaneInputs w = weight != nullptr ? load_inputs(weight, c, n_in) : all_of(1.0f);
    stage_unit(v.shared + p.image, map, 1, u, 0, fresh_inputs(row, c, n_in), w, v.lane);
  }
}
__device__ __forceinline__ void stage_hidden(const StepArgs& p, const View& v) {
  const ImageMap map = image_map(1, p.row_units);
  LaneInputs next = hidden_inputs(p, v, v.warp), after = hidden_inputs(p, v, v.warp + kWarps);
#pragma unroll 1
  for (uint32_t u = v.warp; u < p.row_units; u += kWarps) {
    const LaneInputs now = next;
    next = after;
    after = hidden_inputs(p, v, u + 2 * kWarps);
    stage_unit(v.shared + p.image, map, 1, u, 0, now, all_of(hidden_weight(p, v, u)), v.lane);
  }
}

/// act(gate) * up of the block's pairs.
__device__ __forceinline__ void leave_hidden(const StepArgs& p, const View& v) {
  const uint32_t r = threadIdx.x % kPanelRows, all = block_units(p, kUp);
  const float norm = norm_factor(p, v, p.norm_weight, p.norm_eps);
  for (uint32_t k = threadIdx.x / kPanelRows; 2 * k * p.units < all; k += kThreads / kPanelRows) {
    const float gate = group_sum(p, v.shared, all, 2 * k, p.units, r) * norm,
                up = group_sum(p, v.shared, all, 2 * k + 1, p.units, r) * norm;
    const float h = gated_value(p.activation, gate, up);
    uint32_t pair = blockIdx.x + k * gridDim.x;
    if (pair < p.shared_pairs) {
      p.shared_h[pair * kPanelRows + r] = h;
      continue;
    }
    pair -= p.shared_pairs;
    const uint32_t j = divide(pair, p.by_panels);
    p.h[j * p.d_ff + (pair - j * p.by_panels.divisor) * kPanelRows + r] = h;
  }
}
/// The products of y.
__device__ __forceinline__ void store_after(const StepArgs& p, const View& v) {
  const uint32_t r = threadIdx.x % kPanelRows, all = block_units(p, kAfter);
  const float norm = norm_factor(p, v, p.after_norm, p.after_eps);
  for (uint32_t k = threadIdx.x / kPanelRows; k * p.units < all; k += kThreads / kPanelRows) {
    const uint32_t panel = blockIdx.x + k * gridDim.x;
    const uint32_t t = after_task(p, panel);
    p.after_y[t][(panel - p.first_panel[t]) * kPanelRows + r] =
        group_sum(p, v.shared, all, k, p.units, r) * norm;
  }
}

/// Logits to everybody, and the experts; meanwhile the other warps stage x.
__device__ __forceinline__ void route_block(const StepArgs& p, const View& v, Misc& misc,
                                            Meetings& meetings, const float* row,
                                            const RouterShare& share, const float4 (&kept)[kKept]) {
  const float2 slice = router_slice(p, share, kept, row, v.lane);
  if (v.lane == 0) misc.router[v.warp] = slice;
  __syncthreads();
  if (v.warp != 0) {
    stage_row(p, v, row, p.n_embd, p.units, p.norm_weight, 1);
    warm_up(p, v);
    return;
  }
  leave_logits(p, v);
  __syncwarp();
  if (v.lane == 0) meetings.meet();
  __syncwarp();
  choose_experts(p, v, misc);
}

__global__ void __launch_bounds__(kThreads, 1) moe_step_kernel(const __grid_constant__ StepArgs p) {
  extern __shared__ __align__(128) uint8_t shared[];
  auto& misc = *reinterpret_cast<Misc*>(shared + p.misc);
  View v;
  v.shared = shared;
  v.misc = &misc;
  v.warp = threadIdx.x / 32;
  v.lane = threadIdx.x % 32;
  Ring ring;
  ring.base = shared_address(shared) + v.warp * p.n_stages * p.stage_bytes;
  ring.barriers = shared_address(shared) + p.barriers + v.warp * p.n_stages * 8;
  if (v.lane < p.n_stages) mbarrier_init(ring.barriers + v.lane * 8, 1);
  mbarrier_init_fence();
  __syncwarp();
  const Share first = share_of(p, kBefore, v.warp);
  ring.next = first.begin;
  ring.left = first.count;
  ring.fill(p, v, kBefore);
  const RouterShare share(p, v.warp);
  float4 kept[kKept];
#pragma unroll
  for (uint32_t k = 0; k < kKept; ++k) kept[k] = share.weight(p, share.begin + v.lane + 32 * k);
  grid_dependency_wait();
  const uint32_t out = threadIdx.x / kPanelRows, r = threadIdx.x % kPanelRows,
                 o = (blockIdx.x + out * gridDim.x) * kPanelRows + r;
  const bool mine = out < groups_of(p.out_panels);
  float value = p.add && mine ? __ldcg(p.y + o) : 0.0f;
  const float* row = p.x;
  const uint32_t last = p.n_after != 0 ? kAfter : kDown;
  Meetings meetings = {p.sync, 2u + (p.before_x != nullptr ? 1 : 0) + (p.n_after != 0 ? 1 : 0), 0};
#pragma unroll 1
  for (uint32_t phase = p.before_x != nullptr ? kBefore : kUp;; ++phase) {
    if (phase == kUp) {
      route_block(p, v, misc, meetings, row, share, kept);
    } else if (phase == kDown) {
      stage_hidden(p, v);
    } else if (phase == kBefore) {
      stage_row(p, v, p.before_x, p.before_in, p.before_units, nullptr, 0);
    } else {
      stage_row(p, v, p.y, p.n_embd, p.units, p.after_norm, 0);
    }
    __syncthreads();
    if (phase == kUp) ring.fill(p, v, kAfter);
    run_phase(p, v, ring, phase);
    __syncthreads();
    if (phase == kUp) {
      leave_hidden(p, v);
      grid_dependents_launch();
    } else if (phase == kAfter) {
      store_after(p, v);
    } else if (mine) {
      const uint32_t units = phase == kBefore ? p.before_units : p.row_units;
      value += group_sum(p, shared, block_units(p, phase), out, units, r);
      (phase == kBefore ? p.x1 : p.y)[o] = value;
    }
    if (phase == last) break;
    if (phase == kBefore) row = p.x1;
    __syncthreads();
    if (threadIdx.x == 0) meetings.meet();
    __syncthreads();
  }
}

uint32_t div_up(uint32_t n, uint32_t d) {
  return (n + d - 1) / d;
}

Slab make_slab(const DeviceMatrix& w) {
  Slab s = {};
  if (!w) return s;
  const GgmlTypeTraits& traits = ggml_traits(w.type);
  s.data = reinterpret_cast<const uint8_t*>(w.data);
  s.expert_bytes = w.expert_bytes;
  s.panel_bytes = static_cast<uint32_t>(ggml_row_bytes(w.type, w.n_in) * kPanelRows);
  s.unit_bytes = kUnitColumns / traits.block_elements * traits.block_bytes * kPanelRows;
  s.tail_bytes = s.panel_bytes - (div_up(w.n_in, kUnitColumns) - 1) * s.unit_bytes;
  s.type = w.type;
  return s;
}

Groups groups_of_all(uint32_t all, uint32_t grid) {
  return {all / grid, all % grid};
}

void set_slabs(const MoeStepParams& m, StepArgs* p) {
  p->slabs[kGateSlab] = make_slab(m.moe.gate);
  p->slabs[kUpSlab] = make_slab(m.moe.up);
  p->slabs[kDownSlab] = make_slab(m.moe.down);
  p->slabs[kSharedGate] = make_slab(m.shared_gate);
  p->slabs[kSharedUp] = make_slab(m.shared_up);
  p->slabs[kSharedDown] = make_slab(m.shared_down);
  p->slabs[kBeforeSlab] = make_slab(m.before.tasks[0].w);
  p->n_after = m.after.n_tasks;
  for (uint32_t t = 0; t < m.after.n_tasks; ++t)
    p->slabs[kAfterSlab + t] = make_slab(m.after.tasks[t].w);
}

/// Where values are behind the words of the meetings; returns the bytes of all.
uint64_t shape_memory(uint32_t n_experts, uint32_t n_embd, uint32_t hidden, uint32_t shared_hidden,
                      std::byte* sync, StepArgs* p) {
  uint64_t at = kHeadBytes;
  const auto take = [&](float** to, uint64_t n) {
    *to = reinterpret_cast<float*>(sync + at);
    at += (n + 3) / 4 * 4 * sizeof(float);
  };
  take(&p->logits, n_experts + 1);
  take(&p->x1, n_embd);
  take(&p->h, hidden);
  take(&p->shared_h, shared_hidden);
  return at;
}

void shape_work(const MatmulConfig& config, const MoeStepParams& m, StepArgs* p) {
  const MoeParams& e = m.moe;
  const auto grid = static_cast<uint32_t>(config.n_sm);
  p->n_embd = e.gate.n_in;
  p->d_ff = e.gate.n_out;
  p->d_shared = m.shared_down ? m.shared_down.n_in : 0;
  p->n_experts = m.router.n_out;
  p->n_used = e.n_used;
  p->before_in = m.before.n_tasks != 0 ? m.before.tasks[0].w.n_in : kUnitColumns;
  p->router_rows = p->n_experts + (m.shared_gate_inp != nullptr ? 1 : 0);
  p->slices = kWarps;
  while (p->slices > 1 && kWarps / p->slices * grid < p->router_rows) p->slices /= 2;
  p->units = div_up(p->n_embd, kUnitColumns);
  p->ff_units = div_up(p->d_ff, kUnitColumns);
  p->shared_units = div_up(p->d_shared, kUnitColumns);
  p->before_units = div_up(p->before_in, kUnitColumns);
  p->row_units = p->shared_units + p->n_used * p->ff_units;
  p->shared_pairs = p->d_shared / kPanelRows;
  p->pairs = groups_of_all(p->shared_pairs + p->n_used * (p->d_ff / kPanelRows), grid);
  p->out_panels = groups_of_all(p->n_embd / kPanelRows, grid);
  uint32_t after = 0;
  for (uint32_t t = 0; t < m.after.n_tasks; ++t) {
    p->first_panel[t] = after;
    after += m.after.tasks[t].w.n_out / kPanelRows;
  }
  p->after_panels = groups_of_all(after, grid);
  p->by_units = make_divider(p->units);
  p->by_panels = make_divider(p->d_ff / kPanelRows);
  p->by_row_units = make_divider(p->row_units);
  p->by_ff_units = make_divider(p->ff_units);
  p->by_before = make_divider(p->before_units);
}

/// The division of work and of shared memory; returns the bytes of it, 0: it does not fit.
uint32_t shape_step(const MatmulConfig& config, const MoeStepParams& m, StepArgs* p) {
  set_slabs(m, p);
  shape_work(config, m, p);
  for (const Slab& s : p->slabs)
    p->stage_bytes = std::max(p->stage_bytes, std::min(s.unit_bytes, s.panel_bytes));
  const uint32_t groups =
      std::max({2 * (p->pairs.each + 1), p->out_panels.each + 1, p->after_panels.each + 1});
  uint32_t image = 0;
  for (const uint32_t units : {p->units, p->row_units, p->before_units})
    image = std::max(image, image_map(1, units).bytes);
  const uint32_t part = (groups + kWarps) * kPanelRows * 4,
                 misc = (static_cast<uint32_t>(sizeof(Misc)) + 15) / 16 * 16;
  for (p->n_stages = kMaxStages; p->n_stages >= 2; --p->n_stages) {
    p->image = kWarps * p->n_stages * p->stage_bytes;
    p->part = p->image + image;
    p->misc = p->part + part;
    p->barriers = p->misc + misc;
    const uint32_t bytes = p->barriers + kWarps * p->n_stages * 8;
    if (bytes <= static_cast<uint32_t>(config.max_shared_bytes)) return bytes;
  }
  return 0;
}

bool in_tiles(const DeviceMatrix& w) {
  return w && w.layout == WeightLayout::kTiles && w.n_out % kPanelRows == 0 && w.n_in % 32 == 0;
}

/// The products in front and behind.
bool neighbours_agree(const MoeStepParams& m) {
  const MatmulParams &b = m.before, &a = m.after;
  bool ok = b.n_tasks <= 1 && a.n_tasks <= kMaxMatmulTasks;
  if (b.n_tasks != 0) {
    ok = ok && in_tiles(b.tasks[0].w) && b.tasks[0].w.n_out == m.moe.gate.n_in &&
         b.epilogue == Epilogue::kAdd && b.tasks[0].y == m.moe.x && b.norm_weight == nullptr &&
         b.row_scale == nullptr && b.n_rows == 1 && !b.force_f32 && m.moe.add;
  }
  if (a.n_tasks != 0) {
    ok = ok && a.epilogue == Epilogue::kStore && a.x == m.moe.y && a.row_scale == nullptr &&
         a.n_rows == 1 && !a.force_f32;
  }
  for (uint32_t t = 0; ok && t < a.n_tasks; ++t)
    ok = in_tiles(a.tasks[t].w) && a.tasks[t].w.n_in == m.moe.gate.n_in;
  return ok && (!m.moe.add || m.moe.x == m.moe.y);
}

bool shapes_agree(const MoeStepParams& m) {
  const MoeParams& e = m.moe;
  bool ok = e.n_rows == 1 && e.n_used != 0 && e.n_used <= kMaxExpertsUsed &&
            is_gated_epilogue(e.activation) && m.router.type == GgmlType::kF32 &&
            m.router.layout == WeightLayout::kRows && m.router.n_in == e.gate.n_in &&
            e.n_used <= m.router.n_out && m.router.n_out <= kMaxExperts;
  const auto expert = [&](const DeviceMatrix& gate, const DeviceMatrix& up,
                          const DeviceMatrix& down) {
    ok = ok && in_tiles(gate) && in_tiles(up) && in_tiles(down) && gate.n_out == up.n_out &&
         gate.n_in == up.n_in && down.n_in == gate.n_out && down.n_out == gate.n_in;
  };
  expert(e.gate, e.up, e.down);
  if (m.shared_down) {
    expert(m.shared_gate, m.shared_up, m.shared_down);
    ok = ok && m.shared_gate.n_in == e.gate.n_in;
  } else {
    ok = ok && m.shared_gate_inp == nullptr;
  }
  return ok && neighbours_agree(m);
}

}  // namespace

uint64_t moe_step_sync_bytes(uint32_t n_experts, uint32_t n_embd, uint32_t hidden,
                             uint32_t shared_hidden) {
  StepArgs p = {};
  return shape_memory(n_experts, n_embd, hidden, shared_hidden, nullptr, &p);
}

bool has_moe_steps(const MatmulConfig& config) {
  return !config.exact && !config.deterministic && config.compute_capability >= 90;
}

bool moe_step_takes(const MatmulConfig& config, const MoeStepParams& m) {
  if (!has_moe_steps(config) || !shapes_agree(m)) return false;
  StepArgs p = {};
  const auto grid = static_cast<uint32_t>(config.n_sm);
  return shape_step(config, m, &p) != 0 && kWarps / p.slices * grid >= p.router_rows &&
         p.out_panels.each < kThreads / kPanelRows &&
         m.sync_bytes >= moe_step_sync_bytes(p.n_experts, p.n_embd, p.n_used * p.d_ff, p.d_shared);
}

Status launch_moe_step(const MatmulConfig& config, const MoeStepParams& m, cudaStream_t stream) {
  const MoeParams& e = m.moe;
  if (!moe_step_takes(config, m) || reinterpret_cast<uintptr_t>(e.x) % 16 != 0 ||
      reinterpret_cast<uintptr_t>(m.sync) % 128 != 0) {
    return Status::error(Code::kInternal, "moe_step: %u of %u experts, %u x %u", e.n_used,
                         m.router.n_out, e.gate.n_out, e.gate.n_in);
  }
  StepArgs p = {};
  LaunchShape shape;
  shape.shared_bytes = shape_step(config, m, &p);
  shape_memory(p.n_experts, p.n_embd, p.n_used * p.d_ff, p.d_shared, m.sync, &p);
  p.x = e.x;
  p.norm_weight = e.norm_weight;
  p.norm_eps = e.norm_eps;
  p.renormalize = m.renormalize;
  p.add = e.add;
  p.activation = e.activation;
  p.router = reinterpret_cast<const float*>(m.router.data);
  p.shared_gate = m.shared_gate_inp;
  p.slot_of_expert = e.slot_of_expert;
  p.y = e.y;
  p.weights = m.weights;
  p.ids = m.ids;
  p.sync = reinterpret_cast<uint32_t*>(m.sync);
  if (m.before.n_tasks != 0) p.before_x = m.before.x;
  p.after_norm = m.after.norm_weight;
  p.after_eps = m.after.norm_eps;
  for (uint32_t t = 0; t < m.after.n_tasks; ++t) p.after_y[t] = m.after.tasks[t].y;
  shape.grid = dim3(static_cast<uint32_t>(config.n_sm));
  shape.block = dim3(kThreads);
  shape.stream = stream;
  shape.pdl = config.pdl;
  shape.cooperative = true;
  return launch_kernel("moe_step", shape, moe_step_kernel, p);
}

Status prepare_moe_step(const MatmulConfig& config) {
  return kernel_status(
      cudaFuncSetAttribute(moe_step_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           config.max_shared_bytes),
      "moe_step");
}

}  // namespace sharpi::cuda
