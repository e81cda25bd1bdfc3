// SPDX-License-Identifier: MIT
// Tiles of rows that chose the same expert: what a dispatch is told, and what becomes of a sum. A pair is a row and one
// of its experts; shaders/expert_sort.comp has them in order.
layout(constant_id = 3) const int EPILOGUE = 0;  // 0, a gate's, or that of squares (device/epilogue.h)
layout(push_constant) uniform P {
  uint64_t w, up, stride, up_stride, x, y, order, tiles, bias, up_bias;
  uint n_in, n_out, row_bytes, up_row_bytes;
  uint shared_by;   // pairs that have a row of x: those of one row, or each its own
  uint bias_stride;  // of an expert's biases
  uint n_x;          // rows of x
} p;
const bool kGates = EPILOGUE >= 2 && EPILOGUE <= 4;
struct Tile {
  uint first, end;
  uint64_t w, up;
  uint id;
};
Tile tile;
bool find_tile(uint side) {
  U32x4 tiles = U32x4(p.tiles);
  if (gl_WorkGroupID.z >= tiles.v[0].x) return false;
  const uvec4 t = tiles.v[1 + gl_WorkGroupID.z];
  tile = Tile(t.x, t.y, p.w + uint64_t(t.w) * p.stride, p.up + uint64_t(t.w) * p.up_stride, t.z);
  return true;
}
uint row_of(uint r) { return U32(p.order).v[r] / p.shared_by; }
uint n_x_rows() { return p.n_x; }
void put(uint r, uint j, float got, float up) {
  if (HAS(bias, 8)) got += F32(p.bias).v[tile.id * p.bias_stride + j];
  if (HAS(up_bias, 9)) up += F32(p.up_bias).v[tile.id * p.bias_stride + j];
  F32(p.y).v[U32(p.order).v[r] * p.n_out + j] = EPILOGUE == 0   ? got
                                                : EPILOGUE == 5 ? square(got)
                                                : EPILOGUE == 4 ? clamped(got, up)
                                                : EPILOGUE == 3 ? gelu(got) * up
                                                                : silu(got) * up;
}
