// SPDX-License-Identifier: MIT
// Row-dot products with int8 activations in AVX2, for any number of rows in blocks of up to 4, and
// the activation quantiser.
//   y = sum_g s_g * d_g * (sum_i code_i * q_i) + m_g * (d_g * sum_i q_i)
//       + sum over the row's peaks s_g * code_i * x_i
// The sums of a unit of 256 are formed on their own and added to the row's accumulator in unit
// order, whatever the number of rows. Bound: the weights' bytes (1 row), vpmaddubsw (more).
#include <immintrin.h>

#include "cpu/matmul_kernels.h"
#include "cpu/x86/kernel_tables.h"
#include "cpu/x86/quant_avx2_k.h"
// Behind the formats.
#include "cpu/generic/quant_elements.h"

namespace sharpi::cpu {
namespace {

// Weights are asked into the second level cache far ahead, so that a core's whole queue of memory
// requests is busy whatever the arithmetic does, and into the first level cache a little ahead.
constexpr uint64_t kFarBytes = 8192, kNearBytes = 4096;

/// 8 sums of 4 products each.
template <bool kSigned>
inline __m256i dot_32(__m256i code, __m256i q) {
  const __m256i pairs = kSigned
                            ? _mm256_maddubs_epi16(_mm256_abs_epi8(code), _mm256_sign_epi8(q, code))
                            : _mm256_maddubs_epi16(code, q);
  return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

/// kGroups < 8: the unit's last groups of 32 against the first ones of the activations, whose other
/// groups are zero. Bits are those of a unit that holds the groups first and zeros behind them.
template <class Format, int kRows, int kGroups = 8>
inline void dot_unit(const uint8_t* p, const int8_t* const* q, const float* const* meta,
                     uint64_t unit, __m256* acc) {
  Scales scales;
  Format::scales(p, scales);
  __m256i code[8];
  Format::codes(p, code);
  if constexpr (kGroups < 8) {
    const __m256i from = _mm256_and_si256(
        _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(8 - kGroups)),
        _mm256_set1_epi32(7));
    scales.s[0] = _mm256_permutevar8x32_ps(scales.s[0], from);
    if (!Format::kSigned) scales.m[0] = _mm256_permutevar8x32_ps(scales.m[0], from);
  }
  for (int r = 0; r < kRows; ++r) {
    const int8_t* qr = q[r] + unit * kInt8RowUnit;
    const float* mr = meta[r] + unit * kInt8UnitFloats;
    alignas(32) float scale[16];
    __m256 sum = _mm256_setzero_ps();
    if constexpr (Format::kGroup16) {
      const __m256 d = _mm256_loadu_ps(mr);
      const __m256i low = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
      const __m256i high = _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7);
      _mm256_store_ps(scale, _mm256_mul_ps(scales.s[0], _mm256_permutevar8x32_ps(d, low)));
      _mm256_store_ps(scale + 8, _mm256_mul_ps(scales.s[1], _mm256_permutevar8x32_ps(d, high)));
      sum = _mm256_mul_ps(scales.m[0], _mm256_loadu_ps(mr + 16));
      sum = _mm256_fmadd_ps(scales.m[1], _mm256_loadu_ps(mr + 24), sum);
    } else {
      _mm256_store_ps(scale, _mm256_mul_ps(scales.s[0], _mm256_loadu_ps(mr)));
      if (!Format::kSigned) sum = _mm256_mul_ps(scales.m[0], _mm256_loadu_ps(mr + 8));
    }
    keep_in_memory(scale);
    for (int g = 0; g < kGroups; ++g) {
      const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(qr + 32 * g));
      const __m256 dot = _mm256_cvtepi32_ps(dot_32<Format::kSigned>(code[8 - kGroups + g], x));
      const __m256 s = Format::kGroup16 ? _mm256_set_m128(_mm_set1_ps(scale[2 * g + 1]),
                                                          _mm_set1_ps(scale[2 * g]))
                                        : _mm256_set1_ps(scale[g]);
      sum = _mm256_fmadd_ps(dot, s, sum);
    }
    acc[r] = _mm256_add_ps(acc[r], sum);
  }
}

