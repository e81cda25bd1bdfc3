// SPDX-License-Identifier: MIT
// The kernels of x86-64's instruction sets, and the parts that they are made of.
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

extern const OpsTable kOpsAvx2, kOpsAvx512;
extern const DeltaTable kDeltaAvx2, kDeltaAvx512;
extern const Mamba2Table kMamba2Avx2, kMamba2Avx512;

extern const AttentionTable kAttentionAvx2, kAttentionAvx512;
/// For chunks, in f32.
extern const AttentionTable kAttentionChunkAvx2;
/// Rows rounded to bf16; the wide ones take them as sums of two bf16 and are for f32 rows.
extern const AttentionTable kAttentionAmx, kAttentionAmxWide;
/// For chunks, with AVX-512 BF16.
extern const AttentionTable kAttentionBf16Avx512;
/// For calls of one row with K and V in q8_0 or q4: heads of 64, 128, 256 or 512 dims.
extern const AttentionTable kAttentionQ8RowAmx;

const MatmulKernels& matmul_kernels_avx2();
const MatmulKernels& matmul_kernels_avx512();
const MatmulKernels& matmul_kernels_amx();
MatmulJobFn f32_avx2(GgmlType type);
MatmulJobFn int8_panel_avx2(GgmlType type);
MatmulJobFn int8_dot_avx512(GgmlType type);
MatmulJobFn int8_panel_avx512(GgmlType type);
MatmulJobFn f32_avx512(GgmlType type);
MatmulJobFn bf16_amx(GgmlType type);
void pack_tiles_amx(const float* const* x, uint64_t n_in, std::byte* tiles);
void quantize_row_avx512(const float* x, uint64_t n, std::byte* row);

/// Scratch of kBf16Tiles with AMX: a panel of weights, tiles of sums, and gathered activation tiles
/// (at least two rows of tiles). Panel and sums fill half of the second level cache that these CPUs
/// have, so that the activations' tiles can stream through the rest.
constexpr uint64_t kAmxPanelRows = 256, kAmxDepth = 1024, kAmxRows = 512;
constexpr uint64_t kAmxPanelBytes = kAmxPanelRows * kAmxDepth * 2;
constexpr uint64_t kAmxSumBytes = kAmxPanelRows * kAmxRows * 4;
constexpr uint64_t kAmxPackBytes = 1 << 20;
uint64_t tile_scratch_bytes_amx(uint64_t max_in);

}  // namespace sharpi::cpu
