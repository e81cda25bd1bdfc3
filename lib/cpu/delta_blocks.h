// SPDX-License-Identifier: MIT
// Gated delta net blocks of the CPU tier: projections, convolution and recurrence over a session's
// rows and those that an earlier pass left, and the output. Thread rule: immutable; a pass belongs
// to one thread.
#pragma once

#include "cpu/block_ops.h"
#include "cpu/cpu_session.h"
#include "cpu/delta_net.h"

namespace sharpi::cpu {

class DeltaBlocks {
 public:
  /// `ops` outlives it.
  explicit DeltaBlocks(const BlockOps& ops)
      : ops_(ops), spec_(ops.spec()), kernels_(ops.kernels()) {}
  /// The operations from kDeltaIn to kDeltaOut.
  Status run(const Op& op, const Pass& p) const;
  /// As StateReplay::replay(), of a layer of this kind.
  void replay(const CpuSession& session, uint32_t layer, float* state, float* conv) const;

 private:
  void project(const Pass& p, uint32_t layer) const;
  DeltaNetTask delta_task(const CpuSession& session, uint32_t layer) const;
  DeltaNetTask pending_task(const CpuSession& session, uint32_t layer, float* scratch) const;
  /// The recurrence over one session's rows, and over those that an earlier pass left.
  void delta_rows(const Pass& p, const SequenceRows& q, uint32_t layer) const;
  void project_out(const Pass& p, uint32_t layer) const;

  const BlockOps& ops_;
  const ModelSpec& spec_;
  const KernelSet& kernels_;
};

}  // namespace sharpi::cpu
