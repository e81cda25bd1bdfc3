#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
// The router of shaders/router.comp where scores are sigmoids (SIGMOID), where numbers of the experts' own are added to
// them for the choice alone, or where shares are multiplied by one number. A workgroup has a row.
layout(constant_id = 1) const uint SIGMOID = 0;
layout(push_constant) uniform P {
  uint64_t logits, ids, shares, bias, scales;  // bias, scales: of experts, 0 = none
  uint n_rows, n_experts, n_used, renormalizes;
  float share_scale;
} p;
shared float scores[1024], choices[1024];
shared float kept[64];
const float kTaken = -3.4e38;
void main() {
  const uint r = item();
  if (r >= p.n_rows) return;
  float most = kTaken, all = 0.0, sum = 0.0;
  for (uint i = me(); i < p.n_experts; i += threads()) {
    const float x = F32(p.logits).v[r * p.n_experts + i];
    scores[i] = SIGMOID != 0 ? sigmoid(x) : x;
    most = max(most, x);
  }
  if (SIGMOID == 0) {
    most = max_all(most);
    for (uint i = me(); i < p.n_experts; i += threads()) {
      scores[i] = exp(scores[i] - most);
      all += scores[i];
    }
    all = sum_all(all);
    for (uint i = me(); i < p.n_experts; i += threads()) scores[i] /= all;
  }
  for (uint i = me(); i < p.n_experts; i += threads())
    choices[i] = scores[i] + (HAS(bias, 3) ? F32(p.bias).v[i] : 0.0);
  barrier();
  for (uint j = 0; j < p.n_used; ++j) {
    float best = kTaken;
    for (uint i = me(); i < p.n_experts; i += threads()) best = max(best, choices[i]);
    best = max_all(best);
    float at = 3.0e38;  // the first of equal ones
    for (uint i = me(); i < p.n_experts; i += threads()) at = choices[i] == best ? min(at, float(i)) : at;
    const uint id = uint(-max_all(-at));
    barrier();
    if (me() == 0) {
      I32(p.ids).v[r * p.n_used + j] = int(id);
      kept[j] = scores[id];
      choices[id] = kTaken;
    }
    barrier();
    sum += kept[j];
  }
  for (uint j = me(); j < p.n_used; j += threads()) {
    float w = kept[j];
    if (p.renormalizes != 0) w /= max(sum, 6.103515625e-05);
    w *= p.share_scale;
    if (HAS(scales, 4)) w *= F32(p.scales).v[I32(p.ids).v[r * p.n_used + j]];
    F32(p.shares).v[r * p.n_used + j] = w;
  }
}
