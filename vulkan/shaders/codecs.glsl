// SPDX-License-Identifier: MIT
// Elements to a stored row, by codec; p.pages is the table of ranges.
const bool kScaled = CODEC == kQ8Rows || CODEC == kQ4Rows;
uint half_bits(float x) {  // to nearest even; NaN stays one
  const uint u = floatBitsToUint(x), sign = u >> 16 & 0x8000u, a = u & 0x7FFFFFFFu;
  if (a > 0x7F800000u) return sign | 0x7E00u;
  if (a >= 0x477FF000u) return sign | 0x7C00u;
  if (a < 0x38800000u) return sign | (floatBitsToUint(uintBitsToFloat(a) + 0.5) - 0x3F000000u);
  return sign | (a + 0xFFFu + (a >> 13 & 1u) - 0x38000000u) >> 13;
}
uint bf16_bits(float x) {
  const uint u = floatBitsToUint(x);
  if ((u & 0x7FFFFFFFu) > 0x7F800000u) return u >> 16 | 0x40u;
  return (u + 0x7FFFu + (u >> 16 & 1u)) >> 16;
}
// A run of 32 elements in q8_0: its scale, of the greatest magnitude's bits, and four elements' bytes.
float q8_scale(uint top) { return uintBitsToFloat(top) / 127.0; }
uvec4 q8_four(uint top, vec4 x) {
  const float d = q8_scale(top), inverse = d < 1e-30 ? 0.0 : 1.0 / d;
  vec4 v = x * inverse;
  v = mix(vec4(-127.0), v, greaterThan(v, vec4(-127.0)));
  v = mix(vec4(127.0), v, lessThan(v, vec4(127.0)));
  return uvec4(ivec4(roundEven(v))) & 255u;
}
// Run `run` of a stored row of n elements.
void q8(Stored s, uint n, uint run, float x[32]) {
  uint top = 0;
  for (uint i = 0; i < 32; ++i) top = max(top, floatBitsToUint(x[i]) & 0x7FFFFFFFu);
  for (uint i = 0; i < 32; i += 4) {
    const uvec4 q = q8_four(top, vec4(x[i], x[i + 1], x[i + 2], x[i + 3]));
    U16(byte_of(p.pages, s, run * 32 + i)).v[0] = uint16_t(q.x | q.y << 8);
    U16(byte_of(p.pages, s, run * 32 + i + 2)).v[0] = uint16_t(q.z | q.w << 8);
  }
  U16(byte_of(p.pages, s, n + run * 2)).v[0] = uint16_t(half_bits(q8_scale(top)));
}
// The number of the level that is nearest to v.
uint nearest_level(float v) {
  uint code = 0;
  for (uint m = 0; m < 15; ++m) code += v > kQ4Middles[m] ? 1 : 0;
  return code;
}
void nearest(float x[32], float inverse, inout uint codes[32]) {
  for (uint i = 0; i < 32; ++i) codes[i] = nearest_level(x[i] * inverse);
}
float fit(float x[32], uint codes[32]) {
  float up[32], down[32];
  for (uint i = 0; i < 32; ++i) {
    const float c = float(kQ4Levels[codes[i]]);
    up[i] = x[i] * c;
    down[i] = c * c;
  }
  for (uint apart = 16; apart > 0; apart /= 2) {
    for (uint i = 0; i < apart; ++i) {
      up[i] += up[i + apart];
      down[i] += down[i + apart];
    }
  }
  return up[0] / down[0];
}
void q4(Stored s, uint n, uint run, float x[32]) {
  float top = x[0];
  uint most = 0, codes[32], scale = 0;
  for (uint i = 0; i < 32; ++i) {
    const uint bits = floatBitsToUint(x[i]) & 0x7FFFFFFFu;
    if (bits > most) {
      most = bits;
      top = x[i];
    }
  }
  const bool zeros = abs(top) < 127e-30;
  if (zeros || most >= 0x7F800000u) {
    for (uint i = 0; i < 32; ++i) codes[i] = 8;
    scale = zeros ? 0 : 0x7E00u;
  } else {
    nearest(x, 127.0 / top, codes);
    nearest(x, 1.0 / fit(x, codes), codes);
    const float d = fit(x, codes);
    scale = (floatBitsToUint(d) & 0x7FFFFFFFu) > 0x7F800000u ? 0x7E00u : half_bits(d);
  }
  for (uint i = 0; i < 32; i += 2)
    U8(byte_of(p.pages, s, (run * 32 + i) / 2)).v[0] = uint8_t(codes[i] | codes[i + 1] << 4);
  U16(byte_of(p.pages, s, n / 2 + run * 2)).v[0] = uint16_t(scale);
}
// The i-th four of a row, of codecs without scales.
void put_four(Stored s, uint i, vec4 x) {
  if (CODEC == kF32Rows) F32x4(byte_of(p.pages, s, 16 * i)).v[0] = x;
  if (CODEC == kBf16Rows) {
    U32x2(byte_of(p.pages, s, 8 * i)).v[0] =
        uvec2(bf16_bits(x.x) | bf16_bits(x.y) << 16, bf16_bits(x.z) | bf16_bits(x.w) << 16);
  }
}
