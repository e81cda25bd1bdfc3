#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "memory.glsl"
#include "weights.glsl"
// norms[t] += the mean over heads, of which this is one, of the sum of |W_o[r, h] . (W_v[h] . latent_t)| over all r.
// A workgroup has a stored row, a thread every n-th element of the value, then every n-th output.
layout(constant_id = 1) const int TYPE = 0;      // of W_o
layout(constant_id = 2) const int MAP_TYPE = 0;  // of W_v
layout(constant_id = 3) const uint CODEC = 1;
layout(constant_id = 4) const uint ROTATED = 0;
layout(constant_id = 5) const uint ADDS = 0;
layout(push_constant) uniform P {
  uint64_t v, o, map, norms, pages, table;
  uint n_slots, head, n_heads, dim, first, rank, n_value, v_row_bytes, block_stride, n_out, row_bytes, map_row_bytes;
} p;
shared float head[1024], value[1024];
#include "rotation.glsl"
// Elements from `from` to `to` of a row of weights times `x`, of which x[0] goes with the first.
float product(int type, uint64_t row, uint n_in, uint from, uint to, bool of_values) {
  float sum = 0.0, w[32];
  for (uint run = from / 32; run * 32 < to; ++run) {
    read_weights(type, row, run, n_in, w);
    for (uint i = 0; i < 32; ++i) {
      const uint at = run * 32 + i;
      if (at >= from && at < to) sum += w[i] * (of_values ? value[at - from] : head[p.first + at - from]);
    }
  }
  return sum;
}
void main() {
  const uint t = item();
  if (t >= p.n_slots) return;
  const uint64_t at = HAS(table, 5) ? named_address(p.v, p.table, t, p.v_row_bytes)
                                    : slot_address(p.v, t, p.block_stride, 0, p.v_row_bytes);
  const Stored row = stored(p.pages, at);
  for (uint d = me(); d < p.dim; d += threads()) head[d] = stored_at(p.pages, row, CODEC, p.dim, d);
  barrier();
  unrotate_head(p.dim, ROTATED);
  for (uint j = me(); j < p.n_value; j += threads())
    value[j] = product(MAP_TYPE, p.map + (uint64_t(p.head) * p.n_value + j) * p.map_row_bytes, p.rank, 0, p.rank, false);
  barrier();
  const uint from = p.head * p.n_value;
  float sum = 0.0;
  for (uint r = me(); r < p.n_out; r += threads())
    sum += abs(product(TYPE, p.o + uint64_t(r) * p.row_bytes, p.n_heads * p.n_value, from, from + p.n_value, true));
  sum = sum_all(sum) / float(p.n_heads);
  if (me() == 0) F32(p.norms).v[t] = (ADDS != 0 ? F32(p.norms).v[t] : 0.0) + sum;
}
