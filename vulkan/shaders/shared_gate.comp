#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
// y[r] = sigmoid(norm(x[r]) . w). A workgroup has a row.
layout(push_constant) uniform P {
  uint64_t x, weight, w, y;
  uint n, n_rows;
  float eps;
} p;
void main() {
  const uint r = item();
  if (r >= p.n_rows) return;
  F32 x = F32(p.x + uint64_t(r) * p.n * 4);
  float squares = 0.0, sum = 0.0;
  for (uint i = me(); i < p.n; i += threads()) {
    squares += x.v[i] * x.v[i];
    sum += x.v[i] * F32(p.weight).v[i] * F32(p.w).v[i];
  }
  const float f = 1.0 / sqrt(sum_all(squares) / float(p.n) + p.eps);
  const float got = sum_all(sum);
  if (me() == 0) F32(p.y).v[r] = sigmoid(f * got);
}
