// SPDX-License-Identifier: MIT
// What a kernel of attention is told, and where the stored rows lie that it reads; WINDOW is the including shader's.
layout(push_constant) uniform P {
  uint64_t rows, sequences, groups, q, y, gate, pages, chunk, sinks;
  uint n_rows, n_groups, group, n_heads, n_kv_heads, k_row_bytes, v_row_bytes, block_stride, k_offset, v_offset,
      gate_stride;
  float scale;
} p;
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
