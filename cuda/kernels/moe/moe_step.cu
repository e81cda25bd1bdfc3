// SPDX-License-Identifier: MIT
// A mixture-of-experts block of up to four rows (decode) as one launch of a persistent kernel:
//   y (+)= sum_j w_j down_j(act(gate_j x) * up_j x), the shared expert among the j;
// before it the mixer's output product, after it the next mixer's input products, if the caller has
// them. One block for each multiprocessor, all of them resident. Phases:
//   1  x += W m                                   the mixer's output
//   2  logits of x                                the router
//   3  top-k, computed by every block for itself, so that no block waits for another's
//   4  h: pairs of gate and up panels
//   5  y: panels of down, over all experts as one long row
//   6  products of y
// Block b takes panels (pairs, rows) b, b + grid, ... Between phases values go through device
// memory, each with the launch's number (moe_exchange.cuh): a block waits only for the values it
// reads.
// Router logits are sums to which blocks add the part of their columns; nobody waits for all of x.
// The 16 warps of a block share each phase's units (16 x 256) evenly and stream them through ring
// buffers of their own: constant weights from before the grid dependency resolves, experts' as soon
// as they are known; copies run ahead through all phases. One more warp computes which experts
// these are.
// Arithmetic as in chain.cu, fixed point.
// Several rows: each warp stages, adds up and stores for one of them, and each row has a warp that
// chooses its experts. An expert that several rows chose is read once; one tensor-core product
// takes all rows, with zeros for rows that did not choose the expert. Each row's words have a
// launch number of their own, which counts the launches that had such a row, so a reader never
// takes a value of an older launch for a new one.
// Bound: weights of the active experts / memory bandwidth, and a chain of latencies.
#include <algorithm>

#include "cuda/kernels/launch.h"
#include "cuda/kernels/moe/moe_logits.cuh"
#include "cuda/kernels/moe/moe_route.cuh"
#include "cuda/kernels/moe/moe_step.h"
#include "cuda/kernels/products/gemm.h"

