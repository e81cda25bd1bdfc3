// SPDX-License-Identifier: MIT
// Blocks of quantised weights as packed bytes, 32 elements at a time, and their products with rows in 8 bits
// (quantise.glsl). Numbers of types and the order of a block's bytes are the file's (weights.glsl).
#extension GL_EXT_spirv_intrinsics : require
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6018, 6019], id = 4450)
int dot_of_bytes(uint a, uint b, spirv_literal int format);

// Sixteen elements from `first` on are low, sixteen from `second` on are high: an element is its byte times the
// half's scale less the half's least.
struct Unit {
  uvec4 low, high;
  uint first, second;
  vec2 scale, least;
};
const uint kLow4 = 0x0F0F0F0Fu, kBits2 = 0x03030303u, kBit = 0x01010101u;

// 16 bytes from any address; no word is read that has none of them.
uvec4 words_at(uint64_t a) {
  const uint off = uint(a) & 3u;
  U32 from = U32(a - off);
  const uvec4 w = uvec4(from.v[0], from.v[1], from.v[2], from.v[3]);
  if (off == 0) return w;
  const uvec4 next = uvec4(w.yzw, from.v[4]);
  return w >> 8 * off | next << 32 - 8 * off;
}
uvec4 aligned_words(uint64_t a) {
  U32 from = U32(a);
  return uvec4(from.v[0], from.v[1], from.v[2], from.v[3]);
}
// Bits 4 i to 4 i + 3 as the last bits of four bytes.
uvec4 spread(uint bits) {
  const uvec4 four = uvec4(bits, bits >> 4, bits >> 8, bits >> 12) & 15u;
  return four * 0x00204081u & kBit;
}
// Entries of a table of 16 bytes by the four bytes of an index.
uint look_up(uvec4 table, uint index) {
  uint all = 0;
  for (uint i = 0; i < 4; ++i) {
    const uint at = index >> 8 * i & 15u;
    all |= (table[at / 4] >> at % 4 * 8 & 255u) << 8 * i;
  }
  return all;
}
uvec4 look_up(uvec4 table, uvec4 index) {
  return uvec4(look_up(table, index.x), look_up(table, index.y), look_up(table, index.z),
               look_up(table, index.w));
}
const uvec4 kIq4Bytes = uvec4(0xBFAD9881u, 0xF6EADDCFu, 0x26190D01u, 0x71594535u);
const uvec4 kFp4Bytes = uvec4(0x03020100u, 0x0C080604u, 0xFDFEFF00u, 0xF4F8FAFCu);

Unit nibble_unit(uvec4 w, uint run, float scale, float least) {
  Unit u;
  u.low = w & kLow4;
  u.high = w >> 4 & kLow4;
  u.first = run * 32;
  u.second = u.first + 16;
  u.scale = vec2(scale);
  u.least = vec2(least);
  return u;
}
float half_at(uint64_t a) { return half_of(uint(U16(a).v[0])); }
uint even_word(uint64_t a) { return uint(U16(a).v[0]) | uint(U16(a).v[1]) << 16; }

