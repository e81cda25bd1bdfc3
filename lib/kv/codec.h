// SPDX-License-Identifier: MIT
// KV codecs: how one row of n floats is stored. A row is the K or the V of one token in one layer,
// n = kv_heads * head_dim elements.
//   f32   n floats.
//   bf16  n bfloat16, round to nearest even.
//   q8_0  blocks of 32: amax over the block, d = amax/127 in f32, inverse 1/d (0 when d < 1e-30),
//         q = clamp(round-to-nearest-even(x*inverse), +-127), d stored as fp16. Memory holds a row
//         planar: n int8 values, then n/32 fp16 scales (the bytes of n/32 34-byte ggml blocks, but
//         values can be loaded 16 or more bytes at a time). Saved blobs hold canonical blocks.
//   q4    blocks of 32 of a rotated row (kv/rotation.h): the codes of the levels (kv/levels.h)
//         nearest to x / d, and d by least squares: d = sum(x c) / sum(c^2), of the codes that the
//         element of largest magnitude as level 127 gives, and once more of those that this d
//         gives; a signed fp16. Planar too: n/2 bytes of codes, then n/32 scales. A block with an
//         infinity or NaN decodes to NaN alone, one beyond fp16's range (8.3e6) to infinities or
//         NaN.
// Functions here take and give rows as they are stored. For a codec that rotates, the caller
// rotates a row before encoding it, and rotates it back after decoding it.
// Source of the q8_0 arithmetic: ggml block_q8_0, with the 1e-30 guard against subnormal scales; of
// least-squares scales: ggml's IQ4_NL.
// Thread rule: pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"
#include "kv/codec_traits.h"

namespace sharpi {

/// A codec at run time: what KvCodecTraits says of it (kv/codec_traits.h), and its functions.
struct KvCodec {
  KvDtype dtype = KvDtype::kAuto;
  const char* name = nullptr;
  std::span<const char* const> names;
  uint32_t block = 1;  // elements stored together: rows must be a multiple of it
  std::span<const KvPlane> planes;
  KvDtype narrower = KvDtype::kAuto;
  bool rotated = false;
  uint32_t form = 0;
  void (*encode)(const float* src, uint64_t n, void* row) = nullptr;
  void (*decode)(const void* row, uint64_t n, uint64_t first, uint64_t count, float* dst) = nullptr;

  constexpr uint64_t row_bytes(uint64_t n) const {
    uint64_t bytes = 0;
    for (const KvPlane& p : planes) bytes += p.bytes_of(n);
    return bytes;
  }
  /// Saved blobs hold other bytes than memory does.
  constexpr bool has_canonical_form() const { return planes.size() > 1; }
};

/// Every codec, in the order of their numbers.
std::span<const KvCodec> kv_codecs();
inline constexpr auto kAllKvCodecs = [] {
  std::array<KvDtype, kKvCodecs> all{};
  size_t n = 0;
  for_each_kv_codec([&]<KvDtype kType>() { all[n++] = kType; });
  return all;
}();
/// nullptr for kAuto and for values outside the enumeration.
const KvCodec* kv_codec(KvDtype dtype);
const char* kv_dtype_name(KvDtype dtype);  // "auto" for kAuto, "?" outside the enumeration
/// "0 (AUTO), 1 (F32), ..", as SHARPI_KV_* are called: for messages about parameters.
std::string kv_dtype_numbers();
/// How a saved session names the codec: its number, and its form in the upper half.
uint32_t kv_saved_dtype(KvDtype dtype);
/// Trimmed, case-insensitive: one of the codecs' names, or auto; empty = auto with *is_set = false.
/// Anything else: kInvalidArgument naming the value and the list.
Result<KvDtype> kv_dtype_parse(const char* text, bool* is_set);

/// Bytes of a row of n elements; 0 for an unknown codec. Pre: n is a multiple of the block.
uint64_t kv_row_bytes(KvDtype dtype, uint64_t n);

/// Encodes n floats to one stored row. kInternal for an unknown codec (never another codec's path).
Status kv_encode_row(KvDtype dtype, const float* src, uint64_t n, void* row);
/// Decodes elements [first, first + count) of a stored row of n elements.
Status kv_decode_row(KvDtype dtype, const void* row, uint64_t n, uint64_t first, uint64_t count,
                     float* dst);
/// Stored (planar) row <-> canonical row: of every block the scales and then the values, as ggml
/// has them. Same size; codecs of one plane copy.
Status kv_row_to_canonical(KvDtype dtype, const void* row, uint64_t n, void* canonical);
Status kv_row_from_canonical(KvDtype dtype, const void* canonical, uint64_t n, void* row);

}  // namespace sharpi
