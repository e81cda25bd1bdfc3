#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "weights.glsl"
// out[r] = scale * row tokens[r] of the table (no tokens: row r), n elements. A workgroup has a row.
layout(constant_id = 1) const int TYPE = 0;
layout(push_constant) uniform P {
  uint64_t tokens, table, y;
  uint n, row_bytes;
  float scale;
  uint rows, y_stride;
} p;
void main() {
  const uint r = item();
  if (r >= p.rows) return;
  const uint64_t id = !HAS(tokens, 0) ? r : uint64_t(I32(p.tokens).v[r]);
  const uint64_t row = p.table + id * p.row_bytes;
  F32 y = F32(p.y + uint64_t(r) * p.y_stride * 4);
  float w[32];
  for (uint run = me(); run < (p.n + 31) / 32; run += threads()) {
    read_weights(TYPE, row, run, p.n, w);
    for (uint i = 0; i < 32 && run * 32 + i < p.n; ++i) y.v[run * 32 + i] = w[i] * p.scale;
  }
}
