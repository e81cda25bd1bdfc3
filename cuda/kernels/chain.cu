// SPDX-License-Identifier: MIT
// Products of one row, one after the other, in one launch of one block a multiprocessor: sixteen
// warps compute, one more copies.
// Weights are constants: every warp knows from the start which units (16 rows x 256 columns) of
// which product it will read, and keeps its ring in shared memory full of them, across products and
// from before the grid dependency resolves. Between products the blocks meet: a counter in device
// memory that only grows. What a product costs besides its bytes (the sums of its pieces, the way
// of its outputs through L2 and of the next input into shared memory) passes while the rings fill.
// A block owns whole panels (16 rows) of each product; the blocks that get one more take turns from
// product to product, and the rings even out the rest.
// Bound: W bytes / memory bandwidth, while the units in the rings last longer than a meeting.
#include <algorithm>

#include "cuda/kernels/chain.h"
#include "cuda/kernels/chain_stage.cuh"
#include "cuda/kernels/gemm.h"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/unit_product.cuh"

namespace sharpi::cuda {
namespace {

/// The warp that copies: lane w keeps the ring of warp w full. What is under way stays limited:
/// whatever else a block reads would wait behind it.
template <uint32_t kWarps>
struct Feed {
  const uint8_t* next;
  uint32_t bytes;           // of the next unit; 0 = no more
  uint32_t panel;           // in the table
  uint32_t in_panel, left;  // units left, the next one counted, in the panel and in the product
  uint32_t product;
  uint32_t head, issued, units;    // of the ring; bytes (lost ones counted) and units so far
  uint32_t landed, landed_parity;  // slot of the oldest unit under way
  uint32_t under_way, under_way_bytes;

