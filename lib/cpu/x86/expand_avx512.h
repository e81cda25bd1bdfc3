// SPDX-License-Identifier: MIT
// Weight rows expanded to f32 vectors, for the kernels that multiply expanded weights. Only for
// kernel files compiled for AVX-512: everything here has internal linkage.
// Thread rule: pure functions.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "cpu/x86/quant_avx512_k.h"

namespace sharpi::cpu {
namespace {  // NOLINT: internal linkage keeps AVX-512 code out of other translation units

/// Keeps the compiler from forwarding stores at p to later loads: as shuffles they would cost more.
inline void keep_in_memory(const void* p) {
  __asm__ volatile("" : : "r"(p) : "memory");
}

/// Up to kUnits units of a row as f32 weights. The scales of all units are decoded before any
/// weight: decoded unit by unit, each unit's weights would wait for its scales.
template <class Format, uint64_t kUnits>
class RowPiece {
 public:
  RowPiece(const uint8_t* p, uint64_t n_units) {
    const __m512 min = _mm512_set1_ps(Format::kMin);
    for (uint64_t i = 0; i < n_units; ++i, p += Format::kUnitBytes) {
      if constexpr (Format::kGroup16) {
        __m512 s, m;
        Format::scales(p, s, m);
        _mm512_store_ps(s_[i], s);
        _mm512_store_ps(m_[i], _mm512_mul_ps(m, min));
      } else {
        const __m512 v = Format::scales(p);
        _mm512_store_ps(s_[i], v);
        _mm512_store_ps(m_[i], _mm512_mul_ps(_mm512_shuffle_f32x4(v, v, 0xEE), min));
      }
    }
    keep_in_memory(this);
  }
  /// Calls put(j, 16 weights) for the 16 vectors of unit i, which lies at p.
  template <class Put>
  void expand(const uint8_t* p, uint64_t i, Put put) const {
    alignas(64) uint8_t code[256];
    __m512i u[4];
    Format::template codes<false>(p, u);
    for (int j = 0; j < 4; ++j) _mm512_store_si512(code + 64 * j, u[j]);
    keep_in_memory(code);
#pragma GCC unroll 8
    for (int g = 0; g < 8; ++g) put(g, weights(code, i, 2 * g), weights(code, i, 2 * g + 1));
  }

 private:
  __m512 weights(const uint8_t* code, uint64_t i, int j) const {
    const int g = Format::kGroup16 ? j : j / 2;
    const __m512i wide =
        _mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(code + 16 * j)));
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(wide), _mm512_set1_ps(s_[i][g]),
                           _mm512_set1_ps(m_[i][g]));
  }
  alignas(64) float s_[kUnits][16], m_[kUnits][16];
};

/// Expands elements [begin, begin + n) of a row, begin being a multiple of 256, in pieces of kUnits
/// units: put(element - begin, its 16 weights, the next 16 weights) for every 32 elements.
template <class Format, uint64_t kUnits, class Put>
inline void expand_row(const uint8_t* row, uint64_t begin, uint64_t n, Put put) {
  const uint8_t* p = row + begin / 256 * Format::kUnitBytes;
  const auto piece = [&](const uint8_t* from, uint64_t at, uint64_t n_units) {
    const RowPiece<Format, kUnits> scales(from, n_units);
    for (uint64_t i = 0; i < n_units; ++i, from += Format::kUnitBytes) {
      scales.expand(from, i, [&](int g, __m512 low, __m512 high) {
        put(at + i * 256 + static_cast<uint64_t>(g) * 32, low, high);
      });
    }
  };
  uint64_t at = 0;
  for (; at + 256 * kUnits <= n; at += 256 * kUnits, p += kUnits * Format::kUnitBytes) {
    piece(p, at, kUnits);
  }
  for (; at + 256 <= n; at += 256, p += Format::kUnitBytes) piece(p, at, 1);
  if (at < n) {
    uint8_t buffer[Format::kUnitBytes];
    piece(padded_unit<Format>(p, n - at, buffer), at, 1);
  }
}

}  // namespace
}  // namespace sharpi::cpu
