// SPDX-License-Identifier: MIT
// IEEE binary16 and bfloat16 conversions in software; the SIMD kernels have their own.
// Thread rule: pure functions.
#pragma once

#include <bit>
#include <cstdint>

namespace sharpi {

/// bfloat16 from f32, round to nearest even; NaN stays NaN (quiet).
constexpr uint16_t bf16_from_f32(float f) {
  const uint32_t u = std::bit_cast<uint32_t>(f);
  if ((u & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);
  return static_cast<uint16_t>((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
}
/// f32 from bfloat16, exact for every input.
constexpr float f32_from_bf16(uint16_t h) {
  return std::bit_cast<float>(static_cast<uint32_t>(h) << 16);
}
/// The nearest bfloat16 that is at least (`up`) or at most a number.
constexpr uint16_t bf16_beyond(float f, bool up) {
  const uint32_t u = std::bit_cast<uint32_t>(f);
  const bool away = (u & 0xFFFFu) != 0 && (f > 0) == up;
  return static_cast<uint16_t>((u >> 16) + (away ? 1 : 0));
}

/// f32 from IEEE half, exact for every input (subnormals, infinities, NaN).
constexpr float f32_from_f16(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t exp = (h >> 10) & 31u;
  const uint32_t man = h & 0x3FFu;
  if (exp == 31) return std::bit_cast<float>(sign | 0x7F800000u | (man << 13));
  if (exp != 0) return std::bit_cast<float>(sign | ((exp + 112u) << 23) | (man << 13));
  const float magnitude = static_cast<float>(man) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

/// IEEE half from f32, round to nearest even, overflow to infinity.
constexpr uint16_t f16_from_f32(float f) {
  const uint32_t u = std::bit_cast<uint32_t>(f);
  const uint16_t sign = static_cast<uint16_t>((u >> 16) & 0x8000u);
  const uint32_t abs = u & 0x7FFFFFFFu;
  if (abs > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u);
  if (abs >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);
  if (abs < 0x38800000u) {  // subnormal half: add a power of two whose ulp is 2^-24
    const float shifted = std::bit_cast<float>(abs) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000u));
  }
  const uint32_t rounded = abs + 0xFFFu + ((abs >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

}  // namespace sharpi
