// SPDX-License-Identifier: MIT
// Activation rows in int8 (layout in cpu/matmul_kernels.h), 256 elements at a time.
#include <immintrin.h>

#include "cpu/matmul_kernels.h"
#include "cpu/x86/kernel_tables.h"

namespace sharpi::cpu {
namespace {

inline __m512i max_of(__m512i a, __m512i b) {
  return _mm512_max_epi32(a, b);
}

/// Halves the lanes of two vectors into one by maximum: four 128-bit lanes stay apart.
inline __m512i fold_max(__m512i a, __m512i b) {
  return max_of(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
}
inline __m512i fold_max_wide(__m512i a, __m512i b) {
  return max_of(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

/// Largest magnitude (as bits, so that NaN is the largest) of each of the 8 groups of 32.
inline __m256i group_amax(const __m512* x) {
  const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF);
  __m512i g[8];
  for (int i = 0; i < 8; ++i) {
    g[i] = max_of(_mm512_and_si512(_mm512_castps_si512(x[2 * i]), magnitude),
                  _mm512_and_si512(_mm512_castps_si512(x[2 * i + 1]), magnitude));
  }
  // Each 128-bit lane of `low` holds one maximum for groups 0-3, of `high` for groups 4-7.
  const __m512i low = fold_max_wide(fold_max(g[0], g[1]), fold_max(g[2], g[3]));
  const __m512i high = fold_max_wide(fold_max(g[4], g[5]), fold_max(g[6], g[7]));
  const __m256i low4 =
      _mm256_max_epi32(_mm512_castsi512_si256(low), _mm512_extracti64x4_epi64(low, 1));
  const __m256i high4 =
      _mm256_max_epi32(_mm512_castsi512_si256(high), _mm512_extracti64x4_epi64(high, 1));
  return _mm256_max_epi32(_mm256_permute2x128_si256(low4, high4, 0x20),
                          _mm256_permute2x128_si256(low4, high4, 0x31));
}

/// Sums of the 16 groups of 16 bytes of four vectors.
inline __m512i group_sums(const __m512i* q) {
  const __m512i ones = _mm512_set1_epi8(1);
  __m512i a[4];
  for (int j = 0; j < 4; ++j) a[j] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), ones, q[j]);
  const __m512i t0 =
      _mm512_add_epi32(_mm512_unpacklo_epi32(a[0], a[1]), _mm512_unpackhi_epi32(a[0], a[1]));
  const __m512i t1 =
      _mm512_add_epi32(_mm512_unpacklo_epi32(a[2], a[3]), _mm512_unpackhi_epi32(a[2], a[3]));
  const __m512i t = _mm512_add_epi32(_mm512_unpacklo_epi64(t0, t1), _mm512_unpackhi_epi64(t0, t1));
  // Lane l of t is group 4 * (l % 4) + l / 4.
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_permutexvar_epi32(order, t);
}

void quantize_unit(const __m512* x, int8_t* q, float* meta) {
  const __m256i bits = group_amax(x);
  const __m256 amax = _mm256_castsi256_ps(bits);
  const __mmask8 finite = _mm256_cmplt_epi32_mask(bits, _mm256_set1_epi32(0x7F800000));
  const __mmask8 used = _mm256_cmp_ps_mask(amax, _mm256_set1_ps(kInt8MinAmax), _CMP_GE_OQ);
  const __m256 limit = _mm256_set1_ps(127);
  const __m256 inverse = _mm256_maskz_div_ps(used & finite, limit, amax);
  __m256 d = _mm256_maskz_div_ps(used, amax, limit);
  d = _mm256_mask_mov_ps(_mm256_castsi256_ps(_mm256_set1_epi32(0x7FC00000)), finite, d);

  alignas(32) float id[8];
  _mm256_store_ps(id, inverse);
  for (int i = 0; i < 16; ++i) {
    const __m512 v = _mm512_mul_ps(x[i], _mm512_set1_ps(id[i / 2]));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q + 16 * i),
                     _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(v)));
  }
  __m512i packed[4];
  for (int j = 0; j < 4; ++j) packed[j] = _mm512_loadu_si512(q + 64 * j);
  const __m512i sums = group_sums(packed);
  const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  const __m512 d16 = _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(d));
  // Neighbours added in both, then every second lane kept.
  const __m512i pairs = _mm512_add_epi32(sums, _mm512_shuffle_epi32(sums, _MM_PERM_CDAB));
  _mm256_storeu_ps(meta, d);
  _mm256_storeu_ps(meta + 8, _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm512_cvtepi64_epi32(pairs))));
  _mm512_storeu_ps(meta + 16, _mm512_mul_ps(d16, _mm512_cvtepi32_ps(sums)));
}

}  // namespace

void quantize_row_avx512(const float* x, uint64_t n, std::byte* row) {
  const uint64_t n_units = (n + kInt8RowUnit - 1) / kInt8RowUnit;
  int8_t* q = reinterpret_cast<int8_t*>(row);
  float* meta = reinterpret_cast<float*>(row + n_units * kInt8RowUnit);
  for (uint64_t unit = 0; unit < n_units; ++unit) {
    __m512 v[16];
    for (uint64_t i = 0; i < 16; ++i) {
      const uint64_t at = unit * kInt8RowUnit + 16 * i;
      const uint64_t left = at < n ? n - at : 0;
      const auto mask = static_cast<__mmask16>(left >= 16 ? 0xFFFFu : (1u << left) - 1);
      v[i] = _mm512_maskz_loadu_ps(mask, x + at);
    }
    quantize_unit(v, q + unit * kInt8RowUnit, meta + unit * kInt8UnitFloats);
  }
}

}  // namespace sharpi::cpu
