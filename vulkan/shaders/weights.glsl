// SPDX-License-Identifier: MIT
// Rows of weights as the file has them, 32 elements at a time. Numbers of types are the file's.
const int kF32 = 0, kF16 = 1, kQ4_0 = 2, kQ4_1 = 3, kQ5_0 = 6, kQ5_1 = 7, kQ8_0 = 8, kQ2_K = 10,
          kQ3_K = 11, kQ4_K = 12, kQ5_K = 13, kQ6_K = 14, kIQ4_NL = 20, kIQ4_XS = 23, kBF16 = 30,
          kMXFP4 = 39;
const float kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
const float kFp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

void nibbles(uint64_t q, float d, float offset, out float w[32]) {
  for (uint i = 0; i < 16; ++i) {
    const uint b = byte_at(q, i);
    w[i] = d * float(b & 15) + offset;
    w[i + 16] = d * float(b >> 4) + offset;
  }
}
void iq4_nibbles(uint64_t q, float d, out float w[32]) {
  for (uint i = 0; i < 16; ++i) {
    const uint b = byte_at(q, i);
    w[i] = d * kIq4Values[b & 15];
    w[i + 16] = d * kIq4Values[b >> 4];
  }
}
void q5(uint64_t q, uint64_t mask, float d, float offset, out float w[32]) {
  const uint high = byte_at(mask, 0) | byte_at(mask, 1) << 8 | byte_at(mask, 2) << 16 |
                    byte_at(mask, 3) << 24;
  for (uint i = 0; i < 32; ++i) {
    const uint low = byte_at(q, i % 16) >> (i / 16 * 4) & 15;
    w[i] = d * float(low | (high >> i & 1) << 4) + offset;
  }
}
void mxfp4(uint64_t b, out float w[32]) {
  const uint e = byte_at(b, 0);
  // 2^(e - 128); the two smallest are subnormal floats.
  const float d = uintBitsToFloat(e < 2 ? 0x00200000u << e : (e - 1) << 23);
  for (uint i = 0; i < 16; ++i) {
    const uint q = byte_at(b, 1 + i);
    w[i] = d * kFp4Values[q & 15];
    w[i + 16] = d * kFp4Values[q >> 4];
  }
}
void q2_k(uint64_t b, uint run, out float w[32]) {
  const float d = half_bytes(b, 80), dmin = half_bytes(b, 82);
  for (uint i = 0; i < 32; ++i) {
    const uint group = run * 2 + i / 16, scales = byte_at(b, group);
    const uint at = 16 + group / 8 * 32 + group % 2 * 16 + i % 16;
    const uint q = byte_at(b, at) >> (group % 8 / 2 * 2) & 3;
    w[i] = d * float(scales & 15) * float(q) - dmin * float(scales >> 4);
  }
}
void q3_k(uint64_t b, uint run, out float w[32]) {
  const float d = half_bytes(b, 108);
  for (uint i = 0; i < 32; ++i) {
    const uint group = run * 2 + i / 16;
    const uint low = byte_at(b, 96 + group % 8) >> (group / 8 * 4) & 15;
    const uint high = byte_at(b, 104 + group % 4) >> (group / 4 * 2) & 3;
    const float scale = d * float(int(low | high << 4) - 32);
    const uint at = 32 + group / 8 * 32 + group % 2 * 16 + i % 16;
    const int bit = int(byte_at(b, group % 2 * 16 + i % 16) >> (group / 2) & 1);
    w[i] = scale * float(int(byte_at(b, at) >> (group % 8 / 2 * 2) & 3) + 4 * bit - 4);
  }
}
// Scale and minimum of run j of 8, from the 12 bytes that Q4_K and Q5_K pack them in.
uvec2 scale_min(uint64_t c, uint j) {
  if (j < 4) return uvec2(byte_at(c, j) & 63, byte_at(c, j + 4) & 63);
  const uint both = byte_at(c, j + 4);
  return uvec2((both & 15) | (byte_at(c, j - 4) >> 6 << 4), (both >> 4) | (byte_at(c, j) >> 6 << 4));
}
void q45_k(uint64_t b, uint run, bool five, out float w[32]) {
  const uvec2 s = scale_min(b + 4, run);
  const float scale = half_bytes(b, 0) * float(s.x), least = half_bytes(b, 2) * float(s.y);
  const uint from = (five ? 48 : 16) + run / 2 * 32, shift = run % 2 * 4;
  for (uint i = 0; i < 32; ++i) {
    uint q = byte_at(b, from + i) >> shift & 15;
    if (five) q |= (byte_at(b, 16 + i) >> run & 1) << 4;
    w[i] = scale * float(q) - least;
  }
}
void q6_k(uint64_t b, uint run, out float w[32]) {
  const float d = half_bytes(b, 208);
  for (uint i = 0; i < 32; ++i) {
    const uint group = run * 2 + i / 16, in_half = group % 8 * 16;
    const uint low = byte_at(b, group / 8 * 64 + in_half % 64 + i % 16);
    const uint high = byte_at(b, 128 + group / 8 * 32 + in_half % 32 + i % 16);
    const uint q = (low >> (in_half / 64 * 4) & 15) | (high >> (in_half / 32 * 2) & 3) << 4;
    w[i] = d * float(sbyte_at(b, 192 + group)) * float(int(q) - 32);
  }
}
void iq4_xs(uint64_t b, uint run, out float w[32]) {
  const uint low = byte_at(b, 4 + run / 2) >> (run % 2 * 4) & 15;
  const uint high = (byte_at(b, 2) | byte_at(b, 3) << 8) >> (2 * run) & 3;
  iq4_nibbles(b + 8 + 16 * run, half_bytes(b, 0) * float(int(low | high << 4) - 32), w);
}

