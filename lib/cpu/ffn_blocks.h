// SPDX-License-Identifier: MIT
// FFN blocks of the CPU tier: dense ones; router and shared expert of a mixture; and what ends a
// layer (per-layer embedding injection, output scale). Thread rule: immutable; a pass belongs to
// one thread.
#pragma once

#include "cpu/block_ops.h"

namespace sharpi::cpu {

class FfnBlocks {
 public:
  /// `ops` outlives it.
  explicit FfnBlocks(const BlockOps& ops) : ops_(ops), spec_(ops.spec()), kernels_(ops.kernels()) {}
  /// The operations from kFfnIn to kScaleLayer, but for kExperts (expert_blocks.h).
  Status run(const Op& op, Pass& p) const;

 private:
  void norm_ffn(Pass& p, const LayerSpec& l) const;
  /// The hidden rows of an FFN, which may have no gate.
  void hidden(const Pass& p, const FfnSpec& f, const TensorRef& gate, const TensorRef& up,
              const TensorRef& up_bias, uint64_t width) const;
  void down(const Pass& p, const TensorRef& down, uint64_t width) const;
  void norm_router(Pass& p, const LayerSpec& l) const;
  void choose(const FfnSpec& f, float* logits, float* scores, uint32_t* ids, float* weights) const;
  void route(Pass& p, const LayerSpec& l) const;
  void dense_path(Pass& p, const LayerSpec& l) const;
  void shared_expert(const Pass& p, const LayerSpec& l) const;
  void per_layer_injection(const Pass& p, uint32_t layer) const;
  void scale_layer(const Pass& p, const LayerSpec& l) const;

  const BlockOps& ops_;
  const ModelSpec& spec_;
  const KernelSet& kernels_;
};

}  // namespace sharpi::cpu
