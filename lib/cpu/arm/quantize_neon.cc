// SPDX-License-Identifier: MIT
// Activation rows in int8 (cpu/matmul_kernels.h).
#include <arm_neon.h>

#include <cstring>

#include "cpu/arm/kernel_tables.h"
#include "cpu/matmul_kernels.h"

namespace sharpi::cpu {
namespace {

/// Largest magnitude of 32 elements as bits, so that NaN is the largest.
inline uint32_t amax_bits(const float32x4_t* x) {
  const uint32x4_t magnitude = vdupq_n_u32(0x7FFFFFFF);
  uint32x4_t a = vdupq_n_u32(0);
  for (int i = 0; i < 8; ++i) {
    a = vmaxq_u32(a, vandq_u32(vreinterpretq_u32_f32(x[i]), magnitude));
  }
  return vmaxvq_u32(a);
}

/// Group g of a unit.
inline void quantize_32(const float* x, int g, int8_t* q, float* meta) {
  float32x4_t v[8];
  for (int i = 0; i < 8; ++i) v[i] = vld1q_f32(x + 4 * i);
  const uint32_t bits = amax_bits(v);
  float amax;
  std::memcpy(&amax, &bits, sizeof amax);
  const bool finite = bits < 0x7F800000u, used = amax >= kInt8MinAmax;
  const float inverse = finite && used ? 127.0f / amax : 0.0f;
  const float d = !finite ? __builtin_nanf("") : used ? amax / 127.0f : 0.0f;

  float sums[2];
  for (int h = 0; h < 2; ++h) {
    int16x4_t n[4];
    for (int i = 0; i < 4; ++i) {
      n[i] = vqmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(v[4 * h + i], inverse)));
    }
    const int8x16_t bytes =
        vcombine_s8(vqmovn_s16(vcombine_s16(n[0], n[1])), vqmovn_s16(vcombine_s16(n[2], n[3])));
    vst1q_s8(q + 32 * g + 16 * h, bytes);
    sums[h] = static_cast<float>(vaddlvq_s8(bytes));
  }
  meta[g] = d;
  meta[8 + g] = d * (sums[0] + sums[1]);
  meta[16 + 2 * g] = d * sums[0];
  meta[17 + 2 * g] = d * sums[1];
}

}  // namespace

void quantize_row_neon(const float* x, uint64_t n, std::byte* row) {
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

}  // namespace sharpi::cpu
