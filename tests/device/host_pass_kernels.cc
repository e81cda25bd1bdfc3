// SPDX-License-Identifier: MIT
// Passes on the tests' device: each launch of a list as loops over rows, over what lies on the
// device alone, when its turn comes in the queue.
#include "device/host_launch.h"

namespace sharpi::testing {
namespace {

class HostStepKernels final : public StepKernels {
 public:
  uint32_t max_chain_rows() const override { return 1; }
  uint32_t max_chain_links() const override { return 3; }
  bool chain_takes(const RowLink& link) const override { return !link.product.force_f32; }
  bool chain_fits(std::span<const RowLink> links) const override { return links.size() <= 3; }
  bool takes(const ExpertStep&) const override { return false; }
};

class HostPassKernels final : public PassKernels {
 public:
  PassScratch scratch(const ModelSpec&, const ModelShape&, const WorkspaceWidths& w, uint32_t,
                      uint32_t) const override {
    PassScratch s;
    s.chain_rows = 1;
    s.moe_sync = w.n_experts != 0 ? 64 : 0;
    return s;
  }
  uint32_t max_sorted_experts() const override { return 256; }
  bool takes_slots(uint32_t, uint32_t) const override { return true; }
  bool fuses(uint32_t n_rows) const override { return n_rows <= 2; }
  bool blocks_meet(const ModelSpec&) const override { return false; }
  Status prepare() override { return Status::ok(); }
  LaunchList fuse(const LoadedModel&, const SegmentProgram& program, const PassFacts& facts,
                  bool) const override {
    return device::fuse(program, facts, HostStepKernels());
  }
  Status launch(Pass& p, const LaunchList& list, const Launch& l) const override {
    const HostQueue& queue = host_queue(p.ws.queue());
    if (p.recorded && l.kind == LaunchKind::kSendRows) queue.meets_host();
    queue.give([made = HostLaunch(p, list, l)] { return made.run(); });
    return Status::ok();
  }
  Status replay(const LoadedModel& model, const DeviceSession& session,
                uint32_t layer) const override {
    host_queue(*model.stream).give([&model, layer, q = pending_sequence(session)] {
      if (model.spec().layers[layer].mixer == MixerKind::kMamba2) {
        MambaRows{model, layer}.replay(q);
      } else {
        DeltaRows{model, layer}.replay(q);
      }
      return Status::ok();
    });
    return Status::ok();
  }
  std::string paths(const LoadedModel&) const override { return "host device"; }
};

}  // namespace

std::unique_ptr<PassKernels> make_host_pass_kernels(const ModelShape&) {
  return std::make_unique<HostPassKernels>();
}

}  // namespace sharpi::testing
