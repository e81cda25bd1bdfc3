// SPDX-License-Identifier: MIT
// Which layers attention_wide.cu takes, in which shape, and how it divides a block's shared memory.
// Plain C++. Thread rule: pure functions.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/kernels/attention/attention_shapes.h"
#include "cuda/kernels/device_profile.h"

namespace sharpi::cuda::wide {

constexpr int kWideVectors = 128;  // of a block

/// The codecs of keys and values that have forms of the kernel: both the same, or values in less.
constexpr bool wide_codecs(KvDtype k, KvDtype v) {
  return k == v || (k == KvDtype::kQ8_0 && v == KvDtype::kQ4);
}
/// Bytes of the place of a stored piece of eight elements.
constexpr uint32_t wide_slot(KvDtype k, KvDtype v) {
  return std::max(value_bytes(k, 8), value_bytes(v, 8));
}

/// A form of the kernel; dim = 0: there is none.
struct WideShape {
  int dim;
  int threads;                // of a block
  int parts;                  // of 16 vectors, that a warp has
  int keys;                   // of a tile
  int blocks;                 // of a multiprocessor whose registers there are
  bool queries_in_registers;  // or in shared memory, where a warp reads them for every tile
  int ahead;                  // products for which matrices are in registers before their turn
};
/// Where stored pieces are wide, tiles of heads of 256 have half the keys, to fit in 99 KiB.
constexpr WideShape wide_shape(uint32_t dim, KvDtype k, KvDtype v) {
  if (!wide_codecs(k, v)) return {};
  if (dim == 128) return {128, 128, 2, 64, 2, false, 1};
  if (dim == 256) return {256, 256, 1, wide_slot(k, v) <= 16 ? 64 : 32, 1, true, 2};
  return {};
}

/// Offsets in shared memory: f16 tiles of keys and of values, stored pieces on their way, the words
/// with their scales, addresses of the rows of two tiles. Queries lie at 0: before the tiles, or
/// where these will be if they go to registers (but not the pieces, which may come meanwhile).
struct WidePlan {
  uint32_t k_tile, v_tile, raw, scales, rows, bytes;
};
constexpr WidePlan make_wide_plan(const WideShape& s, KvDtype k, KvDtype v) {
  const auto dim = static_cast<uint32_t>(s.dim), keys = static_cast<uint32_t>(s.keys);
  const uint32_t pieces = keys * dim / 8, query_bytes = kWideVectors * dim * 2;
  const bool scales = has_scales(k) || has_scales(v);
  WidePlan p = {};
  p.k_tile = s.queries_in_registers ? 0 : query_bytes;
  p.v_tile = p.k_tile + keys * dim * 2;
  p.raw = std::max(query_bytes, p.v_tile + keys * dim * 2);
  p.scales = p.raw + pieces * wide_slot(k, v);
  p.rows = p.scales + (scales ? pieces * 4 : 0);
  p.bytes = p.rows + 2 * 2 * keys * 8;
  return p;
}

/// The shape that a layer gets on a device; dim = 0: none.
constexpr WideShape choose_wide(const DeviceProfile& device, KvDtype k, KvDtype v, uint32_t dim) {
  const WideShape s = wide_shape(dim, k, v);
  const bool fits =
      s.dim != 0 && make_wide_plan(s, k, v).bytes <= static_cast<uint32_t>(device.shared_per_block);
  return fits ? s : WideShape{};
}

}  // namespace sharpi::cuda::wide
