#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
// What rows count at their position in any layer and head. TAKES 0: shared[position] = max(shared,
// term); 1: term = max(term, shared[position]). A workgroup has as many rows as threads. Terms are
// not negative, so that their bits order like they do.
layout(constant_id = 1) const uint TAKES = 0;
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Shared { uint v[]; };
layout(push_constant) uniform P {
  uint64_t terms, lists, shared_hits;
  uint n_heads, n_slots, stride, n_compacted, tail_position;
} p;
void main() {
  const uint i = item() * threads() + me();
  if (i >= p.n_heads * p.n_slots) return;
  const uint h = i / p.n_slots, slot = i % p.n_slots;
  const uint at = slot >= p.n_compacted ? p.tail_position + (slot - p.n_compacted)
                                        : U32(p.lists).v[h * p.stride + slot];
  if (at == 0xFFFFFFFFu) return;  // no row
  const float term = F32(p.terms).v[i];
  if (TAKES == 0) {
    atomicMax(Shared(p.shared_hits).v[at], floatBitsToUint(term + 0.0));
  } else {
    F32(p.terms).v[i] = max(term, F32(p.shared_hits).v[at]);
  }
}
