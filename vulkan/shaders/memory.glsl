// SPDX-License-Identifier: MIT
// Stored rows: addresses of ranges (pages.h), the batch table (device/batch.h), codecs (kv/codec.h).
const uint kPageShift = 21, kBlockSlots = 64, kNoSequence = 0xFFFFFFFFu;
const uint kF32Rows = 1, kBf16Rows = 2, kQ8Rows = 3, kQ4Rows = 4;
const uint kNoContext = 1, kQueryRing = 2, kDrafted = 4;
const int kQ4Levels[16] = {-111, -88, -69, -53, -39, -26, -14, -2, 10, 22, 34, 47, 62, 79, 99, 125};
const float kQ4Middles[15] = {-99.5, -78.5, -61.0, -46.0, -32.5, -20.0, -8.0, 4.0,
                              16.0,  28.0,  40.5,  54.5,  70.5,  89.0,  112.0};

// kQ4Levels by words of four bytes: an index into an array that is not known when compiled costs memory, and a software
// device minutes to compile.
float q4_level(uint code) {
  const uint four = code < 8 ? (code < 4 ? 0xCBBBA891u : 0xFEF2E6D9u) : (code < 12 ? 0x2F22160Au : 0x7D634F3Eu);
  return float(int(four << 24 - code % 4 * 8) >> 24);
}
struct Sequence {
  uint first_row, n_rows;
  uint64_t position;
  uint chunk_block, flags;
  uint64_t state_in, state_out, queries;
  uint query_rows, n_pending;
  uint64_t kept, keep;
  uint kept_rows, reserved;
};
struct Group {
  uint64_t base;
  uint n_slots, ring_slots;
};
struct BatchRow {
  uint sequence, index;
  uint64_t position;
};
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Sequences { Sequence v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Groups { Group v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Rows { BatchRow v[]; };
// Rows in blocks of one KV head (device/batch.h, KvHeadRows), which a group's `base` is the address of where its
// ring_slots say so.
const uint kRowsByHead = 0xFFFFFFFFu;
struct HeadRows {
  uint64_t base, blocks, v_offset;
  uint lag, reserved;
};
layout(buffer_reference, std430, buffer_reference_align = 8) buffer AllHeadRows { HeadRows v[]; };

// Where an address lies. `pages` is the table of ranges.
uint64_t kv_address(uint64_t pages, uint64_t a) {
  const uint high = uint(a >> 32);
  if ((high & 0x40000000u) == 0) return a;
  const uint64_t inside = a & 0x3FFFFFFFFFFFFFFFul;
  return U64(pages).v[uint(inside >> kPageShift)] + (inside & ((1ul << kPageShift) - 1));
}

// A stored row, most of which lies in one page.
struct Stored {
  uint64_t name, at;
  uint left;
};
Stored stored(uint64_t pages, uint64_t a) {
  Stored s;
  s.name = a;
  s.at = kv_address(pages, a);
  s.left = s.at == a ? 0xFFFFFFFFu : (1u << kPageShift) - uint(a & ((1ul << kPageShift) - 1));
  return s;
}
uint64_t byte_of(uint64_t pages, Stored s, uint offset) {
  return offset < s.left ? s.at + offset : kv_address(pages, s.name + offset);
}

// Element e of a stored row of n.
float stored_at(uint64_t pages, Stored s, uint codec, uint n, uint e) {
  if (codec == kF32Rows) return F32(byte_of(pages, s, 4 * e)).v[0];
  if (codec == kBf16Rows) return bf16_at(byte_of(pages, s, 2 * e), 0);
  if (codec == kQ8Rows) {
    const float d = half_of(uint(U16(byte_of(pages, s, n + e / 32 * 2)).v[0]));
    return d * float(sbyte_at(byte_of(pages, s, e), 0));
  }
  const float d = half_of(uint(U16(byte_of(pages, s, n / 2 + e / 32 * 2)).v[0]));
  return d * q4_level(byte_at(byte_of(pages, s, e / 2), 0) >> (e % 2 * 4) & 15);
}

// The same of a row that lies at `at` as a whole.
vec4 four_of(uint64_t at, uint codec, uint n, uint e) {
  if (codec == kF32Rows) return F32x4(at).v[e / 4];
  if (codec == kBf16Rows) {
    const uvec2 two = U32x2(at).v[e / 4];
    return uintBitsToFloat(uvec4(two.x << 16, two.x & 0xFFFF0000u, two.y << 16, two.y & 0xFFFF0000u));
  }
  if (codec == kQ8Rows) {
    const float d = half_of(uint(U16(at + n).v[e / 32]));
    const ivec2 two = ivec2(U16(at).v[e / 2], U16(at).v[e / 2 + 1]);
    return d * vec4(ivec4(two.x << 24, two.x << 16, two.y << 24, two.y << 16) >> 24);
  }
  const float d = half_of(uint(U16(at + n / 2).v[e / 32]));
  const uint codes = uint(U16(at).v[e / 4]);
  return d * vec4(q4_level(codes & 15), q4_level(codes >> 4 & 15), q4_level(codes >> 8 & 15), q4_level(codes >> 12));
}
// Elements e to e + 3, e a multiple of four, of a stored row of n; a row's address is a multiple of its elements' size,
// times four where those are floats or bf16.
vec4 four_at(uint64_t pages, Stored s, uint codec, uint n, uint e) {
  if (codec == kF32Rows) return F32x4(byte_of(pages, s, 4 * e)).v[0];
  if (codec == kBf16Rows) {
    const uvec2 two = U32x2(byte_of(pages, s, 2 * e)).v[0];
    return uintBitsToFloat(uvec4(two.x << 16, two.x & 0xFFFF0000u, two.y << 16, two.y & 0xFFFF0000u));
  }
  if (codec == kQ8Rows) {
    const float d = half_of(uint(U16(byte_of(pages, s, n + e / 32 * 2)).v[0]));
    U16 from = U16(byte_of(pages, s, e));
    const ivec2 two = ivec2(from.v[0], from.v[1]);
    return d * vec4(ivec4(two.x << 24, two.x << 16, two.y << 24, two.y << 16) >> 24);
  }
  const float d = half_of(uint(U16(byte_of(pages, s, n / 2 + e / 32 * 2)).v[0]));
  const uint codes = uint(U16(byte_of(pages, s, e / 2)).v[0]);
  return d * vec4(q4_level(codes & 15), q4_level(codes >> 4 & 15), q4_level(codes >> 8 & 15), q4_level(codes >> 12));
}

uint64_t slot_address(uint64_t base, uint64_t slot, uint block_stride, uint offset, uint row_bytes) {
  return base + (slot / kBlockSlots) * block_stride + offset + uint(slot % kBlockSlots) * row_bytes;
}
// The same of blocks that a table names.
uint64_t named_address(uint64_t base, uint64_t table, uint64_t slot, uint row_bytes) {
  return base + U64(table).v[uint(slot / kBlockSlots)] + uint(slot % kBlockSlots) * row_bytes;
}
uint64_t chunk_address(uint64_t chunk, uint first_block, uint64_t i, bool value, uint k_row_bytes,
                       uint v_row_bytes) {
  const uint64_t block = first_block + i / kBlockSlots;
  const uint in_block = uint(i % kBlockSlots);
  return chunk + block * (kBlockSlots * (k_row_bytes + v_row_bytes)) +
         (value ? kBlockSlots * k_row_bytes + in_block * v_row_bytes : in_block * k_row_bytes);
}
