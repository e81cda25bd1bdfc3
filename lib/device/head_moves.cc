// SPDX-License-Identifier: MIT
#include "device/head_moves.h"

#include <algorithm>

#include "base/checked.h"
#include "device/head_tables.h"
#include "device/kernels.h"
#include "kv/unit_moves.h"

namespace sharpi::device {
namespace {

constexpr uint64_t kStage = HeadTables::kStageBytes;
constexpr uint32_t kMostDesks = 64, kMostLayers = kStage / sizeof(ApartLayer),
                   kMostMoves = kStage / sizeof(UnitMove);
static_assert(kMostMoves % UnitMoves::kBatch == 0);

/// A layer's part of a block, which is also the most that a unit can be.
uint64_t desk_bytes(const KvGroup& g) {
  uint64_t most = 0;
  for (const KvLayerLayout& l : g.layers)
    most = std::max(most, uint64_t{kKvBlockSlots} * (l.k_row_bytes + l.v_row_bytes));
  return round_up(most, 256);
}

ApartLayer apart_layer(const KvLayerLayout& l, uint32_t n_blocks) {
  ApartLayer a;
  a.offset = l.k_offset;
  a.n_heads = l.n_heads;
  a.n_blocks = n_blocks;
  for (const bool value : l.sides()) {
    a.row_bytes[value] = value ? l.v_row_bytes : l.k_row_bytes;
    uint32_t plane = 0;
    for (const KvPlane& p : kv_codec(value ? l.v_dtype : l.k_dtype)->planes)
      a.part_bytes[value][plane++] = static_cast<uint32_t>(p.bytes_of(l.head_dim));
  }
  return a;
}

/// The lowest bit of all sizes, at most 16.
uint32_t granule_of(const ApartLayer& a) {
  uint32_t bits = 16;
  for (const auto& parts : a.part_bytes) bits |= parts[0] | parts[1];
  return bits & (~bits + 1);
}

}  // namespace

uint64_t head_move_bytes(const KvLayout& layout) {
  uint64_t desk = 0;
  for (const KvGroup& g : layout.groups) {
    if (!g.ring) desk = std::max(desk, desk_bytes(g));
  }
  return desk == 0 ? 0 : kStage + desk;
}

/// The stage, to the front of the room.
Status HeadMoves::send(uint64_t bytes) const {
  return stream_.copy(room_.data(), stage_, bytes, Way::kToDevice, "upload of moves");
}

Status HeadMoves::take_apart(const KvGroup& group, std::byte* base, uint32_t n_blocks) const {
  ApartParams p;
  p.base = base;
  p.block_stride = group.block_stride;
  p.layers = reinterpret_cast<const ApartLayer*>(room_.data());
  p.most_blocks = n_blocks;
  p.desks = room_.data() + kStage;
  p.desk_bytes = desk_bytes(group);
  p.n_desks =
      static_cast<uint32_t>(std::min<uint64_t>(kMostDesks, (room_.size() - kStage) / p.desk_bytes));
  auto* layers = reinterpret_cast<ApartLayer*>(stage_);
  for (size_t first = 0; first < group.layers.size(); first += p.n_layers) {
    p.n_layers = static_cast<uint32_t>(std::min<size_t>(kMostLayers, group.layers.size() - first));
    p.granule = 16;
    for (uint32_t i = 0; i < p.n_layers; ++i) {
      layers[i] = apart_layer(group.layers[first + i], n_blocks);
      p.granule = std::min(p.granule, granule_of(layers[i]));
    }
    SHARPI_TRY(send(p.n_layers * sizeof(ApartLayer)));
    SHARPI_TRY(device_.kernels().take_apart(p, stream_));
    SHARPI_TRY(stream_.wait());
  }
  return Status::ok();
}

Status HeadMoves::move_units(std::span<uint32_t> targets, std::byte* base,
                             uint64_t unit_bytes) const {
  UnitMoves all(targets);
  UnitMoveParams p;
  p.base = base;
  p.unit_bytes = unit_bytes;
  p.room = room_.data() + kStage;
  p.n_units = static_cast<uint32_t>(targets.size());
  p.moves = reinterpret_cast<const UnitMove*>(room_.data());
  const std::span<UnitMove> piece(reinterpret_cast<UnitMove*>(stage_), kMostMoves);
  while ((p.n_moves = static_cast<uint32_t>(all.next(piece))) != 0) {
    SHARPI_TRY(send(p.n_moves * sizeof(UnitMove)));
    SHARPI_TRY(device_.kernels().move_units(p, stream_));
    SHARPI_TRY(stream_.wait());
  }
  return Status::ok();
}

}  // namespace sharpi::device
