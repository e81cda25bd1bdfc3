#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
// What the host needs to compute routed experts: the choice and its shares always, rows only where an expert of
// any of them has no slot. A workgroup has a row.
layout(push_constant) uniform P {
  uint64_t x, to_x, ids, shares, to_ids, to_shares, table, waits;  // table: 0 = there are no slots
  uint n_embd, n_used, n_rows;
} p;
void main() {
  const uint r = item(), all = p.n_rows * p.n_used;
  if (r >= p.n_rows) return;
  float misses = 0.0;
  for (uint i = me(); i < all; i += threads()) {
    const int id = I32(p.ids).v[i];
    if (!HAS(table, 6) || I32(p.table).v[id] < 0) misses = 1.0;
    if (r != 0) continue;
    I32(p.to_ids).v[i] = id;
    F32(p.to_shares).v[i] = F32(p.shares).v[i];
  }
  const bool waits = max_all(misses) != 0.0;
  if (r == 0 && me() == 0) U32(p.waits).v[0] = waits ? 1 : 0;
  if (!waits) return;
  for (uint i = me(); i < p.n_embd; i += threads())
    F32(p.to_x).v[r * p.n_embd + i] = F32(p.x).v[r * p.n_embd + i];
}
