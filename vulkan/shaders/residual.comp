#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
// to[r] = scale * (x[r] + share * norm(y[r])); x, y may be absent, and the norm. NORMED: then next[r] = rms_norm(to[r]) *
// next_weight, BYTES: in 8 bits too, at `bytes`. A workgroup has a row.
layout(constant_id = 1) const uint NORMED = 0;
layout(constant_id = 2) const uint BYTES = 0;
layout(push_constant) uniform P {
  uint64_t x, y, weight, to, next_weight, next, bytes;
  uint n;
  float eps, scale, share;
  uint rows;
} p;
#include "quantise.glsl"
#include "norm.glsl"
void main() {
  const uint r = item();
  if (r >= p.rows) return;
  const uint64_t at = uint64_t(r) * p.n * 4;
  float f = p.share, sum = 0.0;
  if (HAS(y, 1) && HAS(weight, 2)) f /= sqrt(sum_all(squares(p.y + at, p.n)) / float(p.n) + p.eps);
  // By the threads that read it again: put_normed() of norm.glsl.
  if (p.n % 4 == 0) {
    for (uint i = lane(); i < p.n / 4; i += threads()) {
      vec4 v = !HAS(x, 0) ? vec4(0.0) : F32x4(p.x + at).v[i];
      if (HAS(y, 1)) v += F32x4(p.y + at).v[i] * f * (!HAS(weight, 2) ? vec4(1.0) : F32x4(p.weight).v[i]);
      v *= p.scale;
      F32x4(p.to + at).v[i] = v;
      sum += dot(v, v);
    }
  } else {
    for (uint i = lane(); i < p.n; i += threads()) {
      float v = !HAS(x, 0) ? 0.0 : F32(p.x + at).v[i];
      if (HAS(y, 1)) v += F32(p.y + at).v[i] * f * (!HAS(weight, 2) ? 1.0 : F32(p.weight).v[i]);
      v *= p.scale;
      F32(p.to + at).v[i] = v;
      sum += v * v;
    }
  }
  if (NORMED == 0) return;
  const float scale = 1.0 / sqrt(sum_all(sum) / float(p.n) + p.eps);
  put_normed(p.to + at, scale, p.next_weight, p.next + at, p.bytes, p.rows, p.n, r, BYTES != 0);
}
