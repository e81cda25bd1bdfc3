#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "memory.glsl"
// One head of a row of keys or values from its projection to where rows are stored: what shaders/rows.comp and then
// shaders/store.comp do, where no run of 32 elements is of two heads. A workgroup has a head of a row.
layout(constant_id = 1) const uint CODEC = 1;
layout(constant_id = 2) const uint VALUE = 0;
layout(constant_id = 3) const uint WINDOWED = 0;
layout(constant_id = 4) const uint TO_RING = 0;
layout(constant_id = 5) const uint BY_HEAD = 0;     // rows may be in blocks of one KV head
layout(constant_id = 6) const uint NORM = 0;        // shaders/rows.comp
layout(constant_id = 7) const uint NEIGHBOURS = 0;
layout(constant_id = 8) const uint ROTATED = 0;
layout(push_constant) uniform P {
  uint64_t rows, sequences, groups, from, bias, weight, cos, sin, pages, chunk;
  uint n_rows, n_heads, dim, n_half;
  float eps;
  uint n_groups, group, k_row_bytes, v_row_bytes, block_stride, offset;
} p;
uint head_stride() { return p.dim; }
#include "head.glsl"
#include "codecs.glsl"
// q4() of shaders/codecs.glsl, with a thread for every element: sums over runs in the same order.
shared vec2 fits[CODEC == kQ4Rows ? 1024 : 1];
shared float inverses[32];  // of runs
shared uint scales[32];
shared bool empty[32];  // nothing but zeros, or what is no number
void first_inverses() {
  for (uint run = me(); run < p.dim / 32; run += threads()) {
    float top = head[run * 32];
    uint most = 0;
    for (uint i = 0; i < 32; ++i) {
      const uint bits = floatBitsToUint(head[run * 32 + i]) & 0x7FFFFFFFu;
      if (bits > most) {
        most = bits;
        top = head[run * 32 + i];
      }
    }
    const bool zeros = abs(top) < 127e-30;
    empty[run] = zeros || most >= 0x7F800000u;
    inverses[run] = empty[run] ? 0.0 : 127.0 / top;
    scales[run] = zeros ? 0 : 0x7E00u;
  }
  barrier();
}
void put_fits() {
  for (uint i = me(); i < p.dim; i += threads()) {
    const float c = q4_level(nearest_level(head[i] * inverses[i / 32]));
    fits[i] = vec2(head[i] * c, c * c);
  }
  barrier();
  for (uint apart = 16; apart > 0; apart /= 2) {
    for (uint i = me(); i < p.dim; i += threads()) {
      if (i % 32 < apart) fits[i] += fits[i + apart];
    }
    barrier();
  }
}
void fit_runs() {
  first_inverses();
  put_fits();
  for (uint run = me(); run < p.dim / 32; run += threads()) {
    if (!empty[run]) inverses[run] = 1.0 / (fits[run * 32].x / fits[run * 32].y);
  }
  barrier();
  put_fits();
  for (uint run = me(); run < p.dim / 32; run += threads()) {
    if (empty[run]) continue;
    const float d = fits[run * 32].x / fits[run * 32].y;
    scales[run] = (floatBitsToUint(d) & 0x7FFFFFFFu) > 0x7F800000u ? 0x7E00u : half_bits(d);
  }
  barrier();
}
// Elements 4 i to 4 i + 3 of the head, as elements from `first` on of a stored row of n.
void put_q4(Stored s, uint n, uint first, uint i, vec4 x) {
  const float inverse = inverses[i / 8];
  uvec4 c = uvec4(8);
  if (!empty[i / 8])
    c = uvec4(nearest_level(x.x * inverse), nearest_level(x.y * inverse), nearest_level(x.z * inverse),
              nearest_level(x.w * inverse));
  U16(byte_of(p.pages, s, first / 2 + 2 * i)).v[0] = uint16_t(c.x | c.y << 4 | c.z << 8 | c.w << 12);
  if (i % 8 == 0) U16(byte_of(p.pages, s, n / 2 + (first / 32 + i / 8) * 2)).v[0] = uint16_t(scales[i / 8]);
}
void put_q8(Stored s, uint n, uint first, uint i, vec4 x) {
  uint top = 0;
  for (uint c = 0; c < 32; ++c) top = max(top, floatBitsToUint(head[i / 8 * 32 + c]) & 0x7FFFFFFFu);
  const uvec4 q = q8_four(top, x);
  U16(byte_of(p.pages, s, first + 4 * i)).v[0] = uint16_t(q.x | q.y << 8);
  U16(byte_of(p.pages, s, first + 4 * i + 2)).v[0] = uint16_t(q.z | q.w << 8);
  if (i % 8 == 0) U16(byte_of(p.pages, s, n + (first / 32 + i / 8) * 2)).v[0] = uint16_t(half_bits(q8_scale(top)));
}
void put_head(uint64_t at, uint n, uint first) {
  const Stored s = stored(p.pages, at);
  for (uint i = me(); i < p.dim / 4; i += threads()) {
    const vec4 x = vec4(head[4 * i], head[4 * i + 1], head[4 * i + 2], head[4 * i + 3]);
    if (CODEC == kQ4Rows) put_q4(s, n, first, i, x);
    else if (CODEC == kQ8Rows) put_q8(s, n, first, i, x);
    else put_four(s, first / 4 + i, x);
  }
}
void main() {
  const uint r = item() / p.n_heads, h = item() % p.n_heads;
  if (r >= p.n_rows) return;
  const BatchRow row = Rows(p.rows).v[r];
  if (row.sequence == kNoSequence) return;
  const Sequence seq = Sequences(p.sequences).v[row.sequence];
  const Group g = Groups(p.groups).v[row.sequence * p.n_groups + p.group];
  take(p.from + uint64_t(r) * p.n_heads * p.dim * 4, h);
  barrier();
  if (VALUE == 0) turn(r);
  rotate_head(p.dim, ROTATED);
  if (CODEC == kQ4Rows) fit_runs();
  const uint row_bytes = VALUE != 0 ? p.v_row_bytes : p.k_row_bytes;
  uint n = p.n_heads * p.dim, first = h * p.dim;
  uint64_t to, ring = 0;
  if (BY_HEAD != 0 && g.ring_slots == kRowsByHead) {
    const HeadRows own = AllHeadRows(g.base).v[h];
    to = named_address(own.base + (VALUE != 0 ? own.v_offset : 0), own.blocks, g.n_slots + row.index - own.lag,
                       row_bytes / p.n_heads);
    n = p.dim;
    first = 0;
  } else if (WINDOWED == 0) {
    to = slot_address(g.base, g.n_slots + row.index, p.block_stride, p.offset, row_bytes);
  } else {
    to = chunk_address(p.chunk, seq.chunk_block, row.index, VALUE != 0, p.k_row_bytes, p.v_row_bytes);
    if (TO_RING != 0)
      ring = slot_address(g.base, row.position % g.ring_slots, p.block_stride, p.offset, row_bytes);
  }
  for (uint i = 0; i < (WINDOWED != 0 && TO_RING != 0 ? 2 : 1); ++i) put_head(i == 0 ? to : ring, n, first);
}
