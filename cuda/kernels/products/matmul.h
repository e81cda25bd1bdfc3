// SPDX-License-Identifier: MIT
// Matrix products of the CUDA tier: y[r][o] = sum_i W[o][i] * x[r][i], x and y f32 in device
// memory. launch_matmul streams the weights once for every 16 rows of few (matvec.cu): x rounded to
// f16 under powers of two, integer weights exact on tensor cores, f32 accumulation; nothing but the
// weights is read before the grid dependency resolves, so launches chained with `pdl` overlap. More
// rows: x as an f16 image under a power of two per row, weights to f16 on the way (gemm.h), or
// cuBLASLt. exact: f32 products and f32 accumulation everywhere. Reduction orders are fixed: equal
// calls give equal bits. deterministic: one kernel and one order for every n_rows, so that a row's
// result does not depend on the other rows. All launchers check their arguments, allocate nothing
// and can be captured into a graph. Thread rule: pure functions, except MatmulContext (one stream
// at a time).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/host_device.h"
#include "base/status.h"
#include "cuda/kernels/kernel_config.h"
#include "cuda/kernels/products/weight_layout.h"
#include "cuda/kernels/stream_handle.h"
#include "device/epilogue.h"

namespace sharpi::cuda {

/// Rows that the weight-streaming kernels take in one launch: of weights in tiles, and in f32.
constexpr uint32_t kMatvecRows = 16, kMatvecF32Rows = 8;
/// Rows up to which they are used, several launches if need be.
constexpr uint32_t kStreamedRows = 24;
constexpr uint32_t kMaxMatmulTasks = 4;

using device::Epilogue;

SHARPI_HOST_DEVICE inline bool is_gated_epilogue(Epilogue e) {
  return device::is_gated(e);
}

/// Raises the shared-memory limits of the kernels to what the profile has, so that the first launch
/// may be inside a capture. On the current device.
Status prepare_matmul(const KernelConfig& config);
/// The same after it has filled in the profile of the current device.
Status make_kernel_config(KernelConfig* config);

struct MatmulTask {
  DeviceMatrix w;
  float* y = nullptr;  // [n_rows][y_stride]
  uint64_t y_stride = 0;
  const float* bias = nullptr;  // [w.n_out], added to W x; not with a row_scale
};

/// One launch: up to kMaxMatmulTasks matrices of equal n_in read the same rows.
struct MatmulParams {
  const float* x = nullptr;  // [n_rows][x_stride], rows aligned to 16 bytes
  uint64_t x_stride = 0;
  uint32_t n_rows = 0;
  const float* norm_weight = nullptr;  // [n_in]: x is RMS-normalised first (x itself is unchanged)
  float norm_eps = 0.0f;
  uint32_t n_tasks = 0;
  MatmulTask tasks[kMaxMatmulTasks];
  Epilogue epilogue = Epilogue::kStore;  // not kSquare
  const float* row_scale = nullptr;      // [n_rows] device: s above; nullptr = 1
  bool force_f32 = false;                // this product in exact arithmetic (routers)
  std::byte* workspace = nullptr;        // matmul_workspace_bytes(), aligned to 256
  uint64_t workspace_bytes = 0;
};

/// Workspace of products of up to max_rows rows of up to max_in elements and up to max_out outputs
/// per task. 0 is possible.
uint64_t matmul_workspace_bytes(const KernelConfig& config, uint32_t max_rows, uint32_t max_in,
                                uint32_t max_out);

/// The same of products of weights in tiles alone: more where a block has room for sixteen rows
/// beside its rings (9.0). Cards with less memory bandwidth would pay for reading the weights
/// twice.
uint32_t streamed_tile_rows(const KernelConfig& config);

Status launch_matmul(const KernelConfig& config, const MatmulParams& p, cudaStream_t stream);

/// The kernel that a product of n_rows rows of tile weights goes to, in words (statistics).
const char* matmul_path(const KernelConfig& config, uint32_t n_rows);

/// Routed experts: y[r] (+)= sum_j weight[r][j] * down[e](act(gate[e] x[r]) * up[e] x[r]), each
/// product with its bias, e = ids[r][j], j ascending. With kSquare there is no gate, and down's
/// input is max(up[e] x[r], 0)^2.
struct MoeParams {
  const float* x = nullptr;  // [n_rows][x_stride]
  uint64_t x_stride = 0;
  uint32_t n_rows = 0;
  const float* norm_weight = nullptr;  // as in MatmulParams
  float norm_eps = 0.0f;
  /// Slabs; fused gate and up: two output_slice()s of one matrix. There is always an up.
  DeviceMatrix gate, up, down;
  uint32_t n_used = 0;           // experts per row, <= 32
  const int32_t* ids = nullptr;  // [n_rows][n_used] device; a negative id is skipped
  /// Where the slabs hold some experts only: [expert] device, the matrix of the slabs that is its,
  /// negative: it is skipped. nullptr: the id is the matrix. Matrix 0 is always finite numbers.
  const int32_t* slot_of_expert = nullptr;
  const float* weights = nullptr;  // [n_rows][n_used] device
  /// [experts of the model][outputs], by the id, whatever the matrix is: added to each product of
  /// an expert. nullptr: none.
  const float *gate_bias = nullptr, *up_bias = nullptr, *down_bias = nullptr;
  Epilogue activation = Epilogue::kSwiGlu;  // of a gate, or kSquare
  float* y = nullptr;                       // [n_rows][y_stride]
  uint64_t y_stride = 0;
  bool add = false;                // y += instead of y =
  std::byte* workspace = nullptr;  // moe_workspace_bytes(), aligned to 256
  uint64_t workspace_bytes = 0;
};
uint64_t moe_workspace_bytes(const KernelConfig& config, uint32_t max_rows, uint32_t n_embd,
                             uint32_t d_ff, uint32_t n_experts, uint32_t n_used);
/// Two launches for up to kStreamedRows rows, six for more.
Status launch_moe(const KernelConfig& config, const MoeParams& p, cudaStream_t stream);

}  // namespace sharpi::cuda
