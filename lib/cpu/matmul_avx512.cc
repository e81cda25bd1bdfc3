// SPDX-License-Identifier: MIT
// Row-dot products with int8 activations: each weight row is streamed once for up to 8 activation
// rows. Bound: the bytes of the weights (1 row), vpdpbusd and scaling (more rows).
//   y = sum_g s_g * d_g * (sum_i code_i * q_i) + kMin * sum_g m_g * (d_g * sum_i q_i)
// The sums of a unit of 256 are formed on their own and added to the row's accumulator in unit
// order, whatever the number of rows.
#include <immintrin.h>

#include "cpu/matmul_kernels.h"
#include "cpu/quant_avx512_k.h"

namespace sharpi::cpu {
namespace {

// Weights are asked into the second level cache far ahead, so that a core's whole queue of memory
// requests is busy whatever the arithmetic does, and into the first level cache a little ahead.
constexpr uint64_t kFarBytes = 8192, kNearBytes = 4096;

/// Lane numbers that spread the group scales over the 16 sums of vector j of a unit.
template <bool kGroup16>
inline __m512i spread_index(int j) {
  if constexpr (kGroup16) {
    const __m512i quarter = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    return _mm512_add_epi32(quarter, _mm512_set1_epi32(4 * j));
  }
  const __m512i half = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
  return _mm512_add_epi32(half, _mm512_set1_epi32(2 * j));
}

/// What undoes Times16 in the 16 lanes of the accumulator.
inline __m512 lane_factors(Times16 times16) {
  constexpr float k = 1.0f / 16;
  if (times16 == Times16::kOdd4Lanes) {
    return _mm512_setr_ps(1, 1, 1, 1, k, k, k, k, 1, 1, 1, 1, k, k, k, k);
  }
  if (times16 == Times16::kUpper8Lanes) {
    return _mm512_setr_ps(1, 1, 1, 1, 1, 1, 1, 1, k, k, k, k, k, k, k, k);
  }
  return _mm512_set1_ps(1);
}

/// kMin, made ready for lane_factors.
template <class Format>
inline __m512 min_factors() {
  return _mm512_div_ps(_mm512_set1_ps(Format::kMin), lane_factors(Format::kTimes16));
}

/// One unit of one weight row against kRows activation rows. `q` and `meta` point at the unit.
template <class Format, int kRows>
inline void dot_unit(const uint8_t* p, const int8_t* const* q, const float* const* meta,
                     uint64_t unit, __m512 min_factor, __m512* acc) {
  __m512i u[4];
  Format::template codes<true>(p, u);
  __m512 s, m;
  if constexpr (Format::kGroup16) {
    Format::scales(p, s, m);
    m = _mm512_mul_ps(m, min_factor);
  } else {
    s = Format::scales(p);
  }
  for (int r = 0; r < kRows; ++r) {
    const int8_t* qr = q[r] + unit * kInt8RowUnit;
    const float* mr = meta[r] + unit * kInt8UnitFloats;
    __m512 scale, sum;
    if constexpr (Format::kGroup16) {
      const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
      const __m512 d = _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(_mm256_loadu_ps(mr)));
      scale = _mm512_mul_ps(s, d);
      sum = _mm512_mul_ps(m, _mm512_loadu_ps(mr + 16));
    } else {
      scale = _mm512_mul_ps(s, _mm512_loadu_ps(mr));  // s * d | m * sum32
      sum = _mm512_maskz_mul_ps(0xFF00, scale, min_factor);
    }
    for (int j = 0; j < 4; ++j) {
      const __m512i dot =
          _mm512_dpbusd_epi32(_mm512_setzero_si512(), u[j], _mm512_loadu_si512(qr + 64 * j));
      const __m512 w = _mm512_permutexvar_ps(spread_index<Format::kGroup16>(j), scale);
      sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), w, sum);
    }
    acc[r] = _mm512_add_ps(acc[r], sum);
  }
}

