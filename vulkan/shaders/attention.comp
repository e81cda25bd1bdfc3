#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "memory.glsl"
// Attention of one query head of a row over stored rows, softmax in one pass over tiles of as many
// rows as there are threads. A workgroup has a head of a row.
layout(constant_id = 1) const uint K_CODEC = 1;
layout(constant_id = 2) const uint V_CODEC = 1;
layout(constant_id = 3) const uint ROTATED = 0;  // of values, which are rotated back
layout(constant_id = 4) const uint WINDOW = 0;
layout(constant_id = 5) const uint GATED = 0;
layout(push_constant) uniform P {
  uint64_t rows, sequences, groups, q, y, gate, pages, chunk;
  uint n_rows, n_groups, group, n_heads, n_kv_heads, dim, k_row_bytes, v_row_bytes, block_stride,
      k_offset, v_offset, gate_stride;
  float scale;
} p;
shared float head[512];
shared float query[512];
shared float shares[256];
#include "rotation.glsl"
uint64_t row_address(Sequence seq, Group g, uint64_t at, bool value) {
  const uint row_bytes = value ? p.v_row_bytes : p.k_row_bytes,
             offset = value ? p.v_offset : p.k_offset;
  if (WINDOW == 0) return slot_address(g.base, at, p.block_stride, offset, row_bytes);
  if (at >= seq.position) {
    return chunk_address(p.chunk, seq.chunk_block, at - seq.position, value, p.k_row_bytes,
                         p.v_row_bytes);
  }
  return slot_address(g.base, at % g.ring_slots, p.block_stride, offset, row_bytes);
}
void main() {
  const uint r = item() / p.n_heads, h = item() % p.n_heads;
  if (r >= p.n_rows) return;
  const BatchRow row = Rows(p.rows).v[r];
  if (row.sequence == kNoSequence) return;
  const Sequence seq = Sequences(p.sequences).v[row.sequence];
  const Group g = Groups(p.groups).v[row.sequence * p.n_groups + p.group];
  const bool alone = (seq.flags & kNoContext) != 0;
  uint64_t first = alone ? g.n_slots : 0, last = g.n_slots + row.index;
  if (WINDOW != 0) {
    last = row.position;
    first = last + 1 > WINDOW ? last + 1 - WINDOW : 0;
    if (alone) first = max(first, seq.position);
  }
  const uint from = h / (p.n_heads / p.n_kv_heads) * p.dim, n = p.n_kv_heads * p.dim;
  for (uint d = me(); d < p.dim; d += threads()) {
    query[d] = F32(p.q).v[(r * p.n_heads + h) * p.dim + d];
    head[d] = 0.0;
  }
  barrier();
  float top = -3.0e38, total = 0.0;
  for (uint64_t tile = first; tile <= last; tile += threads()) {
    const uint64_t at = tile + me();
    float w = -3.4e38;
    if (at <= last) {
      const Stored k = stored(p.pages, row_address(seq, g, at, false));
      float sum = 0.0;
      for (uint d = 0; d < p.dim; ++d) sum += query[d] * stored_at(p.pages, k, K_CODEC, n, from + d);
      w = sum * p.scale;
    }
    const float most = max(top, max_all(w)), fade = exp(top - most);
    const float share = at <= last ? exp(w - most) : 0.0;
    barrier();
    shares[me()] = share;
    total = total * fade + sum_all(share);
    top = most;
    barrier();
    const uint count = uint(min(uint64_t(threads()), last + 1 - tile));
    for (uint d = me(); d < p.dim; d += threads()) head[d] *= fade;
    for (uint t = 0; t < count; ++t) {
      const Stored v = stored(p.pages, row_address(seq, g, tile + t, true));
      for (uint d = me(); d < p.dim; d += threads())
        head[d] += shares[t] * stored_at(p.pages, v, V_CODEC, n, from + d);
    }
  }
  barrier();
  for (uint d = me(); d < p.dim; d += threads()) head[d] /= total;
  barrier();
  unrotate_head(p.dim, ROTATED);
  for (uint d = me(); d < p.dim; d += threads()) {
    float o = head[d];
    if (GATED != 0) o *= sigmoid(F32(p.gate).v[r * p.gate_stride + (2 * h + 1) * p.dim + d]);
    F32(p.y).v[(r * p.n_heads + h) * p.dim + d] = o;
  }
}
