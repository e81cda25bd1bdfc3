// SPDX-License-Identifier: MIT
// What the blocks of replay scores take of shared memory (kv_replay.cu). Plain C++. Thread rule:
// pure functions.
#pragma once

#include <cstdint>

#include "base/limits.h"
#include "cuda/kernels/device_profile.h"
#include "cuda/kernels/kv/kv_score_plan.h"

namespace sharpi::cuda {

constexpr uint32_t kReplayWarps = 8;

/// A block's shape by the width of heads: groups of sixteen terms, each with as many warps as the
/// others, which share out the keys.
constexpr uint32_t replay_groups(uint32_t dim) {
  return dim <= 128 ? 4 : dim <= 256 ? 2 : 1;
}
/// Pairs of eight keys of a warp: together all that a chunk's queries see.
constexpr uint32_t replay_pairs(uint32_t groups) {
  const uint32_t keys = 16 * (kReplayWarps / groups);
  return (kReplayChunk + kReplaySinks + keys - 1) / keys;
}
constexpr uint32_t replay_keys(uint32_t groups) {
  return replay_pairs(groups) * 16 * (kReplayWarps / groups);
}

/// Bytes of a block: terms as they are and turned, in one number or two (`exact`), `columns` dims
/// of the keys, a head for each warp, and what warps tell each other.
constexpr uint32_t replay_bytes(uint32_t dim, bool exact, uint32_t columns) {
  const uint32_t groups = replay_groups(dim), numbers = exact ? 2 : 1;
  return 2 * numbers * 16 * groups * score_pitch(dim) +
         numbers * replay_keys(groups) * score_pitch(columns) + kReplayWarps * dim * 4 +
         kReplayWarps * 16 * 2 * 4;
}

/// Dims of the keys that are there at a time: all, or what fits; 0: none do.
constexpr uint32_t replay_columns(const DeviceProfile& device, uint32_t dim, bool exact) {
  for (const uint32_t columns : {dim, 64u, 32u, 16u}) {
    if (columns <= dim && replay_bytes(dim, exact, columns) <= score_room(device)) return columns;
  }
  return 0;
}

}  // namespace sharpi::cuda
