#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
// The k best of each row of logits, one after the other: the largest below the last one, equal ones
// by id. A workgroup has a row.
layout(push_constant) uniform P {
  uint64_t logits, allowed, values, ids;
  uint n_rows, n_vocab, k, n_words;
} p;
shared float best_values[256];
shared uint best_ids[256];
void main() {
  const float kLowest = uintBitsToFloat(0xFF800000u);
  const uint r = item();
  if (r >= p.n_rows) return;
  F32 x = F32(p.logits + uint64_t(r) * p.n_vocab * 4);
  float last = 0.0;
  uint last_id = 0;
  for (uint i = 0; i < p.k; ++i) {
    float best = kLowest;
    uint id = 0xFFFFFFFFu;
    for (uint t = me(); t < p.n_vocab; t += threads()) {
      const bool may = p.allowed == 0 ||
                       (t / 32 < p.n_words && (U32(p.allowed).v[t / 32] >> (t % 32) & 1u) != 0);
      float v = may ? x.v[t] : kLowest;
      if ((floatBitsToUint(v) & 0x7FFFFFFFu) > 0x7F800000u) v = kLowest;
      if (i != 0 && !(v < last || (v == last && t > last_id))) continue;
      if (id == 0xFFFFFFFFu || v > best) {
        best = v;
        id = t;
      }
    }
    barrier();
    best_values[me()] = best;
    best_ids[me()] = id;
    barrier();
    for (uint t = 0; t < threads(); ++t) {
      const float v = best_values[t];
      const uint other = best_ids[t];
      if (other == 0xFFFFFFFFu) continue;
      if (id == 0xFFFFFFFFu || v > best || (v == best && other < id)) {
        best = v;
        id = other;
      }
    }
    last = best;
    last_id = id;
    if (me() == 0) {
      F32(p.values).v[r * p.k + i] = best;
      I32(p.ids).v[r * p.k + i] = int(id);
    }
  }
}
