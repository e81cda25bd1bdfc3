// SPDX-License-Identifier: MIT
// What the blocks of the gated delta net's chunks take of shared memory (delta_chunk.cu). Plain
// C++. Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "cuda/kernels/device_profile.h"

namespace sharpi::cuda {

/// Tokens of a chunk, and the one width of heads that has chunks.
constexpr int kDeltaChunk = 64;
constexpr uint32_t kDeltaChunkHeads = 128;
constexpr uint32_t kDeltaChunkThreads = 256;

/// Bytes of a row of `n` f16 in shared memory: an odd number of pieces of 16.
constexpr uint32_t delta_pitch(uint32_t n) {
  return n * 2 + 16;
}
/// What does not need the state: coefficients of the triangular system, gates, keys, queries.
constexpr uint32_t kDeltaPrepareBytes = kDeltaChunk * (kDeltaChunk + 4) * 4 + 2 * kDeltaChunk * 4 +
                                        2 * kDeltaChunk * delta_pitch(kDeltaChunkHeads);
/// The chunks in order: two stages of three operands and the pairs, the state, V' twice, sums.
constexpr uint32_t kDeltaScanBytes =
    2 * (3 * kDeltaChunk * delta_pitch(kDeltaChunkHeads) + kDeltaChunk * delta_pitch(kDeltaChunk)) +
    kDeltaChunkHeads * delta_pitch(kDeltaChunk) + 2 * kDeltaChunk * delta_pitch(kDeltaChunk) +
    2 * kDeltaChunk * 4;

/// Whether a device has room for both; else the recurrence goes token by token (delta_net.cu),
/// whose shared memory is static.
constexpr bool delta_chunks_fit(const DeviceProfile& device) {
  const auto room = static_cast<uint32_t>(device.shared_per_block);
  return kDeltaPrepareBytes <= room && kDeltaScanBytes <= room;
}

}  // namespace sharpi::cuda
