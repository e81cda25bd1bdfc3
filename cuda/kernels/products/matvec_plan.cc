// SPDX-License-Identifier: MIT
#include "cuda/kernels/products/matvec_plan.h"

#include <algorithm>

namespace sharpi::cuda {
namespace {

using namespace matvec;

/// Who computes what; returns the number of blocks.
uint32_t divide_work(StreamParams* p, uint32_t n_sm) {
  const bool gated = p->epilogue == Epilogue::kSwiGlu || p->epilogue == Epilogue::kGeGlu;
  const uint32_t per_group = gated ? 2 : p->n_segments;
  const uint32_t limit = std::max(1u, (p->n_rows == 1 ? kMaxPanels : kMaxPanels / 2) / per_group);
  uint32_t blocks = std::min(n_sm, p->n_groups);
  // Two blocks fit on a multiprocessor: whole waves of both.
  for (uint32_t m = 2; (p->n_groups + blocks - 1) / blocks > std::min(limit, 32u); m += 2)
    blocks = n_sm * m;
  p->groups = p->n_groups / blocks;
  p->more_groups = p->n_groups % blocks;
  p->max_panels = (p->groups + (p->more_groups != 0 ? 1 : 0)) * per_group;
  return blocks;
}

void share_units(StreamParams* p) {
  const bool gated = p->epilogue == Epilogue::kSwiGlu || p->epilogue == Epilogue::kGeGlu;
  const uint32_t per_group = gated ? 2 : p->n_segments;
  for (uint32_t extra = 0; extra < 2; ++extra) {
    const uint32_t all = (p->groups + extra) * per_group * p->units;
    p->share[extra] = all / p->n_warps;
    p->more_share[extra] = all % p->n_warps;
  }
}

}  // namespace

Divider make_divider(uint32_t divisor) {
  return {divisor, static_cast<uint32_t>((uint64_t{1} << 32) / std::max(divisor, 2u)) + 1};
}

uint32_t matvec::plan_matvec(const DeviceProfile& device, StreamParams* p, uint32_t* shared_bytes) {
  p->stage_bytes = 0;
  for (uint32_t t = 0; t < p->n_tasks; ++t) {
    p->stage_bytes =
        std::max(p->stage_bytes, std::min(p->tasks[t].unit_bytes, p->tasks[t].panel_bytes));
  }
  const uint32_t image = image_map(p->n_rows, p->units * p->n_segments).bytes;
  const auto limit = static_cast<uint32_t>(device.shared_per_block);
  const uint32_t blocks = divide_work(p, static_cast<uint32_t>(device.n_sm));
  p->n_warps = std::clamp(kRingBytes / (2 * p->stage_bytes) / 4 * 4, 4u, kMaxWarps);
  p->n_stages = std::clamp(kRingBytes / (p->n_warps * p->stage_bytes), 2u, kMaxStages);
  while (shared_map(*p, image).bytes > limit && p->n_warps > 4) p->n_warps -= 4;
  *shared_bytes = shared_map(*p, image).bytes;
  if (*shared_bytes > limit) return 0;
  share_units(p);
  return blocks;
}

}  // namespace sharpi::cuda
