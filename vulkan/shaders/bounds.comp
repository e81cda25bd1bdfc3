#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
// What blocks of archived keys can count at most (device::BoundsParams). A workgroup has as many blocks of a KV head
// as threads.
layout(push_constant) uniform P {
  uint64_t bounds, queries, weight, most;
  uint stride, n_blocks, query_rows, first_query, n_queries, n_heads, n_kv, dim, adds;
  float scale;
} p;
shared float head[1024];
void main() {
  const uint parts = (p.n_blocks + threads() - 1) / threads();
  const uint g = item() / parts, b = item() % parts * threads() + me();
  if (g >= p.n_kv) return;
  const uint group = p.n_heads / p.n_kv, at = g * p.n_blocks + b;
  const uint64_t low = p.bounds + (uint64_t(g) * p.stride + b) * 2 * p.dim * 2, high = low + p.dim * 2;
  float most = p.adds != 0 && b < p.n_blocks ? F32(p.most).v[at] : -3.4e38;
  for (uint i = 0; i < p.n_queries * group; ++i) {
    const uint row = (p.first_query + i / group) % p.query_rows;
    barrier();
    for (uint d = me(); d < p.dim; d += threads())
      head[d] = F32(p.queries).v[(row * p.n_heads + g * group + i % group) * p.dim + d];
    barrier();
    if (b >= p.n_blocks) continue;
    float sum = 0.0;
    for (uint d = 0; d < p.dim; ++d) sum += max(head[d] * bf16_at(low, d), head[d] * bf16_at(high, d));
    most = max(most, sum * p.scale + log(F32(p.weight).v[i / group]));
  }
  if (b < p.n_blocks) F32(p.most).v[at] = most;
}
