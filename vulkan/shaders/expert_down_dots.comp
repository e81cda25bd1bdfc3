#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "weights.glsl"
#include "dots.glsl"
// shaders/expert_down.comp of quantised weights and rows in 8 bits. A workgroup has an output, a thread every n-th
// run of all the row's experts.
layout(constant_id = 1) const int TYPE = 12;
#include "expert_down.glsl"
void main() {
  const uint i = item(), r = gl_WorkGroupID.z, runs = p.n_in / 32;
  if (i >= p.n_out || r >= p.n_rows) return;
  const uint64_t scales = p.h + uint64_t(p.n_rows) * p.n_used * p.n_in;
  float all = 0.0;
  for (uint at = me(); at < p.n_used * runs; at += threads()) {
    const uint j = at / runs, run = at % runs, pair = r * p.n_used + j;
    const int e = place_of(r, j);
    if (e < 0) continue;
    const uint64_t row = p.down + uint64_t(e) * p.stride + uint64_t(i) * p.row_bytes;
    const Unit u = unit_of(TYPE, row, run);
    float one = product_of(u, piece_of(u, p.h + uint64_t(pair) * p.n_in, scales + uint64_t(pair) * p.n_in / 2));
    if (run == 0 && HAS(bias, 7)) one += F32(p.bias).v[I32(p.ids).v[pair] * p.n_out + i];
    all += F32(p.shares).v[pair] * one;
  }
  all = sum_all(all);
  if (me() == 0) put(r, i, all);
}
