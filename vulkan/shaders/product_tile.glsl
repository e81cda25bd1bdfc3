// SPDX-License-Identifier: MIT
// Products for many rows: 64 threads make 64 rows times 64 outputs (two matrices: times 32 of each). Every 32 elements
// are unpacked once into the workgroup's memory, four elements of each of the 64 after each other; a thread has the
// sums of every eighth row and output. Which rows and matrices, and what becomes of a sum, says who includes this.
// Where a row's elements are, and whether all rows begin at multiples of four: of rows one behind the other.
#ifndef X_OF
#define X_OF(r) (p.x + uint64_t(row_of(r)) * p.n_in * 4)
#define BY_FOURS (p.n_in % 4 == 0)
#endif
shared vec4 weights[8 * 64], rows[8 * 64];
void bring_weights(uint j, uint run) {
  float w[32];
  const bool is_one = j < p.n_out;
  if (is_one && kGates && me() >= 32) {
    read_weights(TYPE_UP, tile.up + uint64_t(j) * p.up_row_bytes, run, p.n_in, w);
  } else if (is_one) {
    read_weights(TYPE, tile.w + uint64_t(j) * p.row_bytes, run, p.n_in, w);
  }
  for (uint k = 0; k < 8; ++k) {
    const vec4 four = vec4(w[4 * k], w[4 * k + 1], w[4 * k + 2], w[4 * k + 3]);
    weights[k * 64 + me()] = is_one ? four : vec4(0.0);
  }
}
void bring_row(uint r, uint run) {
  const uint n = r < tile.end ? min(32, p.n_in - run * 32) : 0;
  const uint64_t at = r < tile.end ? X_OF(r) + run * 128 : p.x;
  if (n == 32 && BY_FOURS) {
    for (uint k = 0; k < 8; ++k) rows[k * 64 + me()] = F32x4(at).v[k];
  } else {
    for (uint k = 0; k < 8; ++k) {
      vec4 four = vec4(0.0);
      for (uint c = 0; c < 4; ++c) {
        if (4 * k + c < n) four[c] = F32(at).v[4 * k + c];
      }
      rows[k * 64 + me()] = four;
    }
  }
}
void main() {
  const uint outputs = kGates ? 32 : 64, from = item() * outputs;
  if (from >= p.n_out || !find_tile(64)) return;
  const uint tx = me() % 8, ty = me() / 8;
  float sums[8][8];
  for (uint i = 0; i < 8; ++i) {
    for (uint c = 0; c < 8; ++c) sums[i][c] = 0.0;
  }
  for (uint run = 0; run < (p.n_in + 31) / 32; ++run) {
    bring_weights(from + (kGates ? me() % 32 : me()), run);
    bring_row(tile.first + me(), run);
    barrier();
    for (uint k = 0; k < 8; ++k) {
      vec4 w[8];
      for (uint c = 0; c < 8; ++c) w[c] = weights[k * 64 + 8 * c + tx];
      for (uint i = 0; i < 8; ++i) {
        const vec4 x = rows[k * 64 + 8 * i + ty];
        for (uint c = 0; c < 8; ++c) sums[i][c] += dot(x, w[c]);
      }
    }
    barrier();
  }
  for (uint i = 0; i < 8; ++i) {
    const uint r = tile.first + 8 * i + ty;
    if (r >= tile.end) continue;
    for (uint c = 0; c < (kGates ? 4 : 8); ++c) {
      const uint j = from + 8 * c + tx;
      if (j < p.n_out) put(r, j, sums[i][c], sums[i][(c + 4) % 8]);
    }
  }
}
