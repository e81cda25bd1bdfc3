// SPDX-License-Identifier: MIT
#include "kv/rotation.h"

#include <cmath>

namespace sharpi {
namespace {

void change_signs(float* x, uint32_t b) {
  for (uint32_t i = 0; i < b; ++i) {
    if ((kRotationSigns[i / 32] >> i % 32 & 1u) != 0) x[i] = -x[i];
  }
}

/// Neighbours first, then elements 2, 4, .. apart: the order that every form has.
void hadamard(float* x, uint32_t b) {
  for (uint32_t apart = 1; apart < b; apart *= 2) {
    for (uint32_t i = 0; i < b; i += 2 * apart) {
      for (uint32_t j = i; j < i + apart; ++j) {
        const float low = x[j], high = x[j + apart];
        x[j] = low + high;
        x[j + apart] = low - high;
      }
    }
  }
  const float norm = 1.0f / std::sqrt(static_cast<float>(b));
  for (uint32_t i = 0; i < b; ++i) x[i] *= norm;
}

}  // namespace

void kv_rotate(float* x, uint64_t n, uint32_t b) {
  for (uint64_t i = 0; b != 0 && i < n; i += b) {
    change_signs(x + i, b);
    hadamard(x + i, b);
  }
}

void kv_unrotate(float* x, uint64_t n, uint32_t b) {
  for (uint64_t i = 0; b != 0 && i < n; i += b) {
    hadamard(x + i, b);
    change_signs(x + i, b);
  }
}

}  // namespace sharpi
