#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "weights.glsl"
// h[r][j][i] = act(gate row i of expert ids[r][j] . x[r]) * (up row i . x[r]), or max(up row i . x[r], 0)^2, with biases
// of the expert's. Experts without a matrix (an id or an entry of the table below 0) are left out. A workgroup has an
// output.
layout(constant_id = 1) const int TYPE = 0;
layout(constant_id = 2) const int TYPE_UP = 0;
#include "expert_up.glsl"
float dot_of(int type, uint64_t row, uint64_t x_at) {
  float w[32], all = 0.0;
  for (uint run = me(); run < (p.n_in + 31) / 32; run += threads()) {
    read_weights(type, row, run, p.n_in, w);
    F32 x = F32(x_at + run * 128);
    float sum = 0.0;
    for (uint i = 0; i < min(32, p.n_in - run * 32); ++i) sum += w[i] * x.v[i];
    all += sum;
  }
  return sum_all(all);
}
void main() {
  const uint i = item(), pair = gl_WorkGroupID.z;
  if (i >= p.n_out || pair >= p.n_pairs) return;
  const int e = place_of(pair);
  if (e < 0) return;
  const uint64_t x = p.x + uint64_t(pair / p.n_used) * p.n_in * 4;
  float g = 0.0;
  if (kGates) {
    g = dot_of(TYPE, p.gate + uint64_t(e) * p.gate_stride + uint64_t(i) * p.row_bytes, x);
    barrier();
  }
  const float u = dot_of(TYPE_UP, p.up + uint64_t(e) * p.up_stride + uint64_t(i) * p.up_row_bytes, x);
  if (me() == 0) put(pair, i, g, u);
}
