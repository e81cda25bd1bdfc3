// SPDX-License-Identifier: MIT
// The table of products over the Products of a products_neon*.h, which is included first.
// Everything has internal linkage. Thread rule: immutable.
#pragma once

#include "cpu/arm/kernel_tables.h"
#include "cpu/arm/matmul_panel_neon.h"
#include "cpu/arm/matmul_rows_neon.h"

namespace sharpi::cpu {
namespace {

MatmulJobFn find_job(MatmulPath path, GgmlType type) {
  if (path == MatmulPath::kF32) return f32_neon(type);
  if (path == MatmulPath::kInt8Panel) {
    return with_format(type, MatmulJobFn{nullptr},
                       [](auto format) -> MatmulJobFn { return panel_job<decltype(format)>; });
  }
  if (path != MatmulPath::kInt8Dot) return nullptr;
  return with_format(type, MatmulJobFn{nullptr},
                     [](auto format) -> MatmulJobFn { return dot_job<decltype(format)>; });
}

constexpr MatmulKernels make_matmul_kernels() {
  return {.job = find_job, .quantize_row = quantize_row_neon};
}

}  // namespace
}  // namespace sharpi::cpu
