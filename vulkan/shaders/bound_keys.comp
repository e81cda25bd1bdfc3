#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "memory.glsl"
// Keys that come to a block of an archive widen its bounds (device::KeyBoundsJob). A workgroup has a job.
layout(constant_id = 1) const uint K_CODEC = 1;
layout(constant_id = 2) const uint ROTATED = 0;
layout(constant_id = 3) const uint DIM = 128;
struct Job {
  uint64_t keys, bounds;
  uint row_bytes, n, begins, reserved;
};
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Jobs { Job v[]; };
layout(push_constant) uniform P {
  uint64_t jobs, pages;
  uint n_jobs;
} p;
shared float head[1024];
#include "rotation.glsl"
// The nearest bf16 that is at least (`up`) or at most x.
uint16_t beyond(float x, bool up) {
  const uint u = floatBitsToUint(x);
  return uint16_t((u >> 16) + ((u & 0xFFFFu) != 0 && (x > 0.0) == up ? 1 : 0));
}
void main() {
  if (item() >= p.n_jobs) return;
  const Job j = Jobs(p.jobs).v[item()];
  U16 low = U16(j.bounds), high = U16(j.bounds + DIM * 2);
  for (uint i = 0; i < j.n; ++i) {
    const Stored k = stored(p.pages, j.keys + uint64_t(i) * j.row_bytes);
    barrier();
    for (uint d = me(); d < DIM; d += threads()) head[d] = stored_at(p.pages, k, K_CODEC, DIM, d);
    barrier();
    unrotate_head(DIM, ROTATED);
    const bool begins = i == 0 && j.begins != 0;
    for (uint d = me(); d < DIM; d += threads()) {
      if (begins || head[d] < bf16_at(j.bounds, d)) low.v[d] = beyond(head[d], false);
      if (begins || head[d] > bf16_at(j.bounds + DIM * 2, d)) high.v[d] = beyond(head[d], true);
    }
  }
}
