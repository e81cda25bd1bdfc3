// SPDX-License-Identifier: MIT
// The stored rows of a KV head as attention reads them: with those of the others, or, where BY_HEAD says that there may
// be such, in blocks of one head. BY_HEAD is the including shader's, and kv_rows.glsl is in front.
struct HeadView {
  bool apart;
  HeadRows rows;
  uint width, from;  // of a stored row: its elements, and where the head's begin
  uint k_row_bytes, v_row_bytes;
};
// Slots of `g` become the head's.
HeadView view_head(inout Group g, uint kv) {
  HeadView v;
  v.apart = BY_HEAD != 0 && g.ring_slots == kRowsByHead;
  v.width = p.n_kv_heads * DIM;
  v.from = kv * DIM;
  v.k_row_bytes = p.k_row_bytes;
  v.v_row_bytes = p.v_row_bytes;
  if (!v.apart) return v;
  v.rows = AllHeadRows(g.base).v[kv];
  v.width = DIM;
  v.from = 0;
  v.k_row_bytes = p.k_row_bytes / p.n_kv_heads;
  v.v_row_bytes = p.v_row_bytes / p.n_kv_heads;
  g.n_slots -= v.rows.lag;
  return v;
}
uint64_t row_address(HeadView v, Sequence seq, Group g, uint64_t at, bool value) {
  if (!v.apart) return row_address(seq, g, at, value);
  return named_address(v.rows.base + (value ? v.rows.v_offset : 0), v.rows.blocks, at,
                       value ? v.v_row_bytes : v.k_row_bytes);
}
