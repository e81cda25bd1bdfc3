// SPDX-License-Identifier: MIT
#include "cuda/kernels/moe/moe_step_plan.h"

#include <algorithm>

#include "cuda/kernels/products/fixed_map.h"
#include "cuda/kernels/products/gemm.h"

namespace sharpi::cuda {
namespace {

using namespace step;

Slab make_slab(const DeviceMatrix& w) {
  Slab s = {};
  if (!w) return s;
  s.data = reinterpret_cast<const uint8_t*>(w.data);
  s.expert_bytes = w.expert_bytes;
  s.panel_bytes = panel_bytes_of(w.type, w.n_in);
  s.unit_bytes = unit_bytes_of(w.type);
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

uint64_t shape_memory(uint32_t n_embd, uint32_t hidden, uint32_t shared_hidden, std::byte* sync,
                      StepArgs* p) {
  uint64_t at = kHeadBytes;
  const auto take = [&](uint64_t** to, uint64_t n) {
    // Without memory it is only asked how much there has to be.
    *to = sync != nullptr ? reinterpret_cast<uint64_t*>(sync + at) : nullptr;
    at += (n + 15) / 16 * 16 * sizeof(uint64_t);
  };
  take(&p->logits, kLogitWords);
  take(&p->x1, n_embd / 2);
  take(&p->h, (uint64_t{hidden} + shared_hidden) / 2);
  take(&p->y1, n_embd / 2);
  return (at + 127) / 128 * 128;
}

void shape_work(const KernelConfig& config, const MoeStepParams& m, StepArgs* p) {
  const MoeParams& e = m.moe;
  const auto grid = static_cast<uint32_t>(config.device.n_sm);
  p->n_embd = e.gate.n_in;
  const uint32_t d_ff = e.gate.n_out, d_shared = m.shared_down ? m.shared_down.n_in : 0;
  p->n_experts = m.router.n_out;
  p->n_used = e.n_used;
  p->router_rows = p->n_experts + (m.shared_gate_inp != nullptr ? 1 : 0);
  p->n_rows = e.n_rows;
  p->units = p->n_embd / kUnitColumns;
  p->ff_units = d_ff / kUnitColumns;
  p->before_units = m.before.n_tasks != 0 ? m.before.tasks[0].w.n_in / kUnitColumns : 1;
  p->routed_units = p->n_used * p->ff_units;
  p->row_units = p->routed_units + d_shared / kUnitColumns;
  p->expert_panels = d_ff / kPanelRows;
  p->shared_pairs = d_shared / kPanelRows;
  p->routed_pairs = p->n_used * p->expert_panels;
  // As many as there can be: several rows may have experts in common.
  p->pairs = groups_of_all(e.n_rows * p->routed_pairs + p->shared_pairs, grid);
  p->out_panels = groups_of_all(p->n_embd / kPanelRows, grid);
  p->n_parts = std::min(p->n_embd / kPanelRows, grid);
  p->part_limit = static_cast<float>((kMostSum >> 1) / p->n_parts);
  uint32_t after = 0;
  for (uint32_t t = 0; t < m.after.n_tasks; ++t) {
    p->first_panel[t] = after;
    after += m.after.tasks[t].w.n_out / kPanelRows;
  }
  p->after_panels = groups_of_all(after, grid);
  p->by_units = make_divider(p->units);
  p->by_panels = make_divider(p->expert_panels);
  p->by_row_units = make_divider(p->row_units);
  p->by_ff_units = make_divider(p->ff_units);
  p->by_before = make_divider(p->before_units);
}

/// Rows that a launch's kernel is for.
uint32_t image_rows(uint32_t n_rows) {
  return n_rows <= 2 ? n_rows : kMaxMoeStepRows;
}
/// From a row's image to the next one's: neighbours lie in different halves of the banks, because
/// half a warp reads the columns of two rows at once.
uint32_t image_pitch(uint32_t units) {
  return (fixed_map(units).bytes + 127) / 128 * 128 + 64;
}

constexpr uint32_t kWishedRing = 9u << 10;  // bytes of a ring that the rest leaves, if it can

/// The products in front and behind.
bool neighbours_agree(const MoeStepParams& m) {
  const MatmulParams &b = m.before, &a = m.after;
  bool ok = b.n_tasks <= 1 && a.n_tasks <= kMaxMatmulTasks;
  if (b.n_tasks != 0) {
    ok = ok && has_unit_shares(b.tasks[0].w) && b.tasks[0].w.n_out == m.moe.gate.n_in &&
         b.epilogue == Epilogue::kAdd && b.tasks[0].y == m.moe.x && b.norm_weight == nullptr &&
         b.row_scale == nullptr && b.tasks[0].bias == nullptr && b.n_rows == m.moe.n_rows &&
         !b.force_f32 && m.moe.add;
  }
  if (a.n_tasks != 0) {
    ok = ok && a.epilogue == Epilogue::kStore && a.x == m.moe.y && a.row_scale == nullptr &&
         a.n_rows == m.moe.n_rows && !a.force_f32;
  }
  for (uint32_t t = 0; ok && t < a.n_tasks; ++t)
    ok = has_unit_shares(a.tasks[t].w) && a.tasks[t].bias == nullptr &&
         a.tasks[t].w.n_in == m.moe.gate.n_in;
  return ok && (!m.moe.add || m.moe.x == m.moe.y);
}

bool shapes_agree(const MoeStepParams& m) {
  const MoeParams& e = m.moe;
  bool ok = e.n_rows != 0 && e.n_rows <= kMaxMoeStepRows && e.n_used != 0 &&
            e.n_rows * e.n_used <= kMaxExpertsUsed && is_gated_epilogue(e.activation) &&
            !m.router_bias && !m.other_scores && !e.gate_bias && !e.up_bias && !e.down_bias &&
            m.router.type == GgmlType::kF32 && m.router.layout == WeightLayout::kRows &&
            m.router.n_in == e.gate.n_in && e.n_used <= m.router.n_out &&
            m.router.n_out <= kMaxExperts;
  const auto expert = [&](const DeviceMatrix& gate, const DeviceMatrix& up,
                          const DeviceMatrix& down) {
    ok = ok && has_unit_shares(gate) && has_unit_shares(up) && has_unit_shares(down) &&
         gate.n_out == up.n_out && gate.n_in == up.n_in && down.n_in == gate.n_out &&
         down.n_out == gate.n_in;
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

uint32_t step::shape_step(const KernelConfig& config, const MoeStepParams& m,
                          const MoeStepTuning& tuning, StepArgs* p) {
  set_slabs(m, p);
  shape_work(config, m, p);
  uint32_t widest = 0;
  for (const Slab& s : p->slabs) widest = std::max(widest, s.unit_bytes);
  const uint32_t groups =
      std::max({2 * (p->pairs.each + 1), p->out_panels.each + 1, p->after_panels.each + 1});
  const uint32_t most_units = std::max({p->units, p->row_units, p->before_units}),
                 all_units = p->n_rows * p->row_units;
  if (groups > kMostGroups || most_units > kMostUnits || all_units > kMostUnits) return 0;
  const uint32_t rows = image_rows(p->n_rows);
  uint32_t bytes = 0;
  const auto take = [&](uint32_t* at, uint32_t n) {
    *at = bytes;
    bytes += (n + 15) / 16 * 16;
  };
  p->image_bytes = image_pitch(most_units);
  take(&p->image, rows == 1 ? fixed_map(most_units).bytes : rows * p->image_bytes);
  if (rows != 1) take(&p->zeros, fixed_map(1).bytes);
  take(&p->part, rows * piece_bytes(groups));
  take(&p->range, piece_range_bytes(groups));
  take(&p->misc, sizeof(Misc));
  take(&p->slots, sizeof(Slots));
  const auto limit = static_cast<uint32_t>(config.device.shared_per_block) - tuning.spare;
  const bool bulk = config.device.bulk_copies;
  p->small = !bulk || bytes + kShareWarps * 2 * widest > limit;
  if (bytes + kShareWarps * widest > limit) return 0;
  // Constant rows and columns of the router, if they leave enough to the rings.
  const uint32_t panels = p->out_panels.each + (p->out_panels.more != 0 ? 1 : 0),
                 norms = kKeptNorms * p->n_embd * 4,
                 router = panels * p->router_rows * kPanelRows * 4;
  p->keeps = bulk && bytes + norms + router + kShareWarps * kWishedRing <= limit;
  if (p->keeps) {
    take(&p->rows, norms);
    take(&p->router_at, router);
  }
  // Rings have room for a unit at least, whatever is asked for.
  const uint32_t least = (widest + 127) / 128 * 128;
  p->ring_bytes =
      std::max(std::min((limit - bytes) / kShareWarps, tuning.ring_bytes) / 128 * 128, least);
  if (bytes + kShareWarps * p->ring_bytes > limit) return 0;
  const uint32_t rings = kShareWarps * p->ring_bytes;
  for (uint32_t* at :
       {&p->image, &p->zeros, &p->part, &p->range, &p->misc, &p->slots, &p->rows, &p->router_at})
    *at += rings;
  return rings + bytes;
}

uint64_t step::place_step(const MoeStepParams& m, std::byte* sync, StepArgs* p) {
  const uint32_t d_shared = m.shared_down ? m.shared_down.n_in : 0;
  // Rows are as far apart in every launch, whatever its layer takes.
  p->area = m.sync_bytes / kMaxMoeStepRows;
  return kMaxMoeStepRows *
         shape_memory(m.moe.gate.n_in, m.moe.n_used * m.moe.gate.n_out, d_shared, sync, p);
}

uint64_t moe_step_sync_bytes(uint32_t n_embd, uint32_t hidden, uint32_t shared_hidden) {
  StepArgs p = {};
  return kMaxMoeStepRows * shape_memory(n_embd, hidden, shared_hidden, nullptr, &p);
}

uint32_t max_moe_step_rows(const KernelConfig& config) {
  return config.exact || config.deterministic ? 0 : kMaxMoeLaunches * kMaxMoeStepRows;
}

bool step::launch_takes(const KernelConfig& config, const MoeStepParams& m) {
  if (!shapes_agree(m)) return false;
  StepArgs p = {};
  const auto grid = static_cast<uint32_t>(config.device.n_sm);
  if (grid > kMostSm || shape_step(config, m, {}, &p) == 0) return false;
  // A warp has a panel of a row.
  const uint32_t panels = p.out_panels.each + (p.out_panels.more != 0 ? 1 : 0);
  return panels * image_rows(p.n_rows) <= kShareWarps && m.sync_bytes >= place_step(m, nullptr, &p);
}

bool moe_step_takes(const KernelConfig& config, const MoeStepParams& m) {
  const uint32_t n = m.moe.n_rows;
  if (n == 0 || n > max_moe_step_rows(config)) return false;
  MoeStepParams part = m;
  for (uint32_t first = 0; first < n; first += kMaxMoeStepRows) {
    part.moe.n_rows = std::min(kMaxMoeStepRows, n - first);
    if (m.before.n_tasks != 0 && m.before.n_rows != n) return false;
    if (m.after.n_tasks != 0 && m.after.n_rows != n) return false;
    part.before.n_rows = part.after.n_rows = part.moe.n_rows;
    if (!step::launch_takes(config, part)) return false;
  }
  return true;
}

}  // namespace sharpi::cuda
