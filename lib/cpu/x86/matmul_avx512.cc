// SPDX-License-Identifier: MIT
// Row-dot products with int8 activations: each weight row is streamed once for up to 8 activation
// rows. Bound: the bytes of the weights (1 row), vpdpbusd and scaling (more rows).
//   y = sum_g s_g * d_g * (sum_i code_i * q_i) + kMin * sum_g m_g * (d_g * sum_i q_i)
//       + sum over the row's peaks s_g * code_i * x_i
// Products and minima have one accumulator each, which takes the groups in one order whatever the
// number of rows.
#include <immintrin.h>

#include <algorithm>

#include "cpu/flatten.h"
#include "cpu/matmul_kernels.h"
#include "cpu/x86/kernel_tables.h"
#include "cpu/x86/quant_avx512_dot.h"
// Behind the formats.
#include "cpu/generic/quant_elements.h"

namespace sharpi::cpu {
namespace {

// Weights are asked for far ahead, so that a core's whole queue of memory requests is busy whatever
// the arithmetic does: into the first level cache, or into the second level cache and a little
// ahead into the first.
constexpr uint64_t kFarBytes = 8192, kNearBytes = 4096;
constexpr int kUnitsAtOnce = 4;  // units between two looks at the prefetch pointer

/// kEither: as the job says, which costs one row 2% of its time.
enum class Ask { kOnce, kTwice, kEither };

/// Asks for the weights of a job, and for nothing behind it, which is another thread's. Each line
/// is asked for once at a level: a request for one that is under way already takes a buffer from
/// one that is not.
template <Ask kAsk>
class Ahead {
 public:
  explicit Ahead(const MatmulJob& job)
      : line_(reinterpret_cast<const uint8_t*>(job.w)),
        end_(line_ + (job.n_out + job.n_behind) * job.row_bytes - kFarBytes),
        once_(job.ask_once) {
    const uint64_t first = std::min(kFarBytes, job.n_out * job.row_bytes);
    for (uint64_t i = 0; i < first; i += 64) far(line_ + i);
  }
  /// For the units from here on: near its end the job has no lines far ahead.
  void begin_units() { far_ = line_ < end_ ? kFarBytes : 0; }
  template <int kLines>
  void take() {
    SHARPI_UNROLL(8)
    for (int i = 0; i < kLines; ++i) next();
  }
  void up_to(const uint8_t* end) {
    while (line_ < end) next();
  }

 private:
  bool once() const { return kAsk == Ask::kEither ? once_ : kAsk == Ask::kOnce; }
  void far(const uint8_t* p) const {
    if (once()) {
      near(p);
    } else {
      _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1);
    }
  }
  static void near(const uint8_t* p) {
    _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0);
  }
  void next() {
    far(line_ + far_);
    if (!once()) near(line_ + kNearBytes);
    line_ += 64;
  }
  const uint8_t* line_;
  const uint8_t* end_;
  uint64_t far_ = kFarBytes;
  const bool once_;
};

/// What a row of activations contributes to a unit.
struct Activations {
  const int8_t* q;
  const float* meta;                 // d[8], sum32[8], sum16[16]
  const Int8Peaks* peaks = nullptr;  // of the row
};

/// Sums of one weight row with one activation row: products, and minima (in lanes 8-15 with groups
/// of 32). A unit adds to each in a fixed order, whatever the number of rows.
struct Sums {
  __m512 dots[2], mins;  // vectors of products by turns, to halve the chain of additions
};

/// A unit of activations for formats with groups of 32, in registers.
struct HeldUnit {
  __m512i q[4];
  __m512 meta;
  explicit HeldUnit(const Activations& x) : meta(_mm512_loadu_ps(x.meta)) {
    for (int j = 0; j < 4; ++j) q[j] = _mm512_loadu_si512(x.q + 64 * j);
  }
};

/// The products of a unit with its scales, from vector kFirst on.
template <class Format, int kFirst>
SHARPI_FLATTEN void add_dots(const __m512i* u, const __m512i* q, __m512 scale, Sums& sums) {
  using Form = DotForm<Format>;
  SHARPI_UNROLL(4)
  for (int j = kFirst; j < Form::kVectors; ++j) {
    const __m512 w = _mm512_permutexvar_ps(Form::spread(j), scale);
    sums.dots[j % 2] =
        _mm512_fmadd_ps(_mm512_cvtepi32_ps(Form::sums(u, q, j)), w, sums.dots[j % 2]);
  }
}

