#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
// y[r] = rms_norm(x[r]) * weight (0: 1), n elements; `picks`: x rows by number. BYTES: in 8 bits too, at `bytes`. A
// workgroup has a row.
layout(constant_id = 1) const uint BYTES = 0;
layout(push_constant) uniform P {
  uint64_t x, weight, y, picks, bytes;
  uint n, x_stride, y_stride;
  float eps;
  uint rows;
} p;
#include "quantise.glsl"
#include "norm.glsl"
void main() {
  const uint r = item();
  if (r >= p.rows) return;
  const uint from = !HAS(picks, 3) ? r : U32(p.picks).v[r];
  const uint64_t x = p.x + uint64_t(from) * p.x_stride * 4;
  const float scale = 1.0 / sqrt(sum_all(squares(x, p.n)) / float(p.n) + p.eps);
  put_normed(x, scale, p.weight, p.y + uint64_t(r) * p.y_stride * 4, p.bytes, p.rows, p.n, r, BYTES != 0);
}