inline float sum_of(__m256 v) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

/// kRest: groups behind a row's whole units that are taken where they lie; 0 where they are copied,
/// which costs short rows as much as their products.
template <class Format, int kRows, int kRest = 0>
void dot_rows(const MatmulJob& job, const int8_t* const* q, float* y) {
  const uint64_t n_units = job.n_in / kInt8RowUnit, n_left = job.n_in % kInt8RowUnit;
  const uint64_t k = (n_units + (n_left != 0)) * kInt8RowUnit;
  const float* meta[kRows];
  const Int8Peaks* peaks[kRows];
  for (int r = 0; r < kRows; ++r) {
    meta[r] = reinterpret_cast<const float*>(q[r] + k);
    peaks[r] = &peaks_of(q[r], k / kInt8RowUnit);
  }
  const uint8_t* ahead = reinterpret_cast<const uint8_t*>(job.w) + kFarBytes;
  for (uint64_t o = 0; o < job.n_out; ++o) {
    const uint8_t* p = reinterpret_cast<const uint8_t*>(job.w) + o * job.row_bytes;
    __m256 acc[kRows];
    for (int r = 0; r < kRows; ++r) acc[r] = _mm256_setzero_ps();
    for (uint64_t unit = 0; unit < n_units; ++unit, p += Format::kUnitBytes) {
      for (; ahead < p + kFarBytes; ahead += 64) {
        _mm_prefetch(reinterpret_cast<const char*>(ahead), _MM_HINT_T1);
        _mm_prefetch(reinterpret_cast<const char*>(ahead - kFarBytes + kNearBytes), _MM_HINT_T0);
      }
      dot_unit<Format, kRows>(p, q, meta, unit, acc);
    }
    if constexpr (kRest != 0) {
      const uint8_t* last = p + kRest * Format::kBlockBytes - Format::kUnitBytes;
      dot_unit<Format, kRows, kRest>(last, q, meta, n_units, acc);
    } else if (n_left != 0) {
      uint8_t buffer[Format::kUnitBytes];
      dot_unit<Format, kRows>(padded_unit<Format>(p, n_left, buffer), q, meta, n_units, acc);
    }
    const std::byte* weights = job.w + o * job.row_bytes;
    for (int r = 0; r < kRows; ++r) {
      y[static_cast<uint64_t>(r) * job.y_stride + o] =
          add_peaks<Format>(sum_of(acc[r]), *peaks[r], weights);
    }
  }
}

template <class Format>
void dot_row(const MatmulJob& job, const int8_t* const* q, float* y) {
  if constexpr (Format::kBlockBytes != Format::kUnitBytes) {
    const uint64_t n_left = job.n_in > kInt8RowUnit ? job.n_in % kInt8RowUnit : 0;
    if (n_left == 64) return dot_rows<Format, 1, 2>(job, q, y);
    if (n_left == 128) return dot_rows<Format, 1, 4>(job, q, y);
    if (n_left == 192) return dot_rows<Format, 1, 6>(job, q, y);
  }
  dot_rows<Format, 1>(job, q, y);
}

template <class Format>
void dot_job(const MatmulJob& job) {
  for (uint32_t r0 = 0; r0 < job.n_rows;) {
    const uint32_t left = job.n_rows - r0, n = left < 4 ? left : 4;
    const int8_t* q[4] = {};
    for (uint32_t r = 0; r < n; ++r) {
      const uint64_t id = job.ids != nullptr ? job.ids[r0 + r] : r0 + r;
      q[r] = reinterpret_cast<const int8_t*>(job.x + id * job.x_stride);
    }
    float* y = job.y + r0 * job.y_stride;
    switch (n) {
      case 4:
        dot_rows<Format, 4>(job, q, y);
        break;
      case 3:  // passes over a token and two guesses: the weights are read once
        dot_rows<Format, 3>(job, q, y);
        break;
      case 2:
        dot_rows<Format, 2>(job, q, y);
        break;
      default:
        dot_row<Format>(job, q, y);
        break;
    }
    r0 += n;
  }
}

