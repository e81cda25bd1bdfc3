#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_control_flow_attributes : require
#pragma use_vulkan_memory_model
#include "../common.glsl"
#include "../weights.glsl"
#include "../dots.glsl"
// The products of shaders/product.comp of quantised weights with many rows in 16 bits (halves.comp), by cooperative
// matrices of 16 x 16. Eight subgroups make 128 rows times 128 outputs (two matrices: times 64 of each), from 64
// elements at a time; each has 32 outputs and 64 rows.
layout(constant_id = 1) const int TYPE = 12;
layout(constant_id = 2) const int TYPE_UP = 12;  // TYPE
#include "../product.glsl"
const uint kSide = 128, kDeep = 64, kStride = kDeep + 8;  // halves; apart from each other in shared memory's banks
shared f16vec4 weights[kSide * kStride / 4], rows[kSide * kStride / 4];
shared float results[8 * 256];
// Four bytes as halves, in the order 0, 2, 1, 3 (as halves.comp has rows): behind the bits of 1024 in a half a byte is
// 1024 and itself. Scales are kLarger times what they are, for halves are exact to 2^-24 only.
const float kLarger = 256.0;
f16vec4 four_halves(uint w, float16_t scale, float16_t least, bool is_signed) {
  if (is_signed) w ^= 0x80808080u;
  const f16vec2 zero = f16vec2(is_signed ? 1152.0 : 1024.0);
  const f16vec2 a = unpackFloat2x16(w & 0x00FF00FFu | 0x64006400u) - zero,
                b = unpackFloat2x16(w >> 8 & 0x00FF00FFu | 0x64006400u) - zero;
  return f16vec4(a * scale - least, b * scale - least);
}
// Sixteen elements of a unit to row `at` of the tile, from element `from` on.
void put_half(uint at, uint from, uvec4 bytes, float unit_scale, float unit_least, bool is_signed) {
  const float16_t scale = float16_t(kLarger * unit_scale), least = float16_t(kLarger * unit_least);
  const uint to = (at * kStride + from) / 4;
  weights[to] = four_halves(bytes.x, scale, least, is_signed);
  weights[to + 1] = four_halves(bytes.y, scale, least, is_signed);
  weights[to + 2] = four_halves(bytes.z, scale, least, is_signed);
  weights[to + 3] = four_halves(bytes.w, scale, least, is_signed);
}
bool has_signs(int type) { return type == kQ8_0 || type == kIQ4_NL || type == kIQ4_XS || type == kMXFP4; }
// Where Q6_K's units reach over 128 elements: a run of 32 of them instead.
Unit k6_run(uint64_t b, uint in256, uint run) {
  const uint n = in256 / 4, quarter = in256 % 4;
  const uint64_t at = b + n * 64 + quarter % 2 * 32, high = b + 128 + n * 32;
  const uint shift = quarter / 2 * 4;
  Unit u;
  u.low = words_at(at) >> shift & kLow4 | (words_at(high) >> 2 * quarter & kBits2) << 4;
  u.high = words_at(at + 16) >> shift & kLow4 | (words_at(high + 16) >> 2 * quarter & kBits2) << 4;
  u.first = run * 32;
  u.second = u.first + 16;
  const uint64_t scales = b + 192 + n * 8 + quarter * 2;
  u.scale = half_at(b + 208) * vec2(sbyte_at(scales, 0), sbyte_at(scales, 1));
  u.least = 32.0 * u.scale;
  return u;
}
Unit fetch(int type, uint64_t row, uint run) {
  if (type == kQ6_K) return k6_run(row + run / 8 * 210, run % 8, run);
  return unit_of(type, row, run);
}
// Output of row `at` of the tile: sixteen of the first matrix, then the same of the second.
uint output_of(uint from, uint at) { return from + (kGates ? at / 32 * 16 + at % 16 : at); }
layout(buffer_reference, std430, buffer_reference_align = 8) buffer F16x4 { f16vec4 v[]; };
// What a thread brings of the next elements: units of weights, and fours of rows.
const uint kUnits = kSide * 2 / gl_WorkGroupSize.x < 1 ? 1 : kSide * 2 / gl_WorkGroupSize.x,
           kRowFours = kSide * kDeep / 4 / gl_WorkGroupSize.x;