template <class Format, int kRows>
void dot_rows(const MatmulJob& job, const int8_t* const* q, float* y) {
  const uint64_t n_units = job.n_in / kInt8RowUnit, n_left = job.n_in % kInt8RowUnit;
  const uint64_t k = (n_units + (n_left != 0)) * kInt8RowUnit;
  const __m512 min_factor = min_factors<Format>();
  const float* meta[kRows];
  for (int r = 0; r < kRows; ++r) meta[r] = reinterpret_cast<const float*>(q[r] + k);
  const uint8_t* ahead = reinterpret_cast<const uint8_t*>(job.w) + kFarBytes;
  for (uint64_t o = 0; o < job.n_out; ++o) {
    const uint8_t* p = reinterpret_cast<const uint8_t*>(job.w) + o * job.row_bytes;
    __m512 acc[kRows];
    for (int r = 0; r < kRows; ++r) acc[r] = _mm512_setzero_ps();
    for (uint64_t unit = 0; unit < n_units; ++unit, p += Format::kUnitBytes) {
      for (; ahead < p + kFarBytes; ahead += 64) {
        _mm_prefetch(reinterpret_cast<const char*>(ahead), _MM_HINT_T1);
        _mm_prefetch(reinterpret_cast<const char*>(ahead - kFarBytes + kNearBytes), _MM_HINT_T0);
      }
      dot_unit<Format, kRows>(p, q, meta, unit, min_factor, acc);
    }
    if (n_left != 0) {
      uint8_t buffer[Format::kUnitBytes];
      dot_unit<Format, kRows>(padded_unit<Format>(p, n_left, buffer), q, meta, n_units, min_factor,
                              acc);
    }
    for (int r = 0; r < kRows; ++r) {
      const __m512 v = _mm512_mul_ps(acc[r], lane_factors(Format::kTimes16));
      y[static_cast<uint64_t>(r) * job.y_stride + o] = _mm512_reduce_add_ps(v);
    }
  }
}

template <class Format>
void dot_job(const MatmulJob& job) {
  // A block of 8 activation rows at a time against the whole chunk of weights; the rest in powers
  // of two.
  for (uint32_t r0 = 0; r0 < job.n_rows;) {
    const uint32_t left = job.n_rows - r0;
    const uint32_t n = left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
    const int8_t* q[8] = {};
    for (uint32_t r = 0; r < n; ++r) {
      const uint64_t id = job.ids != nullptr ? job.ids[r0 + r] : r0 + r;
      q[r] = reinterpret_cast<const int8_t*>(job.x + id * job.x_stride);
    }
    float* y = job.y + r0 * job.y_stride;
    switch (n) {
      case 8:
        dot_rows<Format, 8>(job, q, y);
        break;
      case 4:
        dot_rows<Format, 4>(job, q, y);
        break;
      case 2:
        dot_rows<Format, 2>(job, q, y);
        break;
      default:
        dot_rows<Format, 1>(job, q, y);
        break;
    }
    r0 += n;
  }
}

}  // namespace

MatmulJobFn int8_dot_avx512(GgmlType type) {
  return with_format(type, MatmulJobFn{nullptr},
                     [](auto format) -> MatmulJobFn { return dot_job<decltype(format)>; });
}

namespace {

MatmulJobFn avx512_job(MatmulPath path, GgmlType type) {
  switch (path) {
    case MatmulPath::kF32:
      return f32_avx512(type);
    case MatmulPath::kInt8Dot:
      return int8_dot_avx512(type);
    case MatmulPath::kInt8Panel:
      return int8_panel_avx512(type);
    default:
      return nullptr;
  }
}

MatmulJobFn amx_job(MatmulPath path, GgmlType type) {
  return path == MatmulPath::kBf16Amx ? bf16_amx(type) : avx512_job(path, type);
}

}  // namespace

const MatmulKernels& matmul_kernels_avx512() {
  static constexpr MatmulKernels kKernels{avx512_job, quantize_row_avx512, nullptr};
  return kKernels;
}

const MatmulKernels& matmul_kernels_amx() {
  static constexpr MatmulKernels kKernels{amx_job, quantize_row_avx512, pack_tiles_amx};
  return kKernels;
}

}  // namespace sharpi::cpu
