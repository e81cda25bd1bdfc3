// SPDX-License-Identifier: MIT
// One unit of weights (tiles.cuh) as a lane of fixed_product.cuh reads it: where its parts are, in
// memory or in registers that the next unit's parts take as soon as they are read.
// Thread rule: device code.
#pragma once

#include <type_traits>

#include "cuda/kernels/products/tiles.cuh"

namespace sharpi::cuda {

/// Byte offsets of a lane's parts: codes of block b of 32 columns, what completes them, rows of
/// scales and minima (half h of the rows), scales of half h of the blocks.
template <GgmlType kType>
struct UnitPlaces {
  static constexpr bool kBytes = kType == GgmlType::kQ8_0;
  static constexpr bool kSmall = kBytes || kType == GgmlType::kQ4_0;
  static constexpr bool kFive = kType == GgmlType::kQ5_K, kSix = kType == GgmlType::kQ6_K;
  static constexpr int kBlock = kBytes ? 544 : kSmall ? 288 : 256;
  static constexpr int kCodeWords = kBytes ? 4 : 2;
  static constexpr int kExtras = kSix ? 8 : kFive ? 4 : 0;  // words that complete codes
  static constexpr int kMetas = kSmall ? 0 : 2;             // of four words
  static constexpr int kScales = kSmall ? 2 : kSix ? 1 : 0;
  static constexpr int kWords = 8 * kCodeWords + kExtras + 4 * kMetas + kScales;
  static constexpr int kMeta = kSix ? 3072 : kFive ? 2560 : 2048;

  static __device__ __forceinline__ int codes(int b, int lane) {
    return b * kBlock + lane * (4 * kCodeWords);
  }
  static __device__ __forceinline__ int extra(int b, int lane) {
    return 2048 + (kFive ? b / 2 : b) * 128 + lane * 4;
  }
  static __device__ __forceinline__ int meta(int h, int lane) {
    return kMeta + (lane / 4 + 8 * h) * 16;
  }
  static __device__ __forceinline__ int scales(int h, int lane) {
    if constexpr (kSix) return 3328 + lane / 4 * 4;
    return (4 * h + lane % 4) * kBlock + (kBytes ? 512 : 256) + lane / 4 * 4;
  }
};

template <GgmlType kType>
using UnitCodes = std::conditional_t<UnitPlaces<kType>::kBytes, uint4, uint2>;

/// A unit in memory.
template <GgmlType kType>
struct MemoryUnit {
  using Places = UnitPlaces<kType>;
  const uint8_t* at;
  int lane;
  __device__ __forceinline__ UnitCodes<kType> codes(int b) const {
    return load_as<UnitCodes<kType>>(at + Places::codes(b, lane));
  }
  __device__ __forceinline__ uint32_t extra(int b) const {
    return load_as<uint32_t>(at + Places::extra(b, lane));
  }
  __device__ __forceinline__ uint4 meta(int h) const {
    return load_as<uint4>(at + Places::meta(h, lane));
  }
  __device__ __forceinline__ uint32_t scales(int h) const {
    return load_as<uint32_t>(at + Places::scales(h, lane));
  }
};

/// Words of weights, which nobody writes, past the first-level cache.
__device__ __forceinline__ void load_words(const uint8_t* from, uint32_t (&w)[1]) {
  asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(w[0]) : "l"(from));
}
__device__ __forceinline__ void load_words(const uint8_t* from, uint32_t (&w)[2]) {
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
               : "=r"(w[0]), "=r"(w[1])
               : "l"(from));
}
__device__ __forceinline__ void load_words(const uint8_t* from, uint32_t (&w)[4]) {
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
               : "l"(from));
}

/// What a lane has of a unit of any type.
constexpr int kMostUnitWords = UnitPlaces<GgmlType::kQ8_0>::kWords;
struct HeldUnit {
  uint32_t w[kMostUnitWords];
};

/// A unit in registers. Each part, once read, is asked for again of the next unit, if there is one:
/// so one unit of a warp is always under way.
template <GgmlType kType>
struct RegisterUnit {
  using Places = UnitPlaces<kType>;
  static constexpr int kExtra = 8 * Places::kCodeWords, kMeta = kExtra + Places::kExtras,
                       kScale = kMeta + 4 * Places::kMetas;
  HeldUnit& held;
  const uint8_t* next;  // in device memory; nullptr: none
  int lane;

  template <int kN>
  __device__ __forceinline__ void renew(int at, int place, uint32_t (&was)[kN]) const {
#pragma unroll
    for (int i = 0; i < kN; ++i) was[i] = held.w[at + i];
    if (next == nullptr) return;
    uint32_t w[kN];
    load_words(next + place, w);
#pragma unroll
    for (int i = 0; i < kN; ++i) held.w[at + i] = w[i];
  }
  __device__ __forceinline__ UnitCodes<kType> codes(int b) const {
    uint32_t w[Places::kCodeWords];
    renew(b * Places::kCodeWords, Places::codes(b, lane), w);
    if constexpr (Places::kBytes) {
      return {w[0], w[1], w[2], w[3]};
    } else {
      return {w[0], w[1]};
    }
  }
  __device__ __forceinline__ uint32_t extra(int b) const {
    const int i = Places::kFive ? b / 2 : b;
    if (Places::kFive && b % 2 == 0) return held.w[kExtra + i];  // its second half is asked for too
    uint32_t w[1];
    renew(kExtra + i, Places::extra(b, lane), w);
    return w[0];
  }
  __device__ __forceinline__ uint4 meta(int h) const {
    uint32_t w[4];
    renew(kMeta + 4 * h, Places::meta(h, lane), w);
    return {w[0], w[1], w[2], w[3]};
  }
  __device__ __forceinline__ uint32_t scales(int h) const {
    uint32_t w[1];
    renew(kScale + h, Places::scales(h, lane), w);
    return w[0];
  }
};

/// Asks for all of a unit.
template <GgmlType kType>
__device__ __forceinline__ void hold_unit(const uint8_t* unit, int lane, HeldUnit& held) {
  const RegisterUnit<kType> all{held, unit, lane};
  using Places = UnitPlaces<kType>;
#pragma unroll
  for (int b = 0; b < 8; ++b) (void)all.codes(b);
#pragma unroll
  for (int b = 0; b < 8; ++b) {
    if (Places::kExtras == 8 || (Places::kExtras == 4 && b % 2 == 1)) (void)all.extra(b);
  }
#pragma unroll
  for (int h = 0; h < Places::kMetas; ++h) (void)all.meta(h);
#pragma unroll
  for (int h = 0; h < Places::kScales; ++h) (void)all.scales(h);
}

}  // namespace sharpi::cuda
