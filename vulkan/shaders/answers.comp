#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
// y[i] (+)= x[i]; no x: nothing is added. A workgroup has as many elements as threads.
layout(push_constant) uniform P {
  uint64_t x, y;
  uint n, adds;
} p;
void main() {
  const uint i = item() * threads() + me();
  if (i >= p.n) return;
  const float had = p.adds != 0 ? F32(p.y).v[i] : 0.0;
  F32(p.y).v[i] = had + (p.x == 0 ? 0.0 : F32(p.x).v[i]);
}
