#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
// y[r][from + c] (+)= the shares' sum of what the row's experts made of it, `width` outputs of each pair of a row and an
// expert. A thread has an output.
layout(push_constant) uniform P {
  uint64_t ids, table, shares, x, y;
  uint n_out, from, width, n_used, n_rows, adds;
} p;
void main() {
  const uint i = item() * threads() + me(), r = i / p.width, c = i % p.width;
  if (r >= p.n_rows) return;
  F32 y = F32(p.y + (uint64_t(r) * p.n_out + p.from + c) * 4);
  float all = 0.0;
  for (uint j = 0; j < p.n_used; ++j) {
    const uint pair = r * p.n_used + j;
    if (place_of_expert(HAS(table, 1), p.table, I32(p.ids).v[pair]) >= 0) all += F32(p.shares).v[pair] * F32(p.x).v[pair * p.width + c];
  }
  y.v[0] = (p.adds != 0 ? y.v[0] : 0.0) + all;
}
