// SPDX-License-Identifier: MIT
// Numbers of MXFP4: E2M1 codes and their E8M0 scales. Thread rule: pure device functions.
#pragma once

#include <cstdint>

namespace sharpi::cuda {

__device__ __forceinline__ float fp4_value(uint32_t code) {
  // Twice the E2M1 values: 0 1 2 3 4 6 8 12, then the negatives.
  const uint32_t magnitude = (code & 4u ? 0x0C080604u : 0x03020100u) >> (code % 4 * 8) & 255u;
  const float v = static_cast<float>(magnitude);
  return code > 8u ? -v : v;  // both zeros are +0
}
/// Of such values.
__device__ __forceinline__ float mxfp4_scale(uint32_t e) {
  return __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
}

/// a[0..4) = the half-word pairs of one row's eight codes, in the order of nibble_codes()
/// (tiles.cuh), as f16: sign, exponent and mantissa of E2M1 stand where f16 has them, in its upper
/// byte, so each is 2^-14 times its value.
__device__ __forceinline__ void fp4_halves(uint32_t w, uint32_t* a) {
  const uint32_t even = ((w << 4) & 0x80808080u) | ((w << 1) & 0x0E0E0E0Eu),
                 odd = (w & 0x80808080u) | ((w >> 3) & 0x0E0E0E0Eu);
  a[0] = __byte_perm(even, 0, 0x2404);
  a[1] = __byte_perm(odd, 0, 0x2404);
  a[2] = even & 0xFF00FF00u;
  a[3] = odd & 0xFF00FF00u;
}

}  // namespace sharpi::cuda
