// SPDX-License-Identifier: MIT
#include "cpu/generic/kernel_tables.h"
#include "cpu/kernel_set.h"

namespace sharpi::cpu {
namespace {

constexpr Named<AttentionTable> kAttention{kAttentionScalar, "f32-scalar"};

}  // namespace

constinit const KernelSet kScalarKernels{
    .name = kScalarSet.name,
    .isa = kScalarSet.isa,
    .narrower = nullptr,
    .matmul = matmul_kernels_scalar,
    .ops = kOpsScalar,
    .attention = AttentionKernels::all(kAttention),
    .delta = {kDeltaScalar, "scalar"},
    .mamba2 = {kMamba2Scalar, "scalar"},
};

}  // namespace sharpi::cpu
