// SPDX-License-Identifier: MIT
// Overflow-checked unsigned arithmetic for sizes that come from files or callers, and rounding.
// Thread rule: pure functions.
#pragma once

#include <cstdint>

namespace sharpi {

/// Multiplies into *out; false on overflow (then *out is unspecified).
[[nodiscard]] inline bool checked_mul(uint64_t a, uint64_t b, uint64_t* out) {
  return !__builtin_mul_overflow(a, b, out);
}
/// Adds into *out; false on overflow (then *out is unspecified).
[[nodiscard]] inline bool checked_add(uint64_t a, uint64_t b, uint64_t* out) {
  return !__builtin_add_overflow(a, b, out);
}
/// The product and the sum, or the largest number: for totals that are compared with what there is.
constexpr uint64_t saturating_mul(uint64_t a, uint64_t b) {
  uint64_t n = 0;
  return __builtin_mul_overflow(a, b, &n) ? UINT64_MAX : n;
}
constexpr uint64_t saturating_add(uint64_t a, uint64_t b) {
  uint64_t n = 0;
  return __builtin_add_overflow(a, b, &n) ? UINT64_MAX : n;
}
/// Smallest multiple of `unit` that is >= n; `unit` > 0; n + unit must not overflow.
constexpr uint64_t round_up(uint64_t n, uint64_t unit) {
  return (n + unit - 1) / unit * unit;
}
/// n / unit, rounded up; `unit` > 0; n + unit must not overflow.
constexpr uint64_t div_up(uint64_t n, uint64_t unit) {
  return (n + unit - 1) / unit;
}

}  // namespace sharpi
