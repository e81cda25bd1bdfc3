// SPDX-License-Identifier: MIT
// What the kernels of replay scores share: their arguments, and which slots a chunk has.
// Thread rule: device code and plain values.
#pragma once

#include <cstdint>

#include "base/limits.h"
#include "base/status.h"
#include "cuda/kernels/device_profile.h"
#include "cuda/kernels/stream_handle.h"
#include "device/kernel_params.h"

namespace sharpi::cuda {

using device::ReplayParams;

struct ReplayArgs {
  ReplayParams p;
  uint32_t group, columns;
  // kv_replay.cu: rows that keys have room for, and where in shared memory warps tell each other
  uint32_t key_rows, told_at;
  bool tight;         // heads lie where keys do
  uint32_t rotation;  // of the keys' codec; 0 = none
  bool two_numbers;   // of a key, where one is not all of it
  float scale;        // times log2(e)
};

/// Slots of a chunk: seen from `low` on, scored and asked from `own` on.
struct ReplaySlots {
  uint32_t low, own, end, n_sinks;
  __device__ ReplaySlots(const ReplayParams& p, uint32_t index) {
    const int first = static_cast<int>(p.first_slot) + static_cast<int>(index * kReplayChunk) -
                      static_cast<int>(p.first_place);
    low = static_cast<uint32_t>(max(first, static_cast<int>(p.tail_slot)));
    own = max(low, p.first_slot);
    end = static_cast<uint32_t>(
        min(first + static_cast<int>(kReplayChunk), static_cast<int>(p.first_slot + p.n_rows)));
    n_sinks = min(kReplaySinks, low);
  }
  __device__ uint32_t n_seen() const { return n_sinks + (end - low); }
  __device__ uint32_t slot(uint32_t i) const { return i < n_sinks ? i : low + (i - n_sinks); }
};

/// Queries that are asked of the rows in front of `row`.
__device__ __forceinline__ uint32_t asked_before(const ReplayParams& p, uint32_t row) {
  return row <= p.first_asked ? 0 : (row - p.first_asked + p.every - 1) / p.every;
}

/// kv_replay_sm90.cu: bf16 products of Hopper's warpgroups. False: kv_replay.cu has to do it.
bool replay_on_warpgroups(const DeviceProfile& device, const ReplayArgs& a);
/// Pre: the above; the scores are clear.
Status launch_replay_warpgroups(const DeviceProfile& device, const ReplayArgs& a,
                                cudaStream_t stream);

}  // namespace sharpi::cuda
