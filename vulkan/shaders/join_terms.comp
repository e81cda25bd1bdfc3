#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
// device::JoinParams. A workgroup has a KV head.
layout(push_constant) uniform P {
  uint64_t terms, sum, top, norms;
  uint n_heads, n_slots;
  float scale;
} p;
void main() {
  const uint h = item();
  if (h >= p.n_heads) return;
  const uint first = h * p.n_slots;
  float all = 0.0;
  for (uint t = me(); t < p.n_slots; t += threads()) all += F32(p.sum).v[first + t] * p.scale;
  const float mean = sum_all(all) / float(p.n_slots);
  for (uint t = me(); t < p.n_slots; t += threads()) {
    const uint i = first + t;
    F32(p.terms).v[i] = HAS(norms, 3)
                            ? (p.scale * F32(p.sum).v[i] + 1e-4) * F32(p.norms).v[i]
                            : max(F32(p.top).v[i], mean);
  }
}
