#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "memory.glsl"
// What newer/attention_matrix.comp summed of values that are rotated over whole heads (kv/rotation.h), rotated back, and
// gated then. A workgroup has a head of a row.
layout(constant_id = 1) const uint ROTATED = 0;
layout(constant_id = 2) const uint GATED = 0;
layout(constant_id = 3) const uint DIM = 128;
layout(push_constant) uniform P {
  uint64_t rows, y, gate;
  uint n_rows, n_heads, gate_stride;
} p;
shared float head[DIM];
#include "rotation.glsl"
void main() {
  const uint r = item() / p.n_heads, h = item() % p.n_heads;
  if (r >= p.n_rows || Rows(p.rows).v[r].sequence == kNoSequence) return;
  F32 y = F32(p.y + uint64_t(item()) * DIM * 4);
  for (uint d = me(); d < DIM; d += threads()) head[d] = y.v[d];
  barrier();
  unrotate_head(DIM, ROTATED);
  for (uint d = me(); d < DIM; d += threads()) {
    float x = head[d];
    if (GATED != 0) x /= 1.0 + exp(-F32(p.gate).v[r * p.gate_stride + (2 * h + 1) * DIM + d]);
    y.v[d] = x;
  }
}
