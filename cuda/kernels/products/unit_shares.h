// SPDX-License-Identifier: MIT
// What launches of one row have in common whose warps share units of weights (chain.cu,
// moe_step.cu): how many warps and slots there are, where a launch takes bytes of a block's shared
// memory for its sums, and which matrices it can read. The device's half is unit_shares.cuh. Plain
// C++. Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "cuda/kernels/products/weight_layout.h"
#include "cuda/kernels/products/weight_types.h"

namespace sharpi::cuda {

constexpr uint32_t kShareWarps = 16;  // of a block that compute; each has a share of the units
constexpr uint32_t kShareThreads = kShareWarps * 32;
constexpr uint32_t kSlots = 8;  // units of a warp's ring that are under way or not yet used

/// Whether units of the matrix have a product with a row in fixed point, all of them whole.
inline bool has_unit_shares(const DeviceMatrix& w) {
  return w && w.layout == WeightLayout::kTiles && has_fixed_product(w.type) &&
         w.n_out % kPanelRows == 0 && w.n_in % kUnitColumns == 0;
}

/// Bytes of shared memory for the warps' sums of a block's groups (leave_piece()), and for which
/// warps have pieces of each.
constexpr uint32_t piece_bytes(uint32_t n_groups) {
  return (n_groups + kShareWarps) * kPanelRows * 4;
}
constexpr uint32_t piece_range_bytes(uint32_t n_groups) {
  return n_groups * 8;
}

/// Whether the unit that is put into a warp's ring next lies at its beginning: a unit is never cut
/// in two. What is left behind `head` is then lost until that unit is given back, so it counts.
SHARPI_HOST_DEVICE inline bool ring_wraps(uint32_t head, uint32_t bytes, uint32_t ring_bytes) {
  return head + bytes > ring_bytes;
}
/// Bytes of the ring that the unit takes.
SHARPI_HOST_DEVICE inline uint32_t ring_taken(bool wraps, uint32_t head, uint32_t bytes,
                                              uint32_t ring_bytes) {
  return bytes + (wraps ? ring_bytes - head : 0);
}

}  // namespace sharpi::cuda