Unit k45_unit(uint64_t b, uint in256, uint run, bool five) {
  const uint pair = in256 / 2, half_of_run = in256 % 2;
  const uvec4 head = U32x4(b).v[0], w = U32x4(b).v[(five ? 3 : 1) + pair * 2 + half_of_run];
  const vec2 d = unpackHalf2x16(head.x);
  // Six bits each for scales and minimums of the runs 2 * pair and 2 * pair + 1.
  const uint at = pair % 2 * 16;
  uvec2 sc, least;
  if (pair < 2) {
    sc = uvec2(head.y >> at, head.y >> at + 8) & 63u;
    least = uvec2(head.z >> at, head.z >> at + 8) & 63u;
  } else {
    const uvec2 both = uvec2(head.w >> at, head.w >> at + 8) & 255u;
    sc = (both & 15u) | (uvec2(head.y >> at, head.y >> at + 8) >> 2 & 48u);
    least = both >> 4 | (uvec2(head.z >> at, head.z >> at + 8) >> 2 & 48u);
  }
  Unit u = nibble_unit(w, 0, 0.0, 0.0);
  if (five) {
    const uvec4 bits = U32x4(b).v[1 + half_of_run];
    u.low |= (bits >> 2 * pair & kBit) << 4;
    u.high |= (bits >> 2 * pair + 1 & kBit) << 4;
  }
  u.first = (run - in256) * 32 + pair * 64 + half_of_run * 16;
  u.second = u.first + 32;
  u.scale = d.x * vec2(sc);
  u.least = d.y * vec2(least);
  return u;
}
Unit k6_unit(uint64_t b, uint in256, uint run) {
  const uint n = in256 / 4, part = in256 / 2 % 2, half_of_run = in256 % 2;
  const uvec4 w = words_at(b + n * 64 + part * 32 + half_of_run * 16),
              bits = words_at(b + 128 + n * 32 + half_of_run * 16);
  Unit u = nibble_unit(w, 0, 0.0, 0.0);
  u.low |= (bits >> 2 * part & kBits2) << 4;
  u.high |= (bits >> 2 * part + 4 & kBits2) << 4;
  u.first = (run - in256) * 32 + n * 128 + part * 32 + half_of_run * 16;
  u.second = u.first + 64;
  const uint64_t scales = b + 192 + n * 8 + part * 2 + half_of_run;
  u.scale = half_at(b + 208) * vec2(sbyte_at(scales, 0), sbyte_at(scales, 4));
  u.least = 32.0 * u.scale;
  return u;
}
// Two of four runs of sixteen whose elements of two bits share bytes, from `at` on.
Unit pair_unit(uvec4 w, uint pair, uint first) {
  Unit u;
  u.low = w >> 4 * pair & kBits2;
  u.high = w >> 4 * pair + 2 & kBits2;
  u.first = first;
  u.second = first + 32;
  return u;
}
Unit k2_unit(uint64_t b, uint in256, uint run) {
  const uint n = in256 / 4, pair = in256 / 2 % 2, half_of_run = in256 % 2;
  Unit u = pair_unit(aligned_words(b + 16 + n * 32 + half_of_run * 16), pair,
                     (run - in256) * 32 + n * 128 + pair * 64 + half_of_run * 16);
  const vec2 d = unpackHalf2x16(U32(b + 80).v[0]);
  const uint group = n * 8 + 4 * pair + half_of_run;
  const uvec2 s = uvec2(byte_at(b, group), byte_at(b, group + 2));
  u.scale = d.x * vec2(s & 15u);
  u.least = d.y * vec2(s >> 4);
  return u;
}
float k3_scale(uint64_t b, uint group) {
  const uint low = byte_at(b, 96 + group % 8) >> (group / 8 * 4) & 15;
  const uint high = byte_at(b, 104 + group % 4) >> (group / 4 * 2) & 3;
  return float(int(low | high << 4) - 32);
}
Unit k3_unit(uint64_t b, uint in256, uint run) {
  const uint n = in256 / 4, pair = in256 / 2 % 2, half_of_run = in256 % 2;
  Unit u = pair_unit(words_at(b + 32 + n * 32 + half_of_run * 16), pair,
                     (run - in256) * 32 + n * 128 + pair * 64 + half_of_run * 16);
  const uvec4 bits = words_at(b + half_of_run * 16);
  const uint group = n * 8 + 4 * pair + half_of_run;
  u.low |= (bits >> n * 4 + 2 * pair & kBit) << 2;
  u.high |= (bits >> n * 4 + 2 * pair + 1 & kBit) << 2;
  u.scale = half_at(b + 108) * vec2(k3_scale(b, group), k3_scale(b, group + 2));
  u.least = 4.0 * u.scale;
  return u;
}
Unit table_unit(uvec4 w, uvec4 table, uint run, float scale) {
  Unit u = nibble_unit(w, run, scale, 0.0);
  u.low = look_up(table, u.low);
  u.high = look_up(table, u.high);
  return u;
}
Unit iq4_xs_unit(uint64_t b, uint in256, uint run) {
  const uint low = byte_at(b, 4 + in256 / 2) >> (in256 % 2 * 4) & 15;
  const uint high = uint(U16(b).v[1]) >> (2 * in256) & 3;
  return table_unit(aligned_words(b + 8 + 16 * in256), kIq4Bytes, run,
                    half_at(b) * float(int(low | high << 4) - 32));
}
Unit q5_unit(uvec4 w, uint bits, uint run, float scale, float least) {
  Unit u = nibble_unit(w, run, scale, least);
  u.low |= spread(bits) << 4;
  u.high |= spread(bits >> 16) << 4;
  return u;
}
Unit q8_unit(uint64_t b, uint run) {
  Unit u = nibble_unit(uvec4(0), run, half_at(b), 0.0);
  u.low = words_at(b + 2);
  u.high = words_at(b + 18);
  return u;
}

