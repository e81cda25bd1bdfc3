// SPDX-License-Identifier: MIT
#include "kv/codec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/half.h"
#include "kv/levels.h"

namespace sharpi {
namespace {

/// Below this a block is all zeros: 1/d of a subnormal amax is infinite and 0 * inf a NaN.
constexpr float kQ8MinScale = 1e-30f;
// Adding and subtracting 1.5 * 2^23 rounds |x| < 2^22 to the nearest integer, ties to even.
constexpr float kRoundMagic = 12582912.0f;

/// body(scale, e) of the elements [first, first + count) of a row with a scale for every 32.
template <class Body>
void each_scale(const void* scales, uint64_t first, uint64_t count, const Body& body) {
  constexpr uint64_t kShared = 32;
  for (uint64_t e = first; e < first + count;) {
    uint16_t half;
    std::memcpy(&half, static_cast<const std::byte*>(scales) + e / kShared * sizeof half,
                sizeof half);
    const float d = f32_from_f16(half);
    const uint64_t end = std::min((e / kShared + 1) * kShared, first + count);
    for (; e < end; ++e) body(d, e);
  }
}

/// How a codec's rows are made and read; the signatures of kv_encode_row() and kv_decode_row().
template <KvDtype kType>
struct RowCodec;

template <>
struct RowCodec<KvDtype::kF32> {
  static void encode(const float* src, uint64_t n, void* row) {
    std::memcpy(row, src, n * sizeof(float));
  }
  static void decode(const void* row, uint64_t, uint64_t first, uint64_t count, float* dst) {
    std::memcpy(dst, static_cast<const float*>(row) + first, count * sizeof(float));
  }
};

template <>
struct RowCodec<KvDtype::kBf16> {
  static void encode(const float* src, uint64_t n, void* row) {
    auto* out = static_cast<uint16_t*>(row);
    for (uint64_t i = 0; i < n; ++i) out[i] = bf16_from_f32(src[i]);
  }
  static void decode(const void* row, uint64_t, uint64_t first, uint64_t count, float* dst) {
    const auto* in = static_cast<const uint16_t*>(row) + first;
    for (uint64_t i = 0; i < count; ++i) dst[i] = f32_from_bf16(in[i]);
  }
};

template <>
struct RowCodec<KvDtype::kQ8_0> {
  static constexpr uint32_t kBlock = KvCodecTraits<KvDtype::kQ8_0>::kBlock;

  /// The largest magnitude as bits: magnitudes order like integers, and a NaN ends up on top, so
  /// that it reaches the scale instead of vanishing in a comparison.
  static float block_amax(const float* x) {
    uint32_t top = 0;
    for (uint32_t i = 0; i < kBlock; ++i) {
      const uint32_t bits = std::bit_cast<uint32_t>(x[i]) & 0x7FFFFFFFu;
      top = bits > top ? bits : top;
    }
    return std::bit_cast<float>(top);
  }
  /// One block: quantised values to q, the scale is returned as fp16.
  static uint16_t encode_block(const float* x, int8_t* q) {
    const float d = block_amax(x) / 127.0f;
    const float inverse = d < kQ8MinScale ? 0.0f : 1.0f / d;
    for (uint32_t i = 0; i < kBlock; ++i) {
      float v = x[i] * inverse;
      v = v > -127.0f ? v : -127.0f;
      v = v < 127.0f ? v : 127.0f;
      q[i] = static_cast<int8_t>(static_cast<int32_t>((v + kRoundMagic) - kRoundMagic));
    }
    return f16_from_f32(d);
  }
  static void encode(const float* src, uint64_t n, void* row) {
    auto* values = static_cast<int8_t*>(row);
    std::byte* scales = static_cast<std::byte*>(row) + n;
    for (uint64_t b = 0; b < n / kBlock; ++b) {
      const uint16_t d = encode_block(src + b * kBlock, values + b * kBlock);
      std::memcpy(scales + b * sizeof d, &d, sizeof d);
    }
  }
  static void decode(const void* row, uint64_t n, uint64_t first, uint64_t count, float* dst) {
    const auto* values = static_cast<const int8_t*>(row);
    each_scale(values + n, first, count,
               [&](float d, uint64_t e) { dst[e - first] = d * static_cast<float>(values[e]); });
  }
};

template <>
struct RowCodec<KvDtype::kQ4> {
  static constexpr uint32_t kBlock = KvCodecTraits<KvDtype::kQ4>::kBlock;
  static constexpr uint16_t kNanHalf = 0x7E00;

