// SPDX-License-Identifier: MIT
// Products of each head's own matrix with its part of every row (device/latent.h). The matrices of heads follow each
// other. Workgroups of a head's rows follow each other in z, heads too.
layout(constant_id = 1) const int TYPE = 0;
layout(constant_id = 2) const uint FOURS = 0;  // all parts of rows begin at multiples of four elements
layout(push_constant) uniform P {
  uint64_t w, x, y;  // x, y: of the first head's part of row 0
  uint n_in, n_out, n_rows, row_bytes, x_head, x_row, y_head, y_row;
} p;
struct Tile {
  uint head, first, end;
  uint64_t w, up;
};
Tile tile;
bool find_tile(uint side) {
  const uint parts = (p.n_rows + side - 1) / side, h = gl_WorkGroupID.z / parts,
             first = gl_WorkGroupID.z % parts * side;
  const uint64_t w = p.w + uint64_t(h) * p.n_out * p.row_bytes;
  tile = Tile(h, first, min(first + side, p.n_rows), w, w);
  return true;
}
uint64_t x_of(uint r) { return p.x + (uint64_t(r) * p.x_row + tile.head * p.x_head) * 4; }
void put(uint r, uint j, float got, float) {
  F32(p.y + (uint64_t(r) * p.y_row + tile.head * p.y_head) * 4).v[j] = got;
}
