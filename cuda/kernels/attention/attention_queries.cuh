// SPDX-License-Identifier: MIT
// The query vectors of a block of split attention as operands. Thread rule: device code.
#pragma once

#include "cuda/kernels/attention/attention_common.cuh"
#include "cuda/kernels/kv/kv_stream.cuh"

namespace sharpi::cuda::split {

constexpr float kLog2E = 1.4426950408889634f;
constexpr int kQueryWarps = 4;  // of a block

/// Elements of a vector of queries, times scale and log2(e): n from d of the slice.
template <int kCount>
__device__ __forceinline__ void read_query(const float* from, float factor, bool there,
                                           float (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    float4 v = {};
    if (there) v = *reinterpret_cast<const float4*>(from + i);
    x[i] = v.x * factor, x[i + 1] = v.y * factor, x[i + 2] = v.z * factor, x[i + 3] = v.w * factor;
  }
}

/// The query vectors of a block (row * group + head of the group): dims from 0.
struct QuerySource {
  const float* base;
  uint64_t row;    // floats from a row's vectors to the next row's
  uint32_t group;  // vectors of a row
  uint32_t n;      // vectors
  float factor;    // scale * log2(e)
};

template <class S>
__device__ __forceinline__ QuerySource query_source(const AttentionArgs& a, const RowBlock& b,
                                                    uint32_t kv) {
  const uint64_t row = a.p.batch.table.sequences[b.sequence].first_row + b.row0;
  return {a.p.q + row * a.p.q_stride + uint64_t{kv} * a.group * S::kDim, a.p.q_stride, a.group,
          b.n * a.group, a.p.scale * kLog2E};
}
template <class S>
__device__ __forceinline__ const float* query_of(const QuerySource& s, uint32_t d0, uint32_t v) {
  return s.base + v / s.group * s.row + v % s.group * S::kDim + d0;
}

/// The slice's queries as A operands of 16-bit products.
template <class S, bool kPairs>
__device__ __forceinline__ void load_queries(const QuerySource& s, uint32_t d0, bool bf16,
                                             uint32_t (&q)[S::kQueries]) {
  const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int half = 0; half < (kPairs ? 1 : 2); ++half) {
    const uint32_t v = g + 8u * static_cast<uint32_t>(half);
    const float* from = query_of<S>(s, d0 + 8 * t, v);
#pragma unroll
    for (int c = 0; c < S::kQueries / 8; ++c) {
      float x[8];
      read_query(from + c * 32, s.factor, v < s.n && c * 32 + 8 * static_cast<int>(t) < S::kSlice,
                 x);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float lo = x[4 * m + 2 * r], hi = x[4 * m + 2 * r + 1];
          const uint32_t packed = pack_16(bf16, lo, hi);
          q[c * 8 + m * 4 + 2 * r + half] = packed;
          if (kPairs) q[c * 8 + m * 4 + 2 * r + 1] = pack_rest(bf16, lo, hi, packed);
        }
      }
    }
  }
}

/// Byte i of the coarse and the fine term of y, |y| <= 127.
__device__ __forceinline__ void add_query_bytes(float y, int i, uint32_t* coarse, uint32_t* fine) {
  const int first = max(-127, min(127, __float2int_rn(y)));
  const int rest =
      max(-127, min(127, __float2int_rn((y - static_cast<float>(first)) * kQueryFine)));
  *coarse |= static_cast<uint32_t>(first & 255) << (8 * i);
  *fine |= static_cast<uint32_t>(rest & 255) << (8 * i);
}

/// The slice's queries as two signed bytes per element, and what a vector's bytes are worth.
template <class S, bool kPairs>
__device__ __forceinline__ void load_query_bytes(const QuerySource& s, uint32_t d0,
                                                 uint32_t (&q)[S::kQueries], float (&worth)[2]) {
  constexpr int kDepth = kCodeDepth<S::kSlice>, kChunks = (S::kSlice + kDepth - 1) / kDepth;
  constexpr int kEach = kDepth / 4, kRegs = kDepth / 8;
  const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  worth[1] = 0.0f;
#pragma unroll
  for (int half = 0; half < (kPairs ? 1 : 2); ++half) {
    const uint32_t v = g + 8u * static_cast<uint32_t>(half);
    const float* from = query_of<S>(s, d0 + kEach * t, v);
    float x[kChunks][kEach], top = 0.0f, faulty = 0.0f;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) read_query(from + c * kDepth, s.factor, v < s.n, x[c]);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        top = fmaxf(top, fabsf(x[c][i]));
        faulty += x[c][i] - x[c][i];  // NaN if x is not finite
      }
    }
