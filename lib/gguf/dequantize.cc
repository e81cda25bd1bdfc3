// SPDX-License-Identifier: MIT
// One function per block format: 32 or 256 values from the bytes of one block. Sub-blocks are
// walked in storage order, with their scale kept out of the inner loop.
#include <bit>
#include <cassert>
#include <cstring>

#include "base/half.h"
#include "gguf/ggml_type.h"

namespace sharpi {
namespace {

static_assert(std::endian::native == std::endian::little, "loads below are little-endian");

template <class T>
T load(const uint8_t* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
float half_at(const uint8_t* p) {
  return f32_from_f16(load<uint16_t>(p));
}
float to_float(int v) {
  return static_cast<float>(v);
}

// The non-linear 4-bit codebook of the IQ4 types.
constexpr float kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                  1,    13,   25,  38,  53,  69,  89,  113};
// E2M1 values times two; the block scale makes up for the doubling.
constexpr float kFp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

void q8_0(const uint8_t* b, float* y) {
  const float d = half_at(b);
  for (int i = 0; i < 32; ++i) y[i] = d * to_float(static_cast<int8_t>(b[2 + i]));
}

void q4_0(const uint8_t* b, float* y) {
  const float d = half_at(b);
  for (int i = 0; i < 16; ++i) {
    y[i] = d * to_float((b[2 + i] & 15) - 8);
    y[i + 16] = d * to_float((b[2 + i] >> 4) - 8);
  }
}

void q4_1(const uint8_t* b, float* y) {
  const float d = half_at(b), m = half_at(b + 2);
  for (int i = 0; i < 16; ++i) {
    y[i] = d * to_float(b[4 + i] & 15) + m;
    y[i + 16] = d * to_float(b[4 + i] >> 4) + m;
  }
}

/// The 5-bit number of element i: nibble from `nibbles`, fifth bit from the mask.
int five_bits(const uint8_t* nibbles, uint32_t high, int i) {
  const int low = (nibbles[i % 16] >> (i / 16 * 4)) & 15;
  return low | static_cast<int>((high >> i & 1) << 4);
}

void q5_0(const uint8_t* b, float* y) {
  const float d = half_at(b);
  const auto high = load<uint32_t>(b + 2);
  for (int i = 0; i < 32; ++i) y[i] = d * to_float(five_bits(b + 6, high, i) - 16);
}

void q5_1(const uint8_t* b, float* y) {
  const float d = half_at(b), m = half_at(b + 2);
  const auto high = load<uint32_t>(b + 4);
  for (int i = 0; i < 32; ++i) y[i] = d * to_float(five_bits(b + 8, high, i)) + m;
}

void codebook_nibbles(const uint8_t* q, const float* values, float d, float* y) {
  for (int i = 0; i < 16; ++i) {
    y[i] = d * values[q[i] & 15];
    y[i + 16] = d * values[q[i] >> 4];
  }
}

void iq4_nl(const uint8_t* b, float* y) {
  codebook_nibbles(b + 2, kIq4Values, half_at(b), y);
}

/// 2^(e - 128); the two smallest are subnormal floats.
float mxfp4_scale(uint8_t e) {
  const uint32_t bits = e < 2 ? 0x00200000u << e : static_cast<uint32_t>(e - 1) << 23;
  return std::bit_cast<float>(bits);
}

void mxfp4(const uint8_t* b, float* y) {
  codebook_nibbles(b + 1, kFp4Values, mxfp4_scale(b[0]), y);
}

void q2_k(const uint8_t* b, float* y) {
  const uint8_t* scales = b;
  const float d = half_at(b + 80), dmin = half_at(b + 82);
  for (int group = 0; group < 16; ++group) {  // 16 values each
    const float scale = d * to_float(scales[group] & 15);
    const float min = dmin * to_float(scales[group] >> 4);
    const uint8_t* q = b + 16 + group / 8 * 32 + group % 2 * 16;
    const int shift = group % 8 / 2 * 2;
    for (int i = 0; i < 16; ++i) *y++ = scale * to_float(q[i] >> shift & 3) - min;
  }
}

void q3_k(const uint8_t* b, float* y) {
  const uint8_t* c = b + 96;
  const float d = half_at(b + 108);
  for (int group = 0; group < 16; ++group) {
    const int low = c[group % 8] >> (group / 8 * 4) & 15;
    const int high = c[8 + group % 4] >> (group / 4 * 2) & 3;
    const float scale = d * to_float((low | high << 4) - 32);
    const uint8_t* q = b + 32 + group / 8 * 32 + group % 2 * 16;
    const uint8_t* mask = b + group % 2 * 16;
    const int shift = group % 8 / 2 * 2;
    for (int i = 0; i < 16; ++i) {
      const int set = mask[i] >> (group / 2) & 1;
      *y++ = scale * to_float((q[i] >> shift & 3) + 4 * set - 4);
    }
  }
}

struct ScaleMin {
  int scale, min;
};

/// Scale and minimum of sub-block j of 8, from the 12 bytes that Q4_K and Q5_K pack them in.
ScaleMin scale_min(const uint8_t* c, int j) {
  if (j < 4) return {c[j] & 63, c[j + 4] & 63};
  return {(c[j + 4] & 15) | (c[j - 4] >> 6 << 4), (c[j + 4] >> 4) | (c[j] >> 6 << 4)};
}

void q4_k(const uint8_t* b, float* y) {
  const float d = half_at(b), dmin = half_at(b + 2);
  for (int j = 0; j < 8; ++j) {
    const ScaleMin s = scale_min(b + 4, j);
    const float scale = d * to_float(s.scale), min = dmin * to_float(s.min);
    const uint8_t* q = b + 16 + j / 2 * 32;
    const int shift = j % 2 * 4;
    for (int i = 0; i < 32; ++i) *y++ = scale * to_float(q[i] >> shift & 15) - min;
  }
}

void q5_k(const uint8_t* b, float* y) {
  const float d = half_at(b), dmin = half_at(b + 2);
  const uint8_t* high = b + 16;
  for (int j = 0; j < 8; ++j) {
    const ScaleMin s = scale_min(b + 4, j);
    const float scale = d * to_float(s.scale), min = dmin * to_float(s.min);
    const uint8_t* q = b + 48 + j / 2 * 32;
    const int shift = j % 2 * 4;
    for (int i = 0; i < 32; ++i) {
      const int value = (q[i] >> shift & 15) | (high[i] >> j & 1) << 4;
      *y++ = scale * to_float(value) - min;
    }
  }
}

void q6_k(const uint8_t* b, float* y) {
  const float d = half_at(b + 208);
  for (int group = 0; group < 16; ++group) {
    const float scale = d * to_float(static_cast<int8_t>(b[192 + group]));
    const int half = group / 8, in_half = group % 8 * 16;
    const uint8_t* low = b + half * 64 + in_half % 64;
    const uint8_t* high = b + 128 + half * 32 + in_half % 32;
    const int low_shift = in_half / 64 * 4, high_shift = in_half / 32 * 2;
    for (int i = 0; i < 16; ++i) {
      const int q = (low[i] >> low_shift & 15) | (high[i] >> high_shift & 3) << 4;
      *y++ = scale * to_float(q - 32);
    }
  }
}

void iq4_xs(const uint8_t* b, float* y) {
  const float d = half_at(b);
  const auto scales_high = load<uint16_t>(b + 2);
  for (int j = 0; j < 8; ++j) {
    const int low = b[4 + j / 2] >> (j % 2 * 4) & 15;
    const int high = scales_high >> (2 * j) & 3;
    codebook_nibbles(b + 8 + 16 * j, kIq4Values, d * to_float((low | high << 4) - 32), y + 32 * j);
  }
}

using BlockFn = void (*)(const uint8_t*, float*);

BlockFn block_function(GgmlType type) {
  switch (type) {
    case GgmlType::kQ8_0:
      return q8_0;
    case GgmlType::kQ4_0:
      return q4_0;
    case GgmlType::kQ4_1:
      return q4_1;
    case GgmlType::kQ5_0:
      return q5_0;
    case GgmlType::kQ5_1:
      return q5_1;
    case GgmlType::kIQ4_NL:
      return iq4_nl;
    case GgmlType::kMXFP4:
      return mxfp4;
    case GgmlType::kQ2_K:
      return q2_k;
    case GgmlType::kQ3_K:
      return q3_k;
    case GgmlType::kQ4_K:
      return q4_k;
    case GgmlType::kQ5_K:
      return q5_k;
    case GgmlType::kQ6_K:
      return q6_k;
    case GgmlType::kIQ4_XS:
      return iq4_xs;
    default:
      return nullptr;
  }
}

}  // namespace

void dequantize_row(GgmlType type, const void* src, float* dst, uint64_t n) {
  const auto* p = static_cast<const uint8_t*>(src);
  if (n == 0) return;
  if (type == GgmlType::kF32) {
    std::memcpy(dst, p, n * sizeof(float));
  } else if (type == GgmlType::kF16) {
    for (uint64_t i = 0; i < n; ++i) dst[i] = half_at(p + 2 * i);
  } else if (type == GgmlType::kBF16) {
    for (uint64_t i = 0; i < n; ++i) dst[i] = f32_from_bf16(load<uint16_t>(p + 2 * i));
  } else {
    const BlockFn block = block_function(type);
    assert(block != nullptr);
    const GgmlTypeTraits& t = ggml_traits(type);
    for (uint64_t i = 0; i < n; i += t.block_elements, p += t.block_bytes) block(p, dst + i);
  }
}

}  // namespace sharpi
