// SPDX-License-Identifier: MIT
// First matrices of routed experts: what a dispatch is told, and what becomes of the two sums, or of up's alone.
layout(constant_id = 3) const int EPILOGUE = 2;  // device/epilogue.h
const bool kGates = EPILOGUE != 5;  // of squares there is no gate
layout(push_constant) uniform P {
  uint64_t gate, up, gate_stride, up_stride, ids, table, x, h, gate_bias, up_bias;
  uint n_in, n_out, n_used, row_bytes, up_row_bytes, n_pairs;
} p;
// The matrices of a pair's expert; below 0: they are elsewhere.
int place_of(uint pair) {
  return place_of_expert(HAS(table, 5), p.table, I32(p.ids).v[pair]);
}
// Output i of a pair of a row and an expert.
void put(uint pair, uint i, float g, float u) {
  const int id = I32(p.ids).v[pair];
  if (HAS(gate_bias, 8)) g += F32(p.gate_bias).v[id * p.n_out + i];
  if (HAS(up_bias, 9)) u += F32(p.up_bias).v[id * p.n_out + i];
  F32(p.h).v[pair * p.n_out + i] = EPILOGUE == 5   ? square(u)
                                   : EPILOGUE == 4 ? clamped(g, u)
                                   : EPILOGUE == 3 ? gelu(g) * u
                                                   : silu(g) * u;
}
