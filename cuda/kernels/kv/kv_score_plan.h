// SPDX-License-Identifier: MIT
// What the blocks of scoring take of shared memory, and which of their tiles a layer gets
// (kv_score_tiles.cu, kv_score_sm90.cu). Plain C++. Thread rule: pure functions.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/host_device.h"
#include "cuda/kernels/device_profile.h"

namespace sharpi::cuda {

constexpr uint32_t kScoreTerms = 128;   // that a tile is multiplied by at a time
constexpr uint32_t kScoreColumns = 64;  // dims of an image's block
constexpr uint32_t kScoreThreads = 256;

/// Bytes of a row of `n` bf16 in shared memory: an odd number of pieces of 16.
SHARPI_HOST_DEVICE constexpr uint32_t score_pitch(uint32_t n) {
  return n * 2 + 16;
}

/// A block's rows; a warp has 16 * row_tiles of them; `columns` dims of the terms are staged at a
/// time.
struct ScoreTile {
  uint32_t slots, row_tiles, columns;
  constexpr uint32_t pitch() const { return score_pitch(columns); }
  constexpr uint32_t stage_bytes() const { return 2 * kScoreTerms * pitch(); }
  constexpr bool operator==(const ScoreTile&) const = default;
};
constexpr ScoreTile kWideScores = {128, 4, 64};    // heads of up to 256
constexpr ScoreTile kDeepScores = {64, 4, 64};     // wider heads
constexpr ScoreTile kWideScoresFew = {64, 4, 32};  // the same for devices of little shared memory
constexpr ScoreTile kDeepScoresFew = {32, 2, 32};

/// Bytes of a block: its rows (their first numbers, then their second ones unless `exact`, because
/// bf16 rows are one number each), the stages of terms, and what is known of the terms at work.
constexpr uint32_t score_bytes(const ScoreTile& t, uint32_t dim, bool exact, uint32_t n_stages) {
  return (exact ? 1 : 2) * t.slots * score_pitch(dim) + n_stages * t.stage_bytes() +
         3 * kScoreTerms * 4;
}

/// The widest tile with a stage that fits, and two stages where they do. n_stages = 0: none does.
struct ScoreChoice {
  ScoreTile tile;
  uint32_t n_stages, bytes;
};
/// What is left to dynamic memory: the compiler takes less than 1 KiB of its own.
constexpr uint32_t kScoreReserve = 1024;
constexpr uint32_t score_room(const DeviceProfile& device) {
  return static_cast<uint32_t>(device.shared_per_block) - kScoreReserve;
}
constexpr ScoreChoice choose_scores(const DeviceProfile& device, bool exact, uint32_t dim) {
  const uint32_t room = score_room(device);
  const ScoreTile wide = dim <= 256 ? kWideScores : kDeepScores,
                  few = dim <= 256 ? kWideScoresFew : kDeepScoresFew;
  for (const ScoreTile& tile : {wide, few}) {
    for (const uint32_t stages : {2u, 1u}) {
      const uint32_t bytes = score_bytes(tile, dim, exact, stages);
      if (bytes <= room) return {tile, stages, bytes};
    }
  }
  return {};
}
/// The least that any rows of such heads take of a block.
constexpr uint32_t least_score_bytes(uint32_t dim) {
  return score_bytes(dim <= 256 ? kWideScoresFew : kDeepScoresFew, dim, false, 1) + kScoreReserve;
}
/// The least number of rows over which one maximum and one sum are formed.
constexpr uint32_t score_part_slots(uint32_t dim) {
  return 16 * (dim <= 256 ? kWideScores : kDeepScoresFew).row_tiles;
}

// --- Hopper's warpgroups ---

constexpr uint32_t kScoreRing = 3, kMostScoreBlocks = 4;  // stages of terms, blocks of 64 dims
/// Bytes of a block of rows or of terms, both numbers.
constexpr uint32_t kScoreBlockBytes = 2 * kScoreTerms * kScoreColumns * 2;
constexpr uint32_t kScoreBarrierBytes = 2 * (kScoreRing + kMostScoreBlocks) * 8;
constexpr uint32_t kScoreKnownHeads = 64;  // KV heads whose first masked row a block keeps
constexpr uint32_t kScoreStaticBytes = kScoreKnownHeads * 4;

/// Warpgroups that multiply and threads that copy; `exact` as above.
constexpr uint32_t score_warpgroup_threads(bool exact) {
  return exact ? 4 * 128 + 128 : 2 * 128 + 256;
}
/// Dynamic memory, aligned to 1 KiB by the kernel itself.
constexpr uint32_t score_warpgroup_bytes(uint32_t dim) {
  return 1024 + dim / kScoreColumns * kScoreBlockBytes + kScoreRing * kScoreBlockBytes +
         kScoreBarrierBytes;
}
/// The dynamic memory of the widest heads that fit.
constexpr uint32_t score_warpgroup_room(const DeviceProfile& device) {
  const auto room = static_cast<uint32_t>(device.shared_per_block) - kScoreStaticBytes;
  return std::min(score_warpgroup_bytes(kMostScoreBlocks * kScoreColumns), room);
}
constexpr bool score_warpgroups_fit(const DeviceProfile& device, uint32_t dim) {
  return device.wgmma && dim % kScoreColumns == 0 && dim <= kMostScoreBlocks * kScoreColumns &&
         score_warpgroup_bytes(dim) <= score_warpgroup_room(device);
}

}  // namespace sharpi::cuda
