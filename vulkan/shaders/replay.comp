#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "memory.glsl"
// Replay scores (device::ReplayParams). PASS 0 makes those of the rows 0. PASS 1: a workgroup has TERMS of the
// queries and query heads that ask about a chunk's rows of a KV head, and a thread up to ROWS of these rows: no
// thread's loops go round more than some thousand times.
layout(constant_id = 1) const uint PASS = 0;
layout(constant_id = 2) const uint K_CODEC = 1;
layout(constant_id = 3) const uint ROTATED = 0;  // of keys
layout(constant_id = 4) const uint DIM = 128;
layout(constant_id = 5) const uint TERMS = 1;
layout(constant_id = 6) const uint TURNS = 1;  // 0: queries are not turned; 2: neighbours are pairs
layout(constant_id = 7) const uint IS_ROTATED = 0;  // queries are as ROTATED says
layout(push_constant) uniform P {
  uint64_t k, queries, cos, sin, scores, pages, table;
  uint first_slot, n_rows, tail_slot, first_place, first_asked, every, query_stride, query_rows, first_query, group,
      n_kv_heads, k_row_bytes, block_stride, n_half, stride;
  float scale;
} p;
const uint kChunk = 256, kSinks = 4, kSeen = kChunk + kSinks;
const uint ROWS = (kSeen + gl_WorkGroupSize.x - 1) / gl_WorkGroupSize.x;
const float kUnseen = -3.0e38;
shared float head[2 * TERMS * DIM];  // of each term the query as it is, then of each turned
#include "rotation.glsl"
// Slots of a chunk: seen from `low` on, scored and asked from `own` on.
struct Chunk {
  uint low, own, end, n_sinks;
};
Chunk chunk_at(uint index) {
  const int low = int(p.first_slot) + int(index * kChunk) - int(p.first_place);
  Chunk c;
  c.low = uint(max(low, int(p.tail_slot)));
  c.own = max(c.low, p.first_slot);
  c.end = uint(min(low + int(kChunk), int(p.first_slot + p.n_rows)));
  c.n_sinks = min(kSinks, c.low);
  return c;
}
// Rows from the first one to the first of those from `row` on whose query is asked, in queries.
uint asked_before(uint row) {
  return row <= p.first_asked ? 0 : (row - p.first_asked + p.every - 1) / p.every;
}
void take_queries(uint first, uint n, uint g) {
  for (uint i = me(); i < TERMS * DIM; i += threads()) {
    const uint t = i / DIM;
    float x = 0.0;
    if (t < n) {
      const uint row = p.first_asked + (first + t) / p.group * p.every, h = g * p.group + (first + t) % p.group;
      const uint at = (p.first_query + row) % p.query_rows;
      x = F32(p.queries + (uint64_t(at) * p.query_stride + h * DIM + i % DIM) * 4).v[0];
    }
    head[i] = x;
  }
  barrier();
}
// As RoPE would have turned the queries later on.
void turn() {
  for (uint i = me(); i < TERMS * DIM; i += threads()) {
    const uint d = i % DIM, t0 = i - d;
    float x = head[i];
    if (TURNS != 0 && d < 2 * p.n_half) {
      const bool second = TURNS == 2 ? d % 2 != 0 : d >= p.n_half;
      const uint j = TURNS == 2 ? d / 2 : d % p.n_half;
      const uint other = TURNS == 2 ? (d ^ 1) : second ? d - p.n_half : d + p.n_half;
      const float c = F32(p.cos).v[j], s = F32(p.sin).v[j], y = head[t0 + other];
      x = second ? y * s + x * c : x * c - y * s;
    }
    head[TERMS * DIM + i] = x;
  }
  barrier();
}
// Products of a thread's rows with each term's query, turned and as it is.
float turned[ROWS * TERMS], own[ROWS * TERMS];
void multiply(Chunk c, uint n_seen, uint g) {
  for (uint r = 0; r < ROWS; ++r) {
    float a[TERMS], b[TERMS];  // of one row, so that they need no memory
    for (uint t = 0; t < TERMS; ++t) a[t] = b[t] = 0.0;
    const uint i = r * threads() + me();
    if (i < n_seen) {
      const uint slot = i < c.n_sinks ? i : c.low + (i - c.n_sinks);
      const uint64_t at = HAS(table, 6) ? named_address(p.k, p.table, slot, p.k_row_bytes)
                                        : slot_address(p.k, slot, p.block_stride, 0, p.k_row_bytes);
      const Stored k = stored(p.pages, at);
      for (uint d = 0; d < DIM; d += 4) {
        const vec4 x = four_at(p.pages, k, K_CODEC, p.n_kv_heads * DIM, g * DIM + d);
        for (uint t = 0; t < TERMS; ++t) {
          const uint q = t * DIM + d, turns = q + TERMS * DIM;
          a[t] += x.x * head[q] + x.y * head[q + 1] + x.z * head[q + 2] + x.w * head[q + 3];
          b[t] += x.x * head[turns] + x.y * head[turns + 1] + x.z * head[turns + 2] + x.w * head[turns + 3];
        }
      }
    }
    for (uint t = 0; t < TERMS; ++t) {
      own[r * TERMS + t] = a[t] * p.scale;
      turned[r * TERMS + t] = b[t] * p.scale;
    }
  }
}
void main() {
  if (PASS == 0) {
    const uint i = item() * threads() + me();
    if (i >= p.n_rows * p.n_kv_heads) return;
    F32(p.scores).v[i / p.n_rows * p.stride + p.first_slot + i % p.n_rows] = 0.0;
    return;
  }
  const uint parts = ((kChunk + p.every - 1) / p.every * p.group + TERMS - 1) / TERMS;
  const uint g = item() / parts % p.n_kv_heads;
  const Chunk c = chunk_at(item() / parts / p.n_kv_heads);
  if (c.end <= c.own) return;
  const uint first = asked_before(c.own - p.first_slot) * p.group + item() % parts * TERMS,
             end = asked_before(c.end - p.first_slot) * p.group;
  if (first >= end) return;
  const uint n = min(TERMS, end - first), n_seen = c.n_sinks + (c.end - c.low);
  take_queries(first, n, g);
  if (IS_ROTATED != 0) unrotate_head(TERMS * DIM, ROTATED);
  turn();
  rotate_head(2 * TERMS * DIM, ROTATED);
  multiply(c, n_seen, g);
  float top[ROWS];
  for (uint r = 0; r < ROWS; ++r) top[r] = 0.0;
  for (uint t = 0; t < TERMS; ++t) {
    if (t >= n) break;
    // The query's row, counted like those that are seen.
    const uint last = c.n_sinks + (p.first_slot - c.low) + p.first_asked + (first + t) / p.group * p.every;
    float most = kUnseen, sum = 0.0;
    for (uint r = 0; r < ROWS; ++r) {
      const uint i = r * threads() + me();
      if (i < n_seen) most = max(most, turned[r * TERMS + t]);
      if (i >= c.n_sinks && i <= last) most = max(most, own[r * TERMS + t]);
    }
    most = max_all(most);
    for (uint r = 0; r < ROWS; ++r) {
      const uint i = r * threads() + me();
      if (i < n_seen) sum += exp(turned[r * TERMS + t] - most);
      if (i >= c.n_sinks && i <= last) sum += exp(own[r * TERMS + t] - most);
    }
    sum = sum_all(sum);
    for (uint r = 0; r < ROWS; ++r) top[r] = max(top[r], exp(turned[r * TERMS + t] - most) / sum);
  }
  for (uint r = 0; r < ROWS; ++r) {
    const uint i = r * threads() + me(), slot = c.low + i - c.n_sinks;
    if (i < c.n_sinks || i >= n_seen || slot < c.own) continue;
    // What is not negative has the order of its bits.
    atomicMax(U32(p.scores).v[g * p.stride + slot], floatBitsToUint(top[r]));
  }
}
