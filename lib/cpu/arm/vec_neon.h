// SPDX-License-Identifier: MIT
// Eight-lane vectors, two registers of NEON each, for the generic kernels: there are 32 registers,
// so that a kernel has as many vectors as with sixteen of eight lanes, and sums have the order of
// AVX2. Included by one kernel file at a time; everything has internal linkage. Thread rule: pure
// functions.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "kv/levels.h"

namespace sharpi::cpu {
namespace {

struct V {
  struct R {
    float32x4_t low, high;
  };
  static constexpr uint32_t kWidth = 8;
  static constexpr uint32_t kRowsAhead = 0;  // see vec_avx2.h; not measured

  static R zero() { return set1(0.0f); }
  static R set1(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
  static R load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
  static void store(float* p, R v) {
    vst1q_f32(p, v.low);
    vst1q_f32(p + 4, v.high);
  }
  static R load_n(const float* p, uint32_t n) {
    float lanes[kWidth] = {};
    for (uint32_t i = 0; i < n; ++i) lanes[i] = p[i];
    return load(lanes);
  }
  static void store_n(float* p, R v, uint32_t n) {
    float lanes[kWidth];
    store(lanes, v);
    for (uint32_t i = 0; i < n; ++i) p[i] = lanes[i];
  }
  static R load_i8(const int8_t* p) { return floats(vmovl_s8(vld1_s8(p))); }
  static void load_32_i8(const int8_t* p, R out[4]) {
    for (int i = 0; i < 2; ++i) floats_of_16(vld1q_s8(p + 16 * i), out + 2 * i);
  }
  static R load_bf16(const uint16_t* p) {
    const uint16x8_t h = vld1q_u16(p);
    return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(h), 16)),
            vreinterpretq_f32_u32(vshll_high_n_u16(h, 16))};
  }
  /// W levels of q4 from element e on, of codes that begin at p; e: a multiple of W.
  static R load_levels(const uint8_t* p, uint64_t e) {
    uint32_t word;
    __builtin_memcpy(&word, p + e / 2, sizeof word);
    const uint8x8_t bytes = vreinterpret_u8_u32(vdup_n_u32(word));
    const uint8x8_t codes = vzip1_u8(vand_u8(bytes, vdup_n_u8(15)), vshr_n_u8(bytes, 4));
    return floats(vmovl_s8(vqtbl1_s8(vld1q_s8(kQ4Levels), codes)));
  }
  /// 32 levels of q4 in order, of the 16 bytes of codes at p.
  static void load_32_levels(const uint8_t* p, R out[4]) {
    const uint8x16_t bytes = vld1q_u8(p);
    const uint8x16_t even = vandq_u8(bytes, vdupq_n_u8(15)), odd = vshrq_n_u8(bytes, 4);
    const int8x16_t levels = vld1q_s8(kQ4Levels);
    floats_of_16(vqtbl1q_s8(levels, vzip1q_u8(even, odd)), out);
    floats_of_16(vqtbl1q_s8(levels, vzip2q_u8(even, odd)), out + 2);
  }
  static uint16_t half(float x) {
    return vget_lane_u16(vreinterpret_u16_f16(vcvt_f16_f32(vdupq_n_f32(x))), 0);
  }
  static R set1_half(const uint16_t* p) {
    const float32x4_t v = four_halves(vld1_dup_u16(p));
    return {v, v};
  }
  static void halves(const uint16_t* p, uint32_t n, float* out) {
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4) vst1q_f32(out + i, four_halves(vld1_u16(p + i)));
    for (; i < n; ++i) out[i] = vgetq_lane_f32(four_halves(vld1_dup_u16(p + i)), 0);
  }

  static R add(R a, R b) { return {vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high)}; }
  static R sub(R a, R b) { return {vsubq_f32(a.low, b.low), vsubq_f32(a.high, b.high)}; }
  static R mul(R a, R b) { return {vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high)}; }
  static R div(R a, R b) { return {vdivq_f32(a.low, b.low), vdivq_f32(a.high, b.high)}; }
  static R fma(R a, R b, R c) {
    return {vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high)};
  }
  static R fnma(R a, R b, R c) {
    return {vfmsq_f32(c.low, a.low, b.low), vfmsq_f32(c.high, a.high, b.high)};
  }
  /// NaN when one is, where x86 has b.
  static R max(R a, R b) { return {vmaxq_f32(a.low, b.low), vmaxq_f32(a.high, b.high)}; }
  static R min(R a, R b) { return {vminq_f32(a.low, b.low), vminq_f32(a.high, b.high)}; }
  static R abs(R a) { return {vabsq_f32(a.low), vabsq_f32(a.high)}; }
  static R copysign(R magnitude, R sign) {
    const uint32x4_t m = vdupq_n_u32(0x80000000u);
    return {vbslq_f32(m, sign.low, magnitude.low), vbslq_f32(m, sign.high, magnitude.high)};
  }
  static R select_lt(R a, R b, R yes, R no) {
    return {vbslq_f32(vcltq_f32(a.low, b.low), yes.low, no.low),
            vbslq_f32(vcltq_f32(a.high, b.high), yes.high, no.high)};
  }
  static R round(R a) { return {vrndnq_f32(a.low), vrndnq_f32(a.high)}; }
  static R scale2(R a, R n) { return {scale2(a.low, n.low), scale2(a.high, n.high)}; }
  /// The additions of sum_each: lanes 4 apart, then 2, then 1.
  static float sum(R a) {
    const float32x4_t four = vaddq_f32(a.low, a.high);
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vpadds_f32(two);
  }
  /// The Hadamard transform of the lanes, neighbours first.
  static R hadamard(R a) {
    const float32x4_t low = hadamard(a.low), high = hadamard(a.high);
    return {vaddq_f32(low, high), vsubq_f32(low, high)};
  }
  static float max_of(R a) { return vmaxvq_f32(vmaxq_f32(a.low, a.high)); }
  static float first(R a) { return vgetq_lane_f32(a.low, 0); }
  static bool all_equal(R a, R b) {
    return vminvq_u32(vandq_u32(vceqq_f32(a.low, b.low), vceqq_f32(a.high, b.high))) != 0;
  }
  /// Lane i of the result is the sum of v[i], every lane in the same order of additions.
  static R sum_each(R* v) {
    return fold_each(
        v, [](float32x4_t a, float32x4_t b) { return vaddq_f32(a, b); },
        [](float32x4_t a, float32x4_t b) { return vpaddq_f32(a, b); });
  }
  static R max_each(R* v) {
    return fold_each(
        v, [](float32x4_t a, float32x4_t b) { return vmaxq_f32(a, b); },
        [](float32x4_t a, float32x4_t b) { return vpmaxq_f32(a, b); });
  }

 private:
  static float32x4_t four_halves(uint16x4_t h) { return vcvt_f32_f16(vreinterpret_f16_u16(h)); }
  static R floats(int16x8_t v) {
    return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(v))), vcvtq_f32_s32(vmovl_high_s16(v))};
  }
  static void floats_of_16(int8x16_t v, R* out) {
    out[0] = floats(vmovl_s8(vget_low_s8(v)));
    out[1] = floats(vmovl_high_s8(v));
  }
  static float32x4_t scale2(float32x4_t a, float32x4_t n) {
    const int32x4_t i = vcvtq_s32_f32(n), low = vshrq_n_s32(i, 1);
    return vmulq_f32(vmulq_f32(a, pow2(low)), pow2(vsubq_s32(i, low)));
  }
  static float32x4_t pow2(int32x4_t e) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(e, vdupq_n_s32(127)), 23));
  }
  static float32x4_t hadamard(float32x4_t a) {
    float32x4_t b = vrev64q_f32(a);
    a = vtrn1q_f32(vaddq_f32(a, b), vsubq_f32(a, b));
    b = vextq_f32(a, a, 2);
    return low_halves(vaddq_f32(a, b), vsubq_f32(a, b));
  }
  static float32x4_t low_halves(float32x4_t a, float32x4_t b) {
    return vcombine_f32(vget_low_f32(a), vget_low_f32(b));
  }
  static float32x4_t high_halves(float32x4_t a, float32x4_t b) {
    return vcombine_f32(vget_high_f32(a), vget_high_f32(b));
  }
  /// Four vectors to four lanes.
  template <class Op, class Pairs>
  static float32x4_t fold_four(const R* v, Op op, Pairs pairs) {
    float32x4_t four[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) four[i] = op(v[i].low, v[i].high);
    return pairs(op(low_halves(four[0], four[1]), high_halves(four[0], four[1])),
                 op(low_halves(four[2], four[3]), high_halves(four[2], four[3])));
  }
  template <class Op, class Pairs>
  static R fold_each(const R* v, Op op, Pairs pairs) {
    return {fold_four(v, op, pairs), fold_four(v + 4, op, pairs)};
  }
};

}  // namespace
}  // namespace sharpi::cpu
