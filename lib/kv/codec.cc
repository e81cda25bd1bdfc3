// SPDX-License-Identifier: MIT
#include "kv/codec.h"

#include <bit>
#include <cstring>

#include "base/half.h"

namespace sharpi {
namespace {

constexpr uint32_t kQ8Block = 32;
constexpr uint64_t kQ8BlockBytes = 34;  // 32 int8 + one fp16 scale
// Below this a block is all zeros: 1/d of a subnormal amax is infinite and 0 * inf a NaN.
constexpr float kQ8MinScale = 1e-30f;
// Adding and subtracting 1.5 * 2^23 rounds |x| < 2^22 to the nearest integer, ties to even.
constexpr float kRoundMagic = 12582912.0f;

constexpr KvCodec kF32Codec{"f32", 1};
constexpr KvCodec kBf16Codec{"bf16", 1};
constexpr KvCodec kQ8Codec{"q8_0", kQ8Block};

Status unknown_codec(KvDtype dtype) {
  return Status::error(Code::kInternal, "unknown KV codec %u", static_cast<uint32_t>(dtype));
}

void encode_bf16(const float* src, uint64_t n, void* row) {
  auto* out = static_cast<uint16_t*>(row);
  for (uint64_t i = 0; i < n; ++i) out[i] = bf16_from_f32(src[i]);
}

void decode_bf16(const void* row, uint64_t first, uint64_t count, float* dst) {
  const auto* in = static_cast<const uint16_t*>(row) + first;
  for (uint64_t i = 0; i < count; ++i) dst[i] = f32_from_bf16(in[i]);
}

/// The largest magnitude as bits: magnitudes order like integers, and a NaN ends up on top, so that
/// it reaches the scale instead of vanishing in a comparison.
float block_amax(const float* x) {
  uint32_t top = 0;
  for (uint32_t i = 0; i < kQ8Block; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(x[i]) & 0x7FFFFFFFu;
    top = bits > top ? bits : top;
  }
  return std::bit_cast<float>(top);
}

/// One block of 32: quantised values to q, the scale is returned as fp16.
uint16_t encode_q8_block(const float* x, int8_t* q) {
  const float d = block_amax(x) / 127.0f;
  const float inverse = d < kQ8MinScale ? 0.0f : 1.0f / d;
  for (uint32_t i = 0; i < kQ8Block; ++i) {
    float v = x[i] * inverse;
    v = v > -127.0f ? v : -127.0f;
    v = v < 127.0f ? v : 127.0f;
    q[i] = static_cast<int8_t>(static_cast<int32_t>((v + kRoundMagic) - kRoundMagic));
  }
  return f16_from_f32(d);
}

void encode_q8(const float* src, uint64_t n, void* row) {
  auto* values = static_cast<int8_t*>(row);
  std::byte* scales = static_cast<std::byte*>(row) + n;
  for (uint64_t b = 0; b < n / kQ8Block; ++b) {
    const uint16_t d = encode_q8_block(src + b * kQ8Block, values + b * kQ8Block);
    std::memcpy(scales + b * sizeof d, &d, sizeof d);
  }
}

void decode_q8(const void* row, uint64_t n, uint64_t first, uint64_t count, float* dst) {
  const auto* values = static_cast<const int8_t*>(row) + first;
  const std::byte* scales = static_cast<const std::byte*>(row) + n + first / kQ8Block * 2;
  for (uint64_t b = 0; b < count / kQ8Block; ++b) {
    uint16_t half;
    std::memcpy(&half, scales + b * sizeof half, sizeof half);
    const float d = f32_from_f16(half);
    for (uint32_t i = 0; i < kQ8Block; ++i) {
      dst[b * kQ8Block + i] = d * static_cast<float>(values[b * kQ8Block + i]);
    }
  }
}

constexpr bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v';
}

bool equals_ignoring_case(const char* text, size_t n, const char* lower) {
  if (std::strlen(lower) != n) return false;
  for (size_t i = 0; i < n; ++i) {
    const char c = text[i];
    const char l = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    if (l != lower[i]) return false;
  }
  return true;
}

Status bad_dtype_text(const char* text, size_t n) {
  constexpr size_t kShown = 48;
  char shown[kShown + 1] = {};
  for (size_t i = 0; i < n && i < kShown; ++i) {
    shown[i] = text[i] >= 0x20 && text[i] != 0x7F ? text[i] : '?';  // the text stays one line
  }
  return Status::error(Code::kInvalidArgument,
                       "KV dtype \"%s%s\" is not one of fp32, f32, bf16, q8_0, q8, auto", shown,
                       n > kShown ? "..." : "");
}

}  // namespace

