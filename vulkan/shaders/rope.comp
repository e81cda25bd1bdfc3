#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "memory.glsl"
// Tables of one rope: cos and sin of position * frequency, times mscale. Frequencies are doubles, of
// which only the bits are read: turns = frequency / 2 pi as a fraction of 2^64, so that position *
// turns modulo 2^64 is the angle to the last bit that a float has, at any position.
layout(push_constant) uniform P {
  uint64_t rows, frequencies, cos, sin;
  uint n_half;
  float mscale;
  uint n_rows;
} p;
// The upper 64 bits of a * b.
uint64_t high_product(uint64_t a, uint64_t b) {
  const uint64_t m = 0xFFFFFFFFul;
  const uint64_t low = (a & m) * (b & m), ab = (a >> 32) * (b & m), ba = (a & m) * (b >> 32);
  const uint64_t middle = (low >> 32) + (ab & m) + (ba & m);
  return (a >> 32) * (b >> 32) + (ab >> 32) + (ba >> 32) + (middle >> 32);
}
// The frequency's turns in units of 2^-64, modulo 1: 2^64 / (2 pi) is 0x28BE60DB9391054A.
uint64_t turns_of(uint64_t bits) {
  const int exponent = int(bits >> 52 & 0x7FFul) - 1023;
  if (exponent < -62) return 0;
  const uint64_t mantissa = (bits & 0xFFFFFFFFFFFFFul | 0x10000000000000ul) << 11;  // 1.x * 2^63
  // frequency = mantissa * 2^(exponent - 63)
  const uint64_t high = high_product(mantissa, 0x28BE60DB9391054Aul),
                 low = mantissa * 0x28BE60DB9391054Aul;
  const int up = exponent + 1;
  if (up == 0) return high;
  if (up < 0) return high >> uint(-up);
  return high << uint(up) | low >> uint(64 - up);
}
vec2 cos_sin(uint64_t turn) {
  const uint top = uint(turn >> 32);
  const uint octant = (top + 0x20000000u) >> 30;  // the nearest quarter
  const float x = float(int(top - (octant << 30))) * 1.4629180792671596e-09;  // 2 pi / 2^32
  const float s = x * x;
  const float sine = x * (1.0 + s * (-1.6666667e-1 + s * (8.3333333e-3 + s * (-1.9841270e-4 + s * 2.7557319e-6))));
  const float cosine = 1.0 + s * (-0.5 + s * (4.1666667e-2 + s * (-1.3888889e-3 + s * 2.4801587e-5)));
  const uint q = octant & 3u;
  return q == 0 ? vec2(cosine, sine) : q == 1 ? vec2(-sine, cosine)
       : q == 2 ? vec2(-cosine, -sine) : vec2(sine, -cosine);
}
void main() {
  const uint r = item();
  if (r >= p.n_rows) return;
  const uint64_t position = Rows(p.rows).v[r].position;
  for (uint j = me(); j < p.n_half; j += threads()) {
    const vec2 cs = cos_sin(position * turns_of(U64(p.frequencies).v[j]));
    F32(p.cos).v[r * p.n_half + j] = cs.x * p.mscale;
    F32(p.sin).v[r * p.n_half + j] = cs.y * p.mscale;
  }
}
