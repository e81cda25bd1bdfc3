// SPDX-License-Identifier: MIT
// The sampler's random numbers: the same on every platform (Melissa O'Neill 2014). Thread rule: one
// owner.
#pragma once

#include <cstdint>

namespace sharpi {

/// PCG32 (XSH-RR): 64 bits of state, one fixed stream, so that the state alone says how to go on.
class Pcg32 {
 public:
  explicit Pcg32(uint64_t seed) {
    next();
    state += seed;
    next();
  }
  uint32_t next() {
    const uint64_t old = state;
    state = old * 6364136223846793005ull + kIncrement;
    const auto shifted = static_cast<uint32_t>(((old >> 18) ^ old) >> 27);
    const auto amount = static_cast<uint32_t>(old >> 59);
    return (shifted >> amount) | (shifted << ((32 - amount) & 31));
  }
  /// Uniform in [0, 1) with 53 bits.
  double uniform() {
    const uint64_t high = next() >> 5;
    const uint64_t low = next() >> 6;
    return static_cast<double>((high << 26) | low) * 0x1p-53;
  }
  uint64_t state = 0;

 private:
  static constexpr uint64_t kIncrement = (54ull << 1) | 1;
};

}  // namespace sharpi
