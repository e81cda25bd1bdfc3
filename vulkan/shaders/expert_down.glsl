// SPDX-License-Identifier: MIT
// Second matrices of routed experts: what a dispatch is told.
layout(push_constant) uniform P {
  uint64_t down, stride, ids, table, shares, h, y, bias;
  uint n_in, n_out, n_used, row_bytes, n_rows, adds;
} p;
// The matrix of the row's expert j; below 0: it is elsewhere.
int place_of(uint r, uint j) {
  return place_of_expert(HAS(table, 3), p.table, I32(p.ids).v[r * p.n_used + j]);
}
void put(uint r, uint i, float all) {
  F32 y = F32(p.y + (uint64_t(r) * p.n_out + i) * 4);
  y.v[0] = (p.adds != 0 ? y.v[0] : 0.0) + all;
}
