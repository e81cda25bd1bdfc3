#version 460
// SPDX-License-Identifier: MIT
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "weights.glsl"
#include "dots.glsl"
// The products of shaders/product.comp of quantised weights with rows in 8 bits. A workgroup has OUTPUTS outputs, which
// share what is read of the rows, and ROWS rows; a thread every n-th run of 32 elements.
layout(constant_id = 1) const int TYPE = 12;
layout(constant_id = 2) const int TYPE_UP = 12;
layout(constant_id = 4) const int ROWS = 1;
layout(constant_id = 5) const int OUTPUTS = 1;
#include "product.glsl"
const int kMatrices = kGates ? 2 : 1, kUnits = OUTPUTS * kMatrices, kSums = ROWS * kUnits;
float sums[kSums];
shared float parts[64 * kSums];
void main() {
  const uint from = item() * OUTPUTS, first = gl_WorkGroupID.z * ROWS;
  if (from >= p.n_out) return;
  const uint64_t scales = p.x + uint64_t(p.n_rows) * p.n_in;
  for (int i = 0; i < kSums; ++i) sums[i] = 0.0;
  for (uint run = me(); run < p.n_in / 32; run += threads()) {
    Unit units[kUnits];
    for (int o = 0; o < OUTPUTS; ++o) {
      const uint j = min(from + o, p.n_out - 1);
      units[o * kMatrices] = unit_of(TYPE, p.w + uint64_t(j) * p.row_bytes, run);
      if (kGates) units[o * kMatrices + 1] = unit_of(TYPE_UP, p.up + uint64_t(j) * p.up_row_bytes, run);
    }
    for (int r = 0; r < ROWS; ++r) {
      const uint64_t row = min(first + r, p.n_rows - 1), x = p.x + row * p.n_in, at = scales + row * p.n_in / 2;
      const Piece of_row = piece_of(units[0], x, at);
      for (int o = 0; o < OUTPUTS; ++o) {
        sums[r * kUnits + o * kMatrices] += product_of(units[o * kMatrices], of_row);
        if (!kGates) continue;
        const Unit up = units[o * kMatrices + kMatrices - 1];
        if (TYPE_UP == TYPE) sums[r * kUnits + o * kMatrices + kMatrices - 1] += product_of(up, of_row);
        else sums[r * kUnits + o * kMatrices + kMatrices - 1] += product_of(up, piece_of(up, x, at));
      }
    }
  }
  for (int i = 0; i < kSums; ++i) {
    const float of_group = subgroupAdd(sums[i]);
    if (subgroupElect()) parts[gl_SubgroupID * kSums + i] = of_group;
  }
  barrier();
  for (uint i = me(); i < ROWS * OUTPUTS; i += threads()) {
    const uint r = first + i / OUTPUTS, j = from + i % OUTPUTS;
    if (r >= p.n_rows || j >= p.n_out) continue;
    float got = 0.0, up = 0.0;
    for (uint g = 0; g < gl_NumSubgroups; ++g) {
      got += parts[g * kSums + i * kMatrices];
      if (kGates) up += parts[g * kSums + i * kMatrices + 1];
    }
    put(r, j, got, up);
  }
}
