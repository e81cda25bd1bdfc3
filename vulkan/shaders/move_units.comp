#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "memory.glsl"
// Units of memory change places (device::UnitMoveParams). A workgroup has 128 bytes of all units and goes through the
// batches of moves: what one writes was read in it or before, and no other workgroup touches these bytes.
struct Move {
  uint from, to;
};
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Moves { Move v[]; };
// Threads read what others have written.
layout(buffer_reference, std430, buffer_reference_align = 16) coherent buffer Pieces { uvec4 v[]; };
layout(push_constant) uniform P {
  uint64_t base, room, moves, pages;
  uint n_units, n_moves, unit_bytes;
} p;
const uint kBatch = 256, kPieces = 8, kNoUnit = 0xFFFFFFFFu;
const uint kHeld = kBatch * kPieces / gl_WorkGroupSize.x;
uint64_t piece_of(uint unit, uint piece) {
  const uint offset = item() * kPieces * 16 + piece * 16;
  return unit == p.n_units ? p.room + offset
                           : kv_address(p.pages, p.base + uint64_t(unit) * p.unit_bytes + offset);
}
void main() {
  for (uint first = 0; first < p.n_moves; first += kBatch) {
    uvec4 held[kHeld];
    uint to[kHeld];
    for (uint k = 0; k < kHeld; ++k) {
      const uint i = me() + k * threads(), move = first + i / kPieces, piece = i % kPieces;
      to[k] = kNoUnit;
      if (move >= p.n_moves || (item() * kPieces + piece + 1) * 16 > p.unit_bytes) continue;
      const Move m = Moves(p.moves).v[move];
      if (m.from == kNoUnit) continue;
      to[k] = m.to;
      held[k] = Pieces(piece_of(m.from, piece)).v[0];
    }
    memoryBarrierBuffer();
    barrier();
    for (uint k = 0; k < kHeld; ++k) {
      if (to[k] != kNoUnit) Pieces(piece_of(to[k], (me() + k * threads()) % kPieces)).v[0] = held[k];
    }
    memoryBarrierBuffer();
    barrier();
  }
}
