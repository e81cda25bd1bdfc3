#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "memory.glsl"
// One head of a row, of queries, keys or values (WHICH), from its projection to where attention or
// store.comp read it: bias, norm, RoPE, the session's captured queries, rotation. A workgroup has a
// head of a row. Of latent attention, queries have what is turned in `from` and the rest in `to`
// already; the stored row has its latent first, which is normed alone.
layout(constant_id = 1) const uint WHICH = 0;     // 0 queries, 1 keys, 2 values; of latents: 3 queries, 4 rows
layout(constant_id = 2) const uint NORM = 0;      // 0 none, 1 per head, 2 of the whole vector
layout(constant_id = 3) const uint NEIGHBOURS = 0;
layout(constant_id = 4) const uint ROTATED = 0;   // elements that are rotated together
layout(push_constant) uniform P {
  uint64_t rows, sequences, from, to, bias, weight, cos, sin;
  uint n_rows, n_heads, dim, from_stride, head_stride, n_half;
  float eps;
  uint query_low, query_high;  // first float of the layer's captured queries for one row; ~0: none
  float temperature;           // AttentionSpec
  uint temperature_rows;
} p;
uint head_stride() { return p.head_stride; }
#include "head.glsl"
// Elements that are turned come first where attention reads a row, and last in its projection.
void take_latent(uint64_t from, F32 to, uint h) {
  const uint n_rot = 2 * p.n_half, rank = p.dim - n_rot;
  if (WHICH == 3) {
    for (uint i = me(); i < p.dim; i += threads())
      head[i] = i < n_rot ? F32(from).v[h * p.head_stride + i] : to.v[i];
  } else {
    float sum = 0.0;
    for (uint i = me(); i < rank; i += threads()) sum += F32(from).v[i] * F32(from).v[i];
    const float f = 1.0 / sqrt(sum_all(sum) / float(rank) + p.eps);
    for (uint i = me(); i < rank; i += threads()) head[n_rot + i] = F32(from).v[i] * f * F32(p.weight).v[i];
    for (uint i = me(); i < n_rot; i += threads()) head[i] = F32(from).v[rank + i];
  }
}
void capture(uint r, uint h) {
  if ((WHICH != 0 && WHICH != 3) || p.query_high == 0xFFFFFFFFu) return;
  const BatchRow row = Rows(p.rows).v[r];
  const Sequence s = Sequences(p.sequences).v[row.sequence];
  // Of rows that one place of the ring is for, the last: nothing else orders them.
  if (s.queries == 0 || row.index + s.query_rows < s.n_rows) return;
  const uint skip = s.n_rows > s.query_rows ? s.n_rows - s.query_rows : 0;
  const uint64_t offset = uint64_t(p.query_high) << 32 | p.query_low;
  const uint i = (s.flags & kQueryRing) != 0 ? uint(row.position % s.query_rows)
                                              : row.index - skip;
  F32 to = F32(s.queries + (offset * s.query_rows + uint64_t(i) * p.n_heads * p.dim) * 4);
  for (uint d = me(); d < p.dim; d += threads()) to.v[h * p.dim + d] = head[d];
}
void main() {
  const uint r = item() / p.n_heads, h = item() % p.n_heads;
  if (r >= p.n_rows || Rows(p.rows).v[r].sequence == kNoSequence) return;
  const uint64_t from = p.from + uint64_t(r) * p.from_stride * 4;
  F32 to = F32(p.to + (uint64_t(r) * p.n_heads + h) * p.dim * 4);
  if (WHICH >= 3) take_latent(from, to, h);
  else take(from, h);
  barrier();
  if (WHICH != 2) turn(r);
  if (p.temperature != 0.0) {
    const uint64_t steps = Rows(p.rows).v[r].position / p.temperature_rows;
    const float factor = 1.0 + p.temperature * log(1.0 + float(steps));
    for (uint i = me(); i < p.dim; i += threads()) head[i] *= factor;
    barrier();
  }
  capture(r, h);
  barrier();
  rotate_head(p.dim, ROTATED);
  for (uint i = me(); i < p.dim; i += threads()) to.v[i] = head[i];
}
