#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
// t[r][task][j] = scale * (a[j] . x[r]) of the k-th adapter of row r and a task's weight. A workgroup has four j of a
// row and a task, whatever is beside it; the z-th row.
layout(push_constant) uniform P {
  uint64_t rows, adapters, x, t;
  uint n_in, k, rank, weights[4];
} p;
#include "adapters.glsl"
void main() {
  const uint r = gl_WorkGroupID.z, units = (p.rank + 3) / 4, task = item() / units;
  if (task >= 4) return;
  Low low;
  const uint j = item() % units * 4;
  if (!find_low(p.rows, p.adapters, r, p.k, p.weights[task], low) || j >= low.rank) return;
  F32 x = F32(p.x + uint64_t(r) * p.n_in * 4);
  const uint last = low.rank - 1;
  F32 a0 = F32(low.a + uint64_t(j) * p.n_in * 4),
            a1 = F32(low.a + uint64_t(min(j + 1, last)) * p.n_in * 4),
            a2 = F32(low.a + uint64_t(min(j + 2, last)) * p.n_in * 4),
            a3 = F32(low.a + uint64_t(min(j + 3, last)) * p.n_in * 4);
  vec4 sum = vec4(0.0);
  for (uint i = me(); i < p.n_in; i += threads()) {
    sum += x.v[i] * vec4(a0.v[i], a1.v[i], a2.v[i], a3.v[i]);
  }
  const vec4 all = low.scale * vec4(sum_all(sum.x), sum_all(sum.y), sum_all(sum.z), sum_all(sum.w));
  if (me() != 0) return;
  F32 t = F32(p.t + ((uint64_t(r) * 4 + task) * p.rank + j) * 4);
  t.v[0] = all.x;
  if (j + 1 <= last) t.v[1] = all.y;
  if (j + 2 <= last) t.v[2] = all.z;
  if (j + 3 <= last) t.v[3] = all.w;
}
