#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
// What comes out of Mamba-2: y = rms_norm(y * silu(z)) * weight over the n channels of a group. A workgroup has a group
// of a row.
layout(push_constant) uniform P {
  uint64_t y, z, weight;
  uint n, n_groups;
  float eps;
  uint n_rows;
} p;
void main() {
  const uint r = item() / p.n_groups, group = item() % p.n_groups;
  if (r >= p.n_rows) return;
  const uint64_t at = (uint64_t(r) * p.n_groups + group) * p.n * 4;
  F32 y = F32(p.y + at), z = F32(p.z + at), weight = F32(p.weight + uint64_t(group) * p.n * 4);
  float sum = 0.0;
  for (uint i = me(); i < p.n; i += threads()) {
    const float v = y.v[i] * silu(z.v[i]);
    y.v[i] = v;
    sum += v * v;
  }
  const float f = 1.0 / sqrt(sum_all(sum) / float(p.n) + p.eps);
  for (uint i = me(); i < p.n; i += threads()) y.v[i] = y.v[i] * f * weight.v[i];
}
