#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "weights.glsl"
// y[r][i] (+)= the shares' sum of down row i of the row's experts . h[r][j], each with its bias. A workgroup has an
// output.
layout(constant_id = 1) const int TYPE = 0;
#include "expert_down.glsl"
void main() {
  const uint i = item(), r = gl_WorkGroupID.z;
  if (i >= p.n_out || r >= p.n_rows) return;
  float all = 0.0, w[32];
  for (uint j = 0; j < p.n_used; ++j) {
    const int e = place_of(r, j);
    if (e < 0) continue;
    const uint64_t row = p.down + uint64_t(e) * p.stride + uint64_t(i) * p.row_bytes;
    float one = 0.0;
    for (uint run = me(); run < (p.n_in + 31) / 32; run += threads()) {
      read_weights(TYPE, row, run, p.n_in, w);
      F32 h = F32(p.h + ((uint64_t(r) * p.n_used + j) * p.n_in + run * 32) * 4);
      float sum = 0.0;
      for (uint d = 0; d < min(32, p.n_in - run * 32); ++d) sum += w[d] * h.v[d];
      one += sum;
    }
    if (me() == 0 && HAS(bias, 7)) one += F32(p.bias).v[I32(p.ids).v[r * p.n_used + j] * p.n_out + i];
    all += F32(p.shares).v[r * p.n_used + j] * one;
  }
  all = sum_all(all);
  if (me() == 0) put(r, i, all);
}
