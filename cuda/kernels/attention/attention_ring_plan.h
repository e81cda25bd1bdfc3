// SPDX-License-Identifier: MIT
// How attention of few rows divides a block's shared memory (attention_ring.cu): the stages of the
// warps' rings, what lies beside them, and how many blocks fit on a multiprocessor. Plain C++, so
// that tests walk all of it without a device. Thread rule: pure functions.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/kernels/attention/attention_shapes.h"
#include "cuda/kernels/device_profile.h"

namespace sharpi::cuda::split {

constexpr int kWarps = 4, kThreads = kWarps * 32;
constexpr uint32_t kMostStages = 4;
constexpr uint32_t kScaleBytes = 8;  // per key and slice, of codecs that have scales

/// How a warp's stage of the ring is laid out.
struct Stage {
  uint32_t k_pitch, v_pitch;     // bytes between keys, multiples of 128
  uint32_t v, k_scale, v_scale;  // offsets of the parts
  uint32_t bytes;
};
SHARPI_HOST_DEVICE constexpr Stage make_stage(KvDtype k, KvDtype v, uint32_t slice) {
  Stage s = {};
  s.k_pitch = (value_bytes(k, slice) + 127) / 128 * 128;
  s.v_pitch = (value_bytes(v, slice) + 127) / 128 * 128;
  s.v = kSplitTile * s.k_pitch;
  s.k_scale = s.v + kSplitTile * s.v_pitch;
  s.v_scale = s.k_scale + (has_scales(k) ? kSplitTile * kScaleBytes : 0);
  s.bytes = s.v_scale + (has_scales(v) ? kSplitTile * kScaleBytes : 0);
  s.bytes = (s.bytes + 127) / 128 * 128;
  return s;
}

/// Where element d of a vector is parked, and floats from vector to vector: without conflicts of
/// banks when eight lanes of a warp write 16 bytes each.
SHARPI_HOST_DEVICE constexpr uint32_t parked_at(uint32_t d) {
  return d + d / 32 * 4;
}
SHARPI_HOST_DEVICE constexpr uint32_t parked_pitch(uint32_t dim) {
  const uint32_t n = parked_at(dim - 1) + 1;
  return n + (40 - n % 32) % 32;
}
/// Floats that park() takes; a merge takes fewer.
SHARPI_HOST_DEVICE constexpr uint32_t parked_floats(uint32_t teams, uint32_t vectors,
                                                    uint32_t dim) {
  return teams * (32 + vectors * parked_pitch(dim));
}

constexpr uint32_t slice_of(uint32_t dim) {
  return std::min(dim, 128u);
}
/// Warps that a head takes, and groups of so many in a block.
constexpr uint32_t team_of(uint32_t dim) {
  return std::max(1u, dim / 128);
}
constexpr uint32_t teams_of(uint32_t dim) {
  return kWarps / team_of(dim);
}

/// Static shared memory of the kernel of such a layer (kAuto: of the one for any codecs): what a
/// team's warps exchange (two turns of the scores of up to 16 vectors), queries that several teams
/// convert to bytes, a flag.
constexpr uint32_t ring_static_bytes(KvDtype k, KvDtype v, uint32_t dim) {
  const uint32_t exchange = team_of(dim) > 1 ? 2 * kWarps * 32 * 8 * 4 : 16;
  const bool codes = v == k && uses_codes(k);
  const bool spreads = dim >= 128 && teams_of(dim) > 1 && codes;
  const uint32_t words = spreads ? team_of(dim) * (slice_of(dim) / 32 * 2) * 32 * 16 : 32 * 16;
  return (exchange + words + kWarps * 128 + 16 + 127) / 128 * 128;  // the ring behind is aligned
}

/// The rings of a layer's launch.
struct RingForm {
  uint32_t n_stages;  // of every warp's ring; 0: a block has no room for one
  uint32_t shared_bytes, static_bytes;
  uint32_t blocks_per_sm;
  constexpr uint32_t all_bytes() const { return shared_bytes + static_bytes; }
};

/// Two blocks a multiprocessor where rings of three stages fit in half of its shared memory; else
/// one, with up to three stages. One stage alone does not overlap a warp's copies with its
/// products, those of the other warps only: that is what f32 rows of wide heads have room for on
/// devices of 99 KiB.
constexpr RingForm ring_form(const DeviceProfile& device, KvDtype k, KvDtype v, uint32_t dim) {
  RingForm f = {};
  f.static_bytes = ring_static_bytes(k, v, dim);
  const auto sm = static_cast<uint32_t>(device.shared_per_sm),
             block = static_cast<uint32_t>(device.shared_per_block);
  const uint32_t beside = f.static_bytes + kReservedShared;
  const uint32_t most = block > f.static_bytes ? block - f.static_bytes : 0,
                 half = sm / 2 > beside ? sm / 2 - beside : 0;
  const uint32_t stages = make_stage(k, v, slice_of(dim)).bytes * kWarps;
  const auto fit = [&](uint32_t bytes) { return std::min(bytes / stages, kMostStages); };
  f.n_stages = fit(half);
  if (f.n_stages < 3) f.n_stages = std::max(f.n_stages, std::min(fit(most), 3u));
  const uint32_t parked = parked_floats(teams_of(dim), kSplitVectors, dim) * 4;
  f.shared_bytes = std::max(f.n_stages * stages, parked);
  f.blocks_per_sm = f.shared_bytes <= half ? 2 : 1;
  if (f.all_bytes() > block) f.n_stages = 0;
  return f;
}

}  // namespace sharpi::cuda::split
