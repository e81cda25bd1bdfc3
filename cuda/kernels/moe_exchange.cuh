// SPDX-License-Identifier: MIT
// How values pass between the blocks of a moe_step launch: each with the number of the launch in
// one word of 64 bits, written and read as a whole. Who reads a word whose number is this launch's
// has the value; no counter and no fence stands between, so nothing waits for the copies that are
// under way. Counters say only when it is worth looking.
// Thread rule: device code.
#pragma once

#include "cuda/kernels/stage.cuh"

namespace sharpi::cuda::step {

/// Where column c of a row lies: what a lane takes of a unit is four times 16 bytes, each time next
/// to its neighbours'.
__device__ __forceinline__ uint32_t word_of(uint32_t c) {
  const uint32_t i = c % kUnitColumns;
  return c - i + (i / 128 * 2 + i % 4 / 2) * 64 + i % 128 / 4 * 2 + i % 2;
}

__device__ __forceinline__ void put_word(uint64_t* to, float v, uint32_t number) {
  const uint64_t word = uint64_t{number} << 32 | __float_as_uint(v);
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}
__device__ __forceinline__ void put_value(uint64_t* row, uint32_t c, float v, uint32_t number) {
  put_word(row + word_of(c), v, number);
}

__device__ __forceinline__ uint64_t look_at(const uint64_t* from) {
  uint64_t w;
  asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(w) : "l"(from) : "memory");
  return w;
}
__device__ __forceinline__ ulonglong2 look_at_two(const uint64_t* from) {
  ulonglong2 w;
  asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];"
               : "=l"(w.x), "=l"(w.y)
               : "l"(from)
               : "memory");
  return w;
}
__device__ __forceinline__ bool is_of(uint64_t word, uint32_t number) {
  return static_cast<uint32_t>(word >> 32) == number;
}
__device__ __forceinline__ float value_of(uint64_t word) {
  return __uint_as_float(static_cast<uint32_t>(word));
}

/// A lane's eight columns of unit u of a row, as soon as all of the warp's are there.
__device__ __forceinline__ LaneInputs take_unit(const uint64_t* row, uint32_t u, uint32_t lane,
                                                uint32_t number) {
  const uint64_t* at = row + u * kUnitColumns + lane * 2;
  ulonglong2 w[4];
  bool here;
  do {
#pragma unroll
    for (uint32_t k = 0; k < 4; ++k) w[k] = look_at_two(at + 64 * k);
    here = true;
#pragma unroll
    for (uint32_t k = 0; k < 4; ++k) here = here && is_of(w[k].x, number) && is_of(w[k].y, number);
  } while (!__all_sync(~0u, here));
  LaneInputs in;
#pragma unroll
  for (uint32_t k = 0; k < 2; ++k) {
    in.v[k] = {value_of(w[2 * k].x), value_of(w[2 * k].y), value_of(w[2 * k + 1].x),
               value_of(w[2 * k + 1].y)};
  }
  return in;
}

/// Counters of blocks that have left what others wait for; every block counts once at each of them
/// in every launch. They order nothing.
struct Counters {
  uint32_t* words;  // 128 bytes apart
  uint32_t number;  // of the launch
  uint32_t slack;   // how many may still be missing

  __device__ __forceinline__ void count(uint32_t which) const {
    asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(words + which * 32) : "memory");
  }
  __device__ __forceinline__ void await(uint32_t which) const {
    const uint32_t all = number * gridDim.x - slack;
    uint32_t now;
    do {
      asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];"
                   : "=r"(now)
                   : "l"(words + which * 32)
                   : "memory");
    } while (static_cast<int32_t>(now - all) < 0);
  }
};

}  // namespace sharpi::cuda::step
