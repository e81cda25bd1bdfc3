// SPDX-License-Identifier: MIT
// Copies the matrices of experts from their slots (the expert cache) to one block of memory where
// all experts of a layer stand side by side, as products of many rows want them.
// Thread rule: pure function; the launch is asynchronous on the stream.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "cuda/kernels/moe/router.h"

namespace sharpi::cuda {

struct GatherExpertsParams {
  const std::byte* slots = nullptr;  // the matrix in slot 0, aligned to 16
  uint64_t stride = 0;               // between slots, a multiple of 16
  std::byte* to = nullptr;           // the matrix of expert 0, aligned to 16; others follow on
  uint64_t bytes = 0;                // of a matrix, a multiple of 16
  uint32_t n = 0;                    // pairs
  uint32_t slot[kMaxExperts];
  uint16_t expert[kMaxExperts];
};
static_assert(sizeof(GatherExpertsParams) <= 4096, "kernel parameters");

/// n = 0 launches nothing.
Status launch_gather_experts(const GatherExpertsParams& p, cudaStream_t stream);

}  // namespace sharpi::cuda
