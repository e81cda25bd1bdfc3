#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "weights.glsl"
#include "head_product.glsl"
// Of a few rows: a workgroup has an output of a head and ROWS rows, a thread every n-th run of 32 elements.
layout(constant_id = 3) const int ROWS = 1;
float sums[ROWS], w[32];
void add_run(uint run) {
  const uint n = min(32, p.n_in - run * 32);
  for (int r = 0; r < ROWS; ++r) {
    const uint64_t at = x_of(min(tile.first + r, p.n_rows - 1)) + run * 128;
    float sum = 0.0;
    if (n == 32 && FOURS != 0) {
      for (uint i = 0; i < 8; ++i)
        sum += dot(vec4(w[4 * i], w[4 * i + 1], w[4 * i + 2], w[4 * i + 3]), F32x4(at).v[i]);
    } else {
      for (uint i = 0; i < n; ++i) sum += w[i] * F32(at).v[i];
    }
    sums[r] += sum;
  }
}
void main() {
  const uint j = item();
  if (j >= p.n_out || !find_tile(ROWS)) return;
  for (int r = 0; r < ROWS; ++r) sums[r] = 0.0;
  for (uint run = me(); run < (p.n_in + 31) / 32; run += threads()) {
    read_weights(TYPE, tile.w + uint64_t(j) * p.row_bytes, run, p.n_in, w);
    add_run(run);
  }
  for (int r = 0; r < ROWS; ++r) {
    const float got = sum_all(sums[r]);
    if (me() == 0 && tile.first + r < tile.end) put(tile.first + r, j, got, 0.0);
  }
}
