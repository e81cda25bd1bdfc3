#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "weights.glsl"
// y[r][j] = W[j] . x[r] + bias[j] and what EPILOGUE says (device/epilogue.h). A workgroup has an output and
// ROWS rows, a thread every n-th run of 32 elements.
layout(constant_id = 1) const int TYPE = 0;
layout(constant_id = 2) const int TYPE_UP = 0;
layout(constant_id = 4) const int ROWS = 1;
#include "product.glsl"
float sums[ROWS], ups[ROWS], w[32];
// The run's part of each row's product. Rows are read four elements at a time where all begin at
// multiples of four.
void add_run(uint first, uint run, bool to_up) {
  const uint n = min(32, p.n_in - run * 32);
  for (int r = 0; r < ROWS; ++r) {
    const uint64_t at = p.x + (uint64_t(min(first + r, p.n_rows - 1)) * p.n_in + run * 32) * 4;
    float sum = 0.0;
    if (n == 32 && p.n_in % 4 == 0) {
      F32x4 x = F32x4(at);
      for (uint i = 0; i < 8; ++i) {
        const vec4 four = x.v[i];
        sum += w[4 * i] * four.x;
        sum += w[4 * i + 1] * four.y;
        sum += w[4 * i + 2] * four.z;
        sum += w[4 * i + 3] * four.w;
      }
    } else {
      for (uint i = 0; i < n; ++i) sum += w[i] * F32(at).v[i];
    }
    if (to_up) ups[r] += sum;
    else sums[r] += sum;
  }
}
void main() {
  const uint j = item(), first = gl_WorkGroupID.z * ROWS;
  if (j >= p.n_out) return;
  for (int r = 0; r < ROWS; ++r) sums[r] = ups[r] = 0.0;
  for (uint run = me(); run < (p.n_in + 31) / 32; run += threads()) {
    read_weights(TYPE, p.w + uint64_t(j) * p.row_bytes, run, p.n_in, w);
    add_run(first, run, false);
    if (!kGates) continue;
    read_weights(TYPE_UP, p.up + uint64_t(j) * p.up_row_bytes, run, p.n_in, w);
    add_run(first, run, true);
  }
  for (int r = 0; r < ROWS; ++r) {
    const float got = sum_all(sums[r]), up = kGates ? sum_all(ups[r]) : 0.0;
    if (me() != 0 || first + r >= p.n_rows) continue;
    put(first + r, j, got, up);
  }
}
