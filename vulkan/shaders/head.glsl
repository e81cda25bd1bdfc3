// SPDX-License-Identifier: MIT
// A head of a row in head[]: from its projection, under its bias and norm, and turned. head_stride() is the including
// shader's.
shared float head[1024];
#include "rotation.glsl"
float value(uint64_t from, uint h, uint i) {
  float x = F32(from).v[h * head_stride() + i];
  if (HAS(bias, 4)) x += F32(p.bias).v[h * p.dim + i];
  return x;
}
void take(uint64_t from, uint h) {
  float sum = 0.0;
  if (NORM == 2) {
    for (uint i = me(); i < p.n_heads * p.dim; i += threads()) {
      const float x = value(from, i / p.dim, i % p.dim);
      sum += x * x;
    }
  } else if (NORM == 1) {
    for (uint i = me(); i < p.dim; i += threads()) {
      const float x = value(from, h, i);
      sum += x * x;
    }
  }
  const uint n = NORM == 2 ? p.n_heads * p.dim : p.dim;
  const float f = NORM == 0 ? 1.0 : 1.0 / sqrt(sum_all(sum) / float(n) + p.eps);
  for (uint i = me(); i < p.dim; i += threads()) {
    float x = value(from, h, i) * f;
    if (HAS(weight, 5)) x *= F32(p.weight).v[NORM == 2 ? h * p.dim + i : i];
    head[i] = x;
  }
}
void turn(uint r) {
  for (uint j = me(); j < p.n_half; j += threads()) {
    const float c = F32(p.cos).v[r * p.n_half + j], s = F32(p.sin).v[r * p.n_half + j];
    const uint a = NEIGHBOURS != 0 ? 2 * j : j, b = NEIGHBOURS != 0 ? 2 * j + 1 : j + p.n_half;
    const float x = head[a], y = head[b];
    head[a] = x * c - y * s;
    head[b] = x * s + y * c;
  }
  barrier();
}
