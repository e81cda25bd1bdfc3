#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
// y[task][r][o] += share * sum over j of t[r][task][j] * b[j][o] of the k-th adapter of row r; `shares` of rows (0: 1).
// A thread has an output of a row and a task; the z-th row.
layout(push_constant) uniform P {
  uint64_t rows, adapters, t, shares, y[4];
  uint k, rank, weights[4], n_out[4];
} p;
#include "adapters.glsl"
void main() {
  const uint r = gl_WorkGroupID.z;
  uint group = item(), task = 0;
  for (; task < 4; ++task) {
    const uint groups = (p.n_out[task] + threads() - 1) / threads();
    if (group < groups) break;
    group -= groups;
  }
  if (task == 4) return;
  Low low;
  if (!find_low(p.rows, p.adapters, r, p.k, p.weights[task], low)) return;
  const uint n_out = p.n_out[task], o = group * threads() + me();
  if (o >= n_out) return;
  F32 t = F32(p.t + (uint64_t(r) * 4 + task) * p.rank * 4);
  float sum = 0.0;
  for (uint j = 0; j < low.rank; ++j) sum += t.v[j] * F32(low.b + (uint64_t(j) * n_out + o) * 4).v[0];
  if (HAS(shares, 3)) sum *= F32(p.shares).v[r];
  F32 y = F32(p.y[task] + (uint64_t(r) * n_out + o) * 4);
  y.v[0] += sum;
}
