#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
// y[r] = rms_norm(x[r]) * weight (0: 1), n elements; `picks`: x rows by number. A workgroup has a row.
layout(push_constant) uniform P {
  uint64_t x, weight, y, picks;
  uint n, x_stride, y_stride;
  float eps;
  uint rows;
} p;
void main() {
  const uint r = item();
  if (r >= p.rows) return;
  const uint from = p.picks == 0 ? r : U32(p.picks).v[r];
  F32 x = F32(p.x + uint64_t(from) * p.x_stride * 4), y = F32(p.y + uint64_t(r) * p.y_stride * 4);
  float sum = 0.0;
  for (uint i = me(); i < p.n; i += threads()) sum += x.v[i] * x.v[i];
  const float scale = 1.0 / sqrt(sum_all(sum) / float(p.n) + p.eps);
  for (uint i = me(); i < p.n; i += threads())
    y.v[i] = x.v[i] * scale * (p.weight == 0 ? 1.0 : F32(p.weight).v[i]);
}
