#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
// Softmax of a row's logits of experts, the best of them and their shares. A workgroup has a row.
layout(push_constant) uniform P {
  uint64_t logits, ids, shares, scales;  // scales: of experts, 0 = none
  uint n_rows, n_experts, n_used, renormalizes;
  float divisor;
} p;
shared float probs[1024];
shared float kept[64];
void main() {
  const uint r = item();
  if (r >= p.n_rows) return;
  float most = -3.4e38, all = 0.0, sum = 0.0;
  for (uint i = me(); i < p.n_experts; i += threads()) {
    probs[i] = F32(p.logits).v[r * p.n_experts + i] / p.divisor;
    most = max(most, probs[i]);
  }
  most = max_all(most);
  for (uint i = me(); i < p.n_experts; i += threads()) {
    probs[i] = exp(probs[i] - most);
    all += probs[i];
  }
  all = sum_all(all);
  barrier();
  for (uint j = 0; j < p.n_used; ++j) {
    float best = -1.0;
    for (uint i = me(); i < p.n_experts; i += threads()) best = max(best, probs[i]);
    best = max_all(best);
    float at = 3.0e38;  // the first of equal ones
    for (uint i = me(); i < p.n_experts; i += threads()) at = probs[i] == best ? min(at, float(i)) : at;
    const uint id = uint(-max_all(-at));
    barrier();
    if (me() == 0) {
      I32(p.ids).v[r * p.n_used + j] = int(id);
      kept[j] = best / all;
      probs[id] = -1.0;
    }
    barrier();
    sum += kept[j];
  }
  for (uint j = me(); j < p.n_used; j += threads()) {
    float w = kept[j];
    if (p.renormalizes != 0) w /= max(sum, 6.103515625e-05);
    if (HAS(scales, 3)) w *= F32(p.scales).v[I32(p.ids).v[r * p.n_used + j]];
    F32(p.shares).v[r * p.n_used + j] = w;
  }
}
