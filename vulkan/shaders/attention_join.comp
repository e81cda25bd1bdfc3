#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "memory.glsl"
// Outputs of attention of what shaders/attention_step.comp left for each share of the stored rows. A workgroup has a
// head of a row.
layout(constant_id = 1) const uint ROTATED = 0;  // of values, which are rotated back
layout(constant_id = 2) const uint GATED = 0;
layout(constant_id = 3) const uint DIM = 128;
layout(constant_id = 4) const uint SHARES = 32;
layout(push_constant) uniform P {
  uint64_t rows, parts, y, gate, sinks;
  uint n_rows, n_heads, gate_stride;
} p;
const float kUnseen = -3.0e38;
shared float head[DIM];
shared float weights[SHARES];
shared uint n_filled;  // shares that had rows: those behind them have none
#include "rotation.glsl"
void main() {
  const uint r = item() / p.n_heads, h = item() % p.n_heads;
  if (r >= p.n_rows || Rows(p.rows).v[r].sequence == kNoSequence) return;
  const uint64_t from = p.parts + uint64_t(r * p.n_heads + h) * SHARES * (DIM + 4) * 4;
  float top = !HAS(sinks, 4) ? kUnseen : F32(p.sinks).v[h];  // a score without a value
  const float sink = top;
  if (me() == 0) n_filled = 0;
  barrier();
  for (uint i = me(); i < SHARES; i += threads()) {
    const float of_share = F32(from).v[i * (DIM + 4)];
    if (of_share != kUnseen) atomicMax(n_filled, i + 1);
    top = max(top, of_share);
  }
  top = max_all(top);
  float total = 0.0;
  for (uint i = me(); i < SHARES; i += threads()) {
    const float of_share = F32(from).v[i * (DIM + 4)];
    const float weight = of_share == kUnseen ? 0.0 : exp(of_share - top);
    weights[i] = weight;
    total += weight * F32(from).v[i * (DIM + 4) + 1];
  }
  total = sum_all(total) + (!HAS(sinks, 4) ? 0.0 : exp(sink - top));
  barrier();
  for (uint d = me(); d < DIM; d += threads()) {
    float all = 0.0;
    for (uint i = 0; i < n_filled; ++i) {
      if (weights[i] != 0.0) all += weights[i] * F32(from).v[i * (DIM + 4) + 4 + d];
    }
    head[d] = all / total;
  }
  barrier();
  unrotate_head(DIM, ROTATED);
  for (uint d = me(); d < DIM; d += threads()) {
    float o = head[d];
    if (GATED != 0) o *= sigmoid(F32(p.gate).v[r * p.gate_stride + (2 * h + 1) * DIM + d]);
    F32(p.y).v[(r * p.n_heads + h) * DIM + d] = o;
  }
}
