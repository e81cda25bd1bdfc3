#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
// to[r] = scale * (x[r] + norm(y[r])); x, y may be absent, and the norm. A workgroup has a row.
layout(push_constant) uniform P {
  uint64_t x, y, weight, to;
  uint n;
  float eps, scale;
  uint rows;
} p;
void main() {
  const uint r = item();
  if (r >= p.rows) return;
  const uint64_t at = uint64_t(r) * p.n * 4;
  float f = 1.0;
  if (p.y != 0 && p.weight != 0) {
    float sum = 0.0;
    for (uint i = me(); i < p.n; i += threads()) {
      const float y = F32(p.y + at).v[i];
      sum += y * y;
    }
    f = 1.0 / sqrt(sum_all(sum) / float(p.n) + p.eps);
  }
  for (uint i = me(); i < p.n; i += threads()) {
    float v = p.x == 0 ? 0.0 : F32(p.x + at).v[i];
    if (p.y != 0) v += F32(p.y + at).v[i] * f * (p.weight == 0 ? 1.0 : F32(p.weight).v[i]);
    F32(p.to + at).v[i] = p.scale * v;
  }
}