/// From vector kFirst on: the codes in front of it count nothing.
template <class Format, int kFirst>
SHARPI_FLATTEN void add_unit(const __m512i* u, __m512 s, __m512 m, const Activations& x,
                             Sums& sums) {
  __m512i q[4];
  for (int j = 0; j < 4; ++j) q[j] = _mm512_loadu_si512(x.q + 64 * j);
  __m512 scale;
  if constexpr (Format::kGroup16) {
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const __m512 d = _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(_mm256_loadu_ps(x.meta)));
    scale = _mm512_mul_ps(s, d);
    sums.mins = _mm512_fmadd_ps(m, _mm512_loadu_ps(x.meta + 16), sums.mins);
  } else {
    scale = _mm512_mul_ps(s, _mm512_loadu_ps(x.meta));  // s * d | m * sum32
    sums.mins = _mm512_add_ps(sums.mins, scale);
  }
  add_dots<Format, kFirst>(u, q, scale, sums);
}

/// A unit of weights at p against one that is held.
template <class Format, int kFirst = 0>
SHARPI_FLATTEN void add_held(const uint8_t* p, const HeldUnit& x, Sums& sums) {
  __m512i u[4];
  DotForm<Format>::codes(p, u);
  const __m512 scale = _mm512_mul_ps(Format::scales(p), x.meta);
  sums.mins = _mm512_add_ps(sums.mins, scale);
  add_dots<Format, kFirst>(u, x.q, scale, sums);
}

/// kUnits units of a weight row (kUnits = kUnitsAtOnce: with prefetch) against kRows activation
/// rows, which move on.
template <class Format, int kRows, int kUnits, int kFirst = 0, Ask kAsk>
SHARPI_FLATTEN void add_units(const uint8_t* p, Ahead<kAsk>& ahead, Activations* x, Sums* sums) {
  using Form = DotForm<Format>;
  constexpr int kLines = static_cast<int>(kUnitsAtOnce * Format::kUnitBytes / 64 / kUnitsAtOnce);
  typename Form::Scales scales;
  if constexpr (kUnits == kUnitsAtOnce) ahead.begin_units();
  if constexpr (Form::kScaleUnits > 1) scales.load(p, kUnits);
  SHARPI_UNROLL(4)
  for (int i = 0; i < kUnits; ++i, p += Format::kUnitBytes) {
    if constexpr (kUnits == kUnitsAtOnce) {
      ahead.template take<kLines>();
      if (i == kUnitsAtOnce - 1) ahead.up_to(p + Format::kUnitBytes);
    }
    if constexpr (Form::kScaleUnits == 1) scales.load(p, 1);
    __m512i u[4];
    Form::codes(p, u);
    __m512 s, m = _mm512_setzero_ps();
    if constexpr (Format::kGroup16) {
      scales.get(s, m);
    } else {
      s = scales.get(static_cast<uint32_t>(i));
    }
    SHARPI_UNROLL(8)
    for (int r = 0; r < kRows; ++r) {
      add_unit<Format, kFirst>(u, s, m, x[r], sums[r]);
      x[r].q += kInt8RowUnit;
      x[r].meta += kInt8UnitFloats;
    }
  }
}

template <class Format>
inline float finish(const Sums& s) {
  __m512 mins = s.mins;
  if constexpr (!Format::kGroup16) mins = _mm512_maskz_mov_ps(0xFF00, mins);
  const __m512 dots =
      _mm512_mul_ps(_mm512_add_ps(s.dots[0], s.dots[1]), DotForm<Format>::factors());
  return _mm512_reduce_add_ps(_mm512_fmadd_ps(mins, _mm512_set1_ps(Format::kMin), dots));
}

/// finish() with the products of the row's peaks.
template <class Format>
inline float finish(const Sums& s, const Int8Peaks& peaks, const std::byte* weights) {
  return add_peaks<Format>(finish<Format>(s), peaks, weights, Format::kCodeOffset);
}

/// The rest of an activation row behind its whole units, as the end of a unit that begins before it
/// with zeros: it meets the last 256 weights of a row where they lie, and those that were taken
/// already count nothing. A copy of the weights' rest, with zeros behind, would cost each weight
/// row more than its products.
struct LastUnit {
  alignas(64) int8_t q[kInt8RowUnit];
  float meta[kInt8UnitFloats];

