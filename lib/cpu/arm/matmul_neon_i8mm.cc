// SPDX-License-Identifier: MIT
#include "cpu/arm/products_neon_i8mm.h"
// The products come first: the kernels are written over them.
#include "cpu/arm/matmul_kernels_neon.h"

namespace sharpi::cpu {

namespace {

MatmulJobFn i8mm_job(MatmulPath path, GgmlType type) {
  return path == MatmulPath::kBf16Rows ? bf16_neon(type) : find_job(path, type);
}

}  // namespace

const MatmulKernels& matmul_kernels_neon_i8mm() {
  static constexpr MatmulKernels kKernels{.job = i8mm_job,
                                          .quantize_row = quantize_row_neon,
                                          .bf16_scratch_bytes = bf16_scratch_bytes_neon,
                                          .bf16_name = "bf16-mmla"};
  return kKernels;
}

}  // namespace sharpi::cpu
