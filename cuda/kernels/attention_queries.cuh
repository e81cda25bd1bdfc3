// SPDX-License-Identifier: MIT
// The query vectors of a block of split attention as operands, and the work of qkv.h on the row of
// a decode step where attention does it itself. Thread rule: device code.
#pragma once

#include "cuda/kernels/attention_common.cuh"
#include "cuda/kernels/kv_stream.cuh"
#include "cuda/kernels/qkv_heads.cuh"

namespace sharpi::cuda::split {

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

/// The slice's queries as two signed bytes per element, and what a vector's bytes are worth.
template <class S, bool kPairs>
__device__ __forceinline__ void load_query_bytes(const QuerySource& s, uint32_t d0,
                                                 uint32_t (&q)[S::kQueries], float (&worth)[2]) {
  using Codec = KeyCodec<KvDtype::kQ8_0, S::kSlice>;
  constexpr int kDepth = Codec::kDepth, kEach = kDepth / 4, kRegs = kDepth / 8;
  const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  worth[1] = 0.0f;
#pragma unroll
  for (int half = 0; half < (kPairs ? 1 : 2); ++half) {
    const uint32_t v = g + 8u * static_cast<uint32_t>(half);
    const float* from = query_of<S>(s, d0 + kEach * t, v);
    float x[Codec::kChunks][kEach], top = 0.0f, faulty = 0.0f;
#pragma unroll
    for (int c = 0; c < Codec::kChunks; ++c) read_query(from + c * kDepth, s.factor, v < s.n, x[c]);
#pragma unroll
    for (int c = 0; c < Codec::kChunks; ++c) {
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
    for (int c = 0; c < Codec::kChunks; ++c) {
#pragma unroll
      for (int r = 0; r < kEach / 4; ++r) {
        uint32_t bytes[2] = {};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float y = x[c][4 * r + i] * inverse;
          const int coarse = max(-127, min(127, __float2int_rn(y)));
          const int fine =
              max(-127, min(127, __float2int_rn((y - static_cast<float>(coarse)) * kQueryFine)));
          bytes[0] |= static_cast<uint32_t>(coarse & 255) << (8 * i);
          bytes[1] |= static_cast<uint32_t>(fine & 255) << (8 * i);
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

__device__ __forceinline__ float4 load_4(const float* from) {
  if (reinterpret_cast<uintptr_t>(from) % 16 == 0) return *reinterpret_cast<const float4*>(from);
  return {from[0], from[1], from[2], from[3]};
}

/// What take_own_row() reads, as segments of a head's floats: queries, then the head's k, v, the
/// norms' weights, the rotation's cos and sin. Four of a segment, from d.
struct OwnRow {
  const QkvParams& p;
  uint32_t row, kv, group;
  bool append;
  __device__ __forceinline__ float4 load(uint32_t segment, uint32_t d) const {
    const uint32_t dim = p.kv.head_dim;
    if (segment < group) {
      return load_4(p.q + row * p.q_stride + uint64_t{kv * group + segment} * p.q_head_stride + d);
    }
    const uint64_t at = row * p.kv_stride + uint64_t{kv} * dim + d;
    const bool norm = p.norm == HeadNorm::kPerHead;
    switch (segment - group) {
      case 0:
        return append ? load_4(p.k + at) : float4{};
      case 1:
        return append ? load_4((p.v != nullptr ? p.v : p.k) + at) : float4{};
      case 2:
        return norm ? load_4(p.q_norm + d) : float4{};
      case 3:
        return norm && append ? load_4(p.k_norm + d) : float4{};
      default:
        return {turn(d), turn(d + 1), turn(d + 2), turn(d + 3)};
    }
  }
  /// cos of all pairs, then sin.
  __device__ __forceinline__ float turn(uint32_t i) const {
    const uint64_t at = uint64_t{row} * p.n_half;
    if (i >= 2 * p.n_half) return 0.0f;
    return i < p.n_half ? p.cos[at + i] : p.sin[at + i - p.n_half];
  }
};

/// Floats of shared memory that take_own_row() needs.
constexpr uint32_t own_row_floats(uint32_t group, uint32_t dim) {
  return (group + 5) * dim;
}

/// What qkv.h does with a row, for the KV head of a block: its queries, normed and rotated, to
/// `queries` [group][dim] in shared memory (and to the captured ones); the head's part of the new
/// K and V rows to where they are stored, if the block attends to them (`append`). `heads`: room
/// for five heads. All threads of the block; what was stored is visible to them after.
template <uint32_t kDim>
__device__ __forceinline__ void take_own_row(const QkvParams& p, const RowBlock& b, uint32_t kv,
                                             uint32_t group, bool append, bool capture,
                                             float* queries, float* heads) {
  const KvLayer& l = p.kv;
  constexpr uint32_t dim = kDim;
  const uint32_t warp = threadIdx.x / 32;
  const BatchSequence& s = p.batch.table.sequences[b.sequence];
  const uint32_t row = s.first_row;
  const BatchRow br = p.batch.table.rows[row];
  const float* q = p.q + row * p.q_stride;
  const bool whole = p.norm == HeadNorm::kWholeVector;
  append = append && p.k != nullptr;
  float q_rms = 0.0f, k_rms = 0.0f;
  if (whole) {
    q_rms = block_inverse_rms(q, p.n_heads * dim, p.eps);
    if (append) k_rms = block_inverse_rms(p.k + row * p.kv_stride, l.n_heads * dim, p.eps);
  }
  // Everything that is read goes to shared memory first: one latency.
  constexpr uint32_t kPieces = kDim / 4, kBatch = 8;
  const uint32_t all = (group + 5) * kPieces;
  const OwnRow own = {p, row, kv, group, append};
  for (uint32_t i0 = threadIdx.x; i0 < all; i0 += kBatch * blockDim.x) {
    float4 x[kBatch];
#pragma unroll
    for (uint32_t j = 0; j < kBatch; ++j) {
      const uint32_t i = i0 + j * blockDim.x;
      if (i < all) x[j] = own.load(i / kPieces, i % kPieces * 4);
    }
#pragma unroll
    for (uint32_t j = 0; j < kBatch; ++j) {
      const uint32_t i = i0 + j * blockDim.x, h = i / kPieces;
      float* to = (h < group ? queries + h * dim : heads + (h - group) * dim) + i % kPieces * 4;
      if (i < all) *reinterpret_cast<float4*>(to) = x[j];
    }
  }
  const bool staged = p.norm == HeadNorm::kPerHead;
  const float* q_norm = staged ? heads + 2 * dim : p.q_norm;
  const float* k_norm = staged ? heads + 3 * dim : p.k_norm;
  const float *cos = heads + 4 * dim, *sin = cos + p.n_half;
  __syncthreads();
  const uint32_t n = append ? group + 2 : group;
  for (uint32_t h = warp; h < n; h += blockDim.x / 32) {
    const bool query = h < group, value = h == group + 1;
    float* x = query ? queries + h * dim : heads + (h - group) * dim;
    if (value ? p.v_norm : p.norm != HeadNorm::kNone) {
      const float* weight = value ? nullptr : query ? q_norm : k_norm;
      if (whole && !value) weight += (query ? kv * group + h : kv) * dim;
      norm_head(x, dim, weight, query ? q_rms : k_rms, value || !whole, p.eps);
    }
    if (!value && p.n_half != 0) rotate_head(x, p.n_half, cos, sin);
  }
  __syncthreads();
  if (capture && p.query_offset >= 0 && s.queries != nullptr && s.query_rows != 0) {
    const uint64_t width = uint64_t{p.n_heads} * dim;
    const uint64_t slot = s.flags & kSequenceQueryRing ? br.position % s.query_rows : 0;
    float* to = s.queries + static_cast<uint64_t>(p.query_offset) * s.query_rows + slot * width +
                uint64_t{kv} * group * dim;
    for (uint32_t i = threadIdx.x; i < group * dim; i += blockDim.x) to[i] = queries[i];
  }
  if (!append) return;
  const BatchGroup& g = p.batch.table.groups[b.sequence * p.batch.table.n_groups + l.group];
  for (const bool value : {false, true}) {
    std::byte *to, *twin = nullptr;
    if (l.window == 0) {
      to = store_row(l, g, g.n_slots, value);
    } else {
      to = chunk_row(l, s.chunk_block, 0, value);
      if (p.to_ring) twin = store_row(l, g, br.position % g.ring_slots, value);
    }
    encode_part(value ? l.v_dtype : l.k_dtype, heads + (value ? dim : 0), kv * dim, dim,
                l.n_heads * dim, to, twin);
  }
  __syncthreads();
}

}  // namespace sharpi::cuda::split
