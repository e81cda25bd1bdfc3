// SPDX-License-Identifier: MIT
// Attention blocks of the CPU tier: projections, norms and RoPE, attention over stored rows (full
// or windowed, own or shared KV), and the output. Thread rule: immutable; a pass belongs to one
// thread.
#pragma once

#include <span>
#include <vector>

#include "cpu/attention.h"
#include "cpu/block_ops.h"
#include "cpu/latent_blocks.h"
#include "cpu/replay.h"
#include "tier/rope_tables.h"

namespace sharpi::cpu {

class AttentionBlocks {
 public:
  /// `ops` outlives it.
  explicit AttentionBlocks(const BlockOps& ops);
  /// The operations from kRopeTables to kAttentionOut.
  Status run(const Op& op, const Pass& p) const;

 private:
  void rope_tables(const Pass& p) const;
  /// Cosines (sines) of one row in one table of the workspace. Pre: there are tables.
  uint64_t angles_per_row(const CpuWorkspace& ws) const;
  Status flush_ring(const Pass& p) const;
  void project_qkv(const Pass& p, uint32_t layer) const;
  Status attention_rows(const Pass& p, uint32_t layer) const;
  void norm_and_rope(const Pass& p, uint32_t layer) const;
  void capture_queries(const Pass& p, uint32_t layer) const;
  Status append_rows(const Pass& p, uint32_t layer) const;
  Status append_by_head(const Pass& p, uint32_t layer, const SequenceRows& q) const;
  Status capture_replay(const Pass& p, uint32_t layer) const;
  Status attend(const Pass& p, uint32_t layer) const;
  Status attend_tasks(const Pass& p, std::span<const AttentionTask> tasks) const;
  Status attend_by_head(const Pass& p, const AttentionTask& all, const SequenceRows& q,
                        uint32_t source, uint32_t layer) const;
  void project_out(const Pass& p, uint32_t layer) const;

  const BlockOps& ops_;
  const LatentBlocks latent_;
  const ModelSpec& spec_;
  const KernelSet& kernels_;
  std::vector<int32_t> rope_of_layer_;
  const std::vector<RopeTable> ropes_;
  const ReplayTurns turns_;
};

}  // namespace sharpi::cpu
