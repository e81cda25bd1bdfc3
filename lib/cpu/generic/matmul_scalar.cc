// SPDX-License-Identifier: MIT
// The reference kernels: plain C++, f32 activations.
#include <cstring>

#include "cpu/generic/kernel_tables.h"
#include "cpu/matmul_kernels.h"

namespace sharpi::cpu {
namespace {

constexpr uint64_t kChunk =
    1024;                       // weights dequantised at a time: a multiple of every block, in L1
constexpr uint32_t kLanes = 8;  // independent sums, so that the compiler may use vectors
constexpr uint32_t kRowBlock = 16;

const float* input_row(const MatmulJob& job, uint32_t r) {
  const uint64_t id = job.ids != nullptr ? job.ids[r] : r;
  return reinterpret_cast<const float*>(job.x + id * job.x_stride);
}

void accumulate(const float* w, const float* x, uint64_t n, float* lanes) {
  uint64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (uint32_t l = 0; l < kLanes; ++l) lanes[l] += w[i + l] * x[i + l];
  }
  for (; i < n; ++i) lanes[i % kLanes] += w[i] * x[i];
}

float sum_lanes(const float* l) {
  return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
}

void f32_job(const MatmulJob& job) {
  float weights[kChunk];
  float lanes[kRowBlock][kLanes];
  for (uint32_t r0 = 0; r0 < job.n_rows; r0 += kRowBlock) {
    const uint32_t n_rows = job.n_rows - r0 < kRowBlock ? job.n_rows - r0 : kRowBlock;
    for (uint64_t o = 0; o < job.n_out; ++o) {
      const std::byte* w = job.w + o * job.row_bytes;
      std::memset(lanes, 0, sizeof lanes);
      for (uint64_t i = 0; i < job.n_in; i += kChunk) {
        const uint64_t n = job.n_in - i < kChunk ? job.n_in - i : kChunk;
        dequantize_row(job.type, w + ggml_row_bytes(job.type, i), weights, n);
        for (uint32_t r = 0; r < n_rows; ++r) {
          accumulate(weights, input_row(job, r0 + r) + i, n, lanes[r]);
        }
      }
      for (uint32_t r = 0; r < n_rows; ++r) {
        job.y[(r0 + r) * job.y_stride + o] = sum_lanes(lanes[r]);
      }
    }
  }
}

MatmulJobFn find_job(MatmulPath path, GgmlType) {
  return path == MatmulPath::kF32 ? f32_job : nullptr;
}

}  // namespace

const MatmulKernels& matmul_kernels_scalar() {
  static constexpr MatmulKernels kKernels{.job = find_job};
  return kKernels;
}

}  // namespace sharpi::cpu