// Elements 32 * run and following of a row; behind its end (types without blocks) zeros.
void read_weights(int type, uint64_t row, uint run, uint n, out float w[32]) {
  const uint first = run * 32, b256 = run / 8, in256 = run % 8;
  switch (type) {
    case kF32:
      for (uint i = 0; i < 32; ++i) w[i] = first + i < n ? F32(row).v[first + i] : 0.0;
      break;
    case kF16:
      for (uint i = 0; i < 32; ++i)
        w[i] = first + i < n ? half_of(uint(U16(row).v[first + i])) : 0.0;
      break;
    case kBF16:
      for (uint i = 0; i < 32; ++i) w[i] = first + i < n ? bf16_at(row, first + i) : 0.0;
      break;
    case kQ8_0: {
      const uint64_t b = row + run * 34;
      const float d = half_of(uint(U16(b).v[0]));
      for (uint i = 0; i < 16; ++i) {
        const int two = int(U16(b).v[1 + i]);
        w[2 * i] = d * float(two << 24 >> 24);
        w[2 * i + 1] = d * float(two << 16 >> 24);
      }
      break;
    }
    case kQ4_0: {
      const float d = half_bytes(row + run * 18, 0);
      nibbles(row + run * 18 + 2, d, -8.0 * d, w);
      break;
    }
    case kQ4_1:
      nibbles(row + run * 20 + 4, half_bytes(row + run * 20, 0), half_bytes(row + run * 20, 2), w);
      break;
    case kQ5_0: {
      const uint64_t b = row + run * 22;
      const float d = half_bytes(b, 0);
      q5(b + 6, b + 2, d, -16.0 * d, w);
      break;
    }
    case kQ5_1: {
      const uint64_t b = row + run * 24;
      q5(b + 8, b + 4, half_bytes(b, 0), half_bytes(b, 2), w);
      break;
    }
    case kIQ4_NL:
      iq4_nibbles(row + run * 18 + 2, half_bytes(row + run * 18, 0), w);
      break;
    case kMXFP4:
      mxfp4(row + run * 17, w);
      break;
    case kQ2_K:
      q2_k(row + b256 * 84, in256, w);
      break;
    case kQ3_K:
      q3_k(row + b256 * 110, in256, w);
      break;
    case kQ4_K:
      q45_k(row + b256 * 144, in256, false, w);
      break;
    case kQ5_K:
      q45_k(row + b256 * 176, in256, true, w);
      break;
    case kQ6_K:
      q6_k(row + b256 * 210, in256, w);
      break;
    case kIQ4_XS:
      iq4_xs(row + b256 * 136, in256, w);
      break;
  }
}
