// SPDX-License-Identifier: MIT
// How a launch of matvec.cu divides its work and a block's shared memory. Plain C++.
// Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "base/status.h"
#include "cuda/kernels/products/fixed_map.h"
#include "cuda/kernels/products/matvec.h"

namespace sharpi::cuda {

struct LaunchShape;

constexpr uint32_t kRowGap = 64;  // lets the rows of a column lie in different banks

/// The staged rows: the squares of all units, then part by part what the products read. Byte
/// offsets; those of x, sums and inverses are from the start of a part. `units` of a part, all
/// segments counted.
struct ImageMap {
  uint32_t row_bytes;  // between rows of x; kRowGap more than a multiple of 128
  uint32_t sums16, sums32, inverse;
  uint32_t columns;  // of inverses: one, or the eights of rows whole
  uint32_t part_bytes;
  uint32_t first_part;  // from the start of the image, where [unit of all][row] f32 squares are
  uint32_t bytes;       // of squares and n_parts parts
};
SHARPI_HOST_DEVICE inline ImageMap image_map(uint32_t n_rows, uint32_t units, uint32_t n_parts) {
  ImageMap m;
  m.columns = n_rows == 1 ? 1 : (n_rows + 7) / 8 * 8;
  m.row_bytes = units * kUnitColumns * 2 + kRowGap;
  m.sums16 = n_rows * m.row_bytes;             // [unit][row][32 halves]
  m.sums32 = m.sums16 + units * n_rows * 64;   // [unit][row][16 halves]
  m.inverse = m.sums32 + units * n_rows * 32;  // [unit][columns] f32
  m.part_bytes = (m.inverse + units * m.columns * 4 + 15) / 16 * 16;
  m.first_part = (units * n_parts * n_rows * 4 + 15) / 16 * 16;
  m.bytes = m.first_part + n_parts * m.part_bytes;
  return m;
}

/// Panels of a block's group: a gate and its up, or the segments' panels of one output.
SHARPI_HOST_DEVICE inline uint32_t panels_per_group(const StreamParams& p) {
  return is_gated_epilogue(p.epilogue) ? 2 : p.n_segments;
}

namespace matvec {

constexpr uint32_t kMaxWarps = 12;
constexpr uint32_t kMaxThreads = kMaxWarps * 32;
constexpr uint32_t kMaxStages = 4;  // units in flight per warp
constexpr uint32_t kRingBytes = 82u << 10;
constexpr uint32_t kMaxPanels = 64;  // of a block; more panels make more blocks
constexpr uint32_t kMaxParts = 20;   // of the columns of several rows
constexpr uint32_t kMaxAbsent = 2;   // units that the last part may have fewer than the others

/// A panel of the block, ready for use.
struct Panel {
  const uint8_t* data;
  float* y;  // output row 0
  uint32_t y_stride;
  uint32_t unit_bytes, tail_bytes;
  uint32_t first_unit;  // of the staged input
  GgmlType type;
};

/// The same of the only row, with what is added to its outputs (nullptr: nothing) and what a routed
/// expert's part is multiplied by.
struct RowPanel {
  const uint8_t* data;
  float* y;
  const float* bias;
  float weight;
  uint32_t unit_bytes, tail_bytes;
  uint32_t first_unit;
  GgmlType type;
};

/// Shared memory of a block, in order: ring, staged input (the squares and `buffers` parts),
/// partial sums, panels, first and last warps, where copies are, barriers of the rings and of the
/// parts, and how many warps are done with a part.
struct SharedMap {
  uint32_t image, sums, panels, warps, ahead, barriers, bytes;
};
SHARPI_HOST_DEVICE inline SharedMap shared_map(const StreamParams& p, const ImageMap& image) {
  SharedMap m;
  m.image = p.n_warps * p.n_stages * p.stage_bytes;
  m.sums = m.image + image.first_part + p.buffers * image.part_bytes;
  m.panels = m.sums + (p.max_panels + p.n_warps) * kPanelRows * p.n_rows * 4;
  m.warps = m.panels + p.max_panels * static_cast<uint32_t>(sizeof(Panel));
  m.ahead = (m.warps + p.max_panels * 8 + 15) / 16 * 16;
  m.barriers = m.ahead + p.n_warps * 32;
  m.bytes = m.barriers + (p.n_warps * p.n_stages + 3) * 8;
  return m;
}

/// Shared memory of a block that takes one row, in order: rings, the staged row, partial sums,
/// panels, first and last warps, biases, barriers of the rings.
struct RowMap {
  uint32_t image, sums, panels, warps, biases, barriers, bytes;
};
SHARPI_HOST_DEVICE inline RowMap row_map(const StreamParams& p) {
  RowMap m;
  m.image = p.n_warps * p.n_stages * p.stage_bytes;
  m.sums = m.image + (fixed_map(p.units * p.n_segments).bytes + 15) / 16 * 16;
  m.panels = m.sums + (p.max_panels + p.n_warps) * kPanelRows * 4;
  m.warps = m.panels + p.max_panels * static_cast<uint32_t>(sizeof(RowPanel));
  m.biases = m.warps + p.max_panels * 8;
  m.barriers = m.biases + (p.biased ? p.max_panels * kPanelRows * 4 : 0);
  m.bytes = m.barriers + p.n_warps * p.n_stages * 8;
  return m;
}

/// Whether a block's weights fill half of its rings at most, so that all are asked for at once.
inline bool rings_hold_all(const StreamParams& p) {
  return 2 * p.max_panels * p.units * p.n_segments <= p.n_warps * p.n_stages;
}

/// Work and shared memory of a launch on the device; 0 if a block has no room for its row, else the
/// blocks of a row of the grid. *shared_bytes: of a block.
uint32_t plan_matvec(const DeviceProfile& device, StreamParams* p, uint32_t* shared_bytes);

/// The launch of one row (matvec_row.cu), and the limits of its kernels.
Status launch_row(const StreamParams& planned, const LaunchShape& shape);
Status prepare_row(int max_shared_bytes);

}  // namespace matvec
}  // namespace sharpi::cuda
