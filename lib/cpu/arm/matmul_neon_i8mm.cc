// SPDX-License-Identifier: MIT
#include "cpu/arm/products_neon_i8mm.h"
// The products come first: the kernels are written over them.
#include "cpu/arm/matmul_kernels_neon.h"

namespace sharpi::cpu {

const MatmulKernels& matmul_kernels_neon_i8mm() {
  static constexpr MatmulKernels kKernels = make_matmul_kernels();
  return kKernels;
}

}  // namespace sharpi::cpu