namespace sharpi::cuda {
namespace {

using namespace step;

/// For the norm's factor, which sums are multiplied by: what a warp's units of the row have.
template <uint32_t kRows>
__device__ __forceinline__ void keep_squares(const View<kRows>& v, float lane_sum) {
  const float sum = warp_sum(lane_sum);
  if (v.lane == 0) v.misc->squares[v.warp] = sum;
}
/// Columns of unit u of a norm's weights: those in front (0) or behind (1).
template <uint32_t kRows>
__device__ __forceinline__ LaneInputs columns_of(const StepArgs& p, const View<kRows>& v,
                                                 uint32_t k, uint32_t u) {
  if (!p.keeps) {
    return load_inputs(k == 0 ? p.norm_weight : p.after_norm, u * kUnitColumns + v.lane * 4,
                       p.n_embd);
  }
  const auto* row =
      reinterpret_cast<const float4*>(v.shared + p.rows) + k * (p.n_embd / 4) + u * 64;
  return {{row[v.lane], row[v.lane + 32]}};
}
/// One thread: has the norms' weights brought into shared memory.
template <uint32_t kRows>
__device__ __forceinline__ void keep_rows(const StepArgs& p, const View<kRows>& v) {
  const uint32_t bar = shared_address(&v.slots->kept), bytes = p.n_embd * 4,
                 to = shared_address(v.shared) + p.rows;
  mbarrier_init(bar, 1);
  mbarrier_init_fence();
  const bool front = p.keeps && p.norm_weight != nullptr,
             behind = p.keeps && p.after_norm != nullptr;
  mbarrier_expect(bar, (front ? bytes : 0) + (behind ? bytes : 0));
  if (front) bulk_copy(to, p.norm_weight, bytes, bar);
  if (behind) bulk_copy(to + bytes, p.after_norm, bytes, bar);
}

/// What the words of a phase's row are, the warp's.
template <uint32_t kRows>
__device__ __forceinline__ const void* row_of(const StepArgs& p, const View<kRows>& v,
                                              uint32_t phase) {
  if (phase == kBefore) return p.before_x + uint64_t{v.row()} * p.before_stride;
  if (phase == kUp) {
    if (p.before_x == nullptr) return p.x + uint64_t{v.row()} * p.x_stride;
    return of_row(p, v, p.x1);
  }
  return of_row(p, v, phase == kDown ? p.h : p.y1);
}
__device__ __forceinline__ uint32_t units_of(const StepArgs& p, uint32_t phase) {
  return phase == kBefore ? p.before_units : phase == kDown ? p.row_units : p.units;
}

/// A phase's row, as it comes, times its norm's weights or those of the experts, into its image.
template <uint32_t kRows>
__device__ __forceinline__ void take_row(const StepArgs& p, const View<kRows>& v, uint32_t phase,
                                         LaneWords next, uint32_t number) {
  if (!v.has_row(p)) return;
  const bool plain =
      phase == kBefore || (phase == kUp && p.before_x == nullptr);  // an earlier one's
  const void* row = row_of(p, v, phase);
  const uint32_t units = units_of(p, phase);
  uint8_t* image = v.shared + p.image + v.row() * p.image_bytes;
  const float* weights = v.misc->weight + v.row() * p.n_used;
  float squares = 0.0f;
#pragma unroll 1
  for (uint32_t u = v.part(); u < units; u += kRowWarps<kRows>) {
    LaneWords now = next;
    if (u + kRowWarps<kRows> < units) next.look(row, u + kRowWarps<kRows>, v.lane);
    LaneInputs times_by = {{{1.0f, 1.0f, 1.0f, 1.0f}, {1.0f, 1.0f, 1.0f, 1.0f}}};
    if (phase == kDown) {
      const float w =
          u < p.routed_units ? weights[divide(u, p.by_ff_units)] : v.misc->shared_weight[v.row()];
      times_by = {{{w, w, w, w}, {w, w, w, w}}};
    } else if (phase == kUp ? p.norm_weight != nullptr
                            : phase == kAfter && p.after_norm != nullptr) {
      times_by = columns_of(p, v, phase == kUp ? 0 : 1, u);
    }
    while (!plain && !now.are_of(number)) now.look(row, u, v.lane);
    __syncwarp();
    LaneInputs in = plain ? now.floats() : now.values();
    squares += dot(in, in);
    if (phase != kBefore) scale_by(in, times_by);
    stage_fixed(image, fixed_map(units), u, in, v.lane);
  }
  if (phase == kAfter || phase == kUp) keep_squares(v, squares);
}

/// Where h of a pair of panels goes in the warp's row; kNothing: the row did not choose its expert.
template <uint32_t kRows>
__device__ __forceinline__ uint32_t hidden_column(const StepArgs& p, const View<kRows>& v,
                                                  uint32_t pair) {
  if constexpr (kRows == 1) return pair * kPanelRows;
  const uint32_t routed = routed_pairs(p, v);
  if (pair >= routed) return (p.routed_pairs + pair - routed) * kPanelRows;
  const uint32_t expert = divide(pair, p.by_panels), j = v.misc->own_number[expert][v.row()];
  if (j == kNobody) return kNothing;
  return (j * p.expert_panels + pair - expert * p.expert_panels) * kPanelRows;
}
/// act(gate) * up of the block's pairs: half of a warp each.
template <uint32_t kRows>
__device__ __forceinline__ void leave_hidden(const StepArgs& p, const View<kRows>& v, float norm,
                                             uint32_t number) {
  if (!v.has_row(p)) return;
  const uint32_t pairs = block_pairs(p, v);
#pragma unroll 1
  for (uint32_t k = v.part(); k < pairs; k += kRowWarps<kRows>) {
    const uint32_t column = hidden_column(p, v, blockIdx.x + k * gridDim.x);
    if (kRows != 1 && column == kNothing) continue;
    const float sum = whole_sum(p, v, 2 * k + v.lane / kPanelRows) * norm,
                up = __shfl_xor_sync(~0u, sum, 16);
    const float h = gated_value(p.activation, sum, up);
    if (v.lane < kPanelRows) put_value(of_row(p, v, p.h), column + v.lane, h, number);
  }
}
/// The products of y.
template <uint32_t kRows>
__device__ __forceinline__ void store_after(const StepArgs& p, const View<kRows>& v, float norm) {
  if (!v.has_row(p)) return;
  const uint32_t panels = groups_of(p.after_panels);
#pragma unroll 1
  for (uint32_t k = v.part(); k < panels; k += kRowWarps<kRows>) {
    const uint32_t panel = blockIdx.x + k * gridDim.x;
    const uint32_t t = after_task(p, panel);
    const float sum = group_sum(p, v, k) * norm;
    if (v.lane < kPanelRows) {
      p.after_y[t][uint64_t{v.row()} * p.after_stride[t] + (panel - p.first_panel[t]) * kPanelRows +
                   v.lane] = sum;
    }
  }
}

/// The number after n, made here and not where n is loaded: nobody waits for it earlier.
__device__ __forceinline__ uint32_t after(uint32_t n) {
  asm volatile("add.u32 %0, %0, 1;" : "+r"(n)::"memory");
  return n;
}

/// The warps that compute.
template <uint32_t kRows, bool kSmall>
__device__ __forceinline__ void compute(const StepArgs& p, const View<kRows>& v) {
  if (v.lane < kSlots) mbarrier_init(shared_address(&v.slots->full[v.warp][v.lane]), 1);
  mbarrier_init_fence();
  __syncwarp();
  Ring<kRows, kSmall> ring;
  ring.fetch(p, v, kBefore);
  keep_router<kSmall>(p, v);
  if constexpr (kRows != 1) {
    auto* zeros = reinterpret_cast<uint32_t*>(v.shared + p.zeros);
    for (uint32_t i = threadIdx.x; i < fixed_map(1).bytes / 4; i += kShareThreads) zeros[i] = 0;
  }
  grid_dependency_wait();
  const uint32_t first = p.before_x != nullptr ? kBefore : kUp,
                 last = p.n_after != 0 ? kAfter : kDown;
  const bool present = v.has_row(p);
  const auto stages = [&](uint32_t phase) { return present && v.part() < units_of(p, phase); };
  LaneWords words = {};
  if (stages(first)) words.look(row_of(p, v, first), v.part(), v.lane);
  const uint32_t r = v.lane % kPanelRows, o = (blockIdx.x + v.part() * gridDim.x) * kPanelRows + r;
  const bool mine = present && v.part() < groups_of(p.out_panels), half = v.lane < kPanelRows;
  // Of x, which with `add` is y.
  float value = mine ? __ldcg(p.x + uint64_t{v.row()} * p.x_stride + o) : 0.0f;
  const uint32_t launches = present ? __ldcg(of_row(p, v, p.sync) + blockIdx.x) : 0;
  uint32_t number = 0;
#pragma unroll 1
  for (uint32_t phase = first;; ++phase) {
    if (phase != first && stages(phase)) words.look(row_of(p, v, phase), v.part(), v.lane);
    if (phase == kUp) {
      if (phase == first) number = after(launches);
      // x is known: its words, and its part of the logits. Every launch writes every word, so that
      // no word is older than the launch before.
      if (mine && half) put_value(of_row(p, v, p.x1), o, value, number);
      leave_own(p, v, mine && half, r, o, value);
      meet();
      if (present) add_to_logits(p, v, number);
      if (v.lane == 0) mbarrier_arrive(shared_address(&v.slots->added));
    }
    float norm = 1.0f;
    if (phase == kDown) mbarrier_wait(shared_address(&v.slots->weighed), 0);
    take_row(p, v, phase, words, number);
    if (phase == kBefore) number = after(launches);
    if (phase == kUp && v.lane == 0) mbarrier_arrive(shared_address(&v.slots->squared));
    meet();
    if (phase == kUp) {
      norm = norm_factor(p, v, p.norm_weight != nullptr, p.norm_eps);
      mbarrier_wait(shared_address(&v.slots->chosen), 0);
    }
    if (phase == kAfter) norm = norm_factor(p, v, p.after_norm != nullptr, p.after_eps);
    run_phase(p, v, ring, phase);
    meet();
    if (phase == kUp) {
      leave_hidden(p, v, norm, number);
      grid_dependents_launch();
    } else if (phase == kAfter) {
      store_after(p, v, norm);
    } else if (mine) {
      if (phase == kDown && !p.add) value = 0.0f;
      value += group_sum(p, v, v.part());
      if (phase == kDown && half) {
        p.y[uint64_t{v.row()} * p.y_stride + o] = value;
        put_value(of_row(p, v, p.y1), o, value, number);
      }
    }
    if (phase == last) break;
  }
  if (v.part() == 0 && v.lane == 0 && present) of_row(p, v, p.sync)[blockIdx.x] = number;
}

/// kSmall: for devices whose blocks have no room for two units of every warp, or that cannot copy
/// in bulk.
template <uint32_t kRows, uint32_t kPerLane, bool kSmall>
__global__ void __launch_bounds__(kShareThreads + 32 * kRows, 1)
    moe_step_kernel(const __grid_constant__ StepArgs p) {
  if constexpr (!kHasBulkCopy && !kSmall) return;  // the host never launches it there
  extern __shared__ __align__(128) uint8_t shared[];
  View<kRows> v;
  v.shared = shared;
  v.misc = reinterpret_cast<Misc*>(shared + p.misc);
  v.slots = reinterpret_cast<Slots*>(shared + p.slots);
  v.warp = threadIdx.x / 32;
  v.lane = threadIdx.x % 32;
  if (threadIdx.x == kShareThreads) {
    mbarrier_init(shared_address(&v.slots->chosen), 32);
    mbarrier_init(shared_address(&v.slots->weighed), 32 * kRows);
    mbarrier_init(shared_address(&v.slots->added), kShareWarps);
    mbarrier_init(shared_address(&v.slots->squared), kShareWarps);
    keep_rows(p, v);
  }
  __syncthreads();
  if (v.warp < kShareWarps) {
    compute<kRows, kSmall>(p, v);
  } else {
    __syncwarp();
    route<kPerLane>(p, v);
  }
}

using Kernel = void (*)(StepArgs);
template <uint32_t kRows, bool kSmall>
constexpr Kernel kKernels[] = {moe_step_kernel<kRows, 2, kSmall>, moe_step_kernel<kRows, 4, kSmall>,
                               moe_step_kernel<kRows, 8, kSmall>,
                               moe_step_kernel<kRows, kMaxExperts / 32, kSmall>};
/// f(kernels, rows that they are for): by the number of experts.
template <bool kSmall, class Fn>
Status with_kernels(uint32_t n_rows, const Fn& f) {
  static_assert(kMaxMoeStepRows == 4);
  if (n_rows <= 1) return f(kKernels<1, kSmall>, 1u);
  if (n_rows == 2) return f(kKernels<2, kSmall>, 2u);
  return f(kKernels<4, kSmall>, 4u);
}

/// Rows `first` to `first` + n of a step.
MoeStepParams some_rows(const MoeStepParams& all, uint32_t first, uint32_t n) {
  MoeStepParams m = all;
  m.moe.n_rows = m.before.n_rows = m.after.n_rows = n;
  m.moe.x += first * all.moe.x_stride;
  m.moe.y += first * all.moe.y_stride;
  m.ids += first * all.moe.n_used;
  m.weights += first * all.moe.n_used;
  for (MatmulParams* near : {&m.before, &m.after}) {
    if (near->n_tasks == 0) continue;
    near->x += first * near->x_stride;
    for (uint32_t t = 0; t < near->n_tasks; ++t)
      near->tasks[t].y += first * near->tasks[t].y_stride;
  }
  return m;
}

Status launch_rows(const KernelConfig& config, const MoeStepParams& m, cudaStream_t stream,
                   const MoeStepTuning& tuning) {
  const MoeParams& e = m.moe;
  StepArgs p = {};
  LaunchShape shape;
  shape.shared_bytes = shape_step(config, m, tuning, &p);
  if (shape.shared_bytes == 0)
    return Status::error(Code::kInternal, "kernel moe_step has no room in shared memory");
  place_step(m, m.sync, &p);
  p.x = e.x;
  p.x_stride = static_cast<uint32_t>(e.x_stride);
  p.y_stride = static_cast<uint32_t>(e.y_stride);
  p.before_stride = static_cast<uint32_t>(m.before.x_stride);
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
  for (uint32_t t = 0; t < m.after.n_tasks; ++t) {
    p.after_y[t] = m.after.tasks[t].y;
    p.after_stride[t] = static_cast<uint32_t>(m.after.tasks[t].y_stride);
  }
  shape.grid = dim3(static_cast<uint32_t>(config.device.n_sm));
  shape.stream = stream;
  shape.pdl = config.pdl;
  shape.cooperative = tuning.cooperative;
  const auto launch = [&](const auto& kernels, uint32_t rows) {
    const uint32_t n = p.n_experts, i = n <= 64 ? 0 : n <= 128 ? 1 : n <= 256 ? 2 : 3;
    shape.block = dim3(kShareThreads + 32 * rows);
    return launch_kernel("moe_step", shape, kernels[i], p);
  };
  return p.small ? with_kernels<true>(p.n_rows, launch) : with_kernels<false>(p.n_rows, launch);
}

}  // namespace

Status launch_moe_step(const KernelConfig& config, const MoeStepParams& m, cudaStream_t stream,
                       const MoeStepTuning& tuning) {
  const MoeParams& e = m.moe;
  const uint32_t n = e.n_rows;
  if (!moe_step_takes(config, m) || reinterpret_cast<uintptr_t>(e.x) % 16 != 0 ||
      reinterpret_cast<uintptr_t>(m.sync) % 128 != 0) {
    return Status::error(
        Code::kInternal,
        "kernel moe_step cannot take %u rows for %u of %u experts of %u x %u weights", n, e.n_used,
        m.router.n_out, e.gate.n_out, e.gate.n_in);
  }
  for (uint32_t first = 0; first < n; first += kMaxMoeStepRows) {
    const MoeStepParams part = some_rows(m, first, std::min(kMaxMoeStepRows, n - first));
    SHARPI_TRY(launch_rows(config, part, stream, tuning));
  }
  return Status::ok();
}

Status prepare_moe_step(const KernelConfig& config) {
  const auto prepare = [&](const auto& kernels, uint32_t) {
    for (const Kernel kernel : kernels) {
      SHARPI_TRY(
          kernel_status(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             config.device.shared_per_block),
                        "moe_step"));
    }
    return Status::ok();
  };
  for (uint32_t rows = 1; rows <= kMaxMoeStepRows; rows *= 2) {
    SHARPI_TRY(with_kernels<false>(rows, prepare));
    SHARPI_TRY(with_kernels<true>(rows, prepare));
  }
  return Status::ok();
}

}  // namespace sharpi::cuda
