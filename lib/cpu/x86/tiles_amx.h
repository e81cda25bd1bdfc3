// SPDX-License-Identifier: MIT
// The tile registers: eight of 16 rows of 64 bytes. The kernels use these functions and not the
// compilers' intrinsics, which do not all say what they read: GCC 12 takes ldtilecfg for a read of
// 8 bytes and drops the stores of the other 56, and up to GCC 14 a tile load is no read of memory
// at all, so the compiler may move stores of its operand behind it. Here the configuration is an
// operand of 64 bytes, and what loads or stores a tile orders memory.
// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, LDTILECFG and
// TILELOADD. Thread rule: each thread has registers of its own.
#pragma once

#include <cstdint>

namespace sharpi::cpu {
namespace {  // NOLINT: as everything of the kernel files, of internal linkage

/// What configure_tiles() reads.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

/// Sets the shapes of all tiles and zeroes them.
[[gnu::always_inline]] inline void configure_tiles(const TileConfig& config) {
  __asm__ volatile("ldtilecfg %0" : : "m"(config));
}
/// Gives the registers back: their state need not be saved any more.
[[gnu::always_inline]] inline void release_tiles() {
  __asm__ volatile("tilerelease" : :);
}

template <int kTile>
[[gnu::always_inline]] inline void zero_tile() {
  __asm__ volatile("tilezero %%tmm%c0" : : "i"(kTile));
}
/// Rows of the tile from `from` on, `pitch` bytes apart.
template <int kTile>
[[gnu::always_inline]] inline void load_tile(const void* from, uint64_t pitch) {
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2"
                   :
                   : "r"(from), "r"(pitch), "i"(kTile)
                   : "memory");
}
template <int kTile>
[[gnu::always_inline]] inline void store_tile(void* to, uint64_t pitch) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(pitch), "i"(kTile) : "memory");
}

/// kSum[m][n] += kLeft[m][2 k + i] * kRight[k][2 n + i], pairs of bf16 with f32 sums.
template <int kSum, int kLeft, int kRight>
[[gnu::always_inline]] inline void add_bf16_products() {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kLeft), "i"(kRight));
}
/// kSum[m][n] += kLeft[m][4 k + i] * kRight[k][4 n + i], signed bytes with int32 sums.
template <int kSum, int kLeft, int kRight>
[[gnu::always_inline]] inline void add_int8_products() {
  __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kLeft), "i"(kRight));
}

}  // namespace
}  // namespace sharpi::cpu
