// SPDX-License-Identifier: MIT
// One-lane vectors in plain C++: the reference instruction set of the generic kernels (vec_math.h,
// mat_kernels.h, ...). Included by one kernel file at a time, everything has internal linkage.
// Thread rule: pure functions.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "base/half.h"
#include "kv/levels.h"

namespace sharpi::cpu {
namespace {

struct V {
  using R = float;
  static constexpr uint32_t kWidth = 1;
  static constexpr uint32_t kRowsAhead = 0;  // see vec_avx2.h

  static R zero() { return 0.0f; }
  static R set1(float x) { return x; }
  static R load(const float* p) { return *p; }
  static void store(float* p, R v) { *p = v; }
  static R load_n(const float* p, uint32_t) { return *p; }
  static void store_n(float* p, R v, uint32_t) { *p = v; }
  static R load_i8(const int8_t* p) { return static_cast<float>(*p); }
  static R load_bf16(const uint16_t* p) { return f32_from_bf16(*p); }
  /// W levels of q4 from element e on, of codes that begin at p; e: a multiple of W.
  static R load_levels(const uint8_t* p, uint64_t e) {
    return static_cast<float>(kQ4Levels[p[e / 2] >> e % 2 * 4 & 15]);
  }
  static uint16_t half(float x) { return f16_from_f32(x); }
  static void halves(const uint16_t* p, uint32_t n, float* out) {
    for (uint32_t i = 0; i < n; ++i) out[i] = f32_from_f16(p[i]);
  }

  static R add(R a, R b) { return a + b; }
  static R sub(R a, R b) { return a - b; }
  static R mul(R a, R b) { return a * b; }
  static R div(R a, R b) { return a / b; }
  static R fma(R a, R b, R c) { return a * b + c; }   // a*b + c
  static R fnma(R a, R b, R c) { return c - a * b; }  // c - a*b
  static R max(R a, R b) { return a > b ? a : b; }    // b when one is NaN, as the hardware's
  static R min(R a, R b) { return a < b ? a : b; }
  static R abs(R a) { return std::bit_cast<float>(std::bit_cast<uint32_t>(a) & 0x7FFFFFFFu); }
  static R copysign(R magnitude, R sign) {
    return std::bit_cast<float>((std::bit_cast<uint32_t>(magnitude) & 0x7FFFFFFFu) |
                                (std::bit_cast<uint32_t>(sign) & 0x80000000u));
  }
  static R select_lt(R a, R b, R yes, R no) { return a < b ? yes : no; }
  /// Nearest integer, ties to even; |a| < 2^22.
  static R round(R a) { return (a + 12582912.0f) - 12582912.0f; }
  /// a * 2^n for integral |n| <= 252, rounded once into the subnormals.
  static R scale2(R a, R n) {
    if (!(n == n)) return n;
    const auto i = static_cast<int32_t>(n);
    const int32_t low = i / 2;
    return a * pow2(low) * pow2(i - low);
  }
  static float sum(R a) { return a; }
  /// The Hadamard transform of the lanes, neighbours first.
  static R hadamard(R a) { return a; }
  static float max_of(R a) { return a; }
  /// Lane i of the result is the sum of v[i], every lane in the same order of additions.
  static R sum_each(R* v) { return v[0]; }
  static R max_each(R* v) { return v[0]; }
  static float first(R a) { return a; }
  static bool all_equal(R a, R b) { return a == b; }

 private:
  static float pow2(int32_t e) {
    return std::bit_cast<float>(static_cast<uint32_t>(e + 127) << 23);
  }
};

}  // namespace
}  // namespace sharpi::cpu