  /// The element of largest magnitude, the first of several, with its sign.
  static float largest(const float* x) {
    float top = x[0];
    uint32_t most = 0;
    for (uint32_t i = 0; i < kBlock; ++i) {
      const uint32_t bits = std::bit_cast<uint32_t>(x[i]) & 0x7FFFFFFFu;
      if (bits > most) most = bits, top = x[i];
    }
    return top;
  }
  static void nearest(const float* x, float inverse, uint8_t* codes) {
    for (uint32_t i = 0; i < kBlock; ++i) {
      const float y = x[i] * inverse;
      codes[i] = 0;
      for (const float middle : kQ4Middles)
        codes[i] = static_cast<uint8_t>(codes[i] + (y > middle));
    }
  }
  /// The scale with which those codes come closest to x. Sums of elements 16 apart, then 8, 4, ..,
  /// as every form of this has them.
  static float fit(const float* x, const uint8_t* codes) {
    float up[kBlock], down[kBlock];
    for (uint32_t i = 0; i < kBlock; ++i) {
      const auto c = static_cast<float>(kQ4Levels[codes[i]]);
      up[i] = x[i] * c;
      down[i] = c * c;
    }
    for (uint32_t half = kBlock / 2; half > 0; half /= 2) {
      for (uint32_t i = 0; i < half; ++i) up[i] += up[i + half], down[i] += down[i + half];
    }
    return up[0] / down[0];
  }
  static uint16_t encode_block(const float* x, uint8_t* codes) {
    const float top = largest(x);
    const bool zeros = std::fabs(top) < kQ4LeastMagnitude;
    if (zeros || !std::isfinite(top)) {
      std::memset(codes, kQ4ZeroCode, kBlock);
      return zeros ? 0 : kNanHalf;
    }
    nearest(x, 127.0f / top, codes);
    nearest(x, 1.0f / fit(x, codes), codes);
    const float d = fit(x, codes);
    return std::isnan(d) ? kNanHalf : f16_from_f32(d);
  }
  static void encode(const float* src, uint64_t n, void* row) {
    auto* values = static_cast<uint8_t*>(row);
    uint8_t* scales = values + n / 2;
    for (uint64_t b = 0; b < n / kBlock; ++b) {
      uint8_t codes[kBlock];
      const uint16_t d = encode_block(src + b * kBlock, codes);
      std::memcpy(scales + b * sizeof d, &d, sizeof d);
      for (uint32_t i = 0; i < kBlock; i += 2) {
        values[(b * kBlock + i) / 2] = static_cast<uint8_t>(codes[i] | codes[i + 1] << 4);
      }
    }
  }
  static void decode(const void* row, uint64_t n, uint64_t first, uint64_t count, float* dst) {
    const auto* values = static_cast<const uint8_t*>(row);
    each_scale(values + n / 2, first, count, [&](float d, uint64_t e) {
      dst[e - first] = d * static_cast<float>(kQ4Levels[values[e / 2] >> e % 2 * 4 & 15]);
    });
  }
};

template <KvDtype kType>
constexpr KvCodec make_codec() {
  using Traits = KvCodecTraits<kType>;
  static_assert(kKvPlanes<kType> <= kMostKvPlanes);
  KvCodec c;
  c.dtype = kType;
  c.name = Traits::kNames[0];
  c.names = Traits::kNames;
  c.block = Traits::kBlock;
  c.planes = Traits::kPlanes;
  c.narrower = Traits::kNarrower;
  c.rotated = Traits::kRotated;
  c.form = Traits::kForm;
  c.encode = RowCodec<kType>::encode;
  c.decode = RowCodec<kType>::decode;
  return c;
}

/// Codec i + 1 of the enumeration.
constexpr auto kCodecs = [] {
  std::array<KvCodec, kKvCodecs> all;
  for_each_kv_codec(
      [&]<KvDtype kType>() { all[static_cast<uint32_t>(kType) - 1] = make_codec<kType>(); });
  return all;
}();

Status unknown_codec(KvDtype dtype) {
  return Status::error(Code::kInternal, "KV codec %u does not exist", static_cast<uint32_t>(dtype));
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

std::string all_names() {
  std::string all;
  for (const KvCodec& c : kCodecs) {
    for (const char* name : c.names) all += name + std::string(", ");
  }
  return all + "auto";
}

Status bad_dtype_text(const char* text, size_t n) {
  constexpr size_t kShown = 48;
  char shown[kShown + 1] = {};
  for (size_t i = 0; i < n && i < kShown; ++i) {
    shown[i] = text[i] >= 0x20 && text[i] != 0x7F ? text[i] : '?';  // the text stays one line
  }
  return Status::error(Code::kInvalidArgument, "KV dtype \"%s%s\" is not one of %s", shown,
                       n > kShown ? "..." : "", all_names().c_str());
}

/// Bytes of places that are as far from each other as `step` says.
template <class Byte>
struct Places {
  Byte* first;
  uint64_t step;
};
template <size_t kBytes>
void copy_each(Places<std::byte> to, Places<const std::byte> from, uint64_t n) {
  for (uint64_t i = 0; i < n; ++i)
    std::memcpy(to.first + i * to.step, from.first + i * from.step, kBytes);
}
/// `bytes` of each of n places. A compiler copies fast what it knows the size of.
void copy_each(size_t bytes, Places<std::byte> to, Places<const std::byte> from, uint64_t n) {
  switch (bytes) {
    case 2:
      return copy_each<2>(to, from, n);
    case 4:
      return copy_each<4>(to, from, n);
    case 16:
      return copy_each<16>(to, from, n);
    case 32:
      return copy_each<32>(to, from, n);
    default:
      for (uint64_t i = 0; i < n; ++i)
        std::memcpy(to.first + i * to.step, from.first + i * from.step, bytes);
  }
}

/// Of each of a stored row's planes, blocks of which lie one behind the other, and blocks that hold
/// the scales first and then the values: body(at in the row, at in the canonical form, bytes of a
/// block, from block to block there).
template <class Body>
void each_canonical_plane(const KvCodec& c, uint64_t n, const Body& body) {
  uint64_t plane_end = c.row_bytes(n), to = 0, step = 0;
  for (const KvPlane& plane : c.planes) step += plane.bytes_of(c.block);
  for (size_t p = c.planes.size(); p-- > 0;) {
    const uint64_t bytes = c.planes[p].bytes_of(c.block);
    plane_end -= c.planes[p].bytes_of(n);
    body(plane_end, to, bytes, step);
    to += bytes;
  }
}

}  // namespace

std::span<const KvCodec> kv_codecs() {
  return kCodecs;
}

const KvCodec* kv_codec(KvDtype dtype) {
  return is_kv_codec(dtype) ? &kCodecs[static_cast<uint32_t>(dtype) - 1] : nullptr;
}

const char* kv_dtype_name(KvDtype dtype) {
  if (dtype == KvDtype::kAuto) return "auto";
  const KvCodec* codec = kv_codec(dtype);
  return codec != nullptr ? codec->name : "?";
}

std::string kv_dtype_numbers() {
  std::string all = "0 (auto)";
  for (const KvCodec& c : kCodecs) {
    all += ", " + std::to_string(static_cast<uint32_t>(c.dtype)) + " (" + c.name + ")";
  }
  for (char& letter : all) {
    if (letter >= 'a' && letter <= 'z') letter = static_cast<char>(letter - 'a' + 'A');
  }
  return all;
}

uint32_t kv_saved_dtype(KvDtype dtype) {
  const KvCodec* codec = kv_codec(dtype);
  return static_cast<uint32_t>(dtype) | (codec != nullptr ? codec->form << 16 : 0);
}

Result<KvDtype> kv_dtype_parse(const char* text, bool* is_set) {
  if (text == nullptr) text = "";
  while (is_space(*text)) ++text;
  size_t n = std::strlen(text);
  while (n > 0 && is_space(text[n - 1])) --n;
  if (is_set != nullptr) *is_set = n != 0;
  if (n == 0 || equals_ignoring_case(text, n, "auto")) return KvDtype::kAuto;
  for (const KvCodec& c : kCodecs) {
    for (const char* name : c.names) {
      if (equals_ignoring_case(text, n, name)) return c.dtype;
    }
  }
  return bad_dtype_text(text, n);
}

uint64_t kv_row_bytes(KvDtype dtype, uint64_t n) {
  const KvCodec* codec = kv_codec(dtype);
  return codec != nullptr ? codec->row_bytes(n) : 0;
}

Status kv_encode_row(KvDtype dtype, const float* src, uint64_t n, void* row) {
  const KvCodec* codec = kv_codec(dtype);
  if (codec == nullptr) return unknown_codec(dtype);
  codec->encode(src, n, row);
  return {};
}

Status kv_decode_row(KvDtype dtype, const void* row, uint64_t n, uint64_t first, uint64_t count,
                     float* dst) {
  const KvCodec* codec = kv_codec(dtype);
  if (codec == nullptr) return unknown_codec(dtype);
  codec->decode(row, n, first, count, dst);
  return {};
}

Status kv_row_to_canonical(KvDtype dtype, const void* row, uint64_t n, void* canonical) {
  const KvCodec* codec = kv_codec(dtype);
  if (codec == nullptr) return unknown_codec(dtype);
  const auto* from = static_cast<const std::byte*>(row);
  auto* to = static_cast<std::byte*>(canonical);
  each_canonical_plane(*codec, n, [&](uint64_t at, uint64_t there, uint64_t bytes, uint64_t step) {
    copy_each(bytes, {to + there, step}, {from + at, bytes}, n / codec->block);
  });
  return {};
}

Status kv_row_from_canonical(KvDtype dtype, const void* canonical, uint64_t n, void* row) {
  const KvCodec* codec = kv_codec(dtype);
  if (codec == nullptr) return unknown_codec(dtype);
  const auto* from = static_cast<const std::byte*>(canonical);
  auto* to = static_cast<std::byte*>(row);
  each_canonical_plane(*codec, n, [&](uint64_t at, uint64_t there, uint64_t bytes, uint64_t step) {
    copy_each(bytes, {to + at, bytes}, {from + there, step}, n / codec->block);
  });
  return {};
}

}  // namespace sharpi
