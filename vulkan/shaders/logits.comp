#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
// Rows of logits, scaled and capped, to where their sessions want them: to[r] is an address, 0 = nowhere. A
// workgroup has as many elements as threads of a row.
layout(push_constant) uniform P {
  uint64_t from, to;
  uint n_vocab;
  float scale, cap;
} p;
void main() {
  const uint i = item() * threads() + me(), r = gl_WorkGroupID.z;
  const uint64_t to = U64(p.to).v[r];
  if (i >= p.n_vocab || to == 0) return;
  const float x = p.scale * F32(p.from + uint64_t(r) * p.n_vocab * 4).v[i];
  F32(to).v[i] = p.cap == 0.0 ? x : p.cap * tanh_of(x / p.cap);
}
