// SPDX-License-Identifier: MIT
// The kernels of aarch64's instruction sets: one set each, whose members name the set that they are
// of.
#include "cpu/arm/kernel_tables.h"
#include "cpu/kernel_set.h"

namespace sharpi::cpu {
namespace {

constexpr Named<AttentionTable> kF32Neon{kAttentionNeon, "f32-neon"};

constexpr KernelSet kNeon{
    .name = "neon",
    .isa = Isa::kNeon,
    .narrower = &kScalarKernels,
    .matmul = matmul_kernels_neon,
    .ops = kOpsNeon,
    .attention = AttentionKernels::all(kF32Neon),
    .delta = {kDeltaNeon, "neon"},
    .mamba2 = {kMamba2Neon, "neon"},
};

constexpr KernelSet kNeonDot{
    .name = "neon_dot",
    .isa = Isa::kNeon,
    .narrower = &kScalarKernels,
    .matmul = matmul_kernels_neon_dot,
    .ops = kNeon.ops,
    .attention = kNeon.attention,
    .delta = kNeon.delta,
    .mamba2 = kNeon.mamba2,
};

constexpr KernelSet kNeonI8mm{
    .name = "i8mm",
    .isa = Isa::kI8mm,
    .narrower = &kScalarKernels,
    .matmul = matmul_kernels_neon_i8mm,
    .ops = kNeon.ops,
    .attention = {.exact = kF32Neon,
                  .wide = kF32Neon,
                  .narrow = kF32Neon,
                  .wide_chunk = kF32Neon,
                  .chunk = {kAttentionNeonBf16, "bf16-mmla"},
                  .wide_row = kF32Neon,
                  .integer_row = kF32Neon},
    .delta = kNeon.delta,
    .mamba2 = kNeon.mamba2,
};

}  // namespace

std::span<const KernelSet* const> processor_kernel_sets() {
  static constexpr const KernelSet* kSets[] = {&kNeon, &kNeonDot, &kNeonI8mm};
  return kSets;
}

}  // namespace sharpi::cpu