  /// Of a row whose last unit, at `from` with `floats`, holds n elements.
  template <class Format>
  void set(const int8_t* from, const float* floats, uint64_t n) {
    const uint64_t groups = n / 32, zeros = 8 - groups;
    alignas(64) int8_t moved[kInt8RowUnit] = {};
    std::copy_n(from, n, moved + kInt8RowUnit - n);
    if constexpr (DotForm<Format>::kPermuted) {
      DotForm<Format>::permute(moved, q);
    } else {
      std::copy_n(moved, kInt8RowUnit, q);
    }
    std::fill_n(meta, kInt8UnitFloats, 0.0f);
    std::copy_n(floats, groups, meta + zeros);
    std::copy_n(floats + 8, groups, meta + 8 + zeros);
    std::copy_n(floats + 16, 2 * groups, meta + 16 + 2 * zeros);
  }
};

/// kFirst: the first vector of a row's last unit that holds something of the rest behind its whole
/// units; kVectors where rows are whole units.
template <class Format, int kRows, int kFirst, Ask kAsk>
SHARPI_FLATTEN void dot_output(const MatmulJob& job, const Activations* rows, const LastUnit* last,
                               uint64_t o, Ahead<kAsk>& ahead, float* y) {
  const uint64_t n_units = job.n_in / kInt8RowUnit, n_left = job.n_in % kInt8RowUnit;
  const uint8_t* p = reinterpret_cast<const uint8_t*>(job.w) + o * job.row_bytes;
  Activations x[kRows];
  Sums sums[kRows];
  for (int r = 0; r < kRows; ++r) {
    x[r] = rows[r];
    sums[r] = {{_mm512_setzero_ps(), _mm512_setzero_ps()}, _mm512_setzero_ps()};
  }
  uint64_t unit = 0;
  if (n_units < kUnitsAtOnce) ahead.begin_units();
  for (; unit + kUnitsAtOnce <= n_units;
       unit += kUnitsAtOnce, p += kUnitsAtOnce * Format::kUnitBytes) {
    add_units<Format, kRows, kUnitsAtOnce>(p, ahead, x, sums);
  }
  for (; unit < n_units; ++unit, p += Format::kUnitBytes) {
    add_units<Format, kRows, 1>(p, ahead, x, sums);
  }
  if constexpr (kFirst != DotForm<Format>::kVectors) {
    if (kFirst != 0 || n_units != 0) {
      for (int r = 0; r < kRows; ++r) x[r] = {last[r].q, last[r].meta};
      p += n_left / 32 * Format::kBlockBytes;
      add_units<Format, kRows, 1, kFirst>(p - Format::kUnitBytes, ahead, x, sums);
    } else {
      uint8_t buffer[Format::kUnitBytes];
      add_units<Format, kRows, 1>(padded_unit<Format>(p, n_left, buffer), ahead, x, sums);
    }
  }
  ahead.up_to(p);
  for (int r = 0; r < kRows; ++r) {
    y[static_cast<uint64_t>(r) * job.y_stride + o] =
        finish<Format>(sums[r], *rows[r].peaks, job.w + o * job.row_bytes);
  }
}

/// Rows of two units and a rest that one vector of the last unit holds, against one row of
/// activations, which stays in registers: with loads of both, most of them over the border of two
/// lines, such rows were bound by loads.
template <class Format, Ask kAsk>
SHARPI_FLATTEN void short_outputs(const MatmulJob& job, const Activations& row,
                                  const LastUnit& last, Ahead<kAsk>& ahead, float* y) {
  constexpr int kFirst = DotForm<Format>::kVectors - 1;
  const HeldUnit x0(row), x1({row.q + kInt8RowUnit, row.meta + kInt8UnitFloats});
  const HeldUnit x2({last.q, last.meta});
  const uint8_t* p = reinterpret_cast<const uint8_t*>(job.w);
  for (uint64_t o = 0; o < job.n_out; ++o) {
    Sums sums{{_mm512_setzero_ps(), _mm512_setzero_ps()}, _mm512_setzero_ps()};
    ahead.begin_units();
    add_held<Format>(p, x0, sums);
    add_held<Format>(p + Format::kUnitBytes, x1, sums);
    p += job.row_bytes;
    add_held<Format, kFirst>(p - Format::kUnitBytes, x2, sums);
    ahead.up_to(p);
    y[o] = finish<Format>(sums, *row.peaks, job.w + o * job.row_bytes);
  }
}

