// SPDX-License-Identifier: MIT
// The kernels in plain C++, which any set may take.
// Owner: static tables. Thread rule: immutable.
#pragma once

#include "cpu/attention_table.h"
#include "cpu/delta_net_table.h"
#include "cpu/mamba2_table.h"
#include "cpu/matmul_kernels.h"
#include "cpu/ops_table.h"

namespace sharpi::cpu {

extern const AttentionTable kAttentionScalar;
extern const DeltaTable kDeltaScalar;    // any head size
extern const Mamba2Table kMamba2Scalar;  // likewise
extern const OpsTable kOpsScalar;
const MatmulKernels& matmul_kernels_scalar();

}  // namespace sharpi::cpu
