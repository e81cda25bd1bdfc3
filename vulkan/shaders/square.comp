#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
// x = max(x, 0)^2, n elements. A thread has one.
layout(push_constant) uniform P {
  uint64_t x;
  uint n;
} p;
void main() {
  const uint64_t i = uint64_t(item()) * threads() + me();
  if (i >= p.n) return;
  F32 x = F32(p.x + i * 4);
  const float v = max(x.v[0], 0.0);
  x.v[0] = v * v;
}
