// SPDX-License-Identifier: MIT
// A mixture-of-experts block of one row: y (+)= sum_j w_j down_j(act(gate_j x) * up_j x), the
// shared expert among the j; before it the mixer's output product, after it the next mixer's input
// products, if the caller has them. One block per multiprocessor, all of them at once:
//   x += W m | router rows -> logits | top-k in every block, so that nobody waits for one | pairs
//   of gate and up panels -> h | panels of down over all experts as one long row -> y | products of
//   y
// Block b takes panels (pairs, rows) b, b + grid, ... Between phases values go through device
// memory, each with the launch's number (moe_exchange.cuh): who needs a row takes it as it comes.
// The 16 warps of a block share each phase's units (16 x 256) evenly and stream them through rings
// of their own: constant weights from before the grid dependency resolves, experts' from the moment
// they are known; copies run ahead through all phases. Arithmetic as in chain.cu, fixed point.
// Bound: weights of the active experts / memory bandwidth, and a chain of latencies.
#include <algorithm>

#include "cuda/kernels/gemm.h"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/moe_route.cuh"
#include "cuda/kernels/moe_step.h"

namespace sharpi::cuda {
namespace {

using namespace step;

__device__ __forceinline__ float4 times(float4 a, float4 b) {
  return {a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w};
}
/// For the norm's factor, which sums are multiplied by.
__device__ __forceinline__ void keep_squares(const StepArgs& p, const View& v, uint32_t u,
                                             const LaneInputs& in) {
  float sum = 0.0f;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const float4 a = in.v[k];
    sum += a.x * a.x + a.y * a.y + a.z * a.z + a.w * a.w;
  }
  sum = warp_sum(sum);
  if (v.lane == 0) reinterpret_cast<float*>(v.shared + p.squares)[u] = sum;
}

/// A warp's slice of one of the block's router rows.
struct RouterShare {
  const float4* w;
  uint32_t begin, end;  // float4s
  float4 kept[kKept];
  __device__ __forceinline__ RouterShare(const StepArgs& p, const View& v) {
    const uint32_t row = blockIdx.x + (v.warp >> p.slice_bits) * gridDim.x, n4 = p.n_embd / 4;
    const float* data = row < p.n_experts ? p.router + uint64_t{row} * p.n_embd : p.shared_gate;
    w = reinterpret_cast<const float4*>(data);
    const uint32_t slices = 1u << p.slice_bits, slice = v.warp % slices,
                   each = (n4 + slices - 1) >> p.slice_bits;
    begin = min(slice * each, n4);
    end = row < p.router_rows ? min(begin + each, n4) : begin;
#pragma unroll
    for (uint32_t k = 0; k < kKept; ++k) {
      const uint32_t i = begin + v.lane + 32 * k;
      kept[k] = i < end ? w[i] : float4{};
    }
  }
};

/// The warp's part of a logit, before the norm.
__device__ __forceinline__ float router_slice(const StepArgs& p, const View& v,
                                              const RouterShare& share) {
  const auto* raw = reinterpret_cast<const float4*>(v.shared + p.raw);
  float sum = 0.0f;
  const auto add = [&](float4 a, float4 x) {
    sum = fmaf(a.x, x.x, fmaf(a.y, x.y, fmaf(a.z, x.z, fmaf(a.w, x.w, sum))));
  };
#pragma unroll
  for (uint32_t k = 0; k < kKept; ++k) {
    const uint32_t i = share.begin + v.lane + 32 * k;
    if (i < share.end) add(share.kept[k], raw[i]);
  }
#pragma unroll 1
  for (uint32_t i = share.begin + v.lane + 32 * kKept; i < share.end; i += 32)
    add(share.w[i], raw[i]);
  return warp_sum(sum);
}

/// Warp 0: the block's logits to everybody. Lane (r << slice_bits) + k: slice k of the block's row
/// r.
__device__ __forceinline__ void leave_logits(const StepArgs& p, const View& v, uint32_t number) {
  float sum = v.lane < kWarps ? v.misc->router[v.lane] : 0.0f;
  for (uint32_t b = 0; b < p.slice_bits; ++b) sum += __shfl_xor_sync(~0u, sum, 1 << b);
  const uint32_t row = blockIdx.x + (v.lane >> p.slice_bits) * gridDim.x;
  if (v.lane < kWarps && v.lane % (1u << p.slice_bits) == 0 && row < p.router_rows)
    put_whole(p.logits + row, sum, number);
}

/// A phase's row, as it comes, times its norm's weights or those of the experts: into the image, or
/// as floats for the router, which kUp begins with.
__device__ __forceinline__ void take_row(const StepArgs& p, const View& v, uint32_t phase,
                                         uint32_t number, const Weights& weights) {
  const bool plain = phase == (p.before_x != nullptr ? kBefore : kUp);  // an earlier launch's
  const void* row = phase == kDown ? p.h : p.y1;
  if (phase == kBefore) row = p.before_x;
  if (phase == kUp) row = plain ? static_cast<const void*>(p.x) : p.x1;
  const uint32_t units = phase == kBefore ? p.before_units : phase == kDown ? p.row_units : p.units;
  const float* norm = phase == kUp ? p.norm_weight : phase == kAfter ? p.after_norm : nullptr;
  LaneWords next;
  if (v.warp < units) next.look(row, v.warp, v.lane);
#pragma unroll 1
  for (uint32_t u = v.warp; u < units; u += kWarps) {
    LaneWords now = next;
    if (u + kWarps < units) next.look(row, u + kWarps, v.lane);
    LaneInputs times_by = {};
    if (norm != nullptr) times_by = load_inputs(norm, u * kUnitColumns + v.lane * 4, p.n_embd);
    while (!plain && !now.are_of(number)) now.look(row, u, v.lane);
    __syncwarp();
    LaneInputs in = plain ? now.floats() : now.values();
    if (phase == kUp || phase == kAfter) keep_squares(p, v, u, in);
    if (phase == kDown) {
      const uint32_t j = u < p.routed_units ? divide(u, p.by_ff_units) : 0;
      const float routed = __shfl_sync(~0u, weights.routed, static_cast<int>(j)),
                  w = u < p.routed_units ? routed : weights.shared;
      times_by = {{{w, w, w, w}, {w, w, w, w}}};
    }
    if (phase == kDown || norm != nullptr) {
#pragma unroll
      for (int k = 0; k < 2; ++k) in.v[k] = times(in.v[k], times_by.v[k]);
    }
    if (phase == kUp) {
      auto* raw = reinterpret_cast<float4*>(v.shared + p.raw);
      raw[u * 64 + v.lane] = in.v[0];
      raw[u * 64 + 32 + v.lane] = in.v[1];
      continue;
    }
    stage_fixed(v.shared + p.image, fixed_map(units), u, in, v.lane);
  }
}

/// Logits to everybody, x into the image, and the experts: the j-th in lane j of every warp.
__device__ __forceinline__ uint32_t route_block(const StepArgs& p, const View& v, uint32_t number,
                                                float norm, const RouterShare& share) {
  const float slice = router_slice(p, v, share);
  if (v.lane == 0) v.misc->router[v.warp] = slice * norm;
  __syncthreads();
  if (v.warp == 0) {
    leave_logits(p, v, number);
  } else {
    const auto* raw = reinterpret_cast<const float4*>(v.shared + p.raw);
#pragma unroll 1
    for (uint32_t u = v.warp - 1; u < p.units; u += kWarps - 1) {
      const LaneInputs in = {{raw[u * 64 + v.lane], raw[u * 64 + 32 + v.lane]}};
      stage_fixed(v.shared + p.image, fixed_map(p.units), u, in, v.lane);
    }
  }
  const uint32_t chunk = kWarps - 1 - v.warp;  // from the warps that have not staged
  if (chunk * 32 < p.n_experts) leave_candidates(p, v, chunk, number);
  __syncthreads();
  return choose_expert(p, v);
}

/// act(gate) * up of the block's pairs.
__device__ __forceinline__ void leave_hidden(const StepArgs& p, const View& v, float norm,
                                             uint32_t number) {
  const uint32_t r = threadIdx.x % kPanelRows, pairs = groups_of(p.pairs);
  for (uint32_t k = threadIdx.x / kPanelRows; k < pairs; k += kThreads / kPanelRows) {
    const float gate = group_sum(p, v.shared, 2 * k, r) * norm,
                up = group_sum(p, v.shared, 2 * k + 1, r) * norm;
    put_value(p.h, (blockIdx.x + k * gridDim.x) * kPanelRows + r,
              gated_value(p.activation, gate, up), number);
  }
}
/// The products of y.
__device__ __forceinline__ void store_after(const StepArgs& p, const View& v, float norm) {
  const uint32_t r = threadIdx.x % kPanelRows, panels = groups_of(p.after_panels);
  for (uint32_t k = threadIdx.x / kPanelRows; k < panels; k += kThreads / kPanelRows) {
    const uint32_t panel = blockIdx.x + k * gridDim.x;
    const uint32_t t = after_task(p, panel);
    p.after_y[t][(panel - p.first_panel[t]) * kPanelRows + r] = group_sum(p, v.shared, k, r) * norm;
  }
}

__global__ void __launch_bounds__(kThreads, 1) moe_step_kernel(const __grid_constant__ StepArgs p) {
  if constexpr (!kHasBulkCopy) return;  // the host never launches it there
  extern __shared__ __align__(128) uint8_t shared[];
  View v;
  v.shared = shared;
  v.misc = reinterpret_cast<Misc*>(shared + p.misc);
  v.warp = threadIdx.x / 32;
  v.lane = threadIdx.x % 32;
  Ring ring;
  ring.base = shared_address(shared) + v.warp * p.ring_bytes;
  ring.barriers = shared_address(shared) + p.barriers + v.warp * kSlots * 8;
  ring.bytes = p.ring_bytes;
  if (v.lane < kSlots) mbarrier_init(ring.barriers + v.lane * 8, 1);
  mbarrier_init_fence();
  __syncwarp();
  ring.fill(p, v, kBefore);
  const RouterShare share(p, v);
  grid_dependency_wait();
  const uint32_t number = __ldcg(p.sync + blockIdx.x) + 1;
  const uint32_t out = threadIdx.x / kPanelRows, r = threadIdx.x % kPanelRows,
                 o = (blockIdx.x + out * gridDim.x) * kPanelRows + r;
  const bool mine = out < groups_of(p.out_panels);
  float value = p.add && mine ? __ldcg(p.y + o) : 0.0f;
  const uint32_t last = p.n_after != 0 ? kAfter : kDown;
  // Every launch writes every word, so that no word is older than the launch before.
  if (p.before_x == nullptr && mine) put_value(p.x1, o, value, number);
  uint32_t expert = 0;
#pragma unroll 1
  for (uint32_t phase = p.before_x != nullptr ? kBefore : kUp;; ++phase) {
    Weights weights = {};
    if (phase == kDown) weights = weigh_experts(p, v, expert, number);
    take_row(p, v, phase, number, weights);
    __syncthreads();
    float norm = 1.0f;
    if (phase == kUp) norm = norm_factor(p, v, p.norm_weight, p.norm_eps);
    if (phase == kAfter) norm = norm_factor(p, v, p.after_norm, p.after_eps);
    if (phase == kUp) expert = route_block(p, v, number, norm, share);
    run_phase(p, v, ring, phase);
    __syncthreads();
    if (phase == kUp) {
      leave_hidden(p, v, norm, number);
      grid_dependents_launch();
    } else if (phase == kAfter) {
      store_after(p, v, norm);
    } else if (mine) {
      value += group_sum(p, shared, out, r);
      if (phase == kDown) p.y[o] = value;
      put_value(phase == kBefore ? p.x1 : p.y1, o, value, number);
    }
    if (phase == last) break;
  }
  if (threadIdx.x == 0) p.sync[blockIdx.x] = number;
}

Slab make_slab(const DeviceMatrix& w) {
  Slab s = {};
  if (!w) return s;
  const GgmlTypeTraits& traits = ggml_traits(w.type);
  s.data = reinterpret_cast<const uint8_t*>(w.data);
  s.expert_bytes = w.expert_bytes;
  s.panel_bytes = static_cast<uint32_t>(ggml_row_bytes(w.type, w.n_in) * kPanelRows);
  s.unit_bytes = kUnitColumns / traits.block_elements * traits.block_bytes * kPanelRows;
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

/// Where values are behind the words that all launches use; returns the bytes of all.
uint64_t shape_memory(uint32_t n_experts, uint32_t n_embd, uint32_t hidden, uint32_t shared_hidden,
                      std::byte* sync, StepArgs* p) {
  uint64_t at = kHeadBytes;
  const auto take = [&](uint64_t** to, uint64_t n) {
    *to = reinterpret_cast<uint64_t*>(sync + at);
    at += (n + 15) / 16 * 16 * sizeof(uint64_t);
  };
  take(&p->logits, n_experts + 1);
  take(&p->x1, n_embd / 2);
  take(&p->h, (uint64_t{hidden} + shared_hidden) / 2);
  take(&p->y1, n_embd / 2);
  return at;
}

void shape_work(const MatmulConfig& config, const MoeStepParams& m, StepArgs* p) {
  const MoeParams& e = m.moe;
  const auto grid = static_cast<uint32_t>(config.n_sm);
  p->n_embd = e.gate.n_in;
  const uint32_t d_ff = e.gate.n_out, d_shared = m.shared_down ? m.shared_down.n_in : 0;
  p->n_experts = m.router.n_out;
  p->n_used = e.n_used;
  p->router_rows = p->n_experts + (m.shared_gate_inp != nullptr ? 1 : 0);
  p->slice_bits = 4;
  while (p->slice_bits > 0 && (kWarps >> p->slice_bits) * grid < p->router_rows) --p->slice_bits;
  p->units = p->n_embd / kUnitColumns;
  p->ff_units = d_ff / kUnitColumns;
  p->before_units = m.before.n_tasks != 0 ? m.before.tasks[0].w.n_in / kUnitColumns : 1;
  p->routed_units = p->n_used * p->ff_units;
  p->row_units = p->routed_units + d_shared / kUnitColumns;
  p->routed_pairs = p->n_used * (d_ff / kPanelRows);
  p->pairs = groups_of_all(p->routed_pairs + d_shared / kPanelRows, grid);
  p->out_panels = groups_of_all(p->n_embd / kPanelRows, grid);
  uint32_t after = 0;
  for (uint32_t t = 0; t < m.after.n_tasks; ++t) {
    p->first_panel[t] = after;
    after += m.after.tasks[t].w.n_out / kPanelRows;
  }
  p->after_panels = groups_of_all(after, grid);
  p->by_units = make_divider(p->units);
  p->by_panels = make_divider(d_ff / kPanelRows);
  p->by_row_units = make_divider(p->row_units);
  p->by_ff_units = make_divider(p->ff_units);
  p->by_before = make_divider(p->before_units);
}

/// The division of work and of shared memory; returns the bytes of it, 0: it does not fit.
uint32_t shape_step(const MatmulConfig& config, const MoeStepParams& m, const MoeStepTuning& tuning,
                    StepArgs* p) {
  set_slabs(m, p);
  shape_work(config, m, p);
  uint32_t widest = 0;
  for (const Slab& s : p->slabs) widest = std::max(widest, s.unit_bytes);
  const uint32_t groups =
      std::max({2 * (p->pairs.each + 1), p->out_panels.each + 1, p->after_panels.each + 1});
  const uint32_t most_units = std::max({p->units, p->row_units, p->before_units});
  if (groups > kMostGroups || most_units > kMostUnits) return 0;
  uint32_t bytes = 0;
  const auto take = [&](uint32_t* at, uint32_t n) {
    *at = bytes;
    bytes += (n + 15) / 16 * 16;
  };
  take(&p->image, fixed_map(most_units).bytes);
  take(&p->raw, p->units * kUnitColumns * 4);
  take(&p->squares, p->units * 4);
  take(&p->part, (groups + kWarps) * kPanelRows * 4);
  take(&p->range, groups * 8);
  take(&p->misc, sizeof(Misc));
  take(&p->barriers, kWarps * kSlots * 8);
  const auto limit = static_cast<uint32_t>(config.max_shared_bytes) - tuning.spare;
  if (bytes + kWarps * 2 * widest > limit) return 0;
  p->ring_bytes = std::min((limit - bytes) / kWarps, tuning.ring_bytes) / 128 * 128;
  const uint32_t rings = kWarps * p->ring_bytes;
  for (uint32_t* at :
       {&p->image, &p->raw, &p->squares, &p->part, &p->range, &p->misc, &p->barriers})
    *at += rings;
  return rings + bytes;
}

uint64_t bytes_of(const MoeStepParams& m, std::byte* sync, StepArgs* p) {
  const uint32_t d_shared = m.shared_down ? m.shared_down.n_in : 0;
  return shape_memory(m.router.n_out, m.moe.gate.n_in, m.moe.n_used * m.moe.gate.n_out, d_shared,
                      sync, p);
}

bool in_tiles(const DeviceMatrix& w) {
  return w && w.layout == WeightLayout::kTiles && has_fixed_product(w.type) &&
         w.n_out % kPanelRows == 0 && w.n_in % kUnitColumns == 0;
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
  return grid <= kMostSm && shape_step(config, m, {}, &p) != 0 &&
         (kWarps >> p.slice_bits) * grid >= p.router_rows &&
         p.out_panels.each < kThreads / kPanelRows && m.sync_bytes >= bytes_of(m, nullptr, &p);
}

Status launch_moe_step(const MatmulConfig& config, const MoeStepParams& m, cudaStream_t stream,
                       const MoeStepTuning& tuning) {
  const MoeParams& e = m.moe;
  if (!moe_step_takes(config, m) || reinterpret_cast<uintptr_t>(e.x) % 16 != 0 ||
      reinterpret_cast<uintptr_t>(m.sync) % 128 != 0) {
    return Status::error(Code::kInternal, "moe_step: %u of %u experts, %u x %u", e.n_used,
                         m.router.n_out, e.gate.n_out, e.gate.n_in);
  }
  StepArgs p = {};
  LaunchShape shape;
  shape.shared_bytes = shape_step(config, m, tuning, &p);
  if (shape.shared_bytes == 0) return Status::error(Code::kInternal, "moe_step: no room");
  bytes_of(m, m.sync, &p);
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
  shape.cooperative = tuning.cooperative;
  return launch_kernel("moe_step", shape, moe_step_kernel, p);
}

Status prepare_moe_step(const MatmulConfig& config) {
  return kernel_status(
      cudaFuncSetAttribute(moe_step_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           config.max_shared_bytes),
      "moe_step");
}

}  // namespace sharpi::cuda
