// SPDX-License-Identifier: MIT
// Single weights of a row, for the few activations that row-dot kernels multiply in f32
// (Int8Peaks). Behind the block formats of an instruction set, whose names, loads and half_at() it
// takes: include its quant_<isa>_k.h first.
// Everything here has internal linkage. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <cstring>

#include "cpu/generic/quant_levels.h"
#include "cpu/matmul_kernels.h"

namespace sharpi::cpu {
namespace {  // NOLINT: internal linkage keeps code of one instruction set out of other files

/// scale * code is the weight, or what its group's minimum is added to. Codes are those of
/// quant_avx2.h: below 128 and unsigned, or signed.
struct Element {
  float scale;
  int code;
};
/// Element i of 16 bytes of nibbles: low ones, then high ones.
inline int nibble_of(const uint8_t* p, uint64_t i) {
  return p[i % 16] >> (i / 16 * 4) & 15;
}
inline int iq4_level(int nibble) {
  return kIq4Levels[nibble];
}

// Blocks of 32.
template <class Format>
inline const uint8_t* block_at(const uint8_t* row, uint64_t at) {
  return row + at / 32 * Format::kBlockBytes;
}
/// kHead: bytes in front of the nibbles; fifth bits are the last 4 of them.
template <class Format, uint64_t kHead, bool kFifth>
inline Element nibble_element(const uint8_t* row, uint64_t at) {
  const uint8_t* b = block_at<Format>(row, at);
  int code = nibble_of(b + kHead, at % 32);
  if (kFifth) code |= static_cast<int>(load_u32(b + kHead - 4) >> at % 32 & 1) << 4;
  return {half_at(b), code};
}

inline Element element_of(Q8_0, const uint8_t* row, uint64_t at) {
  const uint8_t* b = block_at<Q8_0>(row, at);
  return {half_at(b), static_cast<int8_t>(b[2 + at % 32])};
}
inline Element element_of(Q4_0, const uint8_t* row, uint64_t at) {
  return nibble_element<Q4_0, 2, false>(row, at);
}
inline Element element_of(Q4_1, const uint8_t* row, uint64_t at) {
  return nibble_element<Q4_1, 4, false>(row, at);
}
inline Element element_of(Q5_0, const uint8_t* row, uint64_t at) {
  return nibble_element<Q5_0, 6, true>(row, at);
}
inline Element element_of(Q5_1, const uint8_t* row, uint64_t at) {
  return nibble_element<Q5_1, 8, true>(row, at);
}
inline Element element_of(IQ4_NL, const uint8_t* row, uint64_t at) {
  const Element e = nibble_element<IQ4_NL, 2, false>(row, at);
  return {e.scale, iq4_level(e.code)};
}
inline Element element_of(MXFP4, const uint8_t* row, uint64_t at) {
  const uint8_t* b = block_at<MXFP4>(row, at);
  // 2^(e - 128); the two smallest are subnormal.
  const uint32_t bits = b[0] < 2 ? 0x00200000u << b[0] : (b[0] - 1u) << 23;
  float scale;
  std::memcpy(&scale, &bits, sizeof scale);
  return {scale, kMxLevels[nibble_of(b + 1, at % 32)]};
}

// K formats: blocks of 256.
template <class Format>
inline const uint8_t* super_block_at(const uint8_t* row, uint64_t at) {
  return row + at / 256 * Format::kBlockBytes;
}
/// d times the 6-bit scale of group g of Q4_K and Q5_K.
inline float k_scale(const uint8_t* b, uint64_t g) {
  const uint8_t* p = b + 4;
  const int six = g < 4 ? p[g] & 63 : (p[g + 4] & 15) | (p[g - 4] >> 6) << 4;
  return half_at(b) * static_cast<float>(six);
}
inline Element element_of(Q4_K, const uint8_t* row, uint64_t at) {
  const uint8_t* b = super_block_at<Q4_K>(row, at);
  const uint64_t g = at % 256 / 32;
  return {k_scale(b, g), b[16 + g / 2 * 32 + at % 32] >> (g % 2 * 4) & 15};
}
inline Element element_of(Q5_K, const uint8_t* row, uint64_t at) {
  const uint8_t* b = super_block_at<Q5_K>(row, at);
  const uint64_t g = at % 256 / 32;
  const int low = b[48 + g / 2 * 32 + at % 32] >> (g % 2 * 4) & 15;
  return {k_scale(b, g), low | (b[16 + at % 32] >> g & 1) << 4};
}
inline Element element_of(Q6_K, const uint8_t* row, uint64_t at) {
  const uint8_t* b = super_block_at<Q6_K>(row, at);
  const uint64_t i = at % 256, half = i / 128, quarter = i % 128 / 32;
  const int low = b[64 * half + quarter % 2 * 32 + i % 32] >> (quarter / 2 * 4) & 15;
  const int high = b[128 + 32 * half + i % 32] >> (2 * quarter) & 3;
  const auto scale = static_cast<int8_t>(b[192 + i / 16]);
  return {half_at(b + 208) * static_cast<float>(scale), low | high << 4};
}
/// Two bits of element i, of bytes that hold four elements of 128 each.
inline int crumb_of(const uint8_t* p, uint64_t i) {
  return p[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
}
inline Element element_of(Q2_K, const uint8_t* row, uint64_t at) {
  const uint8_t* b = super_block_at<Q2_K>(row, at);
  const uint64_t i = at % 256;
  return {half_at(b + 80) * static_cast<float>(b[i / 16] & 15), crumb_of(b + 16, i)};
}
inline Element element_of(Q3_K, const uint8_t* row, uint64_t at) {
  const uint8_t* b = super_block_at<Q3_K>(row, at);
  const uint64_t i = at % 256, g = i / 16;
  const uint8_t* c = b + 96;
  const int four = c[g % 8] >> (g / 8 * 4) & 15, two = c[8 + g % 4] >> (g / 4 * 2) & 3;
  const int high = b[i % 32] >> (i / 32) & 1;
  return {half_at(b + 108) * static_cast<float>((four | two << 4) - 32),
          crumb_of(b + 32, i) | high << 2};
}
inline Element element_of(IQ4_XS, const uint8_t* row, uint64_t at) {
  const uint8_t* b = super_block_at<IQ4_XS>(row, at);
  const uint64_t g = at % 256 / 32;
  const int four = b[4 + g / 2] >> (g % 2 * 4) & 15, two = load_u16(b + 2) >> (2 * g) & 3;
  return {half_at(b) * static_cast<float>((four | two << 4) - 32),
          iq4_level(nibble_of(b + 8 + 16 * g, at % 32))};
}

/// The products of a row's peaks with the codes of a weight row. `offset`: what the kernel's codes
/// are larger by than those of element_of(). The same bits wherever it is inlined.
template <class Format>
inline float add_peaks(float sum, const Int8Peaks& peaks, const void* weights, int offset = 0) {
  for (uint32_t i = 0; i < peaks.n; ++i) {
    const Element e = element_of(Format{}, static_cast<const uint8_t*>(weights), peaks.at[i]);
    sum = __builtin_fmaf(e.scale * static_cast<float>(e.code + offset), peaks.x[i], sum);
  }
  return sum;
}

}  // namespace
}  // namespace sharpi::cpu
