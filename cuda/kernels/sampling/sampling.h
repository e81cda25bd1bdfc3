// SPDX-License-Identifier: MIT
// Choosing tokens where the logits are: the largest of a row, or its k largest in order, so that
// only a few values and ids leave the device. Equal logits go to the lower id; NaN counts as the
// lowest value. Results do not depend on the launch shape.
// All launchers check their arguments, allocate nothing and can be captured into a graph.
// Thread rule: pure functions.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "cuda/kernels/sampling/sampling_plan.h"
#include "device/kernel_params.h"

namespace sharpi::cuda {

using device::AllowedTokens;

struct ArgmaxParams {
  const float* logits = nullptr;  // [n_rows][stride]
  uint64_t stride = 0;
  uint32_t n_rows = 0, n_vocab = 0;
  AllowedTokens allowed;           // of every row
  int32_t* ids = nullptr;          // [n_rows]
  float* values = nullptr;         // [n_rows], or nullptr
  std::byte* workspace = nullptr;  // sampling_workspace_bytes(), aligned to 256
  uint64_t workspace_bytes = 0;
  bool pdl = false;  // as KernelConfig::pdl
};
/// Two launches.
Status launch_argmax(const ArgmaxParams& p, cudaStream_t stream);

struct TopKParams {
  const float* logits = nullptr;  // [n_rows][stride]
  uint64_t stride = 0;
  uint32_t n_rows = 0, n_vocab = 0;
  uint32_t k = 0;           // 1 .. most_best(n_vocab)
  AllowedTokens allowed;    // of every row
  float* values = nullptr;  // [n_rows][k], descending
  int32_t* ids = nullptr;   // [n_rows][k]
  std::byte* workspace = nullptr;
  uint64_t workspace_bytes = 0;
  bool pdl = false;
};
/// Two launches.
Status launch_top_k(const TopKParams& p, cudaStream_t stream);

/// Workspace of either call for up to max_rows rows; max_k = 1 for the argmax alone.
uint64_t sampling_workspace_bytes(uint32_t max_rows, uint32_t n_vocab, uint32_t max_k);

}  // namespace sharpi::cuda
