#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
// Rows of n elements, a multiple of four, in 16 bits, then a scale for each: a power of two where a row is beyond what
// 16 bits hold, else 1. A workgroup has a row.
layout(constant_id = 1) const uint PRODUCT = 0;  // for product_matrix.comp: of four elements the second and third change places
layout(push_constant) uniform P {
  uint64_t x, to;
  uint n, rows;
} p;
void main() {
  const uint r = item();
  if (r >= p.rows) return;
  F32x4 x = F32x4(p.x + uint64_t(r) * p.n * 4);
  float most = 0.0;
  for (uint i = me(); i < p.n / 4; i += threads()) {
    const vec4 a = abs(x.v[i]);
    most = max(most, max(max(a.x, a.y), max(a.z, a.w)));
  }
  most = max_all(most);
  // What is no number or infinite goes as it is.
  float scale = 1.0;
  if (most > 32768.0 && most < 3.4e38) scale = exp2(ceil(log2(most)) - 15.0);
  for (uint i = me(); i < p.n / 4; i += threads()) {
    const vec4 four = x.v[i] / scale;
    U32x2(p.to + (uint64_t(r) * p.n + 4 * i) * 2).v[0] =
        PRODUCT != 0 ? uvec2(packHalf2x16(four.xz), packHalf2x16(four.yw))
                     : uvec2(packHalf2x16(four.xy), packHalf2x16(four.zw));
  }
  if (me() == 0) F32(p.to + uint64_t(p.rows) * p.n * 2).v[r] = scale;
}
