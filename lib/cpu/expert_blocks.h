// SPDX-License-Identifier: MIT
// Routed experts of the CPU tier: the (row, expert) pairs of a call are sorted by expert (a grouped
// GEMM), so that the weights of each expert are read once for all its rows.
// Thread rule: immutable; a pass, or a request's workspace, belongs to one thread.
#pragma once

#include "cpu/block_ops.h"
#include "tier/expert_host.h"

namespace sharpi::cpu {

/// Slot of a (row, choice) that no expert here serves.
constexpr uint32_t kNoSlot = 0xFFFFFFFFu;

class ExpertBlocks {
 public:
  /// `ops` outlives it.
  explicit ExpertBlocks(const BlockOps& ops)
      : ops_(ops), spec_(ops.spec()), kernels_(ops.kernels()) {}
  const ModelSpec& spec() const { return spec_; }
  /// kExperts, of the rows in Pass::normed, or of a norm of their own beside a dense path.
  void run(Pass& p, uint32_t layer) const;

  // Requests of another tier, in the workspace's buffers.
  /// Groups its slots by expert; how many there are.
  uint32_t group_request(const ExpertRequest& r, CpuWorkspace& ws) const;
  /// Normalised and prepared rows of few rows, on the calling thread.
  MatmulInput norm_request(const ExpertRequest& r, CpuWorkspace& ws) const;
  /// All of a request, the way that run() computes.
  void compute(const ExpertRequest& r, CpuWorkspace& ws) const;

 private:
  void experts(const Pass& p, const FfnSpec& f, const MatmulInput& in) const;

  const BlockOps& ops_;
  const ModelSpec& spec_;
  const KernelSet& kernels_;
};

}  // namespace sharpi::cpu
