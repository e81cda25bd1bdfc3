#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
// x = max(x, 0)^2, or x = act(x) * up by a number of device/epilogue.h; n elements. A thread has one.
layout(constant_id = 1) const uint EPILOGUE = 5;
layout(push_constant) uniform P {
  uint64_t x, up;
  uint n;
} p;
void main() {
  const uint64_t i = uint64_t(item()) * threads() + me();
  if (i >= p.n) return;
  F32 x = F32(p.x + i * 4);
  const float v = x.v[0];
  if (EPILOGUE == 5) {
    x.v[0] = square(v);
    return;
  }
  const float up = F32(p.up + i * 4).v[0];
  x.v[0] = EPILOGUE == 2 ? silu(v) * up : EPILOGUE == 3 ? gelu(v) * up : clamped(v, up);
}
