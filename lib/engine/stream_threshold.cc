// SPDX-License-Identifier: MIT
// Measures stream_rows, the number of rows from which it is faster to copy weights that are placed
// on the CPU to the GPU and compute there: one layer's blocks are timed both ways, with twice as
// many rows each time, until copying wins.
#include <algorithm>
#include <chrono>

#include "engine/model.h"

namespace sharpi {
namespace {

constexpr uint32_t kLeastRows = 16;

/// The first streamed FFN or expert block of a route with its segment's flags, and where the same
/// blocks run otherwise.
struct Candidate {
  Segment placed, streamed;
};

Candidate first_streamed(const ModelSpec& spec, const Placement& placement, const Route& route) {
  Candidate c;
  for (const Segment& s : route.segments) {
    for (const Block& b : s.blocks) {
      if (!b.streamed) continue;
      c.streamed.device = s.device;
      c.streamed.streamed = true;
      c.placed.device = placement.ffn[b.layer];
      c.placed.blocks.push_back({BlockKind::kFfn, b.layer});
      c.streamed.blocks.push_back({BlockKind::kFfn, b.layer, placement.ffn[b.layer] != s.device});
      if (spec.layers[b.layer].ffn.kind == FfnKind::kMoe) {
        c.placed.blocks.push_back({BlockKind::kExperts, b.layer});
        c.streamed.blocks.push_back({BlockKind::kExperts, b.layer, true});
      }
      for (Segment* part : {&c.placed, &c.streamed})
        part->program = make_program(spec, placement, *part);
      return c;
    }
  }
  return c;
}

/// Rows that differ, so that routers spread them over the experts.
void fill_rows(float* x, uint64_t n) {
  uint32_t state = 1;
  for (uint64_t i = 0; i < n; ++i) {
    state = state * 1664525u + 1013904223u;
    x[i] = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f;
  }
}

}  // namespace

Result<double> Model::time_block(const Segment& segment, uint32_t n_rows, CallSlot& slot) const {
  const std::vector<int32_t> tokens(n_rows, 0);
  Submission rows;
  rows.tokens = tokens.data();
  rows.n_rows = n_rows;
  rows.transient = true;
  rows.hidden_in = rows.hidden_out = slot.handover;
  const size_t t = tier_index(segment.device);
  double best = 0;
  for (int i = 0; i < 2; ++i) {  // the first time touches weights and kernels
    fill_rows(slot.handover, uint64_t{n_rows} * spec().n_embd);
    const auto start = std::chrono::steady_clock::now();
    SHARPI_TRY(tiers_[t]->run(segment, rows, *slot.workspaces[t]));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    best = i == 0 ? took.count() : std::min(best, took.count());
  }
  return best;
}

/// A power of two, so that it seldom differs between two loads.
Status Model::find_stream_rows() {
  const Candidate c = first_streamed(spec(), plan_->placement, streamed_);
  CallSlot& slot = *slots_.front();
  stream_rows_ = SHARPI_UNSET;
  for (uint32_t n = kLeastRows; n <= plan_->model.max_rows(); n *= 2) {
    SHARPI_TRY_ASSIGN(const double placed, time_block(c.placed, n, slot));
    SHARPI_TRY_ASSIGN(const double streamed, time_block(c.streamed, n, slot));
    if (streamed > placed) continue;
    stream_rows_ = n;
    break;
  }
  return Status::ok();
}

}  // namespace sharpi
