// SPDX-License-Identifier: MIT
// The forward pass of the CPU tier: goes through a segment's operations (tier/segment_program.h has
// their list and order) and calls the class of the block that each belongs to. Embedding and head
// are implemented here.
// Thread rule: immutable; run() needs a workspace of its own.
#pragma once

#include "cpu/attention_blocks.h"
#include "cpu/delta_blocks.h"
#include "cpu/expert_blocks.h"
#include "cpu/ffn_blocks.h"
#include "cpu/mamba_blocks.h"

namespace sharpi::cpu {

class Forward final : public StateReplay {
 public:
  /// `spec` and `pool` outlive it.
  Forward(const ModelSpec& spec, ThreadPool& pool, const MatmulConfig& config);
  Forward(const Forward&) = delete;  // its blocks refer to it
  Forward& operator=(const Forward&) = delete;
  /// TierModel::run().
  Status run(const Segment& segment, const Submission& rows, CpuWorkspace& ws) const;
  /// TierModel::product().
  Status product(const TensorRef& w, const float* x, uint32_t n_rows, float* y,
                 CpuWorkspace& ws) const;
  const ExpertBlocks& experts() const { return experts_; }
  void replay(const CpuSession& session, uint32_t layer, float* state, float* conv) const override;

 private:
  Status run_program(const Segment& segment, Pass& p) const;
  Status run_op(const Op& op, Pass& p) const;
  void embed(const Pass& p, Buf to) const;
  void add_places(const Pass& p, float* x) const;
  void embed_pairs(const Pass& p) const;
  void embed_per_layer(const Pass& p, Buf embedded) const;
  void keep_hidden(const Pass& p) const;
  void head(const Pass& p) const;

  const BlockOps ops_;
  const ModelSpec& spec_;
  const KernelSet& kernels_;
  const AttentionBlocks attention_;
  const DeltaBlocks delta_;
  const MambaBlocks mamba_;
  const FfnBlocks ffn_;
  const ExpertBlocks experts_;
};

}  // namespace sharpi::cpu
