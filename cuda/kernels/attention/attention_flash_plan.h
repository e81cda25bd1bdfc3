// SPDX-License-Identifier: MIT
// How attention of many rows divides a block's shared memory (attention_flash.cuh), and which of
// the shapes of attention_flash.cu a layer gets. Plain C++. Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "cuda/kernels/attention/attention_shapes.h"
#include "cuda/kernels/device_profile.h"

namespace sharpi::cuda::flash {

/// What the sizes depend on. in_turn: keys and values take turns in one place.
struct FlashShape {
  uint32_t dim, keys;     // of a head, of a tile
  uint32_t kept_queries;  // bytes of queries that stay before the tiles
  uint32_t tile_bytes;    // of keys or values as f16
  uint32_t scale_pitch;   // bytes of a row's scales
  bool in_turn;
  bool operator==(const FlashShape&) const = default;
};

/// Offsets in shared memory.
struct Plan {
  uint32_t k_tile, v_tile;    // f16
  uint32_t k_raw, v_raw;      // stored bytes of the next tile
  uint32_t k_scale, v_scale;  // of codecs that have scales
  uint32_t rows;              // addresses of the next tile's rows: [2][keys]
  uint32_t bytes;
};
constexpr Plan make_flash_plan(const FlashShape& s, KvDtype k, KvDtype v) {
  Plan p = {};
  p.k_tile = s.kept_queries;
  if (s.in_turn) {  // one place for keys, then for values
    const KvDtype wide = value_bytes(k, s.dim) > value_bytes(v, s.dim) ? k : v;
    const bool scales = has_scales(k) || has_scales(v);
    p.v_tile = p.k_tile;
    p.k_raw = p.v_raw = p.k_tile + s.tile_bytes;
    p.k_scale = p.v_scale = p.k_raw + s.keys * value_bytes(wide, s.dim);
    p.rows = p.v_scale + (scales ? s.keys * s.scale_pitch : 0);
    p.bytes = p.rows + 2 * s.keys * 8;
    return p;
  }
  p.v_tile = p.k_tile + s.tile_bytes;
  p.k_raw = p.v_tile + s.tile_bytes;
  p.v_raw = p.k_raw + s.keys * value_bytes(k, s.dim);
  p.k_scale = p.v_raw + s.keys * value_bytes(v, s.dim);
  p.v_scale = p.k_scale + (has_scales(k) ? s.keys * s.scale_pitch : 0);
  p.rows = p.v_scale + (has_scales(v) ? s.keys * s.scale_pitch : 0);
  p.bytes = p.rows + 2 * s.keys * 8;
  return p;
}

constexpr uint32_t kFlashWarps = 4;

/// A shape of attention_flash.cu.
constexpr FlashShape flash_shape(uint32_t dim, uint32_t keys, bool in_turn) {
  const uint32_t share = dim > 256 ? 2 : 1, vectors = 16 * kFlashWarps / share;
  const uint32_t pitch = dim * 2 + 16;  // bytes: an odd number of 16-byte pieces
  return {dim,
          keys,
          dim <= 128 ? 0 : vectors * pitch,
          keys * pitch,
          (dim / 32 * 2 + 8 + 15) / 16 * 16,
          in_turn};
}

/// The shape that a layer gets; keys = 0: none has room, or there is none for such heads.
struct FlashChoice {
  uint32_t keys, bytes;
  bool in_turn;
};
constexpr FlashChoice choose_flash(const DeviceProfile& device, KvDtype k, KvDtype v,
                                   uint32_t dim) {
  const bool known = dim == 64 || dim == 80 || dim == 96 || dim == 128 || dim == 256 || dim == 512;
  const auto fits = [&](uint32_t keys, bool in_turn) {
    return make_flash_plan(flash_shape(dim, keys, in_turn), k, v).bytes <=
           static_cast<uint32_t>(device.shared_per_block);
  };
  const auto chosen = [&](uint32_t keys, bool in_turn) {
    return FlashChoice{keys, make_flash_plan(flash_shape(dim, keys, in_turn), k, v).bytes, in_turn};
  };
  const uint32_t whole = dim <= 128 ? 64 : 32;
  if (!known) return {};
  if (fits(whole, false)) return chosen(whole, false);
  if (dim >= 256 && fits(32, true)) return chosen(32, true);
  if (dim == 512 && fits(16, true)) return chosen(16, true);
  return {};
}

// --- Hopper's warpgroups, heads of 512 ---

constexpr uint32_t kWarpgroupThreads = 256;  // two warpgroups
constexpr uint32_t kWarpgroupDim = 512, kWarpgroupVectors = 64;

/// A shape of attention_flash_sm90.cu, and what scores on their way to the other warpgroup take
/// besides the plan of its tiles.
struct WarpgroupShape {
  FlashShape tiles;
  uint32_t exchange_bytes;
};
constexpr WarpgroupShape warpgroup_shape(uint32_t keys) {
  constexpr uint32_t kDim = kWarpgroupDim;
  return {{kDim, keys, kWarpgroupVectors * kDim * 2, keys * kDim * 2,
           (kDim / 32 * 2 + 8 + 15) / 16 * 16, false},
          kWarpgroupThreads * keys / 2 * 4};
}
/// The kernel aligns what it takes to 1 KiB.
constexpr uint32_t warpgroup_bytes(const WarpgroupShape& s, KvDtype k, KvDtype v) {
  return make_flash_plan(s.tiles, k, v).bytes + s.exchange_bytes + 1024;
}
/// The shape that a layer gets; keys = 0: none, and choose_flash() says which other one. Tiles of
/// 32 keys where two of them, one as stored, fit.
constexpr FlashChoice choose_warpgroups(const DeviceProfile& device, KvDtype k, KvDtype v,
                                        uint32_t dim) {
  if (!device.wgmma || dim != kWarpgroupDim) return {};
  for (uint32_t keys = 32; keys >= 16; keys /= 2) {
    const uint32_t bytes = warpgroup_bytes(warpgroup_shape(keys), k, v);
    if (bytes <= static_cast<uint32_t>(device.shared_per_block)) return {keys, bytes, false};
  }
  return {};
}

// --- Hopper's warpgroups, specialised ---

constexpr uint32_t kSpecializedThreads = 512, kSpecializedVectors = 128;

/// A shape of attention_specialized_sm90.cu: bytes of the queries, of a tile of keys or values as
/// f16, of the rows on their way to tiles of either; offsets of the barriers and of where rows lie;
/// keys of a tile.
struct SpecializedShape {
  uint32_t query_bytes, tile_bytes, ring_bytes, barriers, source, bytes;
  int keys;
};
/// Two tiles and a ring each of keys and of values, eight barriers, what alignment to 1 KiB takes.
constexpr SpecializedShape specialized_shape(uint32_t dim) {
  constexpr uint32_t kSources = 2 * 80, kAlignment = 1024;
  const uint32_t keys = dim <= 128 ? 128 : 64;
  SpecializedShape s = {};
  s.query_bytes = kSpecializedVectors * dim * 2;
  s.tile_bytes = keys * dim * 2;
  s.ring_bytes = dim <= 128 ? 32u << 10 : 16u << 10;
  s.barriers = s.query_bytes + 4 * s.tile_bytes + 2 * s.ring_bytes;
  s.source = s.barriers + 64;
  s.bytes = s.source + kSources + kAlignment;
  s.keys = static_cast<int>(keys);
  return s;
}
constexpr uint32_t specialized_bytes(uint32_t dim) {
  return specialized_shape(dim).bytes;
}
constexpr bool takes_specialized(const DeviceProfile& device, uint32_t dim) {
  return device.wgmma && (dim == 64 || dim == 128 || dim == 256) &&
         specialized_bytes(dim) <= static_cast<uint32_t>(device.shared_per_block);
}

}  // namespace sharpi::cuda::flash
