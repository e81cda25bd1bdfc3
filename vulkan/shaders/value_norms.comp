#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "memory.glsl"
#include "weights.glsl"
// norms[g][t] = mean over the query heads of g of the sum of |W_o[r, h] . v_t| over all r. A
// workgroup has a row of a KV head, a thread every n-th output.
layout(constant_id = 1) const int TYPE = 0;
layout(constant_id = 2) const uint V_CODEC = 1;
layout(constant_id = 3) const uint ROTATED = 0;
layout(push_constant) uniform P {
  uint64_t v, o, norms, pages, table;
  uint n_slots, n_heads, n_kv_heads, dim, v_row_bytes, block_stride, n_out, row_bytes, first_kv, all_kv;
} p;
shared float head[1024];
#include "rotation.glsl"
void main() {
  const uint g = item() / p.n_slots, t = item() % p.n_slots, group = p.n_heads / p.all_kv;
  if (g >= p.n_kv_heads) return;
  const uint64_t at = HAS(table, 4) ? named_address(p.v, p.table, t, p.v_row_bytes)
                                    : slot_address(p.v, t, p.block_stride, 0, p.v_row_bytes);
  const Stored v = stored(p.pages, at);
  for (uint d = me(); d < p.dim; d += threads())
    head[d] = stored_at(p.pages, v, V_CODEC, p.n_kv_heads * p.dim, g * p.dim + d);
  barrier();
  unrotate_head(p.dim, ROTATED);
  const uint n_in = p.n_heads * p.dim;
  float sum = 0.0, w[32];
  for (uint r = me(); r < p.n_out; r += threads()) {
    float one = 0.0;
    uint d = 0;
    const uint from = (p.first_kv + g) * group * p.dim, to = from + group * p.dim;
    for (uint run = from / 32; run * 32 < to; ++run) {
      read_weights(TYPE, p.o + uint64_t(r) * p.row_bytes, run, n_in, w);
      for (uint i = 0; i < 32; ++i) {
        const uint at = run * 32 + i;
        if (at < from || at >= to) continue;
        one += w[i] * head[d];
        if (++d < p.dim) continue;
        sum += abs(one);
        one = 0.0;
        d = 0;
      }
    }
  }
  sum = sum_all(sum);
  if (me() == 0) F32(p.norms).v[g * p.n_slots + t] = sum / float(group);
}