#pragma unroll
    for (int d = 1; d < 4; d *= 2) {
      top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, d));
      faulty += __shfl_xor_sync(0xFFFFFFFFu, faulty, d);
    }
    worth[half] = top * (1.0f / (127.0f * kQueryFine)) + faulty;
    const float inverse = top > 1e-30f ? __fdividef(127.0f, top) : 0.0f;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int r = 0; r < kEach / 4; ++r) {
        uint32_t bytes[2] = {};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          add_query_bytes(x[c][4 * r + i] * inverse, i, &bytes[0], &bytes[1]);
        }
        // Operands a0 and a1 (rows g and g + 8), then a2 and a3, of the coarse and the fine terms;
        // with pairs rows 8 to 15 are the fine terms.
#pragma unroll
        for (int term = 0; term < 2; ++term) {
          const int at = kPairs ? c * kRegs + 2 * r + term : (2 * c + term) * kRegs + 2 * r + half;
          q[at % S::kQueries] = bytes[term];
        }
      }
    }
  }
}

// --- the bytes by several teams with the same slice, each some chunks, through shared memory ---

/// What a block's teams share: words of four registers a lane, and per vector the largest element
/// of a team's chunks and what is not finite of them.
template <class S>
struct SharedQueries {
  static constexpr int kMembers = kQueryWarps / S::kTeams;
  uint4 words[kMembers][S::kQueries / 4][32];
  float2 tops[kMembers][S::kTeams][2][8];
};

template <class S>
__device__ __forceinline__ void take_queries(const SharedQueries<S>& from, uint32_t member,
                                             uint32_t (&q)[S::kQueries]) {
#pragma unroll
  for (int i = 0; i < S::kQueries / 4; ++i) {
    const uint4 v = from.words[member][i][threadIdx.x % 32];
    q[4 * i] = v.x, q[4 * i + 1] = v.y, q[4 * i + 2] = v.z, q[4 * i + 3] = v.w;
  }
}

/// As load_query_bytes(), slices of whole blocks of 32. All threads of the block.
template <class S, bool kPairs>
__device__ __forceinline__ void spread_query_bytes(const QuerySource& s, uint32_t d0, uint32_t team,
                                                   uint32_t member, SharedQueries<S>* at,
                                                   uint32_t (&q)[S::kQueries], float (&worth)[2]) {
  constexpr int kHalves = kPairs ? 1 : 2;
  constexpr uint32_t kChunks = S::kSlice / 32;
  const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  float top[kHalves] = {}, faulty[kHalves] = {};
#pragma unroll 1
  for (uint32_t c = team; c < kChunks; c += S::kTeams) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const uint32_t v = g + 8u * static_cast<uint32_t>(half);
      float x[8];
      read_query(query_of<S>(s, d0 + 8 * t, v) + c * 32, s.factor, v < s.n, x);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        top[half] = fmaxf(top[half], fabsf(x[i]));
        faulty[half] += x[i] - x[i];  // NaN if x is not finite
      }
    }
  }
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
#pragma unroll
    for (int d = 1; d < 4; d *= 2) {
      top[half] = fmaxf(top[half], __shfl_xor_sync(0xFFFFFFFFu, top[half], d));
      faulty[half] += __shfl_xor_sync(0xFFFFFFFFu, faulty[half], d);
    }
    if (t == 0) at->tops[member][team][half][g] = {top[half], faulty[half]};
  }
  __syncthreads();
  float inverse[kHalves];
  worth[1] = 0.0f;
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    float most = 0.0f, odd = 0.0f;
#pragma unroll
    for (int w = 0; w < S::kTeams; ++w) {
      const float2 x = at->tops[member][w][half][g];
      most = fmaxf(most, x.x);
      odd += x.y;
    }
    worth[half] = most * (1.0f / (127.0f * kQueryFine)) + odd;
    inverse[half] = most > 1e-30f ? __fdividef(127.0f, most) : 0.0f;
  }
#pragma unroll 1
  for (uint32_t c = team; c < kChunks; c += S::kTeams) {
    uint32_t bytes[2][4] = {};  // coarse and fine terms; words r * 2 + half
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const uint32_t v = g + 8u * static_cast<uint32_t>(half);
      float x[8];
      read_query(query_of<S>(s, d0 + 8 * t, v) + c * 32, s.factor, v < s.n, x);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int word = i / 4 * 2 + half;
        add_query_bytes(x[i] * inverse[half], i % 4, &bytes[0][word], &bytes[1][word]);
      }
    }
    if (kPairs) {
      at->words[member][c][lane] = {bytes[0][0], bytes[1][0], bytes[0][2], bytes[1][2]};
    } else {
#pragma unroll
      for (int term = 0; term < 2; ++term) {
        at->words[member][2 * c + term][lane] = {bytes[term][0], bytes[term][1], bytes[term][2],
                                                 bytes[term][3]};
      }
    }
  }
  __syncthreads();
  take_queries<S>(*at, member, q);
}

}  // namespace sharpi::cuda::split
