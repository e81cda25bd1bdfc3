// SPDX-License-Identifier: MIT
// Products of many activation rows with weights in bf16 by the matrix instruction BFMMLA, which
// multiplies two rows of four by two rows of four, with f32 sums. Activations are rounded to bf16
// once and lie in scratch in the order of the operands; weights are paired as they are read. Every
// result is the sum of all quads of k in order, whatever rows are beside it. Bound: the products.
#include <arm_neon.h>

#include <cstring>

#include "cpu/arm/kernel_tables.h"
#include "cpu/flatten.h"
#include "cpu/matmul_kernels.h"

namespace sharpi::cpu {
namespace {

constexpr uint64_t kStep = 8;  // elements of two rows that make two operands
constexpr uint64_t kPairs =
    4;  // pairs of weight rows by pairs of activation rows: 16 sums of 32 registers
constexpr uint64_t kBlockRows = 24;  // activation rows that lie in scratch
constexpr uint64_t kBlockOutputs =
    128;  // weight rows that meet them, so that rounding costs little

/// Two rows of eight as two operands of products.
struct Operands {
  bfloat16x8_t low, high;
  Operands(uint16x8_t a, uint16x8_t b) {
    const uint64x2_t x = vreinterpretq_u64_u16(a), y = vreinterpretq_u64_u16(b);
    low = vreinterpretq_bf16_u64(vzip1q_u64(x, y));
    high = vreinterpretq_bf16_u64(vzip2q_u64(x, y));
  }
};

/// Elements [k, k + 8) of a row; those behind its end are zero.
inline uint16x8_t rounded(const float* x, uint64_t k, uint64_t n) {
  float some[kStep] = {};
  const float* p = x + k;
  if (n - k < kStep) {
    std::memcpy(some, p, (n - k) * sizeof(float));
    p = some;
  }
  return vreinterpretq_u16_bf16(
      vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(vld1q_f32(p)), vld1q_f32(p + 4)));
}
inline uint16x8_t stored(const uint16_t* w, uint64_t k, uint64_t n) {
  if (n - k >= kStep) return vld1q_u16(w + k);
  uint16_t some[kStep] = {};
  std::memcpy(some, w + k, (n - k) * sizeof(uint16_t));
  return vld1q_u16(some);
}

/// Rows [r0, r0 + n) of the activations to [pair][k / 8][2 operands]; missing ones of the last tile
/// are zero.
void pack_rows(const MatmulJob& job, uint64_t r0, uint64_t n, bfloat16_t* to) {
  for (uint64_t r = 0; r < n; r += 2 * kPairs) {
    for (uint64_t i = 0; i < 2 * kPairs; i += 2) {
      const float* x[2] = {};
      for (uint64_t j = 0; j < 2; ++j) {
        const uint64_t at = r + i + j;
        if (at >= n) continue;
        const uint64_t id = job.ids != nullptr ? job.ids[r0 + at] : r0 + at;
        x[j] = reinterpret_cast<const float*>(job.x + id * job.x_stride);
      }
      for (uint64_t k = 0; k < job.n_in; k += kStep, to += 2 * kStep) {
        uint16x8_t row[2];
        for (int j = 0; j < 2; ++j)
          row[j] = x[j] != nullptr ? rounded(x[j], k, job.n_in) : vdupq_n_u16(0);
        const Operands pair(row[0], row[1]);
        vst1q_bf16(to, pair.low);
        vst1q_bf16(to + kStep, pair.high);
      }
    }
  }
}

/// sums[activation pair][weight pair] += eight elements of four pairs of each.
SHARPI_FLATTEN void add_products(const uint16x8_t (&w)[2 * kPairs], const bfloat16_t* x,
                                 uint64_t next, float32x4_t (&sums)[kPairs][kPairs]) {
  bfloat16x8_t high[kPairs];
  bfloat16x8_t low[kPairs];
  SHARPI_UNROLL(4)
  for (uint64_t o = 0; o < kPairs; ++o) {
    const Operands pair(w[2 * o], w[2 * o + 1]);
    low[o] = pair.low;
    high[o] = pair.high;
  }
  SHARPI_UNROLL(4)
  for (uint64_t r = 0; r < kPairs; ++r) {
    const bfloat16x8_t xl = vld1q_bf16(x + r * next), xh = vld1q_bf16(x + r * next + kStep);
    SHARPI_UNROLL(4)
    for (uint64_t o = 0; o < kPairs; ++o) {
      sums[r][o] = vbfmmlaq_f32(vbfmmlaq_f32(sums[r][o], xl, low[o]), xh, high[o]);
    }
  }
}

/// Eight weight rows by eight activation rows: as many of each as there are are written.
void tile(const MatmulJob& job, uint64_t o, const bfloat16_t* x, uint64_t row0, uint64_t n_rows) {
  const uint64_t n_out = job.n_out - o < 2 * kPairs ? job.n_out - o : 2 * kPairs;
  const uint64_t next = (job.n_in + kStep - 1) / kStep * 2 * kStep;
  const uint16_t* w[2 * kPairs];
  for (uint64_t i = 0; i < 2 * kPairs; ++i)
    w[i] = reinterpret_cast<const uint16_t*>(job.w + (o + (i < n_out ? i : 0)) * job.row_bytes);
  float32x4_t sums[kPairs][kPairs];
  for (auto& row : sums) {
    for (float32x4_t& sum : row) sum = vdupq_n_f32(0.0f);
  }
  for (uint64_t k = 0; k < job.n_in; k += kStep, x += 2 * kStep) {
    uint16x8_t v[2 * kPairs];
    SHARPI_UNROLL(8)
    for (uint64_t i = 0; i < 2 * kPairs; ++i) v[i] = stored(w[i], k, job.n_in);
    add_products(v, x, next, sums);
  }
  SHARPI_UNROLL(8)
  for (uint64_t r = 0; r < 2 * kPairs; ++r) {
    float row[2 * kPairs];
    SHARPI_UNROLL(4)
    for (uint64_t i = 0; i < kPairs; ++i) {
      const float32x4_t sum = sums[r / 2][i];
      vst1_f32(row + 2 * i, r % 2 == 0 ? vget_low_f32(sum) : vget_high_f32(sum));
    }
    if (r < n_rows) std::memcpy(job.y + (row0 + r) * job.y_stride + o, row, n_out * sizeof(float));
  }
}

void bf16_job(const MatmulJob& whole) {
  auto* const packed = reinterpret_cast<bfloat16_t*>(whole.scratch);
  const uint64_t row = (whole.n_in + kStep - 1) / kStep * kStep;  // elements
  MatmulJob job = whole;
  for (uint64_t o0 = 0; o0 < whole.n_out; o0 += kBlockOutputs) {
    job.w = whole.w + o0 * whole.row_bytes;
    job.y = whole.y + o0;
    job.n_out = whole.n_out - o0 < kBlockOutputs ? whole.n_out - o0 : kBlockOutputs;
    for (uint64_t r0 = 0; r0 < job.n_rows; r0 += kBlockRows) {
      const uint64_t n = job.n_rows - r0 < kBlockRows ? job.n_rows - r0 : kBlockRows;
      pack_rows(job, r0, n, packed);
      for (uint64_t o = 0; o < job.n_out; o += 2 * kPairs) {
        for (uint64_t r = 0; r < n; r += 2 * kPairs) {
          tile(job, o, packed + r * row, r0 + r, n - r < 2 * kPairs ? n - r : 2 * kPairs);
        }
      }
    }
  }
}

}  // namespace

MatmulJobFn bf16_neon(GgmlType type) {
  return type == GgmlType::kBF16 ? bf16_job : nullptr;
}

uint64_t bf16_scratch_bytes_neon(uint64_t max_in) {
  return (max_in + kStep - 1) / kStep * kStep * kBlockRows * sizeof(uint16_t);
}

}  // namespace sharpi::cpu