/// Largest magnitude of 32 elements as bits, so that NaN is the largest.
inline uint32_t amax_bits(const __m256* x) {
  const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF);
  __m256i a = _mm256_setzero_si256();
  for (int i = 0; i < 4; ++i) {
    a = _mm256_max_epi32(a, _mm256_and_si256(_mm256_castps_si256(x[i]), magnitude));
  }
  __m128i b = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  b = _mm_max_epi32(b, _mm_shuffle_epi32(b, _MM_SHUFFLE(1, 0, 3, 2)));
  b = _mm_max_epi32(b, _mm_shuffle_epi32(b, _MM_SHUFFLE(2, 3, 0, 1)));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(b));
}

/// Group g of a unit.
inline void quantize_32(const float* x, int g, int8_t* q, float* meta) {
  __m256 v[4];
  for (int i = 0; i < 4; ++i) v[i] = _mm256_loadu_ps(x + 8 * i);
  const uint32_t bits = amax_bits(v);
  float amax;
  std::memcpy(&amax, &bits, sizeof amax);
  const bool finite = bits < 0x7F800000u, used = amax >= kInt8MinAmax;
  const float inverse = finite && used ? 127.0f / amax : 0.0f;
  const float d = !finite ? __builtin_nanf("") : used ? amax / 127.0f : 0.0f;

  __m256i n[4];
  for (int i = 0; i < 4; ++i) {
    n[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], _mm256_set1_ps(inverse)));
  }
  // Packing interleaves the 128-bit halves; the permutation puts them in order.
  const __m256i packed =
      _mm256_packs_epi16(_mm256_packs_epi32(n[0], n[1]), _mm256_packs_epi32(n[2], n[3]));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i bytes_32 = _mm256_permutevar8x32_epi32(packed, order);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(q + 32 * g), bytes_32);

  alignas(32) int32_t sums[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(sums), dot_32<false>(bytes(1), bytes_32));
  const int32_t low = sums[0] + sums[1] + sums[2] + sums[3];
  const int32_t high = sums[4] + sums[5] + sums[6] + sums[7];
  meta[g] = d;
  meta[8 + g] = d * static_cast<float>(low + high);
  meta[16 + 2 * g] = d * static_cast<float>(low);
  meta[17 + 2 * g] = d * static_cast<float>(high);
}

void quantize_row(const float* x, uint64_t n, std::byte* row) {
  const uint64_t n_units = (n + kInt8RowUnit - 1) / kInt8RowUnit;
  int8_t* q = reinterpret_cast<int8_t*>(row);
  float* meta = reinterpret_cast<float*>(row + n_units * kInt8RowUnit);
  for (uint64_t unit = 0; unit < n_units; ++unit, x += kInt8RowUnit, n -= kInt8RowUnit) {
    float padded[kInt8RowUnit];
    const float* from = x;
    if (n < kInt8RowUnit) {
      std::memset(padded, 0, sizeof padded);
      std::memcpy(padded, x, n * sizeof(float));
      from = padded;
    }
    for (int g = 0; g < 8; ++g) {
      quantize_32(from + 32 * g, g, q + unit * kInt8RowUnit, meta + unit * kInt8UnitFloats);
    }
  }
}

MatmulJobFn find_job(MatmulPath path, GgmlType type) {
  if (path == MatmulPath::kF32) return f32_avx2(type);
  if (path == MatmulPath::kInt8Panel) return int8_panel_avx2(type);
  if (path != MatmulPath::kInt8Dot) return nullptr;
  return with_format(type, MatmulJobFn{nullptr},
                     [](auto format) -> MatmulJobFn { return dot_job<decltype(format)>; });
}

}  // namespace

const MatmulKernels& matmul_kernels_avx2() {
  static constexpr MatmulKernels kKernels{.job = find_job, .quantize_row = quantize_row};
  return kKernels;
}

}  // namespace sharpi::cpu
