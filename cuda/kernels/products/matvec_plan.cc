// SPDX-License-Identifier: MIT
#include "cuda/kernels/products/matvec_plan.h"

#include <algorithm>

namespace sharpi::cuda {
namespace {

using namespace matvec;

/// Who computes what; returns the number of blocks.
uint32_t divide_work(StreamParams* p, uint32_t n_sm) {
  const uint32_t per_group = panels_per_group(*p);
  const uint32_t limit = std::max(1u, (p->n_rows == 1 ? kMaxPanels : kMaxPanels / 2) / per_group);
  uint32_t blocks = std::min(n_sm, p->n_groups);
  // Whole waves, of two blocks a multiprocessor where two fit.
  for (uint32_t m = 2; (p->n_groups + blocks - 1) / blocks > std::min(limit, 32u); m += 2)
    blocks = n_sm * m;
  p->groups = p->n_groups / blocks;
  p->more_groups = p->n_groups % blocks;
  p->max_panels = (p->groups + (p->more_groups != 0 ? 1 : 0)) * per_group;
  return blocks;
}

void share_units(StreamParams* p) {
  for (uint32_t extra = 0; extra < 2; ++extra) {
    const uint32_t all = (p->groups + extra) * panels_per_group(*p) * p->units;
    p->share[extra] = all / p->n_warps;
    p->more_share[extra] = all % p->n_warps;
  }
}

uint32_t block_bytes(const StreamParams& p) {
  if (p.n_rows == 1) return row_map(p).bytes;
  return shared_map(p, image_map(p.n_rows, p.units * p.n_segments, p.n_parts)).bytes;
}

/// The launch with its columns in so many parts, for which a block has so many buffers.
StreamParams in_parts(const StreamParams& p, uint32_t n_parts, uint32_t buffers) {
  StreamParams s = p;
  s.n_parts = n_parts;
  s.units = (p.units + n_parts - 1) / n_parts;
  s.n_absent = s.units * n_parts - p.units;
  s.by_units = make_divider(s.units);
  s.buffers = std::min(buffers, n_parts);
  return s;
}

/// How many units the busiest warp multiplies, one after another.
uint32_t longest_share(const StreamParams& p) {
  return p.n_parts * ((p.max_panels * p.units + p.n_warps - 1) / p.n_warps);
}

/// Whether the last part may be as short: few units are waited for in vain, and the first copies of
/// a warp, which know of equal parts only, end before that part.
bool may_be_short(const StreamParams& p) {
  if (p.n_absent == 0) return true;
  const uint32_t least = std::max(p.groups * panels_per_group(p) * p.units / p.n_warps, 1u);
  return p.n_absent <= kMaxAbsent && p.n_absent < p.units && p.n_stages < (p.n_parts - 1) * least;
}

/// What parts and warps cost beside the fewest and the most, in units of one another part that
/// arrives while the one before is multiplied (measured, see docs/experiments_gpu.md): a part in
/// the only buffer, a part that the warps copy themselves, two thirds of the warps, a third of
/// them; and units that the last part lacks (not measured).
uint32_t cost_of_shape(const StreamParams& p, const DeviceProfile& device, uint32_t most_warps) {
  const uint32_t part = !device.bulk_copies ? 7 : p.buffers == 1 ? 3 : 1;
  const uint32_t fewer = (most_warps - p.n_warps) / 4;
  return (p.n_parts - 1) * part + 3 * p.n_absent + (fewer == 0 ? 0 : fewer == 1 ? 6 : 24);
}

/// Parts, buffers and warps for several rows. Warps have about equal shares of each part, of which
/// the busiest sets the time.
bool choose_parts(const DeviceProfile& device, StreamParams* p) {
  const auto room = static_cast<uint32_t>(device.shared_per_block);
  const uint32_t most_parts = p->n_in % kUnitColumns == 0 ? std::min(kMaxParts, p->units) : 1;
  StreamParams one = in_parts(*p, 1, 1);
  uint32_t least = UINT32_MAX;
  const uint32_t most_warps = p->n_warps;
  for (; one.n_warps >= 4; one.n_warps -= 4) {
    for (uint32_t n = 1; n <= most_parts; ++n) {
      if (!may_be_short(in_parts(one, n, 1))) continue;
      for (uint32_t buffers = n > 1 && device.bulk_copies ? 2 : 1; buffers > 0; --buffers) {
        const StreamParams s = in_parts(one, n, buffers);
        if (block_bytes(s) > room || 4 * longest_share(s) > 5 * longest_share(one)) continue;
        const uint32_t cost = cost_of_shape(s, device, most_warps);
        if (cost >= least) continue;
        least = cost;
        *p = s;
      }
    }
  }
  return least != UINT32_MAX;
}

/// Warps and stages of rings of so many bytes.
void choose_rings(StreamParams* p, uint32_t ring_bytes) {
  p->n_warps = std::clamp(ring_bytes / (2 * p->stage_bytes) / 4 * 4, 4u, kMaxWarps);
  p->n_stages = std::clamp(ring_bytes / (p->n_warps * p->stage_bytes), 2u, kMaxStages);
}

/// The launch of one row with so many blocks of a multiprocessor, whose rings are as large as
/// leaves room for another block, if there is memory for that; returns the number of blocks, or 0.
uint32_t plan_row(const DeviceProfile& device, uint32_t per_sm, StreamParams* p) {
  *p = in_parts(*p, 1, 1);
  const uint32_t blocks = divide_work(p, static_cast<uint32_t>(device.n_sm) * per_sm);
  p->n_warps = kMaxWarps;
  p->n_stages = 0;
  const auto sm = static_cast<uint32_t>(device.shared_per_sm),
             whole = static_cast<uint32_t>(device.shared_per_block);
  const uint32_t half = std::min(sm / 2 - std::min(sm / 2, kReservedShared), whole),
                 beside = row_map(*p).bytes + kMaxWarps * kMaxStages * 8,
                 ring_bytes = half - std::min(half, beside);
  if (per_sm > 1) {
    choose_rings(p, ring_bytes);
    return p->n_warps >= kMaxWarps / 3 * 2 && block_bytes(*p) <= half ? blocks : 0;
  }
  choose_rings(p, std::max(kRingBytes, ring_bytes));
  while (block_bytes(*p) > whole && p->n_warps > 4) p->n_warps -= 4;
  return block_bytes(*p) <= whole ? blocks : 0;
}

}  // namespace

uint64_t stream_workspace_bytes(uint32_t n_rows, uint32_t n_in) {
  if (n_rows == 1) return 0;
  const uint32_t units = (n_in + kUnitColumns - 1) / kUnitColumns;
  // Each part more leaves room behind every row and rounds its size up; the last one may be short.
  return image_map(n_rows, units + kMaxAbsent, 1).bytes + (kMaxParts - 1) * (kRowGap * n_rows + 16);
}

StreamParams some_rows(const StreamParams& p, uint32_t first, uint32_t n) {
  StreamParams s = p;
  s.x += first * p.x_stride;
  if (p.row_scale != nullptr) s.row_scale += first;
  for (uint32_t t = 0; t < p.n_tasks; ++t) s.tasks[t].y += first * p.tasks[t].y_stride;
  s.n_rows = n;
  return s;
}

bool takes_row(const KernelConfig& config, StreamParams p) {
  uint32_t bytes = 0;
  return plan_matvec(config.device, &p, &bytes) != 0;
}

Divider make_divider(uint32_t divisor) {
  return {divisor, static_cast<uint32_t>((uint64_t{1} << 32) / std::max(divisor, 2u)) + 1};
}

uint32_t matvec::plan_matvec(const DeviceProfile& device, StreamParams* p, uint32_t* shared_bytes) {
  StreamParams s = *p;
  s.stage_bytes = 0;
  for (uint32_t t = 0; t < s.n_tasks; ++t) {
    s.stage_bytes =
        std::max(s.stage_bytes, std::min(s.tasks[t].unit_bytes, s.tasks[t].panel_bytes));
  }
  uint32_t blocks = 0;
  if (s.n_rows == 1) {
    // Experts are read by as many warps as there are registers for.
    StreamParams two = s;
    if (s.mode != StreamMode::kDense) blocks = plan_row(device, 2, &two);
    if (blocks == 0) {
      blocks = plan_row(device, 1, &s);
    } else {
      s = two;
    }
  } else {
    blocks = divide_work(&s, static_cast<uint32_t>(device.n_sm));
    choose_rings(&s, kRingBytes);
    if (!choose_parts(device, &s)) blocks = 0;
  }
  *shared_bytes = block_bytes(s);
  if (blocks == 0) return 0;
  share_units(&s);
  *p = s;
  return blocks;
}

}  // namespace sharpi::cuda
