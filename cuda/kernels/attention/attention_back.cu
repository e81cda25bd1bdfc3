// SPDX-License-Identifier: MIT
// Where values are stored rotated (kv/rotation.h), their weighted sums are rotated back once, by a
// launch of its own behind whichever kernel summed them; then gated. A warp takes 128 elements of a
// row. Bound: the launch.
#include "cuda/kernels/attention/attention_common.cuh"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/ptx.cuh"

namespace sharpi::cuda {
namespace {

constexpr uint32_t kBackThreads = 256, kBackWarps = kBackThreads / 32;

__global__ void __launch_bounds__(kBackThreads)
    attention_back_kernel(const __grid_constant__ AttentionParams p) {
  grid_dependents_launch();
  grid_dependency_wait();
  const uint32_t row = blockIdx.x, dim = p.kv.head_dim, n = p.n_heads * dim;
  if (p.batch.table.rows[row].sequence == kNoSequence) return;
  const uint32_t at = (blockIdx.y * kBackWarps + threadIdx.x / 32) * 128;
  if (at >= n) return;
  float* o = p.o + row * p.o_stride + at;
  const uint32_t here = min(n - at, 128u);
  rotate_floats<true>(o, here, device_rotation(dim), 0, 1);
  if (p.gate == nullptr) return;
  for (uint32_t i = threadIdx.x % 32; i < here; i += 32) {
    o[i] *= gate_factor(p, row, (at + i) / dim, (at + i) % dim);
  }
}

}  // namespace

Status launch_attention_back(const AttentionParams& p, bool pdl, cudaStream_t stream) {
  const uint32_t pieces = (p.n_heads * p.kv.head_dim + 127) / 128;
  const LaunchShape shape = {dim3(p.batch.n_rows, (pieces + kBackWarps - 1) / kBackWarps),
                             dim3(kBackThreads), 0, stream, pdl};
  return launch_kernel("attention_back", shape, attention_back_kernel, p);
}

}  // namespace sharpi::cuda
