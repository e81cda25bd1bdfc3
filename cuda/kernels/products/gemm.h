// SPDX-License-Identifier: MIT
// Products of more rows than matvec.cu takes: the parameters that the tensor-core kernels (gemm.cu,
// gemm_sm90.cu) and the f32 kernel (gemm_f32.cu) share. Callers outside use matmul.h.
//
// The input of the tensor-core kernels is an image made by launch_stage_image: f16, each row scaled
// by a power of two, columns ordered as the fragments want them, cut into blocks of 64 columns:
//   image[block][row][128 bytes], the eight 16-byte pieces of a row swizzled by row % 8,
// so that the tile of any rows r.. (r a multiple of 8) of a block is one contiguous piece that
// tensor cores can be fed from as it lies. Weights go from tiles to f16 fragments in registers.
// Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "cuda/kernels/products/matmul.h"
#include "cuda/kernels/stream_handle.h"

namespace sharpi::cuda {

constexpr uint32_t kImageColumns = 64;    // columns of a block of the image
constexpr uint32_t kImageRowBytes = 128;  // a row of it
/// Weights are multiplied by this before they are rounded to f16, so that scales of small rows stay
/// normal numbers; weights up to 1023 are represented.
constexpr float kWeightUnit = 64.0f;
/// Most bytes of f16 tiles that types without fragments of their own are brought into at a time.
constexpr uint64_t kF16TileBytes = 64ull << 20;

struct GemmTask {
  const uint8_t* data;
  uint64_t expert_bytes;
  float* y;
  uint64_t y_stride;
  uint64_t panel_bytes;  // 16 rows
  uint32_t n_out;
  uint32_t first_tile;  // of the task in the launch's second grid dimension
  GgmlType type;        // kF16 in tiles: made by launch_f16_tiles
  WeightLayout layout;
  const float* bias;  // [RowTile::id][n_out], added to a product; nullptr = none
};

/// Rows [first, first + n_rows) of the image, all of one expert: the place of its matrices, and its
/// number among the model's.
struct RowTile {
  uint32_t expert, first, n_rows, id;
};

struct GemmParams {
  const uint8_t* image;
  uint64_t image_rows;                      // rows of a block
  const float* factor;                      // [image row]: what sums are multiplied by
  const RowTile* tiles;                     // experts: device table; nullptr: all rows, matrix 0
  const uint32_t* n_tiles;                  // device; entries of it
  uint32_t first_expert, n_experts;         // of `data`; others are left out
  uint32_t n_rows;                          // without a table
  uint32_t n_in, n_image_blocks;            // columns, and blocks of the image
  uint32_t row_tile, x_stages, ring_bytes;  // gemm_sm90.cu: shared memory
  uint32_t n_tasks;
  Epilogue epilogue;
  GemmTask tasks[kMaxMatmulTasks];
  // gemm_f32.cu reads x itself:
  const float* x;
  uint64_t x_stride;
  const float* norm_weight;
  const int32_t* row_ids;  // [image row] row of x, negative: none; nullptr: the same
};

struct StageParams {
  const float* x;
  uint64_t x_stride;
  const float* norm_weight;  // or nullptr
  const float* row_scale;    // [row of x] or nullptr
  const int32_t* row_ids;    // [image row] row of x, negative: none; nullptr: the same
  bool same_rows;            // row_ids only says which rows there are
  float norm_eps;
  uint32_t n_rows, n_in;
  uint8_t* image;  // nullptr: factors only, without the scale of an image
  uint64_t image_rows;
  float* factor;
};
Status launch_stage_image(const StageParams& p, bool pdl, cudaStream_t stream);
inline uint32_t image_blocks(uint32_t n_in) {
  return (n_in + kImageColumns - 1) / kImageColumns;
}
inline uint64_t image_bytes(uint64_t rows, uint32_t n_in) {
  return rows * image_blocks(n_in) * kImageRowBytes;
}

/// Any type, any layout, to f16 tiles: panels of 16 rows, units of 16 x 64 (2048 bytes), rows and
/// columns filled up with zeros.
struct F16TilesParams {
  const uint8_t* data;  // first weight row (a multiple of 16 of them for tiles)
  GgmlType type;
  WeightLayout layout;
  uint32_t n_in, n_out;  // of one expert
  uint8_t* dst;          // experts one after the other
  bool plain;            // rows of n_in halves instead of tiles, times kWeightUnit as well
  uint32_t n_experts;
  uint64_t expert_bytes;
};
Status launch_f16_tiles(const F16TilesParams& p, cudaStream_t stream);
/// The same for one expert in tiles that becomes plain rows; n_in a multiple of 32.
Status launch_plain_tiles(const F16TilesParams& p, cudaStream_t stream);
inline uint64_t f16_panel_bytes(uint32_t n_in) {
  return uint64_t{image_blocks(n_in)} * kImageColumns * kPanelRows * 2;
}

/// Columns (rows of x) of a tile for a number of rows per expert: what a table is made for,
/// whatever the type of the weights.
uint32_t gemm_row_tile(const KernelConfig& config, uint64_t rows_per_expert);

/// All tasks in tiles of one type per gated pair. Without a table row_tile may be 0: chosen here.
/// max_tiles: upper bound of *n_tiles.
Status launch_gemm(const KernelConfig& config, const GemmParams& p, uint32_t row_tile,
                   uint32_t max_tiles, cudaStream_t stream);
/// The row tile of the f32 kernel.
constexpr uint32_t kF32RowTile = 64;
Status launch_gemm_f32(const KernelConfig& config, const GemmParams& p, uint32_t max_tiles,
                       cudaStream_t stream);
Status prepare_gemm(const KernelConfig& config);

/// gemm_sm90.cu: the same with any row tile up to this, where the build and the device have it. A
/// tile costs what its rows need, so that tables are made with the largest.
constexpr uint32_t kWarpgroupRowTile = 256;
bool have_gemm_sm90(const KernelConfig& config);
Status launch_gemm_sm90(const KernelConfig& config, const GemmParams& p, uint32_t row_tile,
                        uint32_t max_tiles, cudaStream_t stream);
Status prepare_gemm_sm90(const KernelConfig& config);

/// What matmul.cu and moe.cu make of a matrix and of the rows.
GemmTask gemm_task(const DeviceMatrix& w, float* y, uint64_t y_stride);
/// Makes f16 tiles of rows [first, first + n) of experts [e, e + n_experts) at dst; returns the
/// task that reads them.
Status convert_task(const DeviceMatrix& w, uint32_t first, uint32_t n, uint32_t e,
                    uint32_t n_experts, uint8_t* dst, GemmTask* task, cudaStream_t stream);

/// gemm_cublas.cu: a product through cuBLASLt. Outputs of a gated slice, which bounds `up`.
constexpr uint32_t kCublasGatedSlice = 4096;
struct CublasRun {
  CublasLt* library;
  StageParams in;    // x, norm, factor [n_rows]; no image
  uint8_t* x;        // n_rows * n_in halves
  uint8_t* weights;  // weight_bytes, rows of n_in halves
  uint64_t weight_bytes;
  float* up;           // n_rows * min(n_out rounded up to 4, kCublasGatedSlice)
  uint8_t* scalars;    // 16 bytes
  uint8_t* workspace;  // kCublasWorkspaceBytes
};
Status run_cublas(const CublasRun& r, const MatmulParams& p, cudaStream_t stream);

/// moe.cu: rows grouped by expert, any number of them.
uint64_t grouped_moe_bytes(const KernelConfig& config, uint32_t max_rows, uint32_t n_embd,
                           uint32_t d_ff, uint32_t n_experts, uint32_t n_used);
Status launch_grouped_moe(const KernelConfig& config, const MoeParams& p, cudaStream_t stream);

}  // namespace sharpi::cuda
