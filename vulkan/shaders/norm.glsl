// SPDX-License-Identifier: MIT
// Rows under RMS norm, by all threads of a workgroup, four elements at a time where rows begin at multiples of four.
float squares(uint64_t x, uint n) {
  float sum = 0.0;
  if (n % 4 == 0) {
    for (uint i = lane(); i < n / 4; i += threads()) sum += dot(F32x4(x).v[i], F32x4(x).v[i]);
  } else {
    for (uint i = lane(); i < n; i += threads()) sum += F32(x).v[i] * F32(x).v[i];
  }
  return sum;
}
// y = x * scale * weight; `bytes`: row r of `rows` in 8 bits too (quantise.glsl).
void put_normed(uint64_t x, float scale, uint64_t weight, uint64_t y, uint64_t bytes, uint rows, uint n, uint r,
                bool to_bytes) {
  if (n % 4 != 0) {
    for (uint i = lane(); i < n; i += threads())
      F32(y).v[i] = F32(x).v[i] * scale * (weight == 0 ? 1.0 : F32(weight).v[i]);
    return;
  }
  for (uint i = lane(); i < n / 4; i += threads()) {
    const vec4 four = F32x4(x).v[i] * scale * (weight == 0 ? vec4(1.0) : F32x4(weight).v[i]);
    F32x4(y).v[i] = four;
    if (to_bytes) put_bytes(bytes, rows, n, r, i, four);
  }
}