// One of the row's units, which follow each other in no order.
Unit unit_of(int type, uint64_t row, uint run) {
  const uint64_t b256 = row + run / 8 * (type == kQ4_K   ? 144
                                         : type == kQ5_K ? 176
                                         : type == kQ6_K ? 210
                                         : type == kQ2_K ? 84
                                         : type == kQ3_K ? 110
                                                         : 136);
  const uint in256 = run % 8;
  switch (type) {
    case kQ4_0: {
      const uint64_t b = row + run * 18;
      const float d = half_at(b);
      return nibble_unit(words_at(b + 2), run, d, 8.0 * d);
    }
    case kQ4_1: {
      const vec2 d = unpackHalf2x16(U32(row + run * 20).v[0]);
      return nibble_unit(aligned_words(row + run * 20 + 4), run, d.x, -d.y);
    }
    case kQ5_0: {
      const uint64_t b = row + run * 22;
      const float d = half_at(b);
      return q5_unit(words_at(b + 6), even_word(b + 2), run, d, 16.0 * d);
    }
    case kQ5_1: {
      const uint64_t b = row + run * 24;
      const vec2 d = unpackHalf2x16(U32(b).v[0]);
      return q5_unit(aligned_words(b + 8), U32(b).v[1], run, d.x, -d.y);
    }
    case kIQ4_NL:
      return table_unit(words_at(row + run * 18 + 2), kIq4Bytes, run, half_at(row + run * 18));
    case kIQ4_XS:
      return iq4_xs_unit(b256, in256, run);
    case kMXFP4: {
      const uint64_t b = row + run * 17;
      const uint e = byte_at(b, 0);
      return table_unit(words_at(b + 1), kFp4Bytes, run,
                        uintBitsToFloat(e < 2 ? 0x00200000u << e : (e - 1) << 23));
    }
    case kQ2_K:
      return k2_unit(b256, in256, run);
    case kQ3_K:
      return k3_unit(b256, in256, run);
    case kQ4_K:
      return k45_unit(b256, in256, run, false);
    case kQ5_K:
      return k45_unit(b256, in256, run, true);
    case kQ6_K:
      return k6_unit(b256, in256, run);
  }
  return q8_unit(row + run * 34, run);
}

int dot_of(uvec4 a, uvec4 b) {
  return dot_of_bytes(a.x, b.x, 0) + dot_of_bytes(a.y, b.y, 0) + dot_of_bytes(a.z, b.z, 0) +
         dot_of_bytes(a.w, b.w, 0);
}
// What a unit is multiplied with of a row in 8 bits, whose scales and sums are at `scales` (quantise.glsl).
struct Piece {
  uvec4 low, high;
  vec2 of_low, of_high;
};
Piece piece_of(Unit u, uint64_t x, uint64_t scales) {
  Piece x_of;
  x_of.low = U32x4(x).v[u.first / 16];
  x_of.high = U32x4(x).v[u.second / 16];
  x_of.of_low = F32x2(scales).v[u.first / 16];
  x_of.of_high = F32x2(scales).v[u.second / 16];
  return x_of;
}
float product_of(Unit u, Piece x) {
  const vec2 dots = vec2(x.of_low.x * float(dot_of(u.low, x.low)), x.of_high.x * float(dot_of(u.high, x.high)));
  return dot(u.scale, dots) - dot(u.least, vec2(x.of_low.y, x.of_high.y));
}
