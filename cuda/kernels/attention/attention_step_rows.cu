// SPDX-License-Identifier: MIT
// attention_step_kernel.cuh for calls of few rows of which a sequence may have several: drafts that
// are verified. As many rows go together as fill a product's vectors, so they share every key.
#include "cuda/kernels/attention/attention_step_kernel.cuh"

namespace sharpi::cuda {

Status prepare_attention_step_rows(const KernelConfig& config) {
  return step::prepare_all<true>(config);
}

Status launch_attention_step_rows(const KernelConfig& config, const AttentionArgs& a,
                                  cudaStream_t stream) {
  return step::launch_one<true>(config, a, stream);
}

}  // namespace sharpi::cuda
