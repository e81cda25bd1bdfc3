#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "memory.glsl"
// Attention of one query head of up to ROWS rows over stored rows, softmax in one pass over tiles of
// as many rows as there are threads (at most 64). A workgroup has a head of a tile of rows.
layout(constant_id = 1) const uint K_CODEC = 1;
layout(constant_id = 2) const uint V_CODEC = 1;
layout(constant_id = 3) const uint ROTATED = 0;  // of values, which are rotated back
layout(constant_id = 4) const uint WINDOW = 0;
layout(constant_id = 5) const uint GATED = 0;
layout(constant_id = 6) const uint ROWS = 1;
layout(constant_id = 7) const uint DIM = 128;
layout(push_constant) uniform P {
  uint64_t rows, sequences, groups, q, y, gate, pages, chunk, sinks;
  uint n_rows, n_groups, group, n_heads, n_kv_heads, dim, k_row_bytes, v_row_bytes, block_stride,
      k_offset, v_offset, gate_stride;
  float scale;
} p;
shared float head[ROWS * DIM];
shared float query[ROWS * DIM];
shared float shares[ROWS * 64];
shared uint64_t value_names[64], values_at[64];
shared uint values_left[64];
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
void add_products(inout float w[ROWS], uint d, float x) {
  for (uint k = 0; k < ROWS; ++k) w[k] += query[k * DIM + d] * x;
}
void add_values(inout float w[ROWS], uint t, uint width, uint element) {
  Stored value;
  value.name = value_names[t];
  value.at = values_at[t];
  value.left = values_left[t];
  const float x = stored_at(p.pages, value, V_CODEC, width, element);
  for (uint k = 0; k < ROWS; ++k) w[k] += shares[k * 64 + t] * x;
}
// Rows r to r + n - 1, which follow each other in their sequence.
void attend(BatchRow row, uint r, uint n, uint h) {
  const Sequence seq = Sequences(p.sequences).v[row.sequence];
  const Group g = Groups(p.groups).v[row.sequence * p.n_groups + p.group];
  const uint from = h / (p.n_heads / p.n_kv_heads) * DIM, width = p.n_kv_heads * DIM;
  // What the first row sees; row k sees k more, and in a window leaves out as many.
  const uint64_t last = WINDOW != 0 ? row.position : uint64_t(g.n_slots + row.index);
  uint64_t least = 0;
  if ((seq.flags & kNoContext) != 0) least = WINDOW != 0 ? seq.position : uint64_t(g.n_slots);
  float tops[ROWS], totals[ROWS], w[ROWS], fades[ROWS];
  for (uint k = 0; k < ROWS; ++k) {
    tops[k] = p.sinks == 0 ? -3.0e38 : F32(p.sinks).v[h];  // a score without a value
    totals[k] = p.sinks == 0 ? 0.0 : 1.0;
  }
  for (uint i = me(); i < n * DIM; i += threads()) {
    query[i] = F32(p.q).v[((r + i / DIM) * p.n_heads + h) * DIM + i % DIM];
    head[i] = 0.0;
  }
  barrier();
  const uint64_t first = WINDOW != 0 && last + 1 > WINDOW ? max(least, last + 1 - WINDOW) : least;
  // Tiles begin at multiples of their size, so that a row's sums do not depend on those beside it.
  for (uint64_t tile = first / threads() * threads(); tile < last + n; tile += threads()) {
    const uint64_t at = tile + me();
    for (uint k = 0; k < ROWS; ++k) w[k] = 0.0;
    if (at >= first && at < last + n) {
      const Stored key = stored(p.pages, row_address(seq, g, at, false));
      const Stored value = stored(p.pages, row_address(seq, g, at, true));
      value_names[me()] = value.name;
      values_at[me()] = value.at;
      values_left[me()] = value.left;
      FOR_EACH(d, DIM, add_products(w, d, stored_at(p.pages, key, K_CODEC, width, from + d));)
    }
    for (uint k = 0; k < ROWS; ++k) {
      if (k >= n) break;
      const bool seen = at >= least && at <= last + k && (WINDOW == 0 || at + WINDOW > last + k);
      const float most = max(tops[k], max_all(seen ? w[k] * p.scale : -3.0e38));
      const float share = seen ? exp(w[k] * p.scale - most) : 0.0;
      fades[k] = exp(tops[k] - most);
      shares[k * 64 + me()] = share;
      totals[k] = totals[k] * fades[k] + sum_all(share);
      tops[k] = most;
    }
    barrier();
    const uint begin = tile < first ? uint(first - tile) : 0;
    const uint count = uint(min(uint64_t(threads()), last + n - tile));
    for (uint d = me(); d < DIM; d += threads()) {
      for (uint k = 0; k < ROWS; ++k) w[k] = k < n ? head[k * DIM + d] * fades[k] : 0.0;
      FOR_EACH(t, threads(), if (t >= begin && t < count) add_values(w, t, width, from + d);)
      for (uint k = 0; k < ROWS; ++k) {
        if (k < n) head[k * DIM + d] = w[k];
      }
    }
    barrier();
  }
  for (uint k = 0; k < ROWS; ++k) {
    for (uint d = me(); k < n && d < DIM; d += threads()) head[k * DIM + d] /= totals[k];
  }
  barrier();
  unrotate_head(n * DIM, ROTATED);
  for (uint i = me(); i < n * DIM; i += threads()) {
    const uint at = r + i / DIM, d = i % DIM;
    float o = head[i];
    if (GATED != 0) o *= sigmoid(F32(p.gate).v[at * p.gate_stride + (2 * h + 1) * DIM + d]);
    F32(p.y).v[(at * p.n_heads + h) * DIM + d] = o;
  }
  barrier();
}
void main() {
  const uint tile = item() / p.n_heads * ROWS, h = item() % p.n_heads;
  if (tile >= p.n_rows) return;
  const uint end = min(tile + ROWS, p.n_rows);
  for (uint r = tile; r < end;) {
    const BatchRow row = Rows(p.rows).v[r];
    uint n = 1;
    while (r + n < end && Rows(p.rows).v[r + n].sequence == row.sequence) ++n;
    if (row.sequence != kNoSequence) attend(row, r, n, h);
    r += n;
  }
}
