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

/// What units that are not given back yet take of a ring, oldest first, eight of them at most. A
/// byte for each in pieces of 64 bytes, rounded up: units of Q6_K are half a piece longer than
/// whole ones. Rings have room for two of their largest units, which stays enough: what a unit
/// takes with the end of a ring that it does not fit into is less than two units, and they are
/// whole pieces.
struct RingUse {
  static constexpr uint32_t kPiece = 64;
  uint64_t pieces = 0;
  uint32_t bytes = 0, units = 0;

  static SHARPI_HOST_DEVICE constexpr uint32_t rounded(uint32_t taken) {
    return (taken + kPiece - 1) / kPiece * kPiece;
  }
  SHARPI_HOST_DEVICE bool has_room(uint32_t taken, uint32_t ring_bytes) const {
    return units < kSlots && bytes + rounded(taken) <= ring_bytes;
  }
  SHARPI_HOST_DEVICE void take(uint32_t taken) {
    pieces |= static_cast<uint64_t>(rounded(taken) / kPiece) << units * 8;
    bytes += rounded(taken);
    ++units;
  }
  SHARPI_HOST_DEVICE void give_back() {
    bytes -= static_cast<uint32_t>(pieces & 255) * kPiece;
    pieces >>= 8;
    --units;
  }
};

}  // namespace sharpi::cuda
