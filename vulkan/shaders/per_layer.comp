#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
// Per-layer inputs. WHAT 0: x[r] = (norm(x[r] / sqrt(embedding width)) + table[r] * sqrt(n)) /
// sqrt(2), a workgroup has a row. WHAT 1: x[r] = gelu(x[r]) * table[r] of rows that are `stride`
// floats apart.
layout(constant_id = 1) const uint WHAT = 0;
layout(push_constant) uniform P {
  uint64_t x, table, weight;
  uint n, n_rows, stride, n_embd;
  float eps;
} p;
void main() {
  const uint r = item();
  if (r >= p.n_rows) return;
  F32 x = F32(p.x + uint64_t(r) * p.n * 4);
  F32 table = F32(p.table + uint64_t(r) * p.stride * 4);
  if (WHAT == 1) {
    for (uint i = me(); i < p.n; i += threads()) x.v[i] = gelu(x.v[i]) * table.v[i];
    return;
  }
  const float unit = 1.0 / sqrt(float(p.n_embd)), times = sqrt(float(p.n));
  float sum = 0.0;
  for (uint i = me(); i < p.n; i += threads()) sum += x.v[i] * unit * (x.v[i] * unit);
  const float f = 1.0 / sqrt(sum_all(sum) / float(p.n) + p.eps);
  for (uint i = me(); i < p.n; i += threads())
    x.v[i] = (x.v[i] * unit * f * F32(p.weight).v[i] + table.v[i] * times) * 0.70710678;
}
