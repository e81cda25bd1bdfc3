// SPDX-License-Identifier: MIT
// The rotation of codecs that round coarsely: y = H (s * x) / sqrt(b) over every b elements, H the
// Hadamard matrix and s fixed signs (kv/levels.h). It spreads what is large over its neighbours, so
// that few levels suffice. Dot products stay what they are where both sides are rotated: rows are
// stored rotated, queries are rotated once, and the weighted sum of values is rotated back once.
// Source: QuaRot, arXiv 2404.00456. Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "kv/codec_traits.h"
#include "kv/levels.h"

namespace sharpi {

/// The largest power of two that divides head_dim, at most kMostRotated.
constexpr uint32_t rotation_of(uint32_t head_dim) {
  const uint32_t power = head_dim & (~head_dim + 1u);
  return power < kMostRotated ? power : kMostRotated;
}
/// Elements of a head that are rotated together before rows are stored so; 0 = none are.
constexpr uint32_t kv_rotation(KvDtype dtype, uint32_t head_dim) {
  const bool rotates = visit_kv_codec(
      dtype, [&]<KvDtype kType>() { return KvCodecTraits<kType>::kRotated; }, [] { return false; });
  return rotates ? rotation_of(head_dim) : 0;
}

/// Rotates x[n] in place, b elements at a time; b = 0 leaves it as it is. Pre: n is a multiple of
/// b. The plain form: cpu/ops.h has it for each instruction set, with the same bits.
void kv_rotate(float* x, uint64_t n, uint32_t b);
/// The inverse.
void kv_unrotate(float* x, uint64_t n, uint32_t b);

}  // namespace sharpi
