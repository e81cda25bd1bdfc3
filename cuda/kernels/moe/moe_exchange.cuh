// SPDX-License-Identifier: MIT
// How the blocks of a moe_step launch pass values to each other: a value and the number of the
// launch share one word of 64 bits, which is written and read as a whole. A reader that finds this
// launch's number has the value; neither a counter nor a fence is needed, which would also wait for
// the copies of weights that are in flight.
// Thread rule: device code.
#pragma once

#include "cuda/kernels/moe/moe_step_plan.h"
#include "cuda/kernels/products/stage.cuh"

namespace sharpi::cuda::step {

/// Where column c of a row lies: what a lane takes of a unit is twice 16 bytes, each time next to
/// its neighbours'. Two columns share a word.
__device__ __forceinline__ uint32_t word_of(uint32_t c) {
  const uint32_t i = c % kUnitColumns;
  return (c - i) / 2 + i / 128 * 64 + i % 128 / 4 * 2 + i % 4 / 2;
}

/// 24 bits of a float, rounded: finer than what a row is staged as.
__device__ __forceinline__ uint64_t upper_bits(float v) {
  const uint32_t b = __float_as_uint(v);
  return ((b & 0x7F800000u) == 0x7F800000u ? b : b + 0x80u) >> 8;
}
__device__ __forceinline__ float lower_value(uint64_t word) {
  return __uint_as_float(static_cast<uint32_t>(word) << 8);
}
__device__ __forceinline__ float upper_value(uint64_t word) {
  return __uint_as_float(static_cast<uint32_t>(word >> 24) << 8);
}
__device__ __forceinline__ bool is_of(uint64_t word, uint32_t number) {
  return static_cast<uint32_t>(word >> 48) == (number & 0xFFFFu);
}

__device__ __forceinline__ void store_word(uint64_t* to, uint64_t word) {
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}
/// Value of column c; the 16 threads of a panel, a half of a warp, together.
__device__ __forceinline__ void put_value(uint64_t* row, uint32_t c, float v, uint32_t number) {
  const float next = __shfl_down_sync(0xFFFFu << (threadIdx.x & 16u), v, 1);
  if (c % 2 != 0) return;
  store_word(row + word_of(c), uint64_t{number} << 48 | upper_bits(next) << 24 | upper_bits(v));
}

__device__ __forceinline__ float whole_value(uint64_t word) {
  return __uint_as_float(static_cast<uint32_t>(word));
}

/// A part that is NaN counts as 0.
__device__ __forceinline__ void add_part(uint64_t* to, float v, float limit) {
  const float in_units = fminf(fmaxf(v * kPartUnit, -limit), limit);
  const uint64_t part =
      (static_cast<uint64_t>(__float2ll_rn(v == v ? in_units : 0.0f)) << kCountBits) + 1;
  asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(to), "l"(part) : "memory");
}
__device__ __forceinline__ bool has_parts(uint64_t word, uint32_t n) {
  return (static_cast<uint32_t>(word) & ((1u << kCountBits) - 1)) == n;
}
__device__ __forceinline__ float sum_of_parts(uint64_t word) {
  return static_cast<float>(static_cast<int64_t>(word) >> kCountBits) * (1.0f / kPartUnit);
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

/// A lane's eight columns of a unit: words, or plain floats of an earlier launch.
struct LaneWords {
  ulonglong2 w[2];

  /// From a row that is aligned to 16 bytes, past the first-level cache.
  __device__ __forceinline__ void look(const void* row, uint32_t u, uint32_t lane) {
    const auto* at = static_cast<const uint64_t*>(row) + u * (kUnitColumns / 2) + lane * 2;
    w[0] = look_at_two(at);
    w[1] = look_at_two(at + 64);
  }
  __device__ __forceinline__ bool are_of(uint32_t number) const {
    return is_of(w[0].x, number) && is_of(w[0].y, number) && is_of(w[1].x, number) &&
           is_of(w[1].y, number);
  }
  __device__ __forceinline__ LaneInputs values() const {
    LaneInputs in;
#pragma unroll
    for (uint32_t k = 0; k < 2; ++k) {
      in.v[k] = {lower_value(w[k].x), upper_value(w[k].x), lower_value(w[k].y),
                 upper_value(w[k].y)};
    }
    return in;
  }
  __device__ __forceinline__ LaneInputs floats() const {
    LaneInputs in;
#pragma unroll
    for (uint32_t k = 0; k < 2; ++k) {
      in.v[k] = {whole_value(w[k].x), whole_value(w[k].x >> 32), whole_value(w[k].y),
                 whole_value(w[k].y >> 32)};
    }
    return in;
  }
};

}  // namespace sharpi::cuda::step
