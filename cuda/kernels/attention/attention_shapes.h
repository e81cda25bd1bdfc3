// SPDX-License-Identifier: MIT
// Sizes that the attention kernels and the plans of their launches share. Plain C++.
// Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "kv/codec_traits.h"
#include "kv/levels.h"

namespace sharpi::cuda {

/// Elements that share a whole number of bytes in every codec.
inline constexpr uint32_t kValuesTogether = [] {
  uint32_t most = 1;
  for_each_kv_codec([&]<KvDtype kType>() {
    const uint32_t n = KvCodecTraits<kType>::kPlanes[0].elements;
    if (n > most) most = n;
  });
  return most;
}();
/// Bytes of n elements of a stored row, scales apart. Pre: `type` is a codec, n a multiple of what
/// shares a byte.
SHARPI_HOST_DEVICE constexpr uint32_t value_bytes(KvDtype type, uint32_t n) {
  const uint32_t bytes = with_kv_codec(type, [&]<KvDtype kType>() {
    return static_cast<uint32_t>(kv_value_bytes<kType>(kValuesTogether));
  });
  return n * bytes / kValuesTogether;
}
/// Whether rows have scales behind their values.
SHARPI_HOST_DEVICE constexpr bool has_scales(KvDtype type) {
  return any_kv_codec(type, [&]<KvDtype kType>() { return kKvPlanes<kType> > 1; });
}
/// Whether rows are stored rotated, and how many elements of a head together (kv/rotation.h).
SHARPI_HOST_DEVICE constexpr bool is_rotated(KvDtype type) {
  return any_kv_codec(type, [&]<KvDtype kType>() { return KvCodecTraits<kType>::kRotated; });
}
SHARPI_HOST_DEVICE constexpr uint32_t device_rotation(uint32_t head_dim) {
  const uint32_t power = head_dim & (~head_dim + 1u);
  return power < kMostRotated ? power : kMostRotated;
}
/// How products use rows: as signed bytes (stored so, or as indices of such), as bf16, else as f16.
SHARPI_HOST_DEVICE constexpr bool uses_codes(KvDtype type) {
  return any_kv_codec(type, [&]<KvDtype kType>() {
    return KvCodecTraits<kType>::kProduct == KvProduct::kCodes ||
           KvCodecTraits<kType>::kProduct == KvProduct::kLevels;
  });
}
SHARPI_HOST_DEVICE constexpr bool uses_bf16(KvDtype type) {
  return any_kv_codec(
      type, [&]<KvDtype kType>() { return KvCodecTraits<kType>::kProduct == KvProduct::kBf16; });
}

/// Query vectors of a split block at most, and keys of a tile of the split kernels.
constexpr uint32_t kSplitVectors = 16, kSplitTile = 16;

}  // namespace sharpi::cuda
