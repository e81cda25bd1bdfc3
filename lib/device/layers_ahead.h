// SPDX-License-Identifier: MIT
// Keeps the host a few layers ahead of the device while it submits a pass of many rows, so that
// progress can be reported and a prompt cancelled within a chunk, while the device always has
// layers queued and never idles. Tests bring their own events.
// Thread rule: of the call that runs.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/status.h"
#include "tier/pass_progress.h"

namespace sharpi::device {

/// Layers that are submitted and not known to be computed, at most.
inline constexpr uint32_t kLayersAhead = 4;
/// Passes of fewer rows are over sooner than anybody wants to stop them; they are watched only for
/// a host that asked for progress.
inline constexpr uint32_t kWatchedRows = 64;

/// Events: Status record(uint32_t i) marks the end of what was submitted so far, Status
/// wait(uint32_t i) returns when the device has come there; i < kLayersAhead.
template <class Events>
class LayersAhead {
 public:
  /// `cancel` null: the pass is not stopped half way, whatever is said. `progress` may be null.
  LayersAhead(Events events, const std::atomic<bool>* cancel, PassProgress* progress)
      : events_(events), cancel_(cancel), progress_(progress) {}
  /// A layer was submitted. Waits for the oldest one where too many are under way. kCancelled if
  /// the pass is to stop; what was submitted runs on until the caller has waited for its stream.
  Status submitted(uint32_t layer) {
    if (n_submitted_ - n_computed_ == kLayersAhead) SHARPI_TRY(wait_for_oldest());
    const uint32_t i = n_submitted_ % kLayersAhead;
    SHARPI_TRY(events_.record(i));
    layers_[i] = layer;
    ++n_submitted_;
    return Status::ok();
  }
  /// Waits for all of them, one after the other.
  Status finish() {
    while (n_computed_ != n_submitted_) SHARPI_TRY(wait_for_oldest());
    return Status::ok();
  }

 private:
  Status wait_for_oldest() {
    const uint32_t i = n_computed_ % kLayersAhead;
    SHARPI_TRY(events_.wait(i));
    ++n_computed_;
    const bool goes_on = progress_ == nullptr || progress_->layer_done(layers_[i]);
    if (cancel_ == nullptr || (goes_on && !cancel_->load(std::memory_order_relaxed))) {
      return Status::ok();
    }
    return Status::error(Code::kCancelled, "cancelled");
  }
  Events events_;
  const std::atomic<bool>* cancel_;
  PassProgress* progress_;
  uint32_t layers_[kLayersAhead] = {};
  uint32_t n_submitted_ = 0, n_computed_ = 0;
};

}  // namespace sharpi::device
