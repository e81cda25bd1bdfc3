// SPDX-License-Identifier: MIT
// What the blocks of replay scores take of shared memory (kv_replay.cu). Plain C++. Thread rule:
// pure functions.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "base/limits.h"
#include "cuda/kernels/device_profile.h"
#include "cuda/kernels/kv/kv_score_plan.h"

namespace sharpi::cuda {

constexpr uint32_t kReplayWarps = 8;

/// Pairs of eight keys of a warp: together all that a chunk's queries see.
constexpr uint32_t replay_pairs(uint32_t groups) {
  const uint32_t keys = 16 * (kReplayWarps / groups);
  return (kReplayChunk + kReplaySinks + keys - 1) / keys;
}
constexpr uint32_t replay_keys(uint32_t groups) {
  return replay_pairs(groups) * 16 * (kReplayWarps / groups);
}

/// Rows that are multiplied, in whole pairs: all that a chunk's queries see at most.
constexpr uint32_t kReplaySeen = (kReplayChunk + kReplaySinks + 15) / 16 * 16;

/// Bytes of what warps tell each other: a maximum and a sum of sixteen terms.
constexpr uint32_t kReplayToldBytes = kReplayWarps * 16 * 2 * 4;
/// Bytes of a block of so many groups of sixteen terms: these as they are and turned, in one number
/// or two (`exact`), `columns` dims of the keys, a head for each warp, and what warps tell each
/// other.
constexpr uint32_t replay_bytes(uint32_t dim, uint32_t groups, bool exact, uint32_t columns) {
  const uint32_t numbers = exact ? 2 : 1;
  return 2 * numbers * 16 * groups * score_pitch(dim) +
         numbers * replay_keys(groups) * score_pitch(columns) + kReplayWarps * dim * 4 +
         kReplayToldBytes;
}
/// The same of one group where room is short: no more rows than are multiplied, and the warps'
/// heads lie where keys come when they are through with these.
constexpr uint32_t replay_tight_bytes(uint32_t dim, bool exact, uint32_t columns) {
  const uint32_t numbers = exact ? 2 : 1, heads = kReplayWarps * dim * 4,
                 keys = numbers * kReplaySeen * score_pitch(columns);
  return 2 * numbers * 16 * score_pitch(dim) + (keys > heads ? keys : heads) + kReplayToldBytes;
}

/// Groups of terms, whose warps share out the keys, dims of the keys that are there at a time (all,
/// or what fits), and rows that keys have room for. No groups: nothing fits.
struct ReplayChoice {
  uint32_t groups = 0, columns = 0, bytes = 0, key_rows = 0;
  bool tight = false;  // as replay_tight_bytes() says
};
constexpr ReplayChoice choose_replay(const DeviceProfile& device, uint32_t dim, bool exact) {
  for (uint32_t groups = dim <= 128 ? 4 : dim <= 256 ? 2 : 1; groups != 0; groups /= 2) {
    for (const uint32_t columns : {dim, 64u, 32u, 16u}) {
      const uint32_t bytes = replay_bytes(dim, groups, exact, columns);
      if (columns <= dim && bytes <= score_room(device))
        return {groups, columns, bytes, replay_keys(groups), false};
    }
  }
  // Not all dims at once: then keys would stay where heads lie.
  const uint32_t bytes = replay_tight_bytes(dim, exact, 16);
  if (dim > 16 && bytes <= score_room(device)) return {1, 16, bytes, kReplaySeen, true};
  return {};
}
/// The least that any rows of such heads take of a block.
constexpr uint32_t least_replay_bytes(uint32_t dim) {
  return replay_tight_bytes(dim, true, 16) + kScoreReserve;
}

// --- Hopper's warpgroups ---

/// Warpgroups of a block, terms that one takes at a time, and rows that the first rows occupy.
constexpr uint32_t kReplayWarpgroups = 2, kReplayTile = 64, kReplaySinkRows = 8;
static_assert(kReplaySinks <= kReplaySinkRows);
/// Floats of a row of what threads have found: four threads of one have all keys of a chunk.
constexpr uint32_t kReplayFound = kReplayChunk + 8;

/// Of a warpgroup: its terms as they are and turned, and queries on their way.
SHARPI_HOST_DEVICE constexpr uint32_t replay_warpgroup_tile(uint32_t dim) {
  return kReplayTile * dim * (2 + 2 + 4);
}
/// Of a block, aligned to 1 KiB by the kernel itself: keys and warpgroups, or what these found.
constexpr uint32_t replay_warpgroup_bytes(uint32_t dim) {
  const uint32_t work =
      (kReplayChunk + kReplaySinkRows) * dim * 2 + kReplayWarpgroups * replay_warpgroup_tile(dim);
  const uint32_t found = kReplayWarpgroups * 32 * kReplayFound * 4;
  return 1024 + (work > found ? work : found);
}
/// Heads that they take.
constexpr bool replay_warpgroups_fit(const DeviceProfile& device, uint32_t dim) {
  return device.wgmma && (dim == 64 || dim == 128) &&
         replay_warpgroup_bytes(dim) <= static_cast<uint32_t>(device.shared_per_block);
}

}  // namespace sharpi::cuda
