#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "weights.glsl"
#include "dots.glsl"
// shaders/expert_up.comp of quantised weights and rows in 8 bits. A workgroup has an output.
layout(constant_id = 1) const int TYPE = 12;
layout(constant_id = 2) const int TYPE_UP = 12;
#include "expert_up.glsl"
void main() {
  const uint i = item(), pair = gl_WorkGroupID.z;
  if (i >= p.n_out || pair >= p.n_pairs) return;
  const int e = place_of(pair);
  if (e < 0) return;
  const uint r = pair / p.n_used;
  const uint64_t x = p.x + uint64_t(r) * p.n_in,
                 scales = p.x + uint64_t(p.n_pairs / p.n_used) * p.n_in + uint64_t(r) * p.n_in / 2;
  const uint64_t gate = p.gate + uint64_t(e) * p.gate_stride + uint64_t(i) * p.row_bytes,
                 up = p.up + uint64_t(e) * p.up_stride + uint64_t(i) * p.up_row_bytes;
  float g = 0.0, u = 0.0;
  for (uint run = me(); run < p.n_in / 32; run += threads()) {
    if (!kGates) {
      const Unit of_up = unit_of(TYPE_UP, up, run);
      u += product_of(of_up, piece_of(of_up, x, scales));
      continue;
    }
    const Unit of_gate = unit_of(TYPE, gate, run), of_up = unit_of(TYPE_UP, up, run);
    const Piece of_row = piece_of(of_gate, x, scales);
    g += product_of(of_gate, of_row);
    if (TYPE_UP == TYPE) u += product_of(of_up, of_row);
    else u += product_of(of_up, piece_of(of_up, x, scales));
  }
  if (kGates) g = sum_all(g);
  u = sum_all(u);
  if (me() == 0) put(pair, i, g, u);
}
