// SPDX-License-Identifier: MIT
// Which heads qkv.cu has in registers, and what the others take of shared memory. Plain C++.
// Thread rule: pure functions.
#pragma once

#include <algorithm>
#include <cstdint>

namespace sharpi::cuda {

constexpr uint32_t kQkvWarps = 8, kQkvThreads = kQkvWarps * 32;
/// What a block may take without asking for it, less what the kernel has of its own.
constexpr uint32_t kMostQkvBytes = 47 * 1024;

/// Whether a warp can hold such heads in registers, with both elements of a pair in one lane.
/// `half`: the number of pairs that RoPE rotates. Rows that are read in pieces of 16 bytes must
/// also be aligned to 16.
constexpr bool qkv_in_registers(uint32_t dim, uint32_t half) {
  if (dim == 64 || dim == 96) return half == 0 || half == 32;
  return (dim == 128 || dim == 256 || dim == 512) &&
         (half == 0 || half == 32 || half == 64 || half == 128 || half == 256);
}
/// Bytes of shared memory of a block that has eight query heads, or all KV heads of a row.
constexpr uint64_t qkv_bytes(uint32_t n_kv_heads, uint32_t dim) {
  return uint64_t{std::max(n_kv_heads, kQkvWarps)} * dim * 4;
}

}  // namespace sharpi::cuda
