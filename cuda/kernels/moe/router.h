// SPDX-License-Identifier: MIT
// Routing of mixture-of-experts blocks on the device: logits to expert ids and weights, and the
// gate of a shared expert. The logits themselves are a product with force_f32 (matmul.h).
// All launchers check their arguments, allocate nothing and can be captured into a graph.
// Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "cuda/kernels/stream_handle.h"

namespace sharpi::cuda {

constexpr uint32_t kMaxExperts = 512;
constexpr uint32_t kMaxExpertsUsed = 32;

/// p = softmax(logit_scale * logits of the row); the n_used largest, ties to the lower id, largest
/// first; weight = p, or p / max(sum of the chosen p, 2^-14) with renormalize, times the expert's
/// factor. What the CPU tier's route()
/// does, in the same order.
struct RouterParams {
  const float* logits = nullptr;  // [n_rows][stride]
  uint64_t stride = 0;
  uint32_t n_rows = 0;
  uint32_t n_experts = 0;  // <= kMaxExperts
  uint32_t n_used = 0;     // <= kMaxExpertsUsed, <= n_experts
  bool renormalize = false;
  float logit_scale = 1.0f;
  const float* factors = nullptr;  // [n_experts]; nullptr: 1
  /// Each logit its own number from 0 to 1 in place of p; what is added to p for the choice alone,
  /// [n_experts] or nullptr; what weights are multiplied by.
  bool sigmoid = false;
  const float* choice_bias = nullptr;
  float share_scale = 1.0f;
  bool chooses_by_shares() const {
    return !sigmoid && choice_bias == nullptr && share_scale == 1.0f;
  }
  int32_t* ids = nullptr;    // [n_rows][n_used]; in range and distinct whatever the logits are
  float* weights = nullptr;  // [n_rows][n_used]
  bool pdl = false;          // as KernelConfig::pdl
};
Status launch_router(const RouterParams& p, cudaStream_t stream);

/// y[r] = sigmoid(dot(w, x[r])), x[r] RMS-normalised first when norm_weight is given: the row_scale
/// of a shared expert's down product.
struct SigmoidGateParams {
  const float* x = nullptr;  // [n_rows][x_stride], rows aligned to 16 bytes
  uint64_t x_stride = 0;
  uint32_t n_rows = 0, n_in = 0;       // n_in a multiple of 4
  const float* norm_weight = nullptr;  // [n_in]
  float norm_eps = 0.0f;
  const float* w = nullptr;  // [n_in]
  float* y = nullptr;        // [n_rows]
  bool pdl = false;
};
Status launch_sigmoid_gate(const SigmoidGateParams& p, cudaStream_t stream);

}  // namespace sharpi::cuda
