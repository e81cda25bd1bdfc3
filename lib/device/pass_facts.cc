// SPDX-License-Identifier: MIT
// What a list of launches depends on, without a workspace; and who watches launches in tests.
#include <atomic>

#include "device/launches.h"

namespace sharpi::device {
namespace {

std::atomic<LaunchWatch> g_watch{nullptr};

}  // namespace

/// Deterministic models take the head's rows out one by one, whatever their number.
HeadRows head_rows(bool deterministic, uint32_t n, bool in_order) {
  if (n == 0) return HeadRows::kNone;
  return in_order && !deterministic ? HeadRows::kInOrder : HeadRows::kPicked;
}

Epilogue hidden_epilogue(const FfnSpec& f) {
  switch (f.activation) {
    case Activation::kSilu:
      return Epilogue::kSwiGlu;
    case Activation::kGeluTanh:
      return Epilogue::kGeGlu;
    case Activation::kSwigluClamped:
      return Epilogue::kSwiGluClamped;
    case Activation::kReluSquared:
      return Epilogue::kSquare;
    case Activation::kGeluErf:
      break;  // of encoders, which no GPU computes
  }
  return Epilogue::kSwiGlu;
}

bool has_gate(const FfnSpec& f) {
  return static_cast<bool>(f.kind == FfnKind::kDense ? f.gate : f.shared_gate);
}

uint32_t hidden_width(const FfnSpec& f) {
  return f.kind == FfnKind::kDense ? f.d_ff : f.d_shared;
}

bool keeps_hidden(const ModelSpec& spec, const Placement& placement) {
  return placement.head == DeviceIndex::kHere && (placement.mtp || spec.pair);
}

PassFacts step_facts(const ModelSpec& spec, const Placement& placement, bool deterministic,
                     uint32_t n_rows) {
  PassFacts f;
  f.spec = &spec;
  f.placement = &placement;
  f.fuses = f.rows_to_ring = true;
  f.n_rows = n_rows;
  f.keeps_hidden = keeps_hidden(spec, placement);
  f.head = head_rows(deterministic, n_rows, true);
  return f;
}

void watch_launches(LaunchWatch seen) {
  g_watch.store(seen);
}
LaunchWatch launch_watch() {
  return g_watch.load(std::memory_order_relaxed);
}

}  // namespace sharpi::device
