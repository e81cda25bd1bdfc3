// SPDX-License-Identifier: MIT
// What multi-head latent attention does around the attention that all kinds share: the way from a
// layer's input to queries and the row that is stored, and from sums of latents to the layer's
// output. Per head there is a matrix on each way (k_b, v_b), whose products run together.
// Thread rule: immutable; a pass belongs to one thread.
#pragma once

#include "cpu/block_ops.h"

namespace sharpi::cpu {

class LatentBlocks {
 public:
  /// `ops` outlives it.
  explicit LatentBlocks(const BlockOps& ops) : ops_(ops), spec_(ops.spec()) {}

  /// Of rows under the mixer's norm: queries of all heads to Buf::kGate, their latent's part to its
  /// place in Buf::kQ, and the row before norm and RoPE to Buf::kV.
  void project_in(const Pass& p, const MatmulInput& in, const AttentionSpec& a) const;
  /// Row r, after project_in(): the queries' turned part to Buf::kQ, the row to Buf::kK.
  void join_row(const Pass& p, const AttentionSpec& a, uint64_t r, const float* cos,
                const float* sin) const;
  /// Outputs of all heads of the sums in Buf::kMix, as the output projection reads them.
  MatmulInput project_values(const Pass& p, const AttentionSpec& a) const;

 private:
  void by_head(const Pass& p, const TensorRef& w, const MatmulInput& in, float* y, uint64_t head,
               uint64_t row) const;

  const BlockOps& ops_;
  const ModelSpec& spec_;
};

}  // namespace sharpi::cpu
