// SPDX-License-Identifier: MIT
// What every shader begins with: memory by address, workgroups by number, sums over a workgroup.
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_8bit_storage : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require

layout(local_size_x_id = 0) in;

layout(buffer_reference, std430, buffer_reference_align = 4) buffer F32 { float v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) buffer F32x2 { vec2 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer F32x4 { vec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer U32 { uint v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) buffer U32x2 { uvec2 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer U32x4 { uvec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer I32 { int v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) buffer U64 { uint64_t v[]; };
layout(buffer_reference, std430, buffer_reference_align = 2) buffer U16 { uint16_t v[]; };
layout(buffer_reference, std430, buffer_reference_align = 1) buffer U8 { uint8_t v[]; };

// The addresses that a dispatch is not told, a bit each: constants of the pipeline, because a driver may read what is
// behind an address before it knows whether it has to. HAS(name, slot): the address of that name, which is the slot-th.
layout(constant_id = 31) const uint NULLS = 0;
#define HAS(name, slot) ((NULLS >> (slot) & 1u) == 0u)

// Where the matrices of an expert are: its entry of a table of slots, where there is one; below 0: elsewhere.
int place_of_expert(bool has_table, uint64_t table, int id) {
  return id >= 0 && has_table ? I32(table).v[id] : id;
}

// The number of a workgroup: dispatches fold more than 65535 into two directions.
uint item() { return gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x; }
uint me() { return gl_LocalInvocationID.x; }
uint threads() { return gl_WorkGroupSize.x; }

// BODY for each i below N, a constant of the pipeline, written out 32 times. lavapipe ends the loops of a thread
// once they went round 65535 times, all of them together, and nobody hears of it: loops over the elements of a
// head within loops over rows are written with this.
#define ONE(i, N, AT, BODY) { const uint i = AT; if ((N) % 32 == 0 || i < (N)) { BODY } }
#define FOUR(i, N, AT, BODY) \
  ONE(i, N, AT, BODY) ONE(i, N, AT + 1, BODY) ONE(i, N, AT + 2, BODY) ONE(i, N, AT + 3, BODY)
#define SIXTEEN(i, N, AT, BODY)                                \
  FOUR(i, N, AT, BODY) FOUR(i, N, AT + 4, BODY)                \
  FOUR(i, N, AT + 8, BODY) FOUR(i, N, AT + 12, BODY)
#define FOR_EACH(i, N, BODY)                                            \
  for (uint i##_at = 0; i##_at < (N); i##_at += 32) {                   \
    SIXTEEN(i, N, i##_at, BODY) SIXTEEN(i, N, i##_at + 16, BODY)        \
  }

uint byte_at(uint64_t a, uint i) { return uint(U8(a).v[i]); }
int sbyte_at(uint64_t a, uint i) { return int(byte_at(a, i) << 24) >> 24; }
float bf16_at(uint64_t a, uint i) { return uintBitsToFloat(uint(U16(a).v[i]) << 16); }
float half_of(uint bits) { return unpackHalf2x16(bits).x; }
// Two bytes at any address.
float half_bytes(uint64_t a, uint i) { return half_of(byte_at(a, i) | byte_at(a, i + 1) << 8); }

// BODY for each i from AT to AT + 7.
#define EIGHT(i, AT, BODY)                                                           \
  { const uint i = AT; BODY } { const uint i = AT + 1; BODY }                        \
  { const uint i = AT + 2; BODY } { const uint i = AT + 3; BODY }                    \
  { const uint i = AT + 4; BODY } { const uint i = AT + 5; BODY }                    \
  { const uint i = AT + 6; BODY } { const uint i = AT + 7; BODY }
// BODY for each i below the number of subgroups.
#define FOR_SUBGROUPS(i, BODY)                                                       \
  for (uint i##_at = 0; i##_at < gl_NumSubgroups; i##_at += 8) {                     \
    EIGHT(i, i##_at, if (i < gl_NumSubgroups) { BODY })                              \
  }

// Up to 64 subgroups; results are the same in every thread. Between two calls there is a barrier.
shared float reduced[64];
float sum_all(float x) {
  x = subgroupAdd(x);
  if (gl_NumSubgroups == 1) return x;
  barrier();
  if (subgroupElect()) reduced[gl_SubgroupID] = x;
  barrier();
  float all = 0.0;
  FOR_SUBGROUPS(i, all += reduced[i];)
  return all;
}
float max_all(float x) {
  x = subgroupMax(x);
  if (gl_NumSubgroups == 1) return x;
  barrier();
  if (subgroupElect()) reduced[gl_SubgroupID] = x;
  barrier();
  float all = reduced[0];
  FOR_SUBGROUPS(i, all = max(all, reduced[i]);)
  return all;
}

float sigmoid(float x) { return 1.0 / (1.0 + exp(-x)); }
float silu(float x) { return x * sigmoid(x); }
float tanh_of(float x) {
  const float e = exp(-2.0 * abs(x));
  const float y = (1.0 - e) / (1.0 + e);
  return x < 0.0 ? -y : y;
}
// Activation::kSwigluClamped of a gate and an up.
float clamped(float gate, float up) {
  const float g = min(gate, 7.0);
  return g / (1.0 + exp(-1.702 * g)) * (clamp(up, -7.0, 7.0) + 1.0);
}
// Activation::kReluSquared; what is no number stays so.
float square(float x) {
  const float h = x < 0.0 ? 0.0 : x;
  return h * h;
}
float gelu(float x) {
  return 0.5 * x * (1.0 + tanh_of(0.7978845608 * (x + 0.044715 * x * x * x)));
}
