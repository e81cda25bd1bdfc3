// SPDX-License-Identifier: MIT
// What a block of gemm.cu takes of shared memory. Plain C++. Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "cuda/kernels/products/gemm.h"

namespace sharpi::cuda {

/// What a panel is streamed in: `blocks` of 64 columns, `stages` of such units in shared memory.
struct UnitShape {
  uint32_t blocks, stages, bytes;
};
SHARPI_HOST_DEVICE constexpr UnitShape unit_shape(GgmlType type) {
  switch (type) {
    case GgmlType::kQ4_K:
      return {4, 2, 2304};
    case GgmlType::kQ5_K:
      return {4, 2, 2816};
    case GgmlType::kQ6_K:
      return {4, 2, 3360};
    case GgmlType::kQ8_0:
      return {2, 2, 4 * 544};
    case GgmlType::kQ4_0:
      return {2, 2, 4 * 288};
    case GgmlType::kQ4_1:
      return {2, 2, 4 * 320};
    case GgmlType::kQ5_0:
      return {2, 2, 4 * 352};
    case GgmlType::kQ5_1:
      return {2, 2, 4 * 384};
    case GgmlType::kMXFP4:
      return {2, 2, 4 * 272};
    case GgmlType::kF16:
      return {1, 3, 2048};
    default:
      return {};  // no unit: launch_gemm refuses it
  }
}

constexpr uint32_t kGemmWarps = 4, kGemmPanels = 2 * kGemmWarps, kGemmXStages = 3;
/// The weights whose rings take most: a launch for any type has room if one for these has.
constexpr GgmlType kWidestGemmType = GgmlType::kQ6_K;

/// Stages of the rows' image and the panels' rings, for weights of that type.
constexpr uint32_t gemm_shared_bytes(uint32_t row_tile, GgmlType type) {
  return kGemmXStages * row_tile * kImageRowBytes +
         kGemmPanels * unit_shape(type).stages * unit_shape(type).bytes;
}

/// Rows of a tile for so many rows: 32, 64, or 128 where that many fit beside weights of the type
/// (Q6_K beside 128 rows takes 102 912 bytes, 1.5 KiB more than a block has on most cards).
constexpr uint32_t gemm_tile_rows(const DeviceProfile& device, uint64_t n_rows, GgmlType type) {
  if (n_rows <= 32) return 32;
  const auto room = static_cast<uint32_t>(device.shared_per_block);
  return n_rows <= 64 || gemm_shared_bytes(128, type) > room ? 64 : 128;
}

// --- Hopper's warpgroups ---

constexpr uint32_t kWarpgroupWarps = 8;  // that compute
constexpr uint32_t kWarpgroupGemmThreads =
    (kWarpgroupWarps + 4) * 32;  // registers go by warpgroups
constexpr uint32_t kMostXStages = 8;

SHARPI_HOST_DEVICE constexpr uint32_t panel_ring_bytes(GgmlType type) {
  return unit_shape(type).stages * unit_shape(type).bytes;
}
/// How a block of gemm_sm90.cu divides its shared memory: stages of the rows' image, rings,
/// factors, barriers (rows full and empty, three of each warp's units).
constexpr uint32_t kGemmFactorBytes = kWarpgroupRowTile * 4;
constexpr uint32_t kGemmBarrierBytes = (2 * kMostXStages + 3 * kWarpgroupWarps) * 8;
struct WarpgroupGemm {
  uint32_t x_stages;    // fewer than two: it does not fit
  uint32_t ring_bytes;  // of all warps
  uint32_t shared_bytes;
};
/// `ring`: panel_ring_bytes() of the widest type. Gated products exchange half of the sums of both
/// warpgroups where the rows were.
constexpr WarpgroupGemm warpgroup_gemm(const DeviceProfile& device, uint32_t row_tile,
                                       uint32_t ring, bool gated) {
  WarpgroupGemm g = {0, kWarpgroupWarps * ring, 0};
  const uint32_t fixed = g.ring_bytes + kGemmFactorBytes + kGemmBarrierBytes,
                 x_stage = row_tile * kImageRowBytes;
  const auto limit = static_cast<uint32_t>(device.shared_per_block);
  const uint32_t stages = limit > fixed ? (limit - fixed) / x_stage : 0;
  g.x_stages = stages < kMostXStages ? stages : kMostXStages;
  const uint32_t exchanged = gated ? kWarpgroupRowTile / 16 * kWarpgroupWarps * 32 * 16 : 0,
                 rows = g.x_stages * x_stage + fixed;
  g.shared_bytes = rows > exchanged ? rows : exchanged;
  return g;
}
/// Whether a device has room for tiles of any rows and of weights of any type.
constexpr bool warpgroup_gemm_fits(const DeviceProfile& device) {
  return device.wgmma &&
         warpgroup_gemm(device, kWarpgroupRowTile, panel_ring_bytes(kWidestGemmType), true)
                 .x_stages >= 2;
}

}  // namespace sharpi::cuda
