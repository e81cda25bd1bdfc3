#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "memory.glsl"
// The last rows of a chunk of each sequence to their ring. A workgroup has a row of a sequence.
layout(push_constant) uniform P {
  uint64_t sequences, groups, pages, chunk;
  uint n_sequences, max_rows, n_groups, group, k_row_bytes, v_row_bytes, block_stride, k_offset,
      v_offset;
} p;
void main() {
  const uint s = item() / p.max_rows, i = item() % p.max_rows;
  if (s >= p.n_sequences) return;
  const Sequence q = Sequences(p.sequences).v[s];
  const Group g = Groups(p.groups).v[s * p.n_groups + p.group];
  if (i >= q.n_rows || i + min(q.n_rows, g.ring_slots) < q.n_rows) return;
  for (uint value = 0; value < 2; ++value) {
    const uint bytes = value != 0 ? p.v_row_bytes : p.k_row_bytes;
    const uint64_t from = chunk_address(p.chunk, q.chunk_block, i, value != 0, p.k_row_bytes,
                                        p.v_row_bytes);
    const Stored to = stored(p.pages, slot_address(g.base, (q.position + i) % g.ring_slots,
                                                   p.block_stride,
                                                   value != 0 ? p.v_offset : p.k_offset, bytes));
    for (uint b = me(); b < bytes; b += threads())
      U8(byte_of(p.pages, to, b)).v[0] = U8(from).v[b];
  }
}
