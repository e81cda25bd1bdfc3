// SPDX-License-Identifier: MIT
// What a KV codec is, as data: its names, its block, the planes of a stored row, how products use
// its values. Host code, CPU kernels and CUDA kernels read it here, and branch over codecs by
// visit_kv_codec() only, so a codec without a trait, or without the functions that some kernel
// needs, does not compile. How rows are encoded and decoded: kv/codec.cc,
// cpu/generic/attention_rows.h and cuda/kernels/kv/kv_codecs.cuh. Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/host_device.h"
#include "base/kv_dtype.h"

namespace sharpi {

/// A run of a stored row's bytes: so many for every so many elements, heads one after the other. A
/// row's planes lie one behind the other; the first one holds the values.
struct KvPlane {
  uint32_t elements, bytes;
  constexpr uint64_t bytes_of(uint64_t n) const { return n / elements * bytes; }
};

/// The form in which tensor cores and dot products take a codec's values.
enum class KvProduct : uint8_t {
  kF16,     // rounded to f16
  kBf16,    // as they are
  kCodes,   // stored signed bytes, multiplied as integers; sums of a block take its scale
  kLevels,  // stored indices of signed bytes, which are multiplied as kCodes are
};

/// Of codec kType; kv_codec() gives the same at run time. kNames: as text names it, the first one
/// is what the library says. kBlock: elements stored together, of which rows are multiples.
/// kNarrower: what `auto` takes where this does not fit, itself if nothing. kRotated: rows are
/// rotated before they are stored (kv/rotation.h). kForm: counts up where the same stored bytes
/// come to mean other values; saved sessions carry it.
template <KvDtype kType>
struct KvCodecTraits;

template <>
struct KvCodecTraits<KvDtype::kF32> {
  static constexpr const char* kNames[] = {"f32", "fp32"};
  static constexpr uint32_t kBlock = 1;
  static constexpr KvPlane kPlanes[] = {{1, 4}};
  static constexpr KvProduct kProduct = KvProduct::kF16;
  static constexpr KvDtype kNarrower = KvDtype::kBf16;
  static constexpr bool kRotated = false;
  static constexpr uint32_t kForm = 0;
};

/// Round to nearest even.
template <>
struct KvCodecTraits<KvDtype::kBf16> {
  static constexpr const char* kNames[] = {"bf16"};
  static constexpr uint32_t kBlock = 1;
  static constexpr KvPlane kPlanes[] = {{1, 2}};
  static constexpr KvProduct kProduct = KvProduct::kBf16;
  static constexpr KvDtype kNarrower = KvDtype::kQ8_0;
  static constexpr bool kRotated = false;
  static constexpr uint32_t kForm = 0;
};

/// Signed bytes, then an fp16 scale for every 32 of them: the bytes of ggml's 34-byte blocks.
template <>
struct KvCodecTraits<KvDtype::kQ8_0> {
  static constexpr const char* kNames[] = {"q8_0", "q8"};
  static constexpr uint32_t kBlock = 32;
  static constexpr KvPlane kPlanes[] = {{1, 1}, {32, 2}};
  static constexpr KvProduct kProduct = KvProduct::kCodes;
  static constexpr KvDtype kNarrower = KvDtype::kQ8_0;
  static constexpr bool kRotated = false;
  static constexpr uint32_t kForm = 0;
};

/// Rotated rows: two codes a byte, the earlier element in the low half, then a signed fp16 scale
/// for every 32 of them; a code is one of sixteen levels (kv/levels.h). `auto` never takes it.
template <>
struct KvCodecTraits<KvDtype::kQ4> {
  static constexpr const char* kNames[] = {"q4", "tq4"};
  static constexpr uint32_t kBlock = 32;
  static constexpr KvPlane kPlanes[] = {{2, 1}, {32, 2}};
  static constexpr KvProduct kProduct = KvProduct::kLevels;
  static constexpr KvDtype kNarrower = KvDtype::kQ4;
  static constexpr bool kRotated = true;
  static constexpr uint32_t kForm = 1;
};

/// f.operator()<codec>() of a codec, otherwise() of kAuto and of values outside the enumeration.
/// The only branches over codecs are this one and those of with_kv_codec() and any_kv_codec(),
/// which go through their numbers.
SHARPI_CALLS_EITHER_SIDE
template <class F, class Otherwise>
SHARPI_HOST_DEVICE constexpr auto visit_kv_codec(KvDtype type, F&& f, Otherwise&& otherwise) {
  switch (type) {
    case KvDtype::kBf16:
      return f.template operator()<KvDtype::kBf16>();
    case KvDtype::kQ8_0:
      return f.template operator()<KvDtype::kQ8_0>();
    case KvDtype::kF32:
      return f.template operator()<KvDtype::kF32>();
    case KvDtype::kQ4:
      return f.template operator()<KvDtype::kQ4>();
    case KvDtype::kAuto:
      break;
  }
  return otherwise();
}

SHARPI_HOST_DEVICE constexpr bool is_kv_codec(KvDtype type) {
  return type != KvDtype::kAuto && static_cast<uint32_t>(type) <= kKvCodecs;
}

template <KvDtype kType>
concept HasKvTraits = requires {
  KvCodecTraits<kType>::kBlock;
};

/// f.operator()<codec>() of every codec, in the order of their numbers.
template <class F, uint32_t kFirst = 1>
constexpr void for_each_kv_codec(F&& f) {
  constexpr auto kType = static_cast<KvDtype>(kFirst);
  static_assert(HasKvTraits<kType> && !HasKvTraits<static_cast<KvDtype>(kKvCodecs + 1)>,
                "kKvCodecs counts the codecs");
  f.template operator()<kType>();
  if constexpr (kFirst < kKvCodecs) for_each_kv_codec<F, kFirst + 1>(static_cast<F&&>(f));
}

/// Whether f takes a codec: functions may exclude some, by a requires clause.
template <KvDtype kType, class F>
concept TakesKvCodec = requires(const F& f) {
  f.template operator()<kType>();
};

/// The last codec that f takes.
template <class F, uint32_t kFrom = kKvCodecs>
constexpr KvDtype last_kv_codec() {
  if constexpr (TakesKvCodec<static_cast<KvDtype>(kFrom), F>) {
    return static_cast<KvDtype>(kFrom);
  } else {
    return last_kv_codec<F, kFrom - 1>();
  }
}

/// f.operator()<codec>() of a codec where the caller has checked that it is one, and one that f
/// takes. Unlike visit_kv_codec() it takes a value that is none of the others for kWanted (or for
/// the last codec), which saves kernels a comparison.
SHARPI_CALLS_EITHER_SIDE
template <KvDtype kWanted = KvDtype::kAuto, uint32_t kFirst = 1, class F>
SHARPI_HOST_DEVICE constexpr auto with_kv_codec(KvDtype type, const F& f) {
  constexpr KvDtype kLast = kWanted != KvDtype::kAuto ? kWanted : last_kv_codec<F>();
  constexpr auto kType = static_cast<KvDtype>(kFirst);
  if constexpr (kFirst > kKvCodecs) {
    return f.template operator()<kLast>();
  } else if constexpr (kType == kLast || !TakesKvCodec<kType, F>) {
    return with_kv_codec<kLast, kFirst + 1>(type, f);
  } else {
    if (type == kType) return f.template operator()<kType>();
    return with_kv_codec<kLast, kFirst + 1>(type, f);
  }
}

/// Whether `type` is one of the codecs for which has.operator()<codec>() is true.
SHARPI_CALLS_EITHER_SIDE
template <uint32_t kFirst = 1, class F>
SHARPI_HOST_DEVICE constexpr bool any_kv_codec(KvDtype type, const F& has) {
  constexpr auto kType = static_cast<KvDtype>(kFirst);
  if constexpr (kFirst > kKvCodecs) {
    return false;
  } else {
    return (has.template operator()<kType>() && type == kType) ||
           any_kv_codec<kFirst + 1>(type, has);
  }
}

template <KvDtype kType>
inline constexpr uint32_t kKvPlanes = sizeof KvCodecTraits<kType>::kPlanes / sizeof(KvPlane);
/// Planes of any codec, at most.
inline constexpr uint32_t kMostKvPlanes = 2;

/// Bytes of n values, scales apart: n is a multiple of what shares a byte.
template <KvDtype kType>
SHARPI_HOST_DEVICE constexpr uint64_t kv_value_bytes(uint64_t n) {
  constexpr KvPlane kValues = KvCodecTraits<kType>::kPlanes[0];  // a copy: kernels have no array
  return n / kValues.elements * kValues.bytes;
}

}  // namespace sharpi
