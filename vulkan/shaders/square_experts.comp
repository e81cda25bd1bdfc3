#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "weights.glsl"
// h[r][j][i] = max(up row i of expert ids[r][j] . x[r] + bias, 0)^2: hidden rows of experts without a gate. Experts
// without a matrix (an id or an entry of the table below 0) are left out. A workgroup has an output.
layout(constant_id = 1) const int TYPE = 0;
layout(push_constant) uniform P {
  uint64_t up, stride, ids, table, x, h, bias;
  uint n_in, n_out, n_used, row_bytes, n_pairs;
} p;
void main() {
  const uint i = item(), pair = gl_WorkGroupID.z;
  if (i >= p.n_out || pair >= p.n_pairs) return;
  const int id = I32(p.ids).v[pair], place = place_of_expert(HAS(table, 3), p.table, id);
  if (place < 0) return;
  const uint64_t x_at = p.x + uint64_t(pair / p.n_used) * p.n_in * 4,
                 row = p.up + uint64_t(place) * p.stride + uint64_t(i) * p.row_bytes;
  float w[32], all = 0.0;
  for (uint run = me(); run < (p.n_in + 31) / 32; run += threads()) {
    read_weights(TYPE, row, run, p.n_in, w);
    F32 x = F32(x_at + run * 128);
    float sum = 0.0;
    for (uint k = 0; k < min(32, p.n_in - run * 32); ++k) sum += w[k] * x.v[k];
    all += sum;
  }
  all = sum_all(all);
  if (me() != 0) return;
  if (HAS(bias, 6)) all += F32(p.bias).v[id * p.n_out + i];
  const float v = max(all, 0.0);
  F32(p.h).v[pair * p.n_out + i] = v * v;
}
