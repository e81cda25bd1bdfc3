#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "memory.glsl"
#extension GL_KHR_shader_subgroup_shuffle : require
// Attention of HEADS query heads that share a KV head, of one row, over a share of its stored rows: what
// shaders/attention_join.comp makes an output of. A workgroup has a KV head's part of its heads, of a row and a share.
// Four threads have the scores of a stored row of each tile, a thread then sums of four or eight elements over every n-th
// value. Where rows allow it a thread reads 16 bytes of a key at once, and 16 or, of q8_0, 8 of a value.
layout(constant_id = 1) const uint K_CODEC = 2;
layout(constant_id = 2) const uint V_CODEC = 2;
layout(constant_id = 3) const uint WINDOW = 0;
layout(constant_id = 4) const uint HEADS = 4;
layout(constant_id = 5) const uint DIM = 128;
layout(constant_id = 6) const uint SHARES = 32;
layout(constant_id = 7) const uint ALIGNED = 1;  // rows begin at multiples of so many bytes: 1, 4 or 16
layout(constant_id = 8) const uint BY_HEAD = 0;
#include "kv_rows.glsl"
#include "head_rows.glsl"
const float kUnseen = -3.0e38;
const uint kThreads = gl_WorkGroupSize.x, kParts = 4, kTile = kThreads / kParts, kFours = DIM / 4;
// Fours of elements that a thread reads at once of a key, and of a value.
const uint kWide = ALIGNED == 16 ? (kFours % 4 == 0 ? 1u : 0u) : 0u,
           kKeyFours = kWide == 0 ? 1u : K_CODEC == kQ8Rows ? 4u : K_CODEC == kBf16Rows ? 2u : 1u,
           kValueFours = kWide == 0 ? 1u : V_CODEC == kQ8Rows ? 2u : V_CODEC == kBf16Rows ? 2u : 1u;
// Scales of a value's head that a tile has in shared memory; places between fours of a query, so that threads of a key
// read from different banks.
const uint kScales = ALIGNED < 4 ? 0u : V_CODEC != kQ8Rows ? 0u : kFours % 8 == 0 ? kFours / 8 : 0u,
           kRuns = kFours / kKeyFours, kGap = kKeyFours == 4 ? 8u : 0x10000u, kPadded = kFours + kFours / kGap;
// Threads that have an element of a head together, and parts of a value for a thread where there are more.
const uint kOwners = kFours / kValueFours, kGroups = kThreads < kOwners ? 1 : kThreads / kOwners,
           kEach = kThreads < kOwners ? (kOwners + kThreads - 1) / kThreads : 1;
