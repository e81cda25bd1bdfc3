// SPDX-License-Identifier: MIT
// Products of quantised weights with many rows in 16 bits (halves.comp), by cooperative matrices. Eight subgroups make
// 8 M outputs (two matrices: half of that of each) of 2 ROW_MATRICES N rows, from 64 elements at a time; each has 2 M
// outputs and ROW_MATRICES N rows. Which rows and weights, and what becomes of a sum, says who includes this.
const uint kOutputs = 8 * M, kRows = 2 * ROW_MATRICES * N, kDeep = 64;
const uint kStride = kDeep + 8;  // halves; apart from each other in shared memory's banks
shared f16vec4 weights[kOutputs * kStride / 4], rows[kRows * kStride / 4];
shared float results[8 * M * N];
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
// Output of row `at` of the tile: M of the first matrix, then the same of the second.
uint output_of(uint from, uint at) { return from + (kGates ? at / (2 * M) * M + at % M : at); }
layout(buffer_reference, std430, buffer_reference_align = 8) buffer F16x4 { f16vec4 v[]; };
// What a thread brings of the next elements: units of weights, and fours of rows.
const uint kUnits = (kOutputs * 2 + gl_WorkGroupSize.x - 1) / gl_WorkGroupSize.x,
           kRowFours = (kRows * kDeep / 4 + gl_WorkGroupSize.x - 1) / gl_WorkGroupSize.x;
Unit units[kUnits];
f16vec4 fours[kRowFours];
bool is_up(uint i) { return kGates && i / 2 / M % 2 != 0; }
void fetch_all(uint from, uint k) {
  [[unroll]] for (uint n = 0; n < kUnits; ++n) {
    const uint i = n * threads() + me(), j = min(output_of(from, i / 2), p.n_out - 1), run = k / 32 + i % 2;
    if (i >= kOutputs * 2) continue;
    units[n] = fetch(TYPE, (is_up(i) ? tile.up : tile.w) + uint64_t(j) * p.row_bytes, run);
  }
  [[unroll]] for (uint n = 0; n < kRowFours; ++n) {
    const uint i = n * threads() + me(), r = min(tile.first + i / (kDeep / 4), tile.end - 1);
    fours[n] = F16x4(p.x + (uint64_t(row_of(r)) * p.n_in + k) * 2).v[i % (kDeep / 4)];
  }
}
void put_all() {
  [[unroll]] for (uint n = 0; n < kUnits; ++n) {
    const uint i = n * threads() + me();
    if (i >= kOutputs * 2) continue;
    put_half(i / 2, units[n].first % kDeep, units[n].low, units[n].scale.x, units[n].least.x, has_signs(TYPE));
    put_half(i / 2, units[n].second % kDeep, units[n].high, units[n].scale.y, units[n].least.y, has_signs(TYPE));
  }
  [[unroll]] for (uint n = 0; n < kRowFours; ++n) {
    const uint i = n * threads() + me();
    if (i < kRows * kDeep / 4) rows[i / (kDeep / 4) * (kStride / 4) + i % (kDeep / 4)] = fours[n];
  }
}
#define SUM coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>
// N rows and M outputs through shared memory, a column after the other.
void put_matrix(uint results_at, uint output_at, uint row_at, SUM got, SUM up) {
  const uint64_t scales = p.x + uint64_t(n_x_rows()) * p.n_in * 2;
  const uint each = M * N / gl_SubgroupSize;  // at most 16
  float gate[16];
  coopMatStore(got, results, results_at, M, gl_CooperativeMatrixLayoutColumnMajor);
  subgroupMemoryBarrierShared();
  subgroupBarrier();
  [[unroll]] for (uint i = 0; i < 16; ++i) {
    if (i < each) gate[i] = results[results_at + i * gl_SubgroupSize + gl_SubgroupInvocationID];
  }
  if (kGates) {
    subgroupBarrier();
    coopMatStore(up, results, results_at, M, gl_CooperativeMatrixLayoutColumnMajor);
    subgroupMemoryBarrierShared();
    subgroupBarrier();
  }
  [[unroll]] for (uint i = 0; i < 16; ++i) {
    const uint e = i * gl_SubgroupSize + gl_SubgroupInvocationID, j = output_at + e % M, r = row_at + e / M;
    if (i >= each || j >= p.n_out || r >= tile.end) continue;
    const float scale = F32(scales).v[row_of(r)] / kLarger;
    put(r, j, gate[i] * scale, kGates ? results[results_at + e] * scale : 0.0);
  }
  subgroupBarrier();
}
void main() {
  const uint from = item() * (kGates ? kOutputs / 2 : kOutputs);
  if (from >= p.n_out || !find_tile(kRows)) return;
  const uint group = me() / gl_SubgroupSize, my_outputs = group % 4 * 2 * M, my_rows = group / 4 * ROW_MATRICES * N;
  SUM sums[2][ROW_MATRICES];
  [[unroll]] for (uint f = 0; f < 2; ++f) {
    [[unroll]] for (uint g = 0; g < ROW_MATRICES; ++g) sums[f][g] = SUM(0.0);
  }
  fetch_all(from, 0);
  for (uint k = 0; k < p.n_in; k += kDeep) {
    put_all();
    barrier();
    if (k + kDeep < p.n_in) fetch_all(from, k + kDeep);
    [[unroll]] for (uint d = 0; d < kDeep; d += K) {
      coopmat<float16_t, gl_ScopeSubgroup, M, K, gl_MatrixUseA> a[2];
      coopmat<float16_t, gl_ScopeSubgroup, K, N, gl_MatrixUseB> b;
      [[unroll]] for (uint f = 0; f < 2; ++f)
        coopMatLoad(a[f], weights, ((my_outputs + M * f) * kStride + d) / 4, kStride / 4, gl_CooperativeMatrixLayoutRowMajor);
      [[unroll]] for (uint g = 0; g < ROW_MATRICES; ++g) {
        coopMatLoad(b, rows, ((my_rows + N * g) * kStride + d) / 4, kStride / 4, gl_CooperativeMatrixLayoutColumnMajor);
        [[unroll]] for (uint f = 0; f < 2; ++f) sums[f][g] = coopMatMulAdd(a[f], b, sums[f][g]);
      }
    }
    barrier();
  }
  [[unroll]] for (uint g = 0; g < ROW_MATRICES; ++g) {
    [[unroll]] for (uint f = 0; f < 2; ++f) {
      if (!kGates || f == 0)
        put_matrix(group * M * N, output_of(from, my_outputs + M * f), tile.first + my_rows + N * g, sums[f][g], sums[1][g]);
    }
  }
}
