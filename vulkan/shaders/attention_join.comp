#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "memory.glsl"
// Outputs of attention of what shaders/attention_step.comp or attention_lanes.comp left for each share of the stored
// rows, BYTES: in 8 bits too, at `bytes`. A workgroup has a head of a row, a thread fours of its elements of every n-th
// share, eight of which it asks for together.
layout(constant_id = 1) const uint ROTATED = 0;  // of values, which are rotated back
layout(constant_id = 2) const uint GATED = 0;
layout(constant_id = 3) const uint DIM = 128;
layout(constant_id = 4) const uint SHARES = 32;
layout(constant_id = 5) const uint BYTES = 0;  // heads are whole runs of 32
layout(push_constant) uniform P {
  uint64_t rows, parts, y, gate, sinks, bytes;
  uint n_rows, n_heads, gate_stride;
} p;
const float kUnseen = -3.0e38;
const uint kFours = DIM / 4, kParts = gl_WorkGroupSize.x > kFours ? gl_WorkGroupSize.x / kFours : 1;
shared vec4 sums[kParts * kFours];
shared float head[DIM];
shared float weights[SHARES];
shared uint n_filled;  // shares that had rows: those behind them have none
#include "quantise.glsl"
#include "rotation.glsl"
float put_weights(uint64_t from, float sink) {
  float top = sink;
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
    const vec2 of_share = F32x4(from).v[i * (kFours + 1)].xy;
    const float weight = of_share.x == kUnseen ? 0.0 : exp(of_share.x - top);
    weights[i] = weight;
    total += weight * of_share.y;
  }
  barrier();
  return sum_all(total) + (!HAS(sinks, 4) ? 0.0 : exp(sink - top));
}
void put_head(uint64_t from, float total) {
  for (uint i = me(); i < kParts * kFours; i += threads()) {
    vec4 all = vec4(0.0), x[8];
    for (uint s = i / kFours; s < n_filled; s += 8 * kParts) {
      EIGHT(n, 0, x[n] = F32x4(from).v[min(s + n * kParts, n_filled - 1) * (kFours + 1) + 1 + i % kFours];)
      EIGHT(n, 0, const uint t = s + n * kParts; const float weight = t < n_filled ? weights[t] : 0.0;
            if (weight != 0.0) all += weight * x[n];)
    }
    sums[i] = all;
  }
  barrier();
  for (uint i = me(); i < kFours; i += threads()) {
    vec4 all = sums[i];
    for (uint part = 1; part < kParts; ++part) all += sums[part * kFours + i];
    all /= total;
    head[4 * i] = all.x;
    head[4 * i + 1] = all.y;
    head[4 * i + 2] = all.z;
    head[4 * i + 3] = all.w;
  }
  barrier();
}
void main() {
  const uint r = item() / p.n_heads, h = item() % p.n_heads;
  if (r >= p.n_rows || Rows(p.rows).v[r].sequence == kNoSequence) return;
  const uint64_t from = p.parts + uint64_t(r * p.n_heads + h) * SHARES * (DIM + 4) * 4;
  const float total = put_weights(from, !HAS(sinks, 4) ? kUnseen : F32(p.sinks).v[h]);  // a score without a value
  put_head(from, total);
  unrotate_head(DIM, ROTATED);
  for (uint i = lane(); i < kFours; i += threads()) {
    vec4 o = vec4(head[4 * i], head[4 * i + 1], head[4 * i + 2], head[4 * i + 3]);
    if (GATED != 0) o /= 1.0 + exp(-F32x4(p.gate).v[(r * p.gate_stride + (2 * h + 1) * DIM) / 4 + i]);
    const uint in_row = h * kFours + i;
    F32x4(p.y).v[r * p.n_heads * kFours + in_row] = o;
    if (BYTES != 0) put_bytes(p.bytes, p.n_rows, p.n_heads * DIM, r, in_row, o);
  }
}