shared vec4 query[HEADS * kPadded];
shared float shares[HEADS * kTile];
shared float scales[kTile * (kScales == 0 ? 1 : kScales)];
shared uint64_t value_names[kTile], values_at[kTile];
shared uint values_left[kTile];
shared uint parted[2];  // whether a value of a tile lies in two pages: of this tile and of the next
vec4 sums[HEADS * kEach * kValueFours];
float scores[HEADS];
uint place(uint k, uint i) { return k * kPadded + i + i / kGap; }
vec4 signed_bytes(int four) { return vec4(ivec4(four << 24, four << 16, four << 8, four) >> 24); }
vec4 two_halves(uint a, uint b) { return uintBitsToFloat(uvec4(a << 16, a & 0xFFFF0000u, b << 16, b & 0xFFFF0000u)); }
vec4 four_in(uint64_t at, uint codec, uint n, uint e) {
  if (codec != kQ8Rows || ALIGNED == 1) return four_of(at, codec, n, e);
  return half_of(uint(U16(at + n).v[e / 32])) * signed_bytes(I32(at).v[e / 4]);
}
void add_scores(uint i, vec4 x) {
  for (uint k = 0; k < HEADS; ++k) scores[k] += dot(query[place(k, i)], x);
}
// Of elements 4 i on of a head that begins at element `from`.
void add_key(uint64_t at, uint width, uint from, uint i) {
  const uint e = from + 4 * i;
  if (kKeyFours == 4) {
    const ivec4 w = ivec4(U32x4(at).v[e / 16]);
    const float d = half_of(uint(U16(at + width).v[e / 32]));
    add_scores(i, d * signed_bytes(w.x));
    add_scores(i + 1, d * signed_bytes(w.y));
    add_scores(i + 2, d * signed_bytes(w.z));
    add_scores(i + 3, d * signed_bytes(w.w));
  } else if (kKeyFours == 2) {
    const uvec4 w = U32x4(at).v[e / 8];
    add_scores(i, two_halves(w.x, w.y));
    add_scores(i + 1, two_halves(w.z, w.w));
  } else {
    add_scores(i, four_in(at, K_CODEC, width, e));
  }
}
void score(Stored key, uint row_bytes, uint part, uint from, uint width, bool seen) {
  for (uint k = 0; k < HEADS; ++k) scores[k] = 0.0;
  if (seen && key.left >= row_bytes) {
    FOR_EACH(n, (kRuns + kParts - 1) / kParts, {
      const uint run = n * kParts + part;
      if (kRuns % kParts == 0 || run < kRuns) add_key(key.at, width, from, run * kKeyFours);
    })
  } else if (seen) {
    for (uint run = part; run < kRuns; run += kParts) {
      for (uint i = run * kKeyFours; i < (run + 1) * kKeyFours; ++i)
        add_scores(i, four_at(p.pages, key, K_CODEC, width, from + 4 * i));
    }
  }
  for (uint k = 0; k < HEADS; ++k) {
    for (uint apart = 1; apart < kParts; apart *= 2) scores[k] += subgroupShuffleXor(scores[k], apart);
    scores[k] = seen ? scores[k] * p.scale : kUnseen;
  }
}
// The first four of a thread's elements of a value of the tile, and those behind them.
void fetch_value(uint t, uint width, uint from, uint i, out vec4 x, out vec4 behind) {
  const uint64_t at = values_at[t];
  const uint e = from + 4 * i;
  behind = vec4(0.0);
  if (kValueFours == 2 && V_CODEC == kBf16Rows) {
    const uvec4 w = U32x4(at).v[e / 8];
    x = two_halves(w.x, w.y);
    behind = two_halves(w.z, w.w);
  } else if (kValueFours == 2) {
    const ivec2 w = ivec2(U32x2(at).v[e / 8]);
    const float d = kScales != 0 ? scales[t * kScales + i / 8] : half_of(uint(U16(at + width).v[e / 32]));
    x = d * signed_bytes(w.x);
    behind = d * signed_bytes(w.y);
  } else if (kScales != 0) {
    x = scales[t * kScales + i / 8] * signed_bytes(I32(at).v[e / 4]);
  } else {
    x = four_in(at, V_CODEC, width, e);
  }
}
void add_whole_values(uint count, uint from, uint width) {
  const uint part = me() / kOwners;
  if (kGroups > 1 && part >= kGroups) return;
  for (uint t0 = kGroups > 1 ? part : 0; t0 < count; t0 += 8 * kGroups) {
    for (uint c = 0; c < kEach; ++c) {
      const uint own = kGroups > 1 ? me() % kOwners : me() + c * kThreads;
      if (own >= kOwners) continue;
      vec4 x[8], behind[8];
      EIGHT(n, 0, fetch_value(min(t0 + n * kGroups, count - 1), width, from, own * kValueFours, x[n], behind[n]);)
      EIGHT(n, 0, const uint t = t0 + n * kGroups;
            for (uint k = 0; k < HEADS; ++k) {
              const float share = t < count ? shares[k * kTile + t] : 0.0;
              sums[(k * kEach + c) * kValueFours] += share * x[n];
              if (kValueFours == 2) sums[(k * kEach + c) * 2 + 1] += share * behind[n];
            })
    }
  }
}
void add_values(uint count, uint from, uint width) {
  const uint part = me() / kOwners;
  if (kGroups > 1 && part >= kGroups) return;
  for (uint t = kGroups > 1 ? part : 0; t < count; t += kGroups) {
    Stored value;
    value.name = value_names[t];
    value.at = values_at[t];
    value.left = values_left[t];
    for (uint c = 0; c < kEach; ++c) {
      const uint own = kGroups > 1 ? me() % kOwners : me() + c * kThreads;
      if (own >= kOwners) continue;
      for (uint j = 0; j < kValueFours; ++j) {
        const vec4 x = four_at(p.pages, value, V_CODEC, width, from + 4 * (own * kValueFours + j));
        for (uint k = 0; k < HEADS; ++k) sums[(k * kEach + c) * kValueFours + j] += shares[k * kTile + t] * x;
      }
    }
  }
}
void main() {
  const uint per_row = p.n_heads / HEADS, share = gl_WorkGroupID.z;
  const uint r = item() / per_row, h = item() % per_row * HEADS;
  if (r >= p.n_rows) return;
  const BatchRow row = Rows(p.rows).v[r];
  if (row.sequence == kNoSequence) return;
  const Sequence seq = Sequences(p.sequences).v[row.sequence];
  Group g = Groups(p.groups).v[row.sequence * p.n_groups + p.group];
  const HeadView own = view_head(g, h / (p.n_heads / p.n_kv_heads));
  const uint from = own.from, width = own.width;
  const uint64_t last = WINDOW != 0 ? row.position : uint64_t(g.n_slots + row.index);
  uint64_t first = 0;
  if ((seq.flags & kNoContext) != 0) first = WINDOW != 0 ? seq.position : uint64_t(g.n_slots);
  if (WINDOW != 0 && last + 1 > WINDOW) first = max(first, last + 1 - WINDOW);
  const uint n = uint(last + 1 - first), tiles = (n + kTile - 1) / kTile,
             each = (tiles + SHARES - 1) / SHARES, begin = share * each * kTile, end = min(n, begin + each * kTile);
  float tops[HEADS], totals[HEADS];
  for (uint k = 0; k < HEADS; ++k) {
    tops[k] = kUnseen;
    totals[k] = 0.0;
  }
  for (uint i = 0; i < HEADS * kEach * kValueFours; ++i) sums[i] = vec4(0.0);
  if (me() < 2) parted[me()] = 0;
  const uint lane = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID, key = lane / kParts, part = lane % kParts;
  for (uint i = me(); i < HEADS * kFours; i += threads())
    query[place(i / kFours, i % kFours)] = F32x4(p.q + uint64_t(r * p.n_heads + h) * DIM * 4).v[i];
  barrier();
  for (uint tile = begin; tile < end; tile += kTile) {
    const uint64_t at = first + min(tile + key, end - 1);
    const uint turn = tile / kTile % 2;
    const Stored value = stored(p.pages, row_address(own, seq, g, at, true));
    for (uint b = part; b < kScales && value.left >= own.v_row_bytes; b += kParts)
      scales[key * kScales + b] = half_of(uint(U16(value.at + width).v[from / 32 + b]));
    if (part == 0) {
      value_names[key] = value.name;
      values_at[key] = value.at;
      values_left[key] = value.left;
      if (value.left < own.v_row_bytes) parted[turn] = 1;
    }
    score(stored(p.pages, row_address(own, seq, g, at, false)), own.k_row_bytes, part, from, width, tile + key < end);
    for (uint k = 0; k < HEADS; ++k) {
      const float top = max(tops[k], max_all(scores[k])), fade = exp(tops[k] - top);
      // What is no number has a share that is none.
      const float of_key = scores[k] == kUnseen ? 0.0 : exp(scores[k] - top);
      if (part == 0) shares[k * kTile + key] = of_key;
      totals[k] = totals[k] * fade + (part == 0 ? of_key : 0.0);
      tops[k] = top;
      for (uint c = 0; c < kEach * kValueFours; ++c) sums[k * kEach * kValueFours + c] *= fade;
    }
    barrier();
    if (me() == 0) parted[1 - turn] = 0;
    if (parted[turn] == 0) add_whole_values(min(kTile, end - tile), from, width);
    else add_values(min(kTile, end - tile), from, width);
    barrier();
  }
  // query has the sums from here on.
  for (uint i = me(); i < HEADS * kPadded; i += threads()) query[i] = vec4(0.0);
  barrier();
  for (uint part = 0; part < kGroups; ++part) {
    if (kGroups == 1 || me() / kOwners == part) {
      for (uint c = 0; c < kEach; ++c) {
        const uint first = kGroups > 1 ? me() % kOwners : me() + c * kThreads;
        for (uint k = 0; k < HEADS && first < kOwners; ++k) {
          for (uint j = 0; j < kValueFours; ++j)
            query[place(k, first * kValueFours + j)] += sums[(k * kEach + c) * kValueFours + j];
        }
      }
    }
    barrier();
  }
  // For each head and share: the greatest score, the shares' sum, two of no use, the sums.
  for (uint k = 0; k < HEADS; ++k) {
    const float total = sum_all(totals[k]);
    const uint64_t to = p.y + (uint64_t(r * p.n_heads + h + k) * SHARES + share) * (DIM + 4) * 4;
    if (me() == 0) F32x4(to).v[0] = vec4(tops[k], total, 0.0, 0.0);
    for (uint i = me(); i < kFours; i += threads()) F32x4(to).v[1 + i] = query[place(k, i)];
  }
}
