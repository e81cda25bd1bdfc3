// SPDX-License-Identifier: MIT
// Encoding rows in the codec q4, over the vectors V: the arithmetic of kv/rotation.h and
// kv/codec.h, bit for bit.
// Bound: comparing each element with the fifteen midpoints between levels, which takes little time
// beside the products of a block.
// Thread rule: pure functions with internal linkage.
#pragma once

#include <cstdint>

#include "cpu/ops_table.h"
#include "kv/levels.h"

namespace sharpi::cpu {
namespace {

struct SignTable {
  float of[kMostRotated];
};
constexpr SignTable make_signs() {
  SignTable t{};
  for (uint32_t i = 0; i < kMostRotated; ++i) {
    t.of[i] = (kRotationSigns[i / 32] >> i % 32 & 1u) != 0 ? -1.0f : 1.0f;
  }
  return t;
}
constexpr SignTable kSigns = make_signs();

/// b elements. Neighbours first, then 2, 4, .. apart.
inline void hadamard(float* x, uint32_t b, float norm) {
  constexpr uint32_t kW = V::kWidth;
  for (uint32_t i = 0; i < b; i += kW) V::store(x + i, V::hadamard(V::load(x + i)));
  for (uint32_t apart = kW; apart < b; apart *= 2) {
    for (uint32_t i = 0; i < b; i += 2 * apart) {
      for (uint32_t j = i; j < i + apart; j += kW) {
        const V::R low = V::load(x + j), high = V::load(x + j + apart);
        V::store(x + j, V::add(low, high));
        V::store(x + j + apart, V::sub(low, high));
      }
    }
  }
  const V::R f = V::set1(norm);
  for (uint32_t i = 0; i < b; i += kW) V::store(x + i, V::mul(V::load(x + i), f));
}

inline void change_signs(float* x, uint32_t b) {
  for (uint32_t i = 0; i < b; i += V::kWidth) {
    V::store(x + i, V::mul(V::load(x + i), V::load(kSigns.of + i)));
  }
}

void rows_rotate(float* x, uint64_t n, uint32_t b) {
  const float norm = 1.0f / __builtin_sqrtf(static_cast<float>(b));
  for (uint64_t i = 0; i < n; i += b) {
    change_signs(x + i, b);
    hadamard(x + i, b, norm);
  }
}
void rows_unrotate(float* x, uint64_t n, uint32_t b) {
  const float norm = 1.0f / __builtin_sqrtf(static_cast<float>(b));
  for (uint64_t i = 0; i < n; i += b) {
    hadamard(x + i, b, norm);
    change_signs(x + i, b);
  }
}

constexpr uint32_t kQ4Block = 32, kQ4Vectors = kQ4Block / V::kWidth;

/// A block's levels for one scale, and, where `codes` is not null, its codes as floats.
inline void nearest_levels(const float* x, float inverse, V::R* levels, float* codes) {
  const V::R f = V::set1(inverse), one = V::set1(1.0f);
  for (uint32_t j = 0; j < kQ4Vectors; ++j) {
    const V::R y = V::mul(V::load(x + j * V::kWidth), f);
    V::R level = V::set1(kQ4Levels[0]), code = V::zero();
    for (uint32_t i = 0; i + 1 < kQ4LevelCount; ++i) {
      const V::R middle = V::set1(kQ4Middles[i]);
      const V::R up = V::set1(static_cast<float>(kQ4Levels[i + 1] - kQ4Levels[i]));
      level = V::add(level, V::select_lt(middle, y, up, V::zero()));
      if (codes != nullptr) code = V::add(code, V::select_lt(middle, y, one, V::zero()));
    }
    levels[j] = level;
    if (codes != nullptr) V::store(codes + j * V::kWidth, code);
  }
}

/// The least-squares scale; sums of elements 16 apart, then 8, 4, 2, 1.
inline float fit_scale(const float* x, const V::R* levels) {
  V::R up[kQ4Vectors], down[kQ4Vectors];
  for (uint32_t j = 0; j < kQ4Vectors; ++j) {
    up[j] = V::mul(V::load(x + j * V::kWidth), levels[j]);
    down[j] = V::mul(levels[j], levels[j]);
  }
  for (uint32_t half = kQ4Vectors / 2; half > 0; half /= 2) {
    for (uint32_t j = 0; j < half; ++j) {
      up[j] = V::add(up[j], up[j + half]);
      down[j] = V::add(down[j], down[j + half]);
    }
  }
  return V::sum(up[0]) / V::sum(down[0]);
}

/// The element of largest magnitude, the first of several, with its sign. Magnitudes order like
/// integers, with infinities and NaN on top.
inline float largest_of(const float* x) {
  uint32_t bits[kQ4Block], top = 0, at = 0;
  __builtin_memcpy(bits, x, sizeof bits);
  for (uint32_t& b : bits) b &= 0x7FFFFFFFu;
  for (const uint32_t b : bits) top = b > top ? b : top;
  for (uint32_t i = kQ4Block; i-- > 0;) at = bits[i] == top ? i : at;
  return x[at];
}

uint16_t encode_q4_block(const float* x, uint8_t* out) {
  constexpr uint16_t kNanHalf = 0x7E00;
  const float top = largest_of(x), magnitude = __builtin_fabsf(top);
  const bool zeros = magnitude < kQ4LeastMagnitude;
  if (zeros || !(magnitude < __builtin_inff())) {
    __builtin_memset(out, kQ4ZeroCode | kQ4ZeroCode << 4, kQ4Block / 2);
    return zeros ? 0 : kNanHalf;
  }
  V::R levels[kQ4Vectors];
  alignas(64) float codes[kQ4Block];
  nearest_levels(x, 127.0f / top, levels, nullptr);
  nearest_levels(x, 1.0f / fit_scale(x, levels), levels, codes);
  for (uint32_t i = 0; i < kQ4Block; i += 2) {
    out[i / 2] =
        static_cast<uint8_t>(static_cast<int>(codes[i]) + 16 * static_cast<int>(codes[i + 1]));
  }
  const float d = fit_scale(x, levels);
  return d == d ? V::half(d) : kNanHalf;
}

void rows_encode_q4(const float* x, uint64_t n, uint8_t* row) {
  for (uint64_t b = 0; b < n / kQ4Block; ++b) {
    const uint16_t d = encode_q4_block(x + b * kQ4Block, row + b * kQ4Block / 2);
    __builtin_memcpy(row + n / 2 + b * sizeof d, &d, sizeof d);
  }
}

}  // namespace
}  // namespace sharpi::cpu
