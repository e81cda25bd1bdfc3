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
#include "codecs.glsl"
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
void put_fours(Target t, uint64_t from) {
  const uint fours = t.n / 4;
  for (uint i = gl_WorkGroupID.z * threads() + me(); i < p.n / 4; i += gl_NumWorkGroups.z * threads()) {
    const vec4 x = F32x4(from).v[i];
    const Stored s = row_of(t, t.apart ? i / fours : 0);
    const uint in_row = t.apart ? i % fours : i;
    put_four(s, in_row, x);
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
