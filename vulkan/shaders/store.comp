#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "memory.glsl"
// Finished keys or values of a row to where rows are stored. Workgroups of a row follow each other in z; a thread has
// every n-th four elements, of codecs with scales every n-th run of 32.
layout(constant_id = 1) const uint CODEC = 1;
layout(constant_id = 2) const uint VALUE = 0;
layout(constant_id = 3) const uint WINDOWED = 0;
layout(constant_id = 4) const uint TO_RING = 0;
layout(constant_id = 5) const uint BY_HEAD = 0;  // rows may be in blocks of one KV head
layout(push_constant) uniform P {
  uint64_t rows, sequences, groups, from, pages, chunk;
  uint n_rows, n_groups, group, n, k_row_bytes, v_row_bytes, block_stride, offset, n_heads;
} p;
uint half_bits(float x) {  // to nearest even; NaN stays one
  const uint u = floatBitsToUint(x), sign = u >> 16 & 0x8000u, a = u & 0x7FFFFFFFu;
  if (a > 0x7F800000u) return sign | 0x7E00u;
  if (a >= 0x477FF000u) return sign | 0x7C00u;
  if (a < 0x38800000u) return sign | (floatBitsToUint(uintBitsToFloat(a) + 0.5) - 0x3F000000u);
  return sign | (a + 0xFFFu + (a >> 13 & 1u) - 0x38000000u) >> 13;
}
uint bf16_bits(float x) {
  const uint u = floatBitsToUint(x);
  if ((u & 0x7FFFFFFFu) > 0x7F800000u) return u >> 16 | 0x40u;
  return (u + 0x7FFFu + (u >> 16 & 1u)) >> 16;
}
// Run `run` of a stored row of n elements.
void q8(Stored s, uint n, uint run, float x[32]) {
  uint top = 0;
  for (uint i = 0; i < 32; ++i) top = max(top, floatBitsToUint(x[i]) & 0x7FFFFFFFu);
  const float d = uintBitsToFloat(top) / 127.0, inverse = d < 1e-30 ? 0.0 : 1.0 / d;
  for (uint i = 0; i < 32; ++i) {
    float v = x[i] * inverse;
    v = v > -127.0 ? v : -127.0;
    v = v < 127.0 ? v : 127.0;
    U8(byte_of(p.pages, s, run * 32 + i)).v[0] = uint8_t(uint(int(roundEven(v))) & 255u);
  }
  U16(byte_of(p.pages, s, n + run * 2)).v[0] = uint16_t(half_bits(d));
}
void nearest(float x[32], float inverse, inout uint codes[32]) {
  for (uint i = 0; i < 32; ++i) {
    codes[i] = 0;
    for (uint m = 0; m < 15; ++m) codes[i] += x[i] * inverse > kQ4Middles[m] ? 1 : 0;
  }
}
float fit(float x[32], uint codes[32]) {
  float up[32], down[32];
  for (uint i = 0; i < 32; ++i) {
    const float c = float(kQ4Levels[codes[i]]);
    up[i] = x[i] * c;
    down[i] = c * c;
  }
  for (uint apart = 16; apart > 0; apart /= 2) {
    for (uint i = 0; i < apart; ++i) {
      up[i] += up[i + apart];
      down[i] += down[i + apart];
    }
  }
  return up[0] / down[0];
}
void q4(Stored s, uint n, uint run, float x[32]) {
  float top = x[0];
  uint most = 0, codes[32], scale = 0;
  for (uint i = 0; i < 32; ++i) {
    const uint bits = floatBitsToUint(x[i]) & 0x7FFFFFFFu;
    if (bits > most) {
      most = bits;
      top = x[i];
    }
  }
  const bool zeros = abs(top) < 127e-30;
  if (zeros || most >= 0x7F800000u) {
    for (uint i = 0; i < 32; ++i) codes[i] = 8;
    scale = zeros ? 0 : 0x7E00u;
  } else {
    nearest(x, 127.0 / top, codes);
    nearest(x, 1.0 / fit(x, codes), codes);
    const float d = fit(x, codes);
    scale = (floatBitsToUint(d) & 0x7FFFFFFFu) > 0x7F800000u ? 0x7E00u : half_bits(d);
  }
  for (uint i = 0; i < 32; i += 2)
    U8(byte_of(p.pages, s, (run * 32 + i) / 2)).v[0] = uint8_t(codes[i] | codes[i + 1] << 4);
  U16(byte_of(p.pages, s, n / 2 + run * 2)).v[0] = uint16_t(scale);
}
// Where elements of a row go: all of them to one stored row, or those of each head to its own.
struct Target {
  bool apart;
  uint64_t at;  // of the stored row, or of what each head's rows are
  uint64_t group_slot;
  uint n;  // elements of a stored row
};
Stored row_of(Target t, uint head) {
  if (!t.apart) return stored(p.pages, t.at);
  const HeadRows own = AllHeadRows(t.at).v[head];
  return stored(p.pages, named_address(own.base + (VALUE != 0 ? own.v_offset : 0), own.blocks, t.group_slot - own.lag,
                                       (VALUE != 0 ? p.v_row_bytes : p.k_row_bytes) / p.n_heads));
}
void put(Target t, uint run, float x[32]) {
  const uint runs = t.n / 32, in_row = t.apart ? run % runs : run;
  const Stored s = row_of(t, t.apart ? run / runs : 0);
  if (CODEC == kQ8Rows) q8(s, t.n, in_row, x);
  if (CODEC == kQ4Rows) q4(s, t.n, in_row, x);
}
const bool kScaled = CODEC == kQ8Rows || CODEC == kQ4Rows;
void put_fours(Target t, uint64_t from) {
  const uint fours = t.n / 4;
  for (uint i = gl_WorkGroupID.z * threads() + me(); i < p.n / 4; i += gl_NumWorkGroups.z * threads()) {
    const vec4 x = F32x4(from).v[i];
    const Stored s = row_of(t, t.apart ? i / fours : 0);
    const uint in_row = t.apart ? i % fours : i;
    if (CODEC == kF32Rows) F32x4(byte_of(p.pages, s, 16 * in_row)).v[0] = x;
    if (CODEC == kBf16Rows) {
      U32x2(byte_of(p.pages, s, 8 * in_row)).v[0] =
          uvec2(bf16_bits(x.x) | bf16_bits(x.y) << 16, bf16_bits(x.z) | bf16_bits(x.w) << 16);
    }
  }
}
void put_runs(Target t, uint64_t from) {
  float x[32];
  for (uint run = gl_WorkGroupID.z * threads() + me(); run < p.n / 32; run += gl_NumWorkGroups.z * threads()) {
    for (uint i = 0; i < 8; ++i) {
      const vec4 four = F32x4(from).v[run * 8 + i];
      for (uint c = 0; c < 4; ++c) x[4 * i + c] = four[c];
    }
    put(t, run, x);
  }
}
void put_target(Target t, uint64_t from) {
  if (kScaled) put_runs(t, from);
  else put_fours(t, from);
}
void put_row(uint64_t a, uint64_t from) {
  put_target(Target(false, a, 0, p.n), from);
}
void main() {
  const uint r = item();
  if (r >= p.n_rows) return;
  const BatchRow row = Rows(p.rows).v[r];
  if (row.sequence == kNoSequence) return;
  const Sequence seq = Sequences(p.sequences).v[row.sequence];
  const Group g = Groups(p.groups).v[row.sequence * p.n_groups + p.group];
  const uint row_bytes = VALUE != 0 ? p.v_row_bytes : p.k_row_bytes;
  const uint64_t from = p.from + uint64_t(r) * p.n * 4;
  if (BY_HEAD != 0 && g.ring_slots == kRowsByHead) {
    put_target(Target(true, g.base, g.n_slots + row.index, p.n / p.n_heads), from);
    return;
  }
  if (WINDOWED == 0) {
    put_row(slot_address(g.base, g.n_slots + row.index, p.block_stride, p.offset, row_bytes), from);
    return;
  }
  put_row(chunk_address(p.chunk, seq.chunk_block, row.index, VALUE != 0, p.k_row_bytes, p.v_row_bytes), from);
  if (TO_RING != 0)
    put_row(slot_address(g.base, row.position % g.ring_slots, p.block_stride, p.offset, row_bytes), from);
}
