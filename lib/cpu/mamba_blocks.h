// SPDX-License-Identifier: MIT
// Mamba-2 blocks of the CPU tier: projections, convolution and recurrence over a session's rows and
// those that an earlier pass left, and the output. Thread rule: immutable; a pass belongs to one
// thread.
#pragma once

#include "cpu/block_ops.h"
#include "cpu/cpu_session.h"
#include "cpu/mamba2.h"

namespace sharpi::cpu {

class MambaBlocks {
 public:
  /// `ops` outlives it.
  explicit MambaBlocks(const BlockOps& ops)
      : ops_(ops), spec_(ops.spec()), kernels_(ops.kernels()) {}
  /// The operations from kMambaIn to kMambaOut.
  Status run(const Op& op, const Pass& p) const;
  /// As StateReplay::replay(), of a layer of this kind.
  void replay(const CpuSession& session, uint32_t layer, float* state, float* conv) const;

 private:
  void project(const Pass& p, uint32_t layer) const;
  Mamba2Task task(const CpuSession& session, uint32_t layer) const;
  Mamba2Task pending_task(const CpuSession& session, uint32_t layer, float* scratch) const;
  /// The recurrence over one session's rows, and over those that an earlier pass left.
  void rows(const Pass& p, const SequenceRows& q, uint32_t layer) const;
  void project_out(const Pass& p, uint32_t layer) const;

  const BlockOps& ops_;
  const ModelSpec& spec_;
  const KernelSet& kernels_;
};

}  // namespace sharpi::cpu
