// SPDX-License-Identifier: MIT
// Pieces of stored rows on their way to tiles of f16: eight elements as they lie in a row, and the
// word with the scale of their block. They arrive in shared memory by asynchronous copies, at a
// place of the thread that turns them. Thread rule: device code.
#pragma once

#include "cuda/kernels/attention/attention_common.cuh"
#include "cuda/kernels/kv/kv_fragments.cuh"

namespace sharpi::cuda::pieces {

__device__ __forceinline__ void store_piece(uint32_t to, const uint32_t (&v)[4]) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v[0]), "r"(v[1]),
               "r"(v[2]), "r"(v[3])
               : "memory");
}
__device__ __forceinline__ uint32_t load_word(uint32_t at) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
  return v;
}

/// Sends a piece on its way; one that is not there is zeros. Rows are aligned to the piece, up to
/// 16 bytes. scale: bytes from the piece to its scale.
template <KvDtype kType>
__device__ __forceinline__ void fetch_piece(uint32_t to, uint32_t scale_to, const std::byte* at,
                                            uint32_t scale, bool there) {
  constexpr uint32_t kValues = value_bytes(kType, 8);
  if constexpr (has_scales(kType)) {
    const auto whole = reinterpret_cast<uintptr_t>(at + scale) & ~uintptr_t{3};
    cp_async_4_zfill(scale_to, reinterpret_cast<const std::byte*>(whole), there ? 4 : 0);
  }
  if constexpr (kValues == 4) {
    cp_async_4_zfill(to, at, there ? 4 : 0);
  } else if constexpr (kValues == 8) {
    cp_async_8_zfill(to, at, there ? 8 : 0);
  } else {
#pragma unroll
    for (uint32_t i = 0; i < kValues; i += 16) {
      cp_async_16_zfill(to + i, at + i, there ? 16 : 0);
    }
  }
}

/// A piece in registers as it was stored.
template <KvDtype kType>
struct Piece {
  static constexpr uint32_t kWords = value_bytes(kType, 8) / 4;
  alignas(16) uint32_t words[kWords];
  uint32_t scales;  // the word that its scale is a half of
};
template <KvDtype kType>
__device__ __forceinline__ void load_piece(uint32_t at, uint32_t scale_at, Piece<kType>* p) {
  constexpr uint32_t kWords = Piece<kType>::kWords;
  if constexpr (kWords == 1) {
    p->words[0] = load_word(at);
  } else if constexpr (kWords == 2) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                 : "=r"(p->words[0]), "=r"(p->words[1])
                 : "r"(at)
                 : "memory");
  } else {
#pragma unroll
    for (uint32_t i = 0; i < kWords; i += 4) {
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(p->words[i]), "=r"(p->words[i + 1]), "=r"(p->words[i + 2]),
                     "=r"(p->words[i + 3])
                   : "r"(at + 4 * i)
                   : "memory");
    }
  }
  if constexpr (has_scales(kType)) p->scales = load_word(scale_at);
}
/// As f16; upper: its scale is the word's upper half.
template <KvDtype kType>
__device__ __forceinline__ void turn_piece(const Piece<kType>& p, bool upper, uint32_t (&r)[4]) {
  if constexpr (Piece<kType>::kWords == 8) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      r[i] = pack_f16(__uint_as_float(p.words[2 * i]), __uint_as_float(p.words[2 * i + 1]));
    }
  } else {
    __half scale = __ushort_as_half(0);
    if constexpr (has_scales(kType)) {
      scale = __ushort_as_half(static_cast<uint16_t>(upper ? p.scales >> 16 : p.scales));
    }
    fragment_f16<kType>(reinterpret_cast<const uint8_t*>(p.words), 0,
                        reinterpret_cast<const uint8_t*>(&scale), r);
  }
}

}  // namespace sharpi::cuda::pieces
