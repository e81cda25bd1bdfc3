// SPDX-License-Identifier: MIT
// What the kernels of delta nets and of Mamba-2 share over the vectors V: the short convolution in
// front of a recurrence, and small sums. Thread rule: pure functions with internal linkage.
#pragma once

#include <cstdint>

#include "cpu/generic/vec_math.h"
#include "cpu/short_conv.h"

namespace sharpi::cpu {
namespace {

constexpr uint32_t kW = V::kWidth;
inline float exp1(float x) {
  return V::max_of(vexp(V::set1(x)));
}

inline float dot_rows(const float* a, const float* b, uint32_t n) {
  V::R s = V::zero();
  for (uint32_t i = 0; i < n; i += kW) s = V::fma(V::load(a + i), V::load(b + i), s);
  return V::sum(s);
}

inline void normalize_row(float* x, uint32_t dim, float eps, float scale) {
  const float norm = __builtin_sqrtf(dot_rows(x, x, dim));
  const V::R f = V::set1(scale / (norm > eps ? norm : eps));
  for (uint32_t i = 0; i < dim; i += kW) V::store(x + i, V::mul(V::load(x + i), f));
}

void conv(const ShortConv& a) {
  const uint32_t n_tail = a.kernel - 1;
  float* taps = a.work;                               // [kernel][dim]
  float* tail = a.work + uint64_t{a.kernel} * a.dim;  // [kernel - 1][dim]
  for (uint32_t i = 0; i < a.kernel; ++i) {
    for (uint32_t c = 0; c < a.dim; ++c) taps[i * a.dim + c] = a.taps[uint64_t{c} * a.kernel + i];
  }
  // Row `at - n_tail` of the stored rows followed by the new ones.
  const auto raw = [&](uint64_t at) -> const float* {
    return at < n_tail ? a.tail_in + at * a.tail_stride : a.x + (at - n_tail) * a.x_stride;
  };
  for (uint32_t i = 0; i < n_tail; ++i) {
    const float* from = raw(uint64_t{a.n_rows} + i);
    for (uint32_t c = 0; c < a.dim; ++c) tail[i * a.dim + c] = from[c];
  }
  // Newest row first: a row is overwritten after its last use as an older neighbour.
  for (uint32_t t = a.n_rows; t-- > 0;) {
    float* x = a.x + t * a.x_stride;
    for (uint32_t c = 0; c < a.dim; c += kW) {
      V::R y = a.bias == nullptr ? V::zero() : V::load(a.bias + c);
      for (uint32_t i = 0; i < a.kernel; ++i) {
        y = V::fma(V::load(taps + i * a.dim + c), V::load(raw(uint64_t{t} + i) + c), y);
      }
      V::store(x + c, vsilu(y));
    }
    if (a.normalize) normalize_row(x, a.dim, a.eps, a.norm_scale);
  }
  for (uint32_t i = 0; i < n_tail && a.tail_out != nullptr; ++i) {
    for (uint32_t c = 0; c < a.dim; ++c) a.tail_out[i * a.tail_stride + c] = tail[i * a.dim + c];
  }
}

}  // namespace
}  // namespace sharpi::cpu
