// SPDX-License-Identifier: MIT
// What cpu/matmul.cc and the kernels of one instruction set agree on. Kernel files are compiled
// with flags that the rest of the library must not see, so this header has plain data and
// declarations only, and what it defines has internal linkage. Owner: cpu/matmul.cc. Thread rule:
// a job is run by one thread, with scratch of its own.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gguf/ggml_type.h"

namespace sharpi::cpu {

enum class MatmulPath : uint32_t {
  kF32,        // f32 activations; one reduction order for every row count
  kInt8Dot,    // int8 activations, weight rows streamed; one reduction order for every row count
  kInt8Panel,  // int8 activations, weights unpacked to panels
  kBf16Tiles,  // bf16 activations and weights in tiles
  kBf16Rows,   // bf16 activations, weights stored in bf16
};

/// A range of output rows of one product, run by one thread.
///   y[r][o] = sum_i w[o][i] * x[ids ? ids[r] : r][i]
struct MatmulJob {
  GgmlType type = GgmlType::kF32;
  const std::byte* w = nullptr;  // n_out rows of row_bytes
  uint64_t row_bytes = 0;
  uint64_t n_in = 0;
  uint64_t n_out = 0;
  uint64_t n_behind = 0;         // rows behind them that the thread most likely takes next
  const std::byte* x = nullptr;  // f32 rows, or int8 rows (below), x_stride bytes apart
  uint64_t x_stride = 0;
  const std::byte* tiles = nullptr;  // kBf16Tiles with ids == nullptr: prepared tiles (below)
  const uint32_t* ids = nullptr;
  uint32_t n_rows = 0;
  float* y = nullptr;
  uint64_t y_stride = 0;         // floats
  std::byte* scratch = nullptr;  // matmul_scratch_bytes of the path, 64-byte aligned
  bool ask_once = false;         // kInt8Dot: for lines of weights, see Processor::asks_once
};
using MatmulJobFn = void (*)(const MatmulJob&);

/// An activation row in int8, k = n_in rounded up to kInt8RowUnit (the padding is zero): int8 q[k],
/// then per 256 elements float d[8], sum32[8], sum16[16]. x[i] ~ d[i/32] * q[i] with |q| <= 127;
/// sum32 and sum16 are d * (sum of q over 32, over 16). In a group with a non-finite element d and
/// the sums are NaN.
constexpr uint64_t kInt8RowUnit = 256, kInt8UnitFloats = 32;
constexpr uint64_t kInt8UnitBytes = kInt8RowUnit + kInt8UnitFloats * sizeof(float);
/// Groups smaller than this in every element are zero: 127 / amax must stay finite.
constexpr float kInt8MinAmax = 1e-30f;
using QuantizeRowFn = void (*)(const float* x, uint64_t n, std::byte* row);

/// Behind the units of an int8 row: elements whose products with the weights' codes are made apart,
/// in f32. Their int8 value is zero, and the scale of their group is that of its other elements;
/// sum32 and sum16 count them with the rest.
constexpr uint32_t kMaxPeaks = 7;
struct Int8Peaks {
  uint32_t n = 0;
  uint32_t at[kMaxPeaks] = {};  // indices in the row
  float x[kMaxPeaks] = {};
  uint32_t padding = 0;
};
static_assert(sizeof(Int8Peaks) == 64);
namespace {  // NOLINT: internal linkage, every kernel file has its own
inline const Int8Peaks& peaks_of(const int8_t* row, uint64_t n_units) {
  return *reinterpret_cast<const Int8Peaks*>(row + n_units * kInt8UnitBytes);
}
}  // namespace

/// Activation tiles in bf16: tile (t, c) holds rows 16t.. and elements 32c.. as [16 pairs][16 rows]
/// [2] (1024 bytes), at ((t * n_in_tiles) + c) * 1024; missing rows and elements are zero.
constexpr uint64_t kTileRows = 16, kTileDepth = 32, kTileBytes = 1024;
/// One row of tiles; x[r] is null for a missing row.
using PackTilesFn = void (*)(const float* const* x, uint64_t n_in, std::byte* tiles);

/// Activation rows that kInt8Dot takes together; its scratch is their int8 values in another order.
constexpr uint64_t kInt8DotRows = 8;

/// Scratch of kInt8Panel per element of a row (rounded up to kInt8RowUnit): codes of 32 rows, and
/// their scales and minima per 16 elements.
constexpr uint64_t kInt8PanelRows = 32;
constexpr uint64_t kInt8PanelBytes = kInt8PanelRows + kInt8PanelRows * 2 * sizeof(float) / 16;

/// The products of one instruction set; what it does not have is null.
struct MatmulKernels {
  MatmulJobFn (*job)(MatmulPath path, GgmlType type) = nullptr;
  QuantizeRowFn quantize_row = nullptr;  // null: f32 activations only
  uint64_t dot_scratch_rows = 0;         // of int8 values that kInt8Dot orders in its scratch
  PackTilesFn pack_tiles = nullptr;      // null: no kBf16Tiles
  uint64_t (*tile_scratch_bytes)(uint64_t max_in) = nullptr;  // of a thread
  const char* tiles_name = nullptr;  // what sharpi_model_json() calls products by tiles
  uint64_t (*bf16_scratch_bytes)(uint64_t max_in) = nullptr;  // of a thread; null: no kBf16Rows
  const char* bf16_name = nullptr;
};

}  // namespace sharpi::cpu
