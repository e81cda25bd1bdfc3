// SPDX-License-Identifier: MIT
// Where the parts of a row in fixed point (fixed_product.cuh) lie in shared memory.
// Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace sharpi::cuda {

/// Byte offsets of the parts of a staged row.
struct FixedMap {
  uint32_t sums, inverse, squares, bytes;  // from 512 bytes a unit of high and low bytes on
};
SHARPI_HOST_DEVICE inline FixedMap fixed_map(uint32_t units) {
  FixedMap m;
  m.sums = units * 512;               // [unit][8] f32: of 32 columns
  m.inverse = m.sums + units * 32;    // [unit] f32
  m.squares = m.inverse + units * 4;  // [unit] f32
  m.bytes = m.squares + units * 4;
  return m;
}

}  // namespace sharpi::cuda
