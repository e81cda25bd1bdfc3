// SPDX-License-Identifier: MIT
// What a list of launches depends on, without a workspace; and who watches launches in tests.
#include <algorithm>
#include <atomic>

#include "cuda/kernels/moe/moe_step.h"
#include "cuda/step_launches.h"

namespace sharpi::cuda {
namespace {

std::atomic<LaunchWatch> g_watch{nullptr};

}  // namespace

/// Deterministic models take the head's rows out one by one, whatever their number.
HeadRows head_rows(const KernelConfig& config, uint32_t n, bool in_order) {
  if (n == 0) return HeadRows::kNone;
  return in_order && !config.deterministic ? HeadRows::kInOrder : HeadRows::kPicked;
}

bool keeps_hidden(const ModelSpec& spec, const Placement& placement) {
  return placement.head == TierId::kCuda && (placement.mtp || spec.pair);
}

PassFacts step_facts(const ModelSpec& spec, const Placement& placement, const KernelConfig& config,
                     uint32_t n_rows) {
  PassFacts f;
  f.spec = &spec;
  f.placement = &placement;
  f.config = config;
  f.fuses = f.rows_to_ring = true;
  f.n_rows = n_rows;
  f.keeps_hidden = keeps_hidden(spec, placement);
  f.head = head_rows(config, n_rows, true);
  uint32_t hidden = 0, shared = 0;
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    const FfnSpec& ffn = spec.layers[l].ffn;
    if (ffn.kind != FfnKind::kMoe) continue;
    hidden = std::max(hidden, ffn.n_used * ffn.d_ff);
    shared = std::max(shared, ffn.d_shared);
  }
  if (hidden != 0) f.moe_sync_bytes = moe_step_sync_bytes(spec.n_embd, hidden, shared);
  return f;
}

void watch_launches(LaunchWatch seen) {
  g_watch.store(seen);
}
LaunchWatch launch_watch() {
  return g_watch.load(std::memory_order_relaxed);
}

}  // namespace sharpi::cuda
