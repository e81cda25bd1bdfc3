// SPDX-License-Identifier: MIT
// How weight matrices lie in device memory, and the kernels that bring them there from file bytes.
//   kRows   the file's blocks, row after row (plain types, rare types, odd heights).
//   kTiles  panels of 16 rows; a panel is a sequence of units of 16 rows x 256 columns (shorter at
//           the end for types with blocks of 32), each unit one contiguous piece in the order in
//           which a warp's tensor-core fragments want it. Same byte count as the file: rows
//           [16p, 16p+16) occupy the same byte range in both.
// Owner: the CUDA model. Thread rule: pure functions; launches are asynchronous on the stream.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "cuda/kernels/stream_handle.h"
#include "gguf/ggml_type.h"

namespace sharpi::cuda {

enum class WeightLayout : uint8_t { kRows, kTiles };

/// Weight rows of a panel: the height of a tensor-core fragment.
constexpr uint32_t kPanelRows = 16;
/// Columns of a unit: one super-block of the K types.
constexpr uint32_t kUnitColumns = 256;
/// What the columns of every matrix are a multiple of.
constexpr uint32_t kColumnStep = 8;
/// What matrices must be aligned to in device memory (bulk copies need 16).
constexpr uint64_t kWeightAlign = 256;

/// Bytes of a whole unit, and of a panel of rows of n_in columns.
inline uint32_t unit_bytes_of(GgmlType type) {
  const GgmlTypeTraits& traits = ggml_traits(type);
  return kUnitColumns / traits.block_elements * traits.block_bytes * kPanelRows;
}
inline uint32_t panel_bytes_of(GgmlType type, uint64_t n_in) {
  return static_cast<uint32_t>(ggml_row_bytes(type, n_in) * kPanelRows);
}

/// The layout that a matrix of this shape gets. Experts: n_out rows of one expert.
WeightLayout weight_layout(GgmlType type, uint64_t n_in, uint64_t n_out);

/// A matrix on the device: n_experts slabs of n_out rows of n_in elements.
struct DeviceMatrix {
  GgmlType type = GgmlType::kF32;
  WeightLayout layout = WeightLayout::kRows;
  const std::byte* data = nullptr;  // aligned to 16 at least
  uint32_t n_in = 0, n_out = 0;
  uint32_t n_experts = 1;
  uint64_t expert_bytes = 0;  // between slabs; 0 with one expert
  explicit operator bool() const { return data != nullptr; }
};

/// kUnsupported, naming kernel and type, unless matrices of the type and layout have a form in the
/// kernels (weight_types.h): what launchers ask before they launch.
Status check_weights(const char* kernel, GgmlType type, WeightLayout layout);

/// Fills in everything from the shape; `data` holds the matrix in weight_layout()'s layout.
DeviceMatrix make_device_matrix(GgmlType type, uint64_t n_in, uint64_t n_out, uint64_t n_experts,
                                const void* data);

/// Weight rows [first, first + n) of every expert (fused gate and up slabs). For kTiles both must
/// be multiples of kPanelRows, else the result is empty.
DeviceMatrix output_slice(const DeviceMatrix& m, uint32_t first, uint32_t n);

struct RepackParams {
  GgmlType type = GgmlType::kF32;
  uint32_t n_in = 0;
  uint64_t n_weight_rows = 0;      // multiple of kPanelRows (slabs of experts may be joined)
  const std::byte* src = nullptr;  // file layout, device memory, aligned to 16
  std::byte* dst = nullptr;        // n_weight_rows * row bytes; must not overlap src
};
/// kTiles matrices only (kRows ones are copied as they are). Chunks of whole panels can be uploaded
/// to a staging area and moved from there one after the other: chunk rows [r, r + n) go to
/// dst + r * row bytes.
Status launch_repack(const RepackParams& p, cudaStream_t stream);

struct EmbedRowsParams {
  DeviceMatrix table;            // any type, any layout
  const int32_t* ids = nullptr;  // device, [n_rows]; values in [0, table.n_out)
  uint32_t n_rows = 0;
  float scale = 1.0f;
  float* y = nullptr;  // [n_rows][y_stride] f32
  uint64_t y_stride = 0;
};
/// y[r] = scale * table row ids[r], dequantised to f32 exactly as dequantize_row does.
Status launch_embed_rows(const EmbedRowsParams& p, cudaStream_t stream);

struct DequantizeParams {
  DeviceMatrix w;                     // one expert
  uint32_t first_out = 0, n_out = 0;  // weight rows
  float* y_f32 = nullptr;             // [n_out][n_in], natural column order; or
  void* y_f16 = nullptr;              // the same as IEEE half
};
/// Exactly one of y_f32 and y_f16 is set.
Status launch_dequantize(const DequantizeParams& p, cudaStream_t stream);

}  // namespace sharpi::cuda
