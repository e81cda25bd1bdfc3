// SPDX-License-Identifier: MIT
// The launches of FFN blocks that are no products: routers, experts, the shared expert's gate,
// per-layer inputs. Layers whose routed experts are on the CPU: rows and ids go to the experts'
// host, resident experts are computed here meanwhile, and the host's sum is added when it is there.
// A recorded step hands over without the driver (kernels/moe/handover.h); what other calls do for
// that is the room's (device/forward.cc). Thread rule: as the pass.
#pragma once

#include "cuda/settings.h"
#include "cuda/step_binding.h"
#include "device/loaded_model.h"

namespace sharpi::cuda {

class FfnLaunches {
 public:
  FfnLaunches(const LoadedModel& model, const Settings& settings) : m_(model), s_(settings) {}
  /// kRouter, kSharedGate, kExperts, kMoeStep, kSendRows, kSlotExperts, kAnswers.
  Status launch(Pass& p, const Binding& at, const LaunchList& list, const Launch& l) const;
  Status per_layer_gate(Pass& p, uint32_t layer) const;

 private:
  Status choose_experts(Pass& p, const FfnSpec& f) const;
  Status shared_gate(Pass& p, const LayerSpec& l) const;
  Status send_rows(Pass& p, uint32_t layer) const;
  /// Answers from slots and from the host; the latter's are the last to be added.
  struct SlotMatrices {
    DeviceMatrix gate, up, down;
  };
  SlotMatrices slot_matrices(uint32_t layer) const;
  Status resident_experts(Pass& p, uint32_t layer, MoeParams m) const;
  Status answered_experts(Pass& p, Buf to, bool add) const;

  const LoadedModel& m_;
  const Settings& s_;
};

}  // namespace sharpi::cuda
