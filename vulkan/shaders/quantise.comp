#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "quantise.glsl"
// Rows of n elements, a multiple of 32, in 8 bits. A thread has four elements.
layout(push_constant) uniform P {
  uint64_t x, to;
  uint n, rows;
} p;
void main() {
  const uint at = item() * threads() + lane(), r = at / (p.n / 4), i = at % (p.n / 4);
  if (r >= p.rows) return;
  put_bytes(p.to, p.rows, p.n, r, i, F32x4(p.x + uint64_t(r) * p.n * 4).v[i]);
}
