// SPDX-License-Identifier: MIT
// Stored rows of a layer that attention reads; P (push constants) and WINDOW are the including shader's.
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