template <class Format, int kRows, Ask kAsk = Ask::kEither>
void dot_rows(const MatmulJob& job, const int8_t* const* q, float* y) {
  const uint64_t n_units = (job.n_in + kInt8RowUnit - 1) / kInt8RowUnit, k = n_units * kInt8RowUnit;
  const uint64_t n_left = job.n_in % kInt8RowUnit;
  Activations x[kRows];
  LastUnit last[kRows];
  for (uint64_t r = 0; r < kRows; ++r) {
    x[r] = {q[r], reinterpret_cast<const float*>(q[r] + k), &peaks_of(q[r], n_units)};
    if (n_left != 0 && n_units > 1) {
      last[r].template set<Format>(q[r] + k - kInt8RowUnit,
                                   x[r].meta + (n_units - 1) * kInt8UnitFloats, n_left);
    }
    if constexpr (DotForm<Format>::kPermuted) {
      auto* to = reinterpret_cast<int8_t*>(job.scratch) + r * k;
      for (uint64_t u = 0; u < n_units; ++u) {
        DotForm<Format>::permute(q[r] + u * kInt8RowUnit, to + u * kInt8RowUnit);
      }
      x[r].q = to;
    }
  }
  Ahead<kAsk> ahead(job);
  const auto outputs = [&]<int kFirst>() {
    for (uint64_t o = 0; o < job.n_out; ++o) {
      dot_output<Format, kRows, kFirst>(job, x, last, o, ahead, y);
    }
  };
  constexpr int kVectors = DotForm<Format>::kVectors;
  if constexpr (Format::kBlockBytes != Format::kUnitBytes) {
    const uint64_t n_last = (n_left + kInt8RowUnit / kVectors - 1) / (kInt8RowUnit / kVectors);
    // Rows that are shorter than a unit have nothing in front of their rest to begin at.
    if constexpr (kRows == 1) {
      if (n_units == 3 && n_last == 1) return short_outputs<Format>(job, x[0], last[0], ahead, y);
      if (n_units > 1 && n_last == 1) return outputs.template operator()<kVectors - 1>();
      if (n_units > 1 && n_last == 2) return outputs.template operator()<kVectors - 2>();
    }
    if (n_last != 0) return outputs.template operator()<0>();
  }
  outputs.template operator()<kVectors>();
}

template <class Format>
void dot_row(const MatmulJob& job, const int8_t* const* q, float* y) {
  if (job.ask_once) {
    dot_rows<Format, 1, Ask::kOnce>(job, q, y);
  } else {
    dot_rows<Format, 1, Ask::kTwice>(job, q, y);
  }
}

/// Of 1 to kInt8DotRows rows.
template <class Format>
constexpr void (*kDotRows[])(const MatmulJob& job, const int8_t* const* q, float* y) = {
    dot_row<Format>,     dot_rows<Format, 2>, dot_rows<Format, 3>, dot_rows<Format, 4>,
    dot_rows<Format, 5>, dot_rows<Format, 6>, dot_rows<Format, 7>, dot_rows<Format, 8>};

template <class Format>
void dot_job(const MatmulJob& job) {
  // Each block of up to 8 activation rows is a pass over the weights: as few of them as there can
  // be. They are of about the same size, because the registers hold the sums of 5 rows, not of 8.
  constexpr uint32_t kMost = kInt8DotRows;
  for (uint32_t r0 = 0; r0 < job.n_rows;) {
    const uint32_t left = job.n_rows - r0, blocks = (left + kMost - 1) / kMost;
    const uint32_t n = (left + blocks - 1) / blocks;
    const int8_t* q[kMost] = {};
    for (uint32_t r = 0; r < n; ++r) {
      const uint64_t id = job.ids != nullptr ? job.ids[r0 + r] : r0 + r;
      q[r] = reinterpret_cast<const int8_t*>(job.x + id * job.x_stride);
    }
    float* y = job.y + r0 * job.y_stride;
    kDotRows<Format>[n - 1](job, q, y);
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
  return path == MatmulPath::kBf16Tiles ? bf16_amx(type) : avx512_job(path, type);
}

}  // namespace

const MatmulKernels& matmul_kernels_avx512() {
  static constexpr MatmulKernels kKernels{
      .job = avx512_job, .quantize_row = quantize_row_avx512, .dot_scratch_rows = kInt8DotRows};
  return kKernels;
}

const MatmulKernels& matmul_kernels_amx() {
  static constexpr MatmulKernels kKernels{.job = amx_job,
                                          .quantize_row = quantize_row_avx512,
                                          .dot_scratch_rows = kInt8DotRows,
                                          .pack_tiles = pack_tiles_amx,
                                          .tile_scratch_bytes = tile_scratch_bytes_amx,
                                          .tiles_name = "bf16-amx"};
  return kKernels;
}

}  // namespace sharpi::cpu
