// SPDX-License-Identifier: MIT
// Transposition of 16 vectors, for kernel files compiled for AVX-512: internal linkage. Thread
// rule: pure functions.
#pragma once

#include <immintrin.h>

namespace sharpi::cpu {
namespace {  // NOLINT: internal linkage keeps AVX-512 code out of other translation units

/// Transposes 16 vectors of 16 dwords.
inline void transpose(__m512i* v) {
  __m512i t[16];
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    const __m512i a = _mm512_unpacklo_epi32(v[i], v[i + 1]),
                  b = _mm512_unpackhi_epi32(v[i], v[i + 1]);
    const __m512i c = _mm512_unpacklo_epi32(v[i + 2], v[i + 3]);
    const __m512i d = _mm512_unpackhi_epi32(v[i + 2], v[i + 3]);
    t[i] = _mm512_unpacklo_epi64(a, c);
    t[i + 1] = _mm512_unpackhi_epi64(a, c);
    t[i + 2] = _mm512_unpacklo_epi64(b, d);
    t[i + 3] = _mm512_unpackhi_epi64(b, d);
  }
  // t[4g + c], lane l: column 4l + c of rows 4g..4g+3.
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512i low01 = _mm512_shuffle_i32x4(t[c], t[4 + c], 0x44);
    const __m512i high01 = _mm512_shuffle_i32x4(t[c], t[4 + c], 0xEE);
    const __m512i low23 = _mm512_shuffle_i32x4(t[8 + c], t[12 + c], 0x44);
    const __m512i high23 = _mm512_shuffle_i32x4(t[8 + c], t[12 + c], 0xEE);
    v[c] = _mm512_shuffle_i32x4(low01, low23, 0x88);
    v[4 + c] = _mm512_shuffle_i32x4(low01, low23, 0xDD);
    v[8 + c] = _mm512_shuffle_i32x4(high01, high23, 0x88);
    v[12 + c] = _mm512_shuffle_i32x4(high01, high23, 0xDD);
  }
}

}  // namespace
}  // namespace sharpi::cpu