  __device__ __forceinline__ void enter(const ChainLaunch& p, const ChainView& view) {
    bytes = 0;
    for (; product < p.n_products; ++product) {
      const uint32_t n = p.products[product].units;
      const Work& work = work_of(p, view.shared, product);
      const Share s = share_of<kWarps>(work.n_panels, n, view.lane);
      if (s.count == 0) continue;
      const uint32_t v = s.first / n, u = s.first - v * n;
      panel = work.base + v;
      in_panel = n - u;
      left = s.count;
      const ChainPanel& e = panel_table(p, view.shared)[panel];
      bytes = e.unit_bytes;
      next = e.data + u * bytes;
      return;
    }
  }
  __device__ __forceinline__ void advance(const ChainLaunch& p, const ChainView& view) {
    next += bytes;
    --in_panel;
    if (--left == 0) {
      ++product;
      enter(p, view);
    } else if (in_panel == 0) {
      const ChainPanel& e = panel_table(p, view.shared)[++panel];
      next = e.data;
      bytes = e.unit_bytes;
      in_panel = p.products[product].units;
    }
  }
  /// One round: what has landed, what was freed, one more unit.
  __device__ __forceinline__ void round(const ChainLaunch& p, const ChainView& view) {
    const uint32_t barriers = shared_address(view.shared) + p.barriers + view.lane * kSlots * 8;
    if (under_way != 0 && mbarrier_done(barriers + landed * 8, landed_parity)) {
      if (--under_way == 0) under_way_bytes = 0;
      landed = (landed + 1) % kSlots;
      landed_parity ^= landed == 0 ? 1u : 0u;
    }
    const uint32_t all = __reduce_add_sync(~0u, under_way == 0 ? 0 : under_way * bytes);
    if (bytes == 0 || under_way + 1 == kSlots || (under_way != 0 && all >= p.ahead)) return;
    const uint2 freed = load_freed(shared_address(view.shared) + p.freed + view.lane * 8);
    const bool wraps = head + bytes > p.ring_bytes;
    const uint32_t taken = bytes + (wraps ? p.ring_bytes - head : 0);
    if (issued - freed.x + taken > p.ring_bytes || units - freed.y == kSlots) return;
    const uint32_t to = wraps ? 0 : head, bar = barriers + units % kSlots * 8;
    mbarrier_expect(bar, bytes);
    bulk_copy(shared_address(view.shared) + view.lane * p.ring_bytes + to, next, bytes, bar);
    issued += taken;
    head = to + bytes;
    ++units;
    ++under_way;
    advance(p, view);
  }
};

template <uint32_t kWarps>
__device__ __forceinline__ void feed_rings(const ChainLaunch& p, const ChainView& view) {
  Feed<kWarps> feed = {};
  if (view.lane < kWarps) feed.enter(p, view);
  while (__any_sync(~0u, feed.bytes != 0)) feed.round(p, view);
}

/// Where the warp reads its ring.
struct Take {
  uint32_t tail, slot, parity;
  uint32_t freed, units;  // what it has given back so far
};

struct Position {
  uint32_t v, u, left;  // unit u of panel v of the block's part; units to go
};

/// Leaves the warp's piece of panel v. Panel and warp only ever grow along the units, and never
/// stay both: their sum is a slot of its own for every piece.
template <bool kPairs>
__device__ __forceinline__ void leave_piece(const ChainLaunch& p, const ChainView& view, uint32_t v,
                                            bool first, bool last, const FixedSums& acc) {
  float sum[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    sum[h] = acc.split[h] + __shfl_xor_sync(~0u, acc.split[h], 1);
    sum[h] += __shfl_xor_sync(~0u, sum[h], 2);
    sum[h] += kPairs ? acc.whole[h] + __shfl_xor_sync(~0u, acc.whole[h], 1) : acc.whole[h];
  }
  float* part = reinterpret_cast<float*>(view.shared + p.part) + (v + view.warp) * kPanelRows;
  if (view.lane % 4 == 0) {
    part[view.lane / 4] = sum[0];
    part[view.lane / 4 + 8] = sum[1];
  }
  if (view.lane == 0) {
    auto* range = reinterpret_cast<uint32_t*>(view.shared + p.range) + 2 * v;
    if (first) range[0] = view.warp;
    if (last) range[1] = view.warp;
  }
}

/// Products of the warp's next units, as long as their panels are of this type.
template <GgmlType kType, uint32_t kWarps>
__device__ __forceinline__ void take_units(const ChainLaunch& p, const ChainProduct& q,
                                           const ChainView& view, const ChainPanel* panels,
                                           Take& take, Position& at) {
  const FixedMap map = fixed_map(q.units);
  const uint8_t* image = view.shared + p.image;
  const uint8_t* x = image + view.lane / 4 % 2 * 32 + view.lane % 4 * 8;
  const auto* sums = reinterpret_cast<const float*>(image + map.sums);
  const auto* inverse = reinterpret_cast<const float*>(image + map.inverse);
  const uint8_t* ring = view.shared + view.warp * p.ring_bytes;
  const uint32_t give_back = shared_address(view.shared) + p.freed + view.warp * 8;
  bool same = true;
#pragma unroll 1
  while (same) {
    FixedSums acc;
    const uint32_t bytes = panels[at.v].unit_bytes;
    const uint32_t begin = at.u, end = min(q.units, begin + at.left);
#pragma unroll 1
    for (uint32_t u = begin; u < end; ++u) {
      const bool wraps = take.tail + bytes > p.ring_bytes;
      const uint32_t freed = bytes + (wraps ? p.ring_bytes - take.tail : 0);
      const uint32_t from = wraps ? 0 : take.tail;
      const FixedInputs in = {x + u * 512, sums + u * 8, inverse[u]};
      mbarrier_wait(view.barriers + take.slot * 8, take.parity);
      FixedProduct<kType>::add(ring + from, in, static_cast<int>(view.lane), acc);
      __syncwarp();
      take.freed += freed;
      ++take.units;
      if (view.lane == 0) store_freed(give_back, {take.freed, take.units});
      take.tail = from + bytes;
      take.slot = (take.slot + 1) % kSlots;
      take.parity ^= take.slot == 0 ? 1u : 0u;
    }
    leave_piece<FixedProduct<kType>::kPairs>(p, view, at.v, begin == 0, end == q.units, acc);
    at.left -= end - begin;
    at.u = 0;
    ++at.v;
    same = at.left != 0 && panels[at.v].type == kType;
  }
}

template <uint32_t kWarps>
__device__ __forceinline__ void take_panels(const ChainLaunch& p, uint32_t k, const ChainView& view,
                                            const Work& work, Take& take) {
  const ChainProduct& q = p.products[k];
  const ChainPanel* panels = panel_table(p, view.shared) + work.base;
  const Share s = share_of<kWarps>(work.n_panels, q.units, view.warp);
  Position at;
  at.left = s.count;
  at.v = s.first / q.units;
  at.u = s.first - at.v * q.units;
  const auto run = [&]<GgmlType kType>() {
    take_units<kType, kWarps>(p, q, view, panels, take, at);
  };
  while (at.left != 0) {
    switch (panels[at.v].type) {
      case GgmlType::kQ8_0:
        run.template operator()<GgmlType::kQ8_0>();
        break;
      case GgmlType::kQ4_0:
        run.template operator()<GgmlType::kQ4_0>();
        break;
      case GgmlType::kQ4_K:
        run.template operator()<GgmlType::kQ4_K>();
        break;
      case GgmlType::kQ5_K:
        run.template operator()<GgmlType::kQ5_K>();
        break;
      default:
        run.template operator()<GgmlType::kQ6_K>();
        break;
    }
  }
}

/// The block's part of each product, and the table of its panels: a product each warp.
template <uint32_t kWarps>
__device__ __forceinline__ void lay_out(const ChainLaunch& p, const ChainView& view) {
  if (view.warp >= p.n_products) return;
  const auto turn_of = [&](const ChainSplit& s) {
    const uint32_t turn = blockIdx.x + gridDim.x - s.first;
    return turn >= gridDim.x ? turn - gridDim.x : turn;
  };
  uint32_t base = 0;
  for (uint32_t k = 0; k < view.warp; ++k) {
    const ChainSplit& s = p.splits[k];
    base += (s.groups + (turn_of(s) < s.more ? 1 : 0)) * s.members;
  }
  const ChainSplit& split = p.splits[view.warp];
  const ChainProduct& q = p.products[view.warp];
  const uint32_t turn = turn_of(split);
  const uint32_t n = split.groups + (turn < split.more ? 1 : 0), n_panels = n * split.members;
  const uint32_t first = turn * split.groups + min(turn, split.more);
  if (view.lane == 0)
    reinterpret_cast<Work*>(view.shared + p.works)[view.warp] = {base, n, n_panels, 0};
  auto* table = reinterpret_cast<ChainPanel*>(view.shared + p.panels);
  for (uint32_t v = view.lane; v < n_panels; v += 32) {
    uint32_t t = v >= n ? 1 : 0;
    const uint32_t group = first + v - t * n;
    if (split.members == 1) {
      for (uint32_t j = 1; j < q.n_tasks; ++j) t = group >= q.tasks[j].first_group ? j : t;
    }
    const ChainTask& task = q.tasks[t];
    const uint32_t panel = split.members == 2 ? group : group - task.first_group;
    ChainPanel e = {};
    e.data = task.data + uint64_t{panel} * task.panel_bytes;
    e.y = task.y + panel * kPanelRows;
    e.unit_bytes = task.unit_bytes;
    e.type = task.type;
    table[base + v] = e;
  }
}

/// 1 / rms of the input, from the squares of its units.
__device__ __forceinline__ float input_norm(const ChainLaunch& p, const ChainProduct& q,
                                            const ChainView& view) {
  if (q.norm_weight == nullptr) return 1.0f;
  const FixedMap map = fixed_map(q.units);
  const auto* squares = reinterpret_cast<const float*>(view.shared + p.image + map.squares);
  float sum = 0.0f;
  for (uint32_t u = view.lane; u < q.units; u += 32) sum += squares[u];
  return rsqrtf(lanes_sum(sum) / static_cast<float>(q.n_in) + q.norm_eps);
}

/// Sum over the warps, in order, of row e of panel v of the block's part.
__device__ __forceinline__ float piece_sum(const ChainLaunch& p, const ChainView& view, uint32_t v,
                                           uint32_t e) {
  const float* part = reinterpret_cast<const float*>(view.shared + p.part) + v * kPanelRows + e;
  const uint2 range = reinterpret_cast<const uint2*>(view.shared + p.range)[v];
  float sum = 0.0f;
#pragma unroll 4
  for (uint32_t w = range.x; w <= range.y; ++w) sum += part[w * kPanelRows];
  return sum;
}

/// The outputs of the block leave; `old` is what kAdd adds to in a thread's first output.
template <uint32_t kWarps>
__device__ __forceinline__ void leave(const ChainLaunch& p, const ChainProduct& q,
                                      const ChainView& view, const Work& work, float norm,
                                      float old) {
  const ChainPanel* panels = panel_table(p, view.shared) + work.base;
  const float scale = q.row_scale != nullptr ? __ldcg(q.row_scale) : 1.0f;
  for (uint32_t at = threadIdx.x; at < work.n_groups * kPanelRows; at += kWarps * 32) {
    const uint32_t group = at / kPanelRows, e = at % kPanelRows;
    float* y = panels[group].y + e;
    const float first = piece_sum(p, view, group, e) * norm;
    if (is_gated(q.epilogue)) {
      *y = gated_value(q.epilogue, first, piece_sum(p, view, work.n_groups + group, e) * norm);
    } else {
      const float before = at == threadIdx.x ? old : __ldcg(y);
      *y = q.epilogue == Epilogue::kAdd ? before + first * scale : first * scale;
    }
  }
}

/// kWarps warps compute, one more copies.
template <uint32_t kWarps>
__global__ void __launch_bounds__(kWarps * 32 + 32, 1)
    chain_kernel(const __grid_constant__ ChainLaunch p) {
  if constexpr (!kHasBulkCopy) return;  // the host never launches it there
  extern __shared__ __align__(128) uint8_t shared_bytes[];
  ChainView view;
  view.shared = shared_bytes;
  view.warp = threadIdx.x / 32;
  view.lane = threadIdx.x % 32;
  view.barriers = shared_address(shared_bytes) + p.barriers + view.warp * kSlots * 8;
  if (view.warp < kWarps && view.lane < kSlots) {
    mbarrier_init(view.barriers + view.lane * 8, 1);
    mbarrier_init_fence();
    if (view.lane == 0) store_freed(shared_address(shared_bytes) + p.freed + view.warp * 8, {0, 0});
  }
  lay_out<kWarps>(p, view);
  __syncthreads();
  if (view.warp == kWarps) {
    feed_rings<kWarps>(p, view);
    return;
  }
  Take take = {};
  prefetch_norms<kWarps>(p.products[0]);
  grid_dependency_wait();
  grid_dependents_launch();
  unsigned long long meeting = 0;  // how many arrivals the next meeting takes

#pragma unroll 1
  for (uint32_t k = 0; k < p.n_products; ++k) {
    const ChainProduct& q = p.products[k];
    const Work& work = work_of(p, view.shared, k);
    if (k != 0) {
      prefetch_norms<kWarps>(q);
      if (threadIdx.x == 0) {
        while (arrivals_at(p.arrivals) < meeting) {
        }
        meeting += gridDim.x;
      }
      meet<kWarps>();
    }
    if (q.branch != nullptr) {
      stage_branch<kWarps>(p, q, view);
    } else {
      stage_row<kWarps>(p, q, view);
    }
    float old = 0.0f;
    if (q.epilogue == Epilogue::kAdd && threadIdx.x < work.n_groups * kPanelRows) {
      const ChainPanel* panels = panel_table(p, view.shared) + work.base;
      old = __ldcg(panels[threadIdx.x / kPanelRows].y + threadIdx.x % kPanelRows);
    }
    meet<kWarps>();
    take_panels<kWarps>(p, k, view, work, take);
    const float norm = input_norm(p, q, view);
    meet<kWarps>();
    leave<kWarps>(p, q, view, work, norm, old);
    if (k + 1 < p.n_products) {
      meet<kWarps>();
      if (threadIdx.x == 0) {
        const unsigned long long before = arrive_at(p.arrivals);
        if (k == 0) meeting = before - before % gridDim.x + gridDim.x;
      }
    }
  }
}

// ---- host --------------------------------------------------------------------------------------

uint32_t groups_of(const MatmulParams& m) {
  uint32_t n = 0;
  const uint32_t counted = is_gated_epilogue(m.epilogue) ? 1 : m.n_tasks;
  for (uint32_t t = 0; t < counted; ++t) n += m.tasks[t].w.n_out / kPanelRows;
  return n;
}

ChainTask chain_task(const MatmulTask& t, uint32_t first_group) {
  const GgmlTypeTraits& traits = ggml_traits(t.w.type);
  ChainTask c = {};
  c.data = reinterpret_cast<const uint8_t*>(t.w.data);
  c.y = t.y;
  c.panel_bytes = static_cast<uint32_t>(ggml_row_bytes(t.w.type, t.w.n_in) * kPanelRows);
  c.unit_bytes = kUnitColumns / traits.block_elements * traits.block_bytes * kPanelRows;
  c.first_group = first_group;
  c.type = t.w.type;
  return c;
}

ChainProduct chain_product(const ChainStep& step) {
  const MatmulParams& m = step.product;
  ChainProduct q = {};
  q.x = m.x;
  q.norm_weight = m.norm_weight;
  q.norm_eps = m.norm_eps;
  q.row_scale = m.row_scale;
  q.branch = step.branch.y;
  q.branch_weight = step.branch.weight;
  q.branch_eps = step.branch.eps;
  q.branch_scale = step.branch.scale;
  q.x_out = step.branch.x_out;
  q.n_in = m.tasks[0].w.n_in;
  q.units = q.n_in / kUnitColumns;
  q.epilogue = m.epilogue;
  uint32_t group = 0;
  for (uint32_t t = 0; t < m.n_tasks; ++t) {
    q.tasks[q.n_tasks++] = chain_task(m.tasks[t], group);
    group += m.tasks[t].w.n_out / kPanelRows;
  }
  return q;
}

/// Offsets in shared memory, and what is left for the rings; 0 bytes when it is too little.
void divide_memory(ChainLaunch* l, uint32_t limit) {
  uint32_t units = 0, panels = 0, all_panels = 0, widest = 0;
  for (uint32_t k = 0; k < l->n_products; ++k) {
    const ChainProduct& q = l->products[k];
    const uint32_t n =
        (l->splits[k].groups + (l->splits[k].more != 0 ? 1 : 0)) * l->splits[k].members;
    units = std::max(units, q.units);
    panels = std::max(panels, n);
    all_panels += n;
    for (uint32_t t = 0; t < q.n_tasks; ++t) {
      const ChainTask& c = q.tasks[t];
      widest = std::max(widest, c.unit_bytes);
    }
  }
  const uint32_t image = (fixed_map(units).bytes + 127) / 128 * 128;
  const uint32_t part = (panels + kChainWarps) * kPanelRows * 4,
                 range = (panels * 8 + 15) / 16 * 16;
  const uint32_t rest = image + part + range +
                        all_panels * static_cast<uint32_t>(sizeof(ChainPanel)) + kChainWarps * 4 +
                        kMaxChainSteps * static_cast<uint32_t>(sizeof(Work)) +
                        kChainWarps * (kSlots * 8 + 8);
  l->ring_bytes = limit > rest ? (limit - rest) / kChainWarps / 128 * 128 : 0;
  if (l->ring_bytes < 2 * widest) l->ring_bytes = 0;
  l->image = l->ring_bytes * kChainWarps;
  l->part = l->image + image;
  l->range = l->part + part;
  l->panels = l->range + range;
  l->sums = l->panels + all_panels * static_cast<uint32_t>(sizeof(ChainPanel));
  l->works = l->sums + kChainWarps * 4;
  l->freed = l->works + kMaxChainSteps * static_cast<uint32_t>(sizeof(Work));
  l->barriers = l->freed + kChainWarps * 8;
}

}  // namespace

bool has_chains(const MatmulConfig& config) {
  // Rings of less shared memory (some devices after 9.0 have 99 KB) would not outlast a meeting.
  constexpr int kLeastShared = 200 << 10;
  return config.compute_capability >= 90 && config.max_shared_bytes >= kLeastShared &&
         !config.exact && !config.deterministic;
}

bool chain_takes(const MatmulConfig& config, const ChainStep& step) {
  const MatmulParams& m = step.product;
  if (!has_chains(config) || m.force_f32 || m.n_rows != 1 || m.n_tasks == 0) return false;
  // Columns that the warps have in registers at once.
  const uint32_t n_in = m.tasks[0].w.n_in, at_once = kChainWarps * kUnitColumns;
  const bool branch = step.branch.y != nullptr;
  bool tiles = true;
  for (uint32_t t = 0; t < m.n_tasks; ++t) {
    tiles = tiles && m.tasks[t].w && m.tasks[t].w.layout == WeightLayout::kTiles &&
            has_fixed_product(m.tasks[t].w.type) && m.tasks[t].w.n_in == n_in;
  }
  const uint32_t panels = groups_of(m) / static_cast<uint32_t>(config.n_sm) + 1;
  return tiles && n_in % kUnitColumns == 0 && (!branch || n_in <= at_once * kBranchUnits) &&
         n_in <= kMaxColumns && panels <= kMaxPanels / 4;
}

namespace {

/// The steps as a launch takes them; ring_bytes 0: no room.
ChainLaunch make_launch(const MatmulConfig& config, const ChainStep* steps, uint32_t n_steps,
                        std::byte* sync, const ChainTuning& tuning) {
  const auto blocks = static_cast<uint32_t>(config.n_sm);
  ChainLaunch l = {};
  l.arrivals = reinterpret_cast<unsigned long long*>(sync);
  uint32_t first_more = 0;
  for (uint32_t k = 0; k < n_steps; ++k) {
    l.products[l.n_products++] = chain_product(steps[k]);
    const uint32_t n = groups_of(steps[k].product);
    const bool gated = is_gated_epilogue(steps[k].product.epilogue);
    l.splits[k] = {n / blocks, n % blocks, first_more, gated ? 2u : 1u};
    first_more = (first_more + n % blocks) % blocks;
  }
  divide_memory(&l, static_cast<uint32_t>(config.max_shared_bytes));
  l.ahead = tuning.ahead;
  return l;
}

}  // namespace

bool chain_fits(const MatmulConfig& config, const ChainStep* steps, uint32_t n_steps) {
  return n_steps <= kMaxChainSteps &&
         make_launch(config, steps, n_steps, nullptr, {}).ring_bytes != 0;
}

Status launch_chain(const MatmulConfig& config, const ChainStep* steps, uint32_t n_steps,
                    std::byte* sync, cudaStream_t stream, const ChainTuning& tuning) {
  if (n_steps == 0 || n_steps > kMaxChainSteps || sync == nullptr) {
    return Status::error(Code::kInternal, "chain of %u products", n_steps);
  }
  for (uint32_t k = 0; k < n_steps; ++k) {
    if (!chain_takes(config, steps[k]))
      return Status::error(Code::kInternal, "chain: product %u does not fit", k);
  }
  const ChainLaunch l = make_launch(config, steps, n_steps, sync, tuning);
  if (l.ring_bytes == 0) return Status::error(Code::kInternal, "chain: no room for rings");
  LaunchShape shape;
  shape.grid = dim3(static_cast<uint32_t>(config.n_sm));
  shape.block = dim3(kChainWarps * 32 + 32);
  shape.shared_bytes = l.barriers + kChainWarps * kSlots * 8;
  shape.stream = stream;
  shape.pdl = config.pdl;
  shape.cooperative = tuning.cooperative;
  return launch_kernel("chain", shape, chain_kernel<kChainWarps>, l);
}

Status prepare_chain(int max_shared_bytes) {
  return kernel_status(
      cudaFuncSetAttribute(chain_kernel<kChainWarps>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           max_shared_bytes),
      "chain");
}

}  // namespace sharpi::cuda
