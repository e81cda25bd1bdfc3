#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
// The k best of each row of logits, one after the other: the largest below the last one, equal ones
// by id. A workgroup has a row. A thread reads every n-th logit and shows the best of those; only the one
// whose logit was taken looks for its next.
layout(push_constant) uniform P {
  uint64_t logits, allowed, values, ids;
  uint n_rows, n_vocab, k, n_words;
} p;
const uint kNone = 0xFFFFFFFFu;
shared float best_values[256];
shared uint best_ids[256];
// Whether logit v of id comes before logit w of id `other`.
bool before(float v, uint id, float w, uint other) {
  return id != kNone && (other == kNone || v > w || (v == w && id < other));
}
// Of this thread's logits the first behind (last, last_id); behind none of them with last_id == kNone.
void look(F32 x, float last, uint last_id, out float best, out uint id) {
  const float kLowest = uintBitsToFloat(0xFF800000u);
  best = kLowest;
  id = kNone;
  for (uint from = me(); from < p.n_vocab; from += 8 * threads()) {
    EIGHT(i, 0, {
      const uint t = from + i * threads();
      if (t < p.n_vocab) {
        const bool may = !HAS(allowed, 1) || (t / 32 < p.n_words &&
                                            (U32(p.allowed).v[t / 32] >> (t % 32) & 1u) != 0);
        float v = may ? x.v[t] : kLowest;
        if ((floatBitsToUint(v) & 0x7FFFFFFFu) > 0x7F800000u) v = kLowest;
        if ((last_id == kNone || before(last, last_id, v, t)) && before(v, t, best, id)) {
          best = v;
          id = t;
        }
      }
    })
  }
}
void main() {
  const uint r = item();
  if (r >= p.n_rows) return;
  F32 x = F32(p.logits + uint64_t(r) * p.n_vocab * 4);
  float mine;
  uint my_id;
  look(x, 0.0, kNone, mine, my_id);
  for (uint i = 0; i < p.k; ++i) {
    best_values[me()] = mine;
    best_ids[me()] = my_id;
    barrier();
    for (uint apart = threads() / 2; apart > 0; apart /= 2) {
      if (me() < apart && before(best_values[me() + apart], best_ids[me() + apart], best_values[me()],
                                 best_ids[me()])) {
        best_values[me()] = best_values[me() + apart];
        best_ids[me()] = best_ids[me() + apart];
      }
      barrier();
    }
    const float best = best_values[0];
    const uint id = best_ids[0];
    barrier();
    if (me() == 0) {
      F32(p.values).v[r * p.k + i] = best;
      I32(p.ids).v[r * p.k + i] = int(id);
    }
    if (id == my_id && id != kNone) look(x, best, id, mine, my_id);
  }
}
