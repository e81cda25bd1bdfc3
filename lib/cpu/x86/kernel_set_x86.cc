// SPDX-License-Identifier: MIT
// The kernels of x86-64's instruction sets: one set each, whose members name the set that they are
// of.
#include <algorithm>

#include "base/checked.h"
#include "cpu/kernel_set.h"
#include "cpu/x86/kernel_tables.h"

namespace sharpi::cpu {
namespace {

constexpr Named<AttentionTable> kF32Avx2{kAttentionAvx2, "f32-avx2"};
constexpr Named<AttentionTable> kF32Avx512{kAttentionAvx512, "f32-avx512"};

constexpr KernelSet kAvx2{
    .name = "avx2",
    .isa = Isa::kAvx2,
    .narrower = &kScalarKernels,
    .matmul = matmul_kernels_avx2,
    .ops = kOpsAvx2,
    .attention = {.exact = kF32Avx2,
                  .wide = kF32Avx2,
                  .narrow = kF32Avx2,
                  .wide_chunk = {kAttentionChunkAvx2, "f32-avx2-blocks"},
                  .chunk = {kAttentionChunkAvx2, "f32-avx2-blocks"},
                  .wide_row = kF32Avx2,
                  .integer_row = kF32Avx2},
    .delta = {kDeltaAvx2, "avx2"},
    .mamba2 = {kMamba2Avx2, "avx2"},
};

constexpr KernelSet kAvx512{
    .name = "avx512",
    .isa = Isa::kAvx512,
    .narrower = &kAvx2,
    .matmul = matmul_kernels_avx512,
    .ops = kOpsAvx512,
    .attention = AttentionKernels::all(kF32Avx512),
    .delta = {kDeltaAvx512, "avx512"},
    .mamba2 = {kMamba2Avx512, "avx512"},
};

constexpr KernelSet kAvx512Bf16{
    .name = "avx512_bf16",
    .isa = Isa::kAvx512,
    .narrower = &kAvx512,
    .matmul = kAvx512.matmul,
    .ops = kAvx512.ops,
    .attention = {.exact = kF32Avx512,
                  .wide = kF32Avx512,
                  .narrow = kF32Avx512,
                  .wide_chunk = kF32Avx512,
                  .chunk = {kAttentionBf16Avx512, "bf16-dot"},
                  .wide_row = kF32Avx512,
                  .integer_row = kF32Avx512},
    .delta = kAvx512.delta,
    .mamba2 = kAvx512.mamba2,
};

constexpr KernelSet kAmx{
    .name = "amx",
    .isa = Isa::kAmx,
    .narrower = &kAvx512,
    .matmul = matmul_kernels_amx,
    .ops = kAvx512.ops,
    .attention = {.exact = kF32Avx512,
                  .wide = {kAttentionAmxWide, "2xbf16-amx"},
                  .narrow = {kAttentionAmx, "bf16-amx"},
                  .wide_chunk = {kAttentionAmxWide, "2xbf16-amx"},
                  .chunk = {kAttentionAmx, "bf16-amx"},
                  // Reading is what a single row costs, and tiles of bf16 have it wait for
                  // conversions.
                  .wide_row = kF32Avx512,
                  .integer_row = {kAttentionQ8RowAmx, "int8-row"}},
    .delta = kAvx512.delta,
    .mamba2 = kAvx512.mamba2,
};

}  // namespace

uint64_t tile_scratch_bytes_amx(uint64_t max_in) {
  const uint64_t packed = std::max(kAmxPackBytes, 2 * div_up(max_in, kTileDepth) * kTileBytes);
  return kAmxPanelBytes + kAmxSumBytes + packed;
}

std::span<const KernelSet* const> processor_kernel_sets() {
  static constexpr const KernelSet* kSets[] = {&kAvx2, &kAvx512, &kAvx512Bf16, &kAmx};
  return kSets;
}

}  // namespace sharpi::cpu
