// SPDX-License-Identifier: MIT
// The kernels of aarch64's instruction sets, and the parts that they are made of.
// Owner: static tables. Thread rule: immutable.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/attention_table.h"
#include "cpu/delta_net_table.h"
#include "cpu/mamba2_table.h"
#include "cpu/matmul_kernels.h"
#include "cpu/ops_table.h"

namespace sharpi::cpu {

extern const OpsTable kOpsNeon;
extern const DeltaTable kDeltaNeon;
extern const Mamba2Table kMamba2Neon;
extern const AttentionTable kAttentionNeon;
/// For chunks.
extern const AttentionTable kAttentionNeonBf16;

const MatmulKernels& matmul_kernels_neon();
const MatmulKernels& matmul_kernels_neon_dot();
const MatmulKernels& matmul_kernels_neon_i8mm();
MatmulJobFn f32_neon(GgmlType type);
/// Products by BFMMLA, of weights in bf16 alone, and their scratch of a thread.
MatmulJobFn bf16_neon(GgmlType type);
uint64_t bf16_scratch_bytes_neon(uint64_t max_in);
void quantize_row_neon(const float* x, uint64_t n, std::byte* row);

}  // namespace sharpi::cpu
