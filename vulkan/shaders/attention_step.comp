#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "memory.glsl"
#extension GL_KHR_shader_subgroup_shuffle : require
// Attention of HEADS query heads that share a KV head, of one row, over a share of its stored rows: what
// shaders/attention_join.comp makes an output of. A workgroup has a KV head's part of its heads, of a row and a share.
// Four threads have the scores of a stored row of each tile, a thread then sums of four elements over every n-th value.
layout(constant_id = 1) const uint K_CODEC = 2;
layout(constant_id = 2) const uint V_CODEC = 2;
layout(constant_id = 3) const uint WINDOW = 0;
layout(constant_id = 4) const uint HEADS = 4;
layout(constant_id = 5) const uint DIM = 128;
layout(constant_id = 6) const uint SHARES = 32;
layout(constant_id = 7) const uint WORDS = 0;  // rows begin at multiples of four bytes
layout(constant_id = 8) const uint BY_HEAD = 0;
#include "kv_rows.glsl"
#include "head_rows.glsl"
const float kUnseen = -3.0e38;
const uint kThreads = gl_WorkGroupSize.x, kParts = 4, kTile = kThreads / kParts, kFours = DIM / 4;
// Threads that have an element of a head together, and fours of elements for a thread where there are more.
const uint kGroups = kThreads < kFours ? 1 : kThreads / kFours,
           kEach = kThreads < kFours ? (kFours + kThreads - 1) / kThreads : 1;
shared vec4 query[HEADS * kFours];
shared float shares[HEADS * kTile];
shared uint64_t value_names[kTile], values_at[kTile];
shared uint values_left[kTile];
shared uint parted[2];  // whether a value of a tile lies in two pages: of this tile and of the next
vec4 sums[HEADS * kEach];
float scores[HEADS];
vec4 four_in(uint64_t at, uint codec, uint n, uint e) {
  if (codec != kQ8Rows || WORDS == 0) return four_of(at, codec, n, e);
  const int four = I32(at).v[e / 4];
  return half_of(uint(U16(at + n).v[e / 32])) * vec4(ivec4(four << 24, four << 16, four << 8, four) >> 24);
}
void score(Stored key, uint row_bytes, uint part, uint from, uint width, bool seen) {
  for (uint k = 0; k < HEADS; ++k) scores[k] = 0.0;
  if (seen && key.left >= row_bytes) {
    FOR_EACH(n, (kFours + kParts - 1) / kParts, {
      const uint i = n * kParts + part;
      if (kFours % kParts == 0 || i < kFours) {
        const vec4 x = four_in(key.at, K_CODEC, width, from + 4 * i);
        for (uint k = 0; k < HEADS; ++k) scores[k] += dot(query[k * kFours + i], x);
      }
    })
  } else if (seen) {
    for (uint i = part; i < kFours; i += kParts) {
      const vec4 x = four_at(p.pages, key, K_CODEC, width, from + 4 * i);
      for (uint k = 0; k < HEADS; ++k) scores[k] += dot(query[k * kFours + i], x);
    }
  }
  for (uint k = 0; k < HEADS; ++k) {
    for (uint apart = 1; apart < kParts; apart *= 2) scores[k] += subgroupShuffleXor(scores[k], apart);
    scores[k] = seen ? scores[k] * p.scale : kUnseen;
  }
}
void add_whole_values(uint count, uint from, uint width) {
  const uint part = me() / kFours;
  if (kGroups > 1 && part >= kGroups) return;
  for (uint t0 = kGroups > 1 ? part : 0; t0 < count; t0 += 8 * kGroups) {
    for (uint c = 0; c < kEach; ++c) {
      const uint i = kGroups > 1 ? me() % kFours : me() + c * kThreads;
      if (i >= kFours) continue;
      vec4 x[8];
      EIGHT(n, 0, x[n] = four_in(values_at[min(t0 + n * kGroups, count - 1)], V_CODEC, width, from + 4 * i);)
      EIGHT(n, 0, const uint t = t0 + n * kGroups;
            for (uint k = 0; k < HEADS; ++k) sums[k * kEach + c] += (t < count ? shares[k * kTile + t] : 0.0) * x[n];)
    }
  }
}
void add_values(uint count, uint from, uint width) {
  const uint part = me() / kFours;
  if (kGroups > 1 && part >= kGroups) return;
  for (uint t = kGroups > 1 ? part : 0; t < count; t += kGroups) {
    Stored value;
    value.name = value_names[t];
    value.at = values_at[t];
    value.left = values_left[t];
    for (uint c = 0; c < kEach; ++c) {
      const uint i = kGroups > 1 ? me() % kFours : me() + c * kThreads;
      if (i >= kFours) continue;
      const vec4 x = four_at(p.pages, value, V_CODEC, width, from + 4 * i);
      for (uint k = 0; k < HEADS; ++k) sums[k * kEach + c] += shares[k * kTile + t] * x;
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
  for (uint i = 0; i < HEADS * kEach; ++i) sums[i] = vec4(0.0);
  if (me() < 2) parted[me()] = 0;
  const uint lane = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID, key = lane / kParts, part = lane % kParts;
  for (uint i = me(); i < HEADS * kFours; i += threads())
    query[i] = F32x4(p.q + uint64_t(r * p.n_heads + h) * DIM * 4).v[i];
  barrier();
  for (uint tile = begin; tile < end; tile += kTile) {
    const uint64_t at = first + min(tile + key, end - 1);
    const uint turn = tile / kTile % 2;
    if (part == 0) {
      const Stored value = stored(p.pages, row_address(own, seq, g, at, true));
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
      for (uint c = 0; c < kEach; ++c) sums[k * kEach + c] *= fade;
    }
    barrier();
    if (me() == 0) parted[1 - turn] = 0;
    if (parted[turn] == 0) add_whole_values(min(kTile, end - tile), from, width);
    else add_values(min(kTile, end - tile), from, width);
    barrier();
  }
  // query has the sums from here on.
  for (uint i = me(); i < HEADS * kFours; i += threads()) query[i] = vec4(0.0);
  barrier();
  for (uint part = 0; part < kGroups; ++part) {
    if (kGroups == 1 || me() / kFours == part) {
      for (uint c = 0; c < kEach; ++c) {
        const uint i = kGroups > 1 ? me() % kFours : me() + c * kThreads;
        for (uint k = 0; k < HEADS && i < kFours; ++k) query[k * kFours + i] += sums[k * kEach + c];
      }
    }
    barrier();
  }
  // For each head and share: the greatest score, the shares' sum, two of no use, the sums.
  for (uint k = 0; k < HEADS; ++k) {
    const float total = sum_all(totals[k]);
    const uint64_t to = p.y + (uint64_t(r * p.n_heads + h + k) * SHARES + share) * (DIM + 4) * 4;
    if (me() == 0) F32x4(to).v[0] = vec4(tops[k], total, 0.0, 0.0);
    for (uint i = me(); i < kFours; i += threads()) F32x4(to).v[1 + i] = query[k * kFours + i];
  }
}
