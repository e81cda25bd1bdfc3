// SPDX-License-Identifier: MIT
// attention_step_kernel.cuh for a decode step: one row a sequence. And which layers these kernels
// take.
#include "cuda/kernels/attention/attention_step_kernel.cuh"

namespace sharpi::cuda {

bool attention_step_fits(const KernelConfig& config, const KvLayer& l) {
  // Heads of 512 in two teams of four warps gave right results and took 58 instead of 66 us at 128K
  // (q8_0), but racecheck reports accesses there that a barrier of the block lies between.
  return step_takes(l.k_dtype, l.v_dtype, l.head_dim) && l.k_row_bytes % 16 == 0 &&
         l.v_row_bytes % 16 == 0 && (l.k_dtype != l.v_dtype || l.k_row_bytes == l.v_row_bytes) &&
         step_room(config.device) != 0;
}

Status prepare_attention_step(const KernelConfig& config) {
  SHARPI_TRY(step::prepare_all<false>(config));
  return prepare_attention_step_rows(config);
}

Status launch_attention_step(const KernelConfig& config, const AttentionArgs& a,
                             cudaStream_t stream) {
  return step::launch_one<false>(config, a, stream);
}

}  // namespace sharpi::cuda
