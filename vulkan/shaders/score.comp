#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "memory.glsl"
// Softmax shares that observed queries give the stored rows of a KV head: their sum and the largest.
// PASS 0: the largest product of each query and the sum of exponentials, a workgroup has a query of a
// query head. PASS 1: a workgroup has as many rows of a KV head as threads.
layout(constant_id = 1) const uint PASS = 0;
layout(constant_id = 2) const uint K_CODEC = 1;
layout(constant_id = 3) const uint ROTATED = 0;
layout(constant_id = 4) const uint DIM = 128;
layout(push_constant) uniform P {
  uint64_t k, queries, visible, weight, sum, most, pages, workspace, sinks, table;
  uint n_slots, query_rows, first_query, n_queries, n_heads, n_kv_heads, query_stride, k_row_bytes, block_stride,
      adds;
  float scale;
} p;
shared float head[1024];
#include "rotation.glsl"
float product(uint g, uint slot) {
  const uint64_t at = HAS(table, 9) ? named_address(p.k, p.table, slot, p.k_row_bytes)
                                    : slot_address(p.k, slot, p.block_stride, 0, p.k_row_bytes);
  const Stored k = stored(p.pages, at);
  float sum = 0.0;
  FOR_EACH(d, DIM, sum += head[d] * stored_at(p.pages, k, K_CODEC, p.n_kv_heads * DIM, g * DIM + d);)
  return sum * p.scale;
}
void take_query(uint i, uint h) {
  barrier();
  const uint row = (p.first_query + i) % p.query_rows;
  for (uint d = me(); d < DIM; d += threads())
    head[d] = F32(p.queries + (uint64_t(row) * p.query_stride + h * DIM + d) * 4).v[0];
  barrier();
  rotate_head(DIM, ROTATED);
}
void main() {
  const uint group = p.n_heads / p.n_kv_heads;
  F32 facts = F32(p.workspace);  // [n_heads][n_queries][2]
  if (PASS == 0) {
    const uint h = item() / p.n_queries, i = item() % p.n_queries;
    if (h >= p.n_heads) return;
    const uint n = U32(p.visible).v[h / group * p.n_queries + i];
    take_query(i, h);
    const float sink = !HAS(sinks, 8) ? -3.4e38 : F32(p.sinks).v[h];  // a score without a row
    float most = sink, all = 0.0;
    for (uint t = me(); t < n; t += threads()) most = max(most, product(h / group, t));
    most = max_all(most);
    for (uint t = me(); t < n; t += threads()) all += exp(product(h / group, t) - most);
    all = sum_all(all) + (!HAS(sinks, 8) ? 0.0 : exp(sink - most));
    if (me() != 0) return;
    facts.v[(h * p.n_queries + i) * 2] = most;
    facts.v[(h * p.n_queries + i) * 2 + 1] = all;
    return;
  }
  const uint parts = (p.n_slots + threads() - 1) / threads();
  const uint g = item() / parts, t = item() % parts * threads() + me();
  if (g >= p.n_kv_heads) return;
  float sum = 0.0, top = 0.0;
  for (uint i = 0; i < p.n_queries; ++i) {
    const uint n = U32(p.visible).v[g * p.n_queries + i];
    for (uint h = g * group; h < (g + 1) * group; ++h) {
      take_query(i, h);
      if (t >= n) continue;
      const uint at = (h * p.n_queries + i) * 2;
      const float share = exp(product(g, t) - facts.v[at]) / facts.v[at + 1];
      sum += share;
      top = max(top, share * (!HAS(weight, 3) ? 1.0 : F32(p.weight).v[i]));
    }
  }
  if (t >= p.n_slots) return;
  const uint at = g * p.n_slots + t;
  F32(p.sum).v[at] = (p.adds != 0 ? F32(p.sum).v[at] : 0.0) + sum;
  F32(p.most).v[at] = max(p.adds != 0 ? F32(p.most).v[at] : 0.0, top);
}