Unit units[kUnits];
f16vec4 fours[kRowFours];
bool is_up(uint i) { return kGates && i / 2 / 16 % 2 != 0; }
void fetch_all(uint from, uint first, uint k) {
  [[unroll]] for (uint n = 0; n < kUnits; ++n) {
    const uint i = n * threads() + me(), j = min(output_of(from, i / 2), p.n_out - 1), run = k / 32 + i % 2;
    if (i >= kSide * 2) continue;
    units[n] = fetch(TYPE, (is_up(i) ? p.up : p.w) + uint64_t(j) * p.row_bytes, run);
  }
  [[unroll]] for (uint n = 0; n < kRowFours; ++n) {
    const uint i = n * threads() + me(), r = min(first + i / (kDeep / 4), p.n_rows - 1);
    fours[n] = F16x4(p.x + (uint64_t(r) * p.n_in + k) * 2).v[i % (kDeep / 4)];
  }
}
void put_all() {
  [[unroll]] for (uint n = 0; n < kUnits; ++n) {
    const uint i = n * threads() + me();
    if (i >= kSide * 2) continue;
    put_half(i / 2, units[n].first % kDeep, units[n].low, units[n].scale.x, units[n].least.x, has_signs(TYPE));
    put_half(i / 2, units[n].second % kDeep, units[n].high, units[n].scale.y, units[n].least.y, has_signs(TYPE));
  }
  [[unroll]] for (uint n = 0; n < kRowFours; ++n) {
    const uint i = n * threads() + me();
    rows[i / (kDeep / 4) * (kStride / 4) + i % (kDeep / 4)] = fours[n];
  }
}
#define SUM coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>
// 16 rows and 16 outputs through shared memory, a column after the other.
void put_sixteen(uint results_at, uint output_at, uint row_at, SUM got, SUM up) {
  const uint64_t scales = p.x + uint64_t(p.n_rows) * p.n_in * 2;
  const uint each = 256 / gl_SubgroupSize;
  float gate[16];
  coopMatStore(got, results, results_at, 16, gl_CooperativeMatrixLayoutColumnMajor);
  subgroupMemoryBarrierShared();
  subgroupBarrier();
  [[unroll]] for (uint i = 0; i < 16; ++i) {
    if (i < each) gate[i] = results[results_at + i * gl_SubgroupSize + gl_SubgroupInvocationID];
  }
  if (kGates) {
    subgroupBarrier();
    coopMatStore(up, results, results_at, 16, gl_CooperativeMatrixLayoutColumnMajor);
    subgroupMemoryBarrierShared();
    subgroupBarrier();
  }
  [[unroll]] for (uint i = 0; i < 16; ++i) {
    const uint e = i * gl_SubgroupSize + gl_SubgroupInvocationID, j = output_at + e % 16, r = row_at + e / 16;
    if (i >= each || j >= p.n_out || r >= p.n_rows) continue;
    const float scale = F32(scales).v[r] / kLarger;
    put(r, j, gate[i] * scale, kGates ? results[results_at + e] * scale : 0.0);
  }
  subgroupBarrier();
}
void main() {
  const uint from = item() * (kGates ? kSide / 2 : kSide), first = gl_WorkGroupID.z * kSide;
  if (from >= p.n_out) return;
  const uint group = me() / gl_SubgroupSize, my_outputs = group % 4 * 32, my_rows = group / 4 * 64;
  SUM sums[2][4];
  [[unroll]] for (uint f = 0; f < 2; ++f) {
    [[unroll]] for (uint g = 0; g < 4; ++g) sums[f][g] = SUM(0.0);
  }
  fetch_all(from, first, 0);
  for (uint k = 0; k < p.n_in; k += kDeep) {
    put_all();
    barrier();
    if (k + kDeep < p.n_in) fetch_all(from, first, k + kDeep);
    [[unroll]] for (uint d = 0; d < kDeep; d += 16) {
      coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA> a[2];
      coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB> b;
      [[unroll]] for (uint f = 0; f < 2; ++f)
        coopMatLoad(a[f], weights, ((my_outputs + 16 * f) * kStride + d) / 4, kStride / 4, gl_CooperativeMatrixLayoutRowMajor);
      [[unroll]] for (uint g = 0; g < 4; ++g) {
        coopMatLoad(b, rows, ((my_rows + 16 * g) * kStride + d) / 4, kStride / 4, gl_CooperativeMatrixLayoutColumnMajor);
        [[unroll]] for (uint f = 0; f < 2; ++f) sums[f][g] = coopMatMulAdd(a[f], b, sums[f][g]);
      }
    }
    barrier();
  }
  [[unroll]] for (uint g = 0; g < 4; ++g) {
    [[unroll]] for (uint f = 0; f < 2; ++f) {
      if (!kGates || f == 0)
        put_sixteen(group * 256, output_of(from, my_outputs + 16 * f), first + my_rows + 16 * g, sums[f][g], sums[1][g]);
    }
  }
}
