// SPDX-License-Identifier: MIT
// What rows of the codec q4 are made of: sixteen levels, and the signs of the rotation that rows
// and queries get. Data alone: kernels of every instruction set read it. The levels were trained on
// Gaussian elements of blocks of 32 over the largest one, which may be negative: 22.4 dB of signal
// to noise at 4.5 bits. Whoever changes them changes what saved rows mean:
// KvCodecTraits<kQ4>::kForm counts up then. Thread rule: none.
#pragma once

#include <cstdint>

namespace sharpi {

/// A stored element is scale * kQ4Levels[code]: signed bytes, as q8_0 has them.
constexpr uint32_t kQ4LevelCount = 16;
constexpr int8_t kQ4Levels[kQ4LevelCount] = {-111, -88, -69, -53, -39, -26, -14, -2,
                                             10,   22,  34,  47,  62,  79,  99,  125};
/// The level that a block of zeros has: times a scale of 0 it is +0.
constexpr uint32_t kQ4ZeroCode = 8;
/// Code i + 1 begins above the middle between levels i and i + 1; a tie goes to the lower code.
constexpr float kQ4Middles[kQ4LevelCount - 1] = {-99.5f, -78.5f, -61.0f, -46.0f, -32.5f,
                                                 -20.0f, -8.0f,  4.0f,   16.0f,  28.0f,
                                                 40.5f,  54.5f,  70.5f,  89.0f,  112.0f};
/// Blocks whose largest magnitude is below are zeros: its inverse would be infinite.
constexpr float kQ4LeastMagnitude = 127e-30f;

/// Elements that are rotated together, at most and at least; powers of two.
constexpr uint32_t kMostRotated = 128, kLeastRotated = 16;
/// Signs before the Hadamard transform: bit i % 32 of word i / 32 is set where element i of those
/// rotated together changes its sign. Without them a row of equal elements would become one spike.
constexpr uint32_t kRotationSigns[kMostRotated / 32] = {0x9E3779B9u, 0x7F4A7C15u, 0xF39CC060u,
                                                        0x5CEDC834u};

}  // namespace sharpi