const KvCodec* kv_codec(KvDtype dtype) {
  switch (dtype) {
    case KvDtype::kF32:
      return &kF32Codec;
    case KvDtype::kBf16:
      return &kBf16Codec;
    case KvDtype::kQ8_0:
      return &kQ8Codec;
    case KvDtype::kAuto:
      break;
  }
  return nullptr;
}

const char* kv_dtype_name(KvDtype dtype) {
  if (dtype == KvDtype::kAuto) return "auto";
  const KvCodec* codec = kv_codec(dtype);
  return codec != nullptr ? codec->name : "?";
}

Result<KvDtype> kv_dtype_parse(const char* text, bool* is_set) {
  struct Spelling {
    const char* text;
    KvDtype dtype;
  };
  static constexpr Spelling kSpellings[] = {
      {"fp32", KvDtype::kF32},  {"f32", KvDtype::kF32}, {"bf16", KvDtype::kBf16},
      {"q8_0", KvDtype::kQ8_0}, {"q8", KvDtype::kQ8_0}, {"auto", KvDtype::kAuto},
  };
  if (text == nullptr) text = "";
  while (is_space(*text)) ++text;
  size_t n = std::strlen(text);
  while (n > 0 && is_space(text[n - 1])) --n;
  if (is_set != nullptr) *is_set = n != 0;
  if (n == 0) return KvDtype::kAuto;
  for (const Spelling& s : kSpellings) {
    if (equals_ignoring_case(text, n, s.text)) return s.dtype;
  }
  return bad_dtype_text(text, n);
}

uint64_t kv_row_bytes(KvDtype dtype, uint64_t n) {
  switch (dtype) {
    case KvDtype::kF32:
      return n * 4;
    case KvDtype::kBf16:
      return n * 2;
    case KvDtype::kQ8_0:
      return n / kQ8Block * kQ8BlockBytes;
    case KvDtype::kAuto:
      break;
  }
  return 0;
}

Status kv_encode_row(KvDtype dtype, const float* src, uint64_t n, void* row) {
  switch (dtype) {
    case KvDtype::kF32:
      std::memcpy(row, src, n * sizeof(float));
      return {};
    case KvDtype::kBf16:
      encode_bf16(src, n, row);
      return {};
    case KvDtype::kQ8_0:
      encode_q8(src, n, row);
      return {};
    case KvDtype::kAuto:
      break;
  }
  return unknown_codec(dtype);
}

Status kv_decode_row(KvDtype dtype, const void* row, uint64_t n, uint64_t first, uint64_t count,
                     float* dst) {
  switch (dtype) {
    case KvDtype::kF32:
      std::memcpy(dst, static_cast<const float*>(row) + first, count * sizeof(float));
      return {};
    case KvDtype::kBf16:
      decode_bf16(row, first, count, dst);
      return {};
    case KvDtype::kQ8_0:
      decode_q8(row, n, first, count, dst);
      return {};
    case KvDtype::kAuto:
      break;
  }
  return unknown_codec(dtype);
}

Status kv_row_to_canonical(KvDtype dtype, const void* row, uint64_t n, void* canonical) {
  if (kv_codec(dtype) == nullptr) return unknown_codec(dtype);
  const auto* in = static_cast<const std::byte*>(row);
  auto* out = static_cast<std::byte*>(canonical);
  if (dtype != KvDtype::kQ8_0) {
    std::memcpy(out, in, kv_row_bytes(dtype, n));
    return {};
  }
  for (uint64_t b = 0; b < n / kQ8Block; ++b) {
    std::memcpy(out + b * kQ8BlockBytes, in + n + b * 2, 2);
    std::memcpy(out + b * kQ8BlockBytes + 2, in + b * kQ8Block, kQ8Block);
  }
  return {};
}

Status kv_row_from_canonical(KvDtype dtype, const void* canonical, uint64_t n, void* row) {
  if (kv_codec(dtype) == nullptr) return unknown_codec(dtype);
  const auto* in = static_cast<const std::byte*>(canonical);
  auto* out = static_cast<std::byte*>(row);
  if (dtype != KvDtype::kQ8_0) {
    std::memcpy(out, in, kv_row_bytes(dtype, n));
    return {};
  }
  for (uint64_t b = 0; b < n / kQ8Block; ++b) {
    std::memcpy(out + n + b * 2, in + b * kQ8BlockBytes, 2);
    std::memcpy(out + b * kQ8Block, in + b * kQ8BlockBytes + 2, kQ8Block);
  }
  return {};
}

}  // namespace sharpi
