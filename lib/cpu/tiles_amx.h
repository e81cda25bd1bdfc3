// SPDX-License-Identifier: MIT
// How the kernels set up the tile registers: eight tiles of 16 rows of 64 bytes. Thread rule: plain
// values.
#pragma once

#include <cstdint>

namespace sharpi::cpu {
namespace {  // NOLINT: as everything of the kernel files, of internal linkage

/// What _tile_loadconfig() reads.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

}  // namespace
}  // namespace sharpi::cpu
