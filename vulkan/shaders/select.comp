#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
// The rows of a KV head that stay, ascending (select_rows() of kv/policy.h). Keys order like scores;
// the threshold is found bit by bit. A workgroup has a list.
layout(constant_id = 1) const uint POOLS = 0;
struct List {
  uint64_t terms, keys;
  float scale;
  uint n_slots, first, last, take, reserved;
};
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Lists { List v[]; };
layout(push_constant) uniform P {
  uint64_t lists;
  uint n_lists, reach;
} p;
shared uint counts[256];
uint count_all(uint mine) {
  barrier();
  counts[me()] = mine;
  barrier();
  uint all = 0;
  for (uint t = 0; t < threads(); ++t) all += counts[t];
  return all;
}
// The upper 64 bits of a * b.
uint64_t high_product(uint64_t a, uint64_t b) {
  const uint64_t m = 0xFFFFFFFFul;
  const uint64_t low = (a & m) * (b & m), ab = (a >> 32) * (b & m), ba = (a & m) * (b >> 32);
  const uint64_t middle = (low >> 32) + (ab & m) + (ba & m);
  return (a >> 32) * (b >> 32) + (ab >> 32) + (ba >> 32) + (middle >> 32);
}
// A sum of floats kept in two, as precise as one of doubles is wanted to be.
void add_precisely(inout float high, inout float low, float x) {
  precise float s = high + x;
  precise float b = s - high;
  precise float e = (high - (s - b)) + (x - b);
  high = s;
  low += e;
}
float score(List l, uint i) {
  F32 terms = F32(l.terms);
  if (POOLS != 0) {
    float high = 0.0, low = 0.0;
    const int reach = int(p.reach / 2);
    for (int j = -reach; j <= reach; ++j)
      add_precisely(high, low, terms.v[clamp(int(i) + j, 0, int(l.n_slots) - 1)] * l.scale);
    return (high + low) / float(p.reach);
  }
  float best = terms.v[i] * l.scale, decay = 1.0;
  uint64_t exact = 0xFFFFFFFFFFFFFFFFul;  // the decay in units of 2^-64
  for (uint j = 1; j <= p.reach && j <= i; ++j) {
    exact = high_product(exact, 0xFFBE770000000000ul);
    best = max(best, terms.v[i - j] * l.scale * (float(exact) * 5.421010862427522e-20));
  }
  decay = 1.0;
  for (uint j = 1; j <= 2 && i + j < l.n_slots; ++j) {
    decay *= 0.99;
    best = max(best, terms.v[i + j] * l.scale * decay);
  }
  return best;
}
uint order_bits(float f) {
  const uint u = floatBitsToUint(f + 0.0);
  return u >> 31 != 0 ? ~u : u | 0x80000000u;
}
void main() {
  if (item() >= p.n_lists) return;
  const List l = Lists(p.lists).v[item()];
  U32 keys = U32(l.keys), keep = U32(l.terms);
  for (uint i = me(); i < l.n_slots; i += threads()) keys.v[i] = order_bits(score(l, i));
  memoryBarrierBuffer();
  barrier();
  // The largest key that `take` rows between first and last reach.
  uint threshold = 0;
  for (uint bit = 32; bit-- > 0;) {
    const uint tried = threshold | 1u << bit;
    uint n = 0;
    for (uint i = l.first + me(); i < l.last; i += threads()) n += keys.v[i] >= tried ? 1 : 0;
    if (count_all(n) >= l.take) threshold = tried;
  }
  uint above = 0;
  for (uint i = l.first + me(); i < l.last; i += threads()) above += keys.v[i] > threshold ? 1 : 0;
  uint n_equal = l.take - count_all(above);  // of equal rows the earlier ones stay
  barrier();
  if (me() != 0) return;
  uint at = 0;
  for (uint i = 0; i < l.n_slots; ++i) {
    bool stays = i < l.first || i >= l.last;
    if (!stays && l.take != 0) {
      stays = keys.v[i] > threshold;
      if (keys.v[i] == threshold && n_equal != 0) {
        stays = true;
        --n_equal;
      }
    }
    if (stays) keep.v[at++] = i;
  }
}
