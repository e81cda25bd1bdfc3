// SPDX-License-Identifier: MIT
// How a launch of matvec.cu divides its work and a block's shared memory. Plain C++.
// Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "cuda/kernels/products/matvec.h"

namespace sharpi::cuda {

/// Byte offsets of the parts; units counts all segments.
struct ImageMap {
  uint32_t row_bytes;  // between rows of x; 64 more than a multiple of 128
  uint32_t sums16, sums32, inverse, squares, bytes;
};
SHARPI_HOST_DEVICE inline ImageMap image_map(uint32_t n_rows, uint32_t units) {
  const uint32_t cols = n_rows == 1 ? 1 : 8;
  ImageMap m;
  m.row_bytes = units * kUnitColumns * 2 + 64;
  m.sums16 = n_rows * m.row_bytes;             // [unit][row][32 halves]
  m.sums32 = m.sums16 + units * n_rows * 64;   // [unit][row][16 halves]
  m.inverse = m.sums32 + units * n_rows * 32;  // [unit][cols] f32
  m.squares = m.inverse + units * cols * 4;    // [unit][row] f32
  m.bytes = (m.squares + units * n_rows * 4 + 15) / 16 * 16;
  return m;
}

namespace matvec {

constexpr uint32_t kMaxWarps = 12;  // 80 registers each, so that two blocks (this launch's and the
constexpr uint32_t kMaxThreads = kMaxWarps * 32;  // next's) fit on a multiprocessor
constexpr uint32_t kMaxStages = 4;                // units in flight per warp
constexpr uint32_t kRingBytes = 82u << 10;
constexpr uint32_t kMaxPanels = 64;  // of a block; more panels make more blocks

/// A panel of the block, ready for use.
struct Panel {
  const uint8_t* data;
  float* y;  // output row 0
  uint32_t y_stride;
  uint32_t unit_bytes, tail_bytes;
  uint32_t first_unit;  // of the staged input
  GgmlType type;
};

/// Shared memory of a block, in order: ring, staged input, partial sums, panels, first and last
/// warps.
struct SharedMap {
  uint32_t image, part, panels, warps, ahead, barriers, bytes;
};
SHARPI_HOST_DEVICE inline SharedMap shared_map(const StreamParams& p, uint32_t image_bytes) {
  SharedMap m;
  m.image = p.n_warps * p.n_stages * p.stage_bytes;
  m.part = m.image + image_bytes;
  m.panels = m.part + (p.max_panels + p.n_warps) * kPanelRows * p.n_rows * 4;
  m.warps = m.panels + p.max_panels * static_cast<uint32_t>(sizeof(Panel));
  m.ahead = (m.warps + p.max_panels * 8 + 15) / 16 * 16;
  m.barriers = m.ahead + p.n_warps * 32;
  m.bytes = m.barriers + (p.n_warps * p.n_stages + 1) * 8;
  return m;
}

/// Work and shared memory of a launch on the device; 0 if a block has no room for its row, else the
/// blocks of a row of the grid. *shared_bytes: of a block.
uint32_t plan_matvec(const DeviceProfile& device, StreamParams* p, uint32_t* shared_bytes);

}  // namespace matvec
}  // namespace sharpi::cuda
