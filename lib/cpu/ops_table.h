// SPDX-License-Identifier: MIT
// The row operations of one instruction set as plain functions; cpu/kernel_set.h says which table
// is whose. Kernel files are compiled with flags the rest of the library must not see, so only
// declarations here. Owner: static tables. Thread rule: immutable.
#pragma once

#include <cstdint>

namespace sharpi::cpu {

struct OpsTable {
  void (*rms_norm)(const float* x, const float* w, float eps, uint64_t n, float* y);
  void (*layer_norm)(const float* x, const float* w, const float* b, float eps, uint64_t n,
                     float* y);
  void (*rope_halves)(float* x, uint32_t n_heads, uint32_t head_dim, uint32_t n_half,
                      const float* cos, const float* sin);
  void (*rope_neighbours)(float* x, uint32_t n_heads, uint32_t head_dim, uint32_t n_half,
                          const float* cos, const float* sin);
  void (*add)(float* y, const float* x, uint64_t n);
  void (*scale)(float* y, float s, uint64_t n);
  void (*add_scaled)(float* y, const float* x, float s, uint64_t n);
  void (*swiglu)(const float* gate, const float* up, uint64_t n, float* y);
  void (*geglu)(const float* gate, const float* up, uint64_t n, float* y);
  void (*swiglu_clamped)(const float* gate, const float* up, uint64_t n, float* y);
  void (*gelu)(float* y, const float* bias, uint64_t n);
  void (*relu_squared)(float* y, const float* bias, uint64_t n);
  void (*sigmoid)(float* x, uint64_t n);
  void (*sigmoid_gate)(float* y, const float* gate, uint64_t n);
  void (*silu_gate)(float* y, const float* gate, uint64_t n);
  void (*softcap)(float* y, float cap, uint64_t n);
  void (*softmax)(float* x, uint64_t n);
  float (*dot)(const float* a, const float* b, uint64_t n);
  // Scoring. tile_dots: out[term][slot] = scale * q[term] . column[slot] for kTileTerms vectors of
  // d elements and columns[d][kTileSlots].
  void (*tile_dots)(const float* const* q, const float* columns, uint64_t d, float scale,
                    float* out);
  // sums[slot] += |q[term] . column[slot]|, term after term, of the same.
  void (*tile_magnitudes)(const float* const* q, const float* columns, uint64_t d, float* sums);
  // *high = max(*high, max(x)), x = exp(x - *high); the sum of x.
  float (*exp_sum)(float* x, uint64_t n, float* high);
  // p = exp(x - shift) * scale; sum += p, top = max(top, p * weight).
  void (*add_mass)(const float* x, uint64_t n, float shift, float scale, float weight, float* sum,
                   float* top);
  // Rows of the codec q4: kv/rotation.h over n elements, b together; n elements to a stored row.
  void (*rotate)(float* x, uint64_t n, uint32_t b);
  void (*unrotate)(float* x, uint64_t n, uint32_t b);
  void (*encode_q4)(const float* x, uint64_t n, uint8_t* row);
};
inline constexpr uint32_t kTileTerms = 4, kTileSlots = 64;

}  // namespace sharpi::cpu
