#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
// Pairs of rows and experts in the order of their experts, without those whose experts are elsewhere, and tiles of at
// most `side` pairs of one expert: their first, what is behind their last, the expert, and where its matrices are. In
// front of the tiles is their number. One workgroup.
layout(push_constant) uniform P {
  uint64_t ids, table, order, tiles;
  uint n_pairs, n_experts, side;
} p;
const uint kMost = 1024;  // experts
shared uint next[kMost], n_tiles[kMost], n_all;
int place_of(int id) { return place_of_expert(HAS(table, 1), p.table, id); }
void main() {
  for (uint e = me(); e < p.n_experts; e += threads()) next[e] = 0;
  barrier();
  for (uint i = me(); i < p.n_pairs; i += threads()) {
    const int id = I32(p.ids).v[i];
    if (place_of(id) >= 0) atomicAdd(next[id], 1);
  }
  barrier();
  if (me() == 0) {
    uint pairs = 0, tiles = 0;
    for (uint e = 0; e < p.n_experts; ++e) {
      const uint n = next[e];
      next[e] = pairs;
      n_tiles[e] = tiles;
      pairs += n;
      tiles += (n + p.side - 1) / p.side;
    }
    n_all = pairs;
    U32x4(p.tiles).v[0] = uvec4(tiles, pairs, 0, 0);
  }
  barrier();
  for (uint e = me(); e < p.n_experts; e += threads()) {
    const uint from = next[e], to = e + 1 < p.n_experts ? next[e + 1] : n_all;
    for (uint at = from; at < to; at += p.side) {
      U32x4(p.tiles).v[1 + n_tiles[e] + (at - from) / p.side] =
          uvec4(at, min(at + p.side, to), e, uint(place_of(int(e))));
    }
  }
  barrier();
  // Which pair of an expert comes first differs from run to run; sums of a pair do not depend on the others.
  for (uint i = me(); i < p.n_pairs; i += threads()) {
    const int id = I32(p.ids).v[i];
    if (place_of(id) >= 0) U32(p.order).v[atomicAdd(next[id], 1)] = i;
  }
}
