#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
// y[i] (+)= x[i]; where `waits` says 0, nothing is added. A workgroup has as many elements as threads.
layout(push_constant) uniform P {
  uint64_t x, y, waits;  // waits: 0 = there is an answer
  uint n, adds;
} p;
void main() {
  const uint i = item() * threads() + me();
  if (i >= p.n) return;
  const bool answered = !HAS(waits, 2) || U32(p.waits).v[0] != 0;
  const float had = p.adds != 0 ? F32(p.y).v[i] : 0.0;
  F32(p.y).v[i] = had + (answered ? F32(p.x).v[i] : 0.0);
}
