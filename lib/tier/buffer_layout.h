// SPDX-License-Identifier: MIT
// Named buffers at fixed offsets of one block, in the order in which they are added. The layout
// follows from sizes alone, so that the planner prices what a workspace takes.
// Thread rule: a value.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/checked.h"

namespace sharpi {

/// Name: an enum class that ends with kCount. kAlign: bytes that every buffer's beginning is
/// aligned to, if the block's is.
template <class Name, uint64_t kAlign>
struct BufferLayout {
  std::array<uint64_t, static_cast<size_t>(Name::kCount)> offset{}, size{};
  uint64_t bytes = 0;
  void add(Name b, uint64_t n) {
    offset[static_cast<size_t>(b)] = bytes;
    size[static_cast<size_t>(b)] = n;
    bytes += round_up(n, kAlign);
  }
  void add_floats(Name b, uint64_t n) { add(b, n * sizeof(float)); }
  uint64_t offset_of(Name b) const { return offset[static_cast<size_t>(b)]; }
  uint64_t size_of(Name b) const { return size[static_cast<size_t>(b)]; }
};

}  // namespace sharpi
