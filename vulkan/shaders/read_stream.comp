#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
// Reads 64 KiB a workgroup, for the measurement of the memory's rate.
layout(push_constant) uniform P {
  uint64_t data, sink;
  uint n;  // of 64 KiB
} p;
void main() {
  if (item() >= p.n) return;
  const uint64_t at = p.data + uint64_t(item()) * 65536;
  uvec4 all = uvec4(0);
  for (uint i = me(); i < 4096; i += 8 * threads()) {
    EIGHT(j, 0, all ^= U32x4(at).v[min(i + j * threads(), 4095)];)
  }
  // Practically never: what was read must be used.
  if ((all.x ^ all.y ^ all.z ^ all.w) == 0x9E3779B9u) U32(p.sink).v[0] = all.x;
}
