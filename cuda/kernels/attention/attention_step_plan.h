// SPDX-License-Identifier: MIT
// How attention of a step divides a block's shared memory (attention_step.cu). Plain C++, so that
// tests walk all of it without a device. Thread rule: pure functions.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/kernels/attention/attention_shapes.h"
#include "cuda/kernels/device_profile.h"

namespace sharpi::cuda {

constexpr uint32_t kStepSlice = 128;  // dims of a head that a warp has
constexpr uint32_t kStepWarps = 8, kStepThreads = kStepWarps * 32;
constexpr uint32_t kMostStepStages = 4;
/// Query vectors of a KV head that the forms with pairs take, and the others.
constexpr uint32_t kStepPairs = 8;
/// Shared memory of a block: what devices have in a multiprocessor, less 1 KiB for the block and 1
/// KiB for the system. The kernels are compiled for these two sizes.
constexpr uint32_t kStepRoom = 226 * 1024, kSmallStepRoom = 98 * 1024;

/// The room of a device's blocks: 0 where no form fits.
constexpr uint32_t step_room(const DeviceProfile& device) {
  for (const uint32_t room : {kStepRoom, kSmallStepRoom}) {
    if (device.shared_per_block >= static_cast<int>(room) + 1024) return room;
  }
  return 0;
}
/// The codecs of keys and values that have forms of the kernel. Both are multiplied as codes, or
/// neither is: a stage has scales of both or of none.
struct StepCodecs {
  KvDtype k, v;
};
inline constexpr StepCodecs kStepCodecs[] = {
    {KvDtype::kBf16, KvDtype::kBf16},
    {KvDtype::kQ8_0, KvDtype::kQ8_0},
    {KvDtype::kQ4, KvDtype::kQ4},
    {KvDtype::kQ8_0, KvDtype::kQ4},
};
/// Whether such rows have a form of the kernel: heads of one or two slices.
constexpr bool step_takes(KvDtype k, KvDtype v, uint32_t dim) {
  return (dim == kStepSlice || dim == 2 * kStepSlice) &&
         std::ranges::any_of(kStepCodecs,
                             [&](const StepCodecs& c) { return c.k == k && c.v == v; });
}

/// A form of the kernel: for codecs, a width of heads, up to kStepPairs vectors (`pairs`) or
/// kSplitVectors of them, and a room.
struct StepForm {
  uint32_t count;         // products of a slice whose operands the queries are
  uint32_t exchange;      // floats that the warps of a team hand each other
  uint32_t static_bytes;  // of shared memory, at most
  uint32_t stages;        // of every warp's ring
  uint32_t ring_bytes;    // of all warps' rings, a stage
  uint32_t parked_pitch;  // floats from vector to vector when sums are parked
  uint32_t parked;        // floats of them
  uint32_t shared_bytes;  // dynamic
};
constexpr StepForm step_form(KvDtype k, KvDtype v, uint32_t dim, bool pairs, uint32_t room) {
  StepForm f = {};
  const uint32_t team = dim / kStepSlice, teams = kStepWarps / team;
  const uint32_t scores = kSplitTile / 4 * (pairs ? 1 : 2);  // of a thread
  f.count = uses_codes(k) && pairs ? 4 : 8;
  f.exchange = team > 1 ? teams * 2 * team * 32 * scores : 4;
  f.static_bytes = team * f.count * 32 * 16 + 512;
  const uint32_t values = value_bytes(k, kStepSlice) + value_bytes(v, kStepSlice);
  f.ring_bytes = kStepWarps * kSplitTile * (values + (uses_codes(k) ? 2 * 8 : 0));
  f.stages = std::min((room - 4 * f.exchange - f.static_bytes) / f.ring_bytes, kMostStepStages);
  f.parked_pitch = dim + 4;
  f.parked = teams * (32 + (pairs ? kStepPairs : kSplitVectors) * f.parked_pitch);
  constexpr uint32_t kMeeting = kStepThreads * 24;  // attention_meet.cuh: a thread's sums
  f.shared_bytes = std::max({f.stages * f.ring_bytes + 4 * f.exchange, f.parked * 4, kMeeting});
  return f;
}

}  // namespace sharpi::cuda
