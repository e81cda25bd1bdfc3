// SPDX-License-Identifier: MIT
// Products of a matrix and rows: what a dispatch is told, and what becomes of a sum (device/epilogue.h).
layout(constant_id = 3) const int EPILOGUE = 0;
layout(push_constant) uniform P {
  uint64_t w, up, x, y, scales, bias;
  uint n_in, n_out, n_rows, row_bytes, up_row_bytes;
} p;
const bool kGates = EPILOGUE >= 2;
// The rows and matrices of a workgroup that has several rows.
struct Tile {
  uint first, end;
  uint64_t w, up;
};
Tile tile;
bool find_tile(uint side) {
  tile = Tile(gl_WorkGroupID.z * side, min(gl_WorkGroupID.z * side + side, p.n_rows), p.w, p.up);
  return true;
}
// Where the elements of a tile's row are.
uint row_of(uint r) { return r; }
uint n_x_rows() { return p.n_rows; }
// Output j of row r, whose product is `got`; `up` is that of the second matrix.
void put(uint r, uint j, float got, float up) {
  F32 y = F32(p.y + (uint64_t(r) * p.n_out + j) * 4);
  const float scale = !HAS(scales, 4) ? 1.0 : F32(p.scales).v[r];
  if (HAS(bias, 5)) got += F32(p.bias).v[j];
  if (EPILOGUE == 0) y.v[0] = scale * got;
  if (EPILOGUE == 1) y.v[0] += scale * got;
  if (EPILOGUE == 2) y.v[0] = silu(got) * up;
  if (EPILOGUE == 3) y.v[0] = gelu(got) * up;
  if (EPILOGUE == 4) y.v[0] = clamped(got, up);
}
