// SPDX-License-Identifier: MIT
// What a block of attention_wide.cu does: 128 query vectors of one KV head and all tiles of keys
// and values that they see. Thread rule: device code.
#pragma once

#include "cuda/kernels/attention/attention_flash.cuh"
#include "cuda/kernels/attention/attention_pieces.cuh"
#include "cuda/kernels/attention/attention_wide_plan.h"

namespace sharpi::cuda::wide {

/// Rows of a tile lie one behind the other; pieces of 16 bytes are xored with the row modulo 8, so
/// that reading eight rows of a column of pieces hits all banks.
template <WideShape kShape, KvDtype kKeyType, KvDtype kValueType>
struct Shape {
  static constexpr KvDtype kK = kKeyType, kV = kValueType;
  static constexpr WidePlan kPlan = make_wide_plan(kShape, kK, kV);
  static constexpr int kDim = kShape.dim, kOutDim = kDim, kKeys = kShape.keys;
  static constexpr int kThreads = kShape.threads, kParts = kShape.parts;
  static constexpr int kBlocks = kShape.blocks, kVectors = kWideVectors;
  static constexpr int kAhead = kShape.ahead;
  static constexpr bool kQueriesInRegisters = kShape.queries_in_registers;
  static constexpr uint32_t kSlot = wide_slot(kK, kV);  // bytes of a stored piece's place
  static constexpr uint32_t kPitch = kDim * 2;
  static constexpr uint32_t kPerRow = kDim / 8;          // pieces of a row
  static constexpr uint32_t kStep = kThreads / kPerRow;  // rows of a pass
  static constexpr int kPieces = kKeys / kStep;          // of a thread, a tile
  static constexpr int kSteps = kDim / 16 * kKeys / 16;  // of a tile's products
  static_assert(kThreads / 32 * 16 * kParts == kVectors);
  static_assert(kThreads % kPerRow == 0 && kStep % 8 == 0 && kKeys % kStep == 0);
  static __device__ __forceinline__ uint32_t place_query(uint32_t v, uint32_t d) {
    return v * kPitch + (d * 2 ^ v % 8 * 16);
  }
};

template <class S>
using Scores = float[S::kParts][S::kKeys / 8][4];
template <class S>
using Sums = float[S::kParts][S::kDim / 8][4];
template <class S>
using Weights = uint32_t[S::kParts][S::kKeys / 16][4];
template <class S>
using Queries = uint32_t[S::kQueriesInRegisters ? S::kDim / 16 : 1][4];

/// Of a thread's vectors, lane / 4 + 16 part + 8 half of the warp's: what their weights are in
/// units of, 2^-base, and sums of weights, each twice, where products begin and end. Scores begin
/// with `base`, so that they need no subtraction; +0 says that there is none yet.
template <class S>
struct Softmax {
  float base[S::kParts][4], sum[S::kParts][4];
};

/// Queries times scale and log2(e) as f16; unused vectors are zero.
template <class S>
__device__ __forceinline__ void load_queries(const AttentionArgs& a, const RowBlock& b, uint32_t kv,
                                             uint8_t* to) {
  constexpr uint32_t kPerVector = S::kDim / 4, kPass = S::kThreads / kPerVector;
  const AttentionParams& p = a.p;
  const float scale = p.scale * flash::kLog2E;
  const uint32_t d = threadIdx.x % kPerVector * 4, first = threadIdx.x / kPerVector;
  uint32_t row = first / a.group, head = first % a.group;
  const uint64_t row0 = p.batch.table.sequences[b.sequence].first_row + b.row0;
  const float* from = p.q + row0 * p.q_stride + uint64_t{kv} * a.group * S::kDim + d;
#pragma unroll 8
  for (uint32_t i = 0; i < S::kVectors / kPass; ++i) {
    float4 x = {};
    if (row < b.n) {
      x = *reinterpret_cast<const float4*>(from + row * p.q_stride + head * S::kDim);
    }
    *reinterpret_cast<uint2*>(to + S::place_query(first + i * kPass, d)) = {
        pack_f16(x.x * scale, x.y * scale), pack_f16(x.z * scale, x.w * scale)};
    for (head += kPass; head >= a.group; head -= a.group) ++row;
  }
}

/// Where a thread's pieces of keys or of values come from and go to.
struct Lane {
  uint32_t raw, scales;  // its pieces as stored, in shared memory
  uint32_t to;           // its first piece in a tile
  uint32_t in_row;       // bytes from a row's start to its pieces
  uint32_t scale;        // from there to their scale
  bool upper;
};
/// here: the block's shared memory; tile: its keys or values; of elements from e0 on of rows of n.
template <class S, KvDtype kType>
__device__ __forceinline__ Lane make_lane(uint32_t here, uint32_t tile, uint32_t e0, uint32_t n) {
  const uint32_t r0 = threadIdx.x / S::kPerRow, d = threadIdx.x % S::kPerRow * 8;
  Lane t;
  t.raw = here + S::kPlan.raw + threadIdx.x * S::kSlot;
  t.scales = here + S::kPlan.scales + threadIdx.x * 4;
  t.to = here + tile + r0 * S::kPitch + (d * 2 ^ r0 % 8 * 16);
  t.in_row = value_bytes(kType, e0 + d);
  t.scale = value_bytes(kType, n) + (e0 + d) / 32 * 2 - t.in_row;
  t.upper = ((t.in_row + t.scale) & 2) != 0;
  return t;
}
/// The address of the row that the thread's piece i is of; `rows`: those of a tile.
template <class S>
__device__ __forceinline__ uint64_t row_of(uint32_t rows, int i) {
  const uint32_t r = threadIdx.x / S::kPerRow + static_cast<uint32_t>(i) * S::kStep;
  uint64_t row;
  asm volatile("ld.shared.u64 %0, [%1];" : "=l"(row) : "r"(rows + r * 8) : "memory");
  return row;
}
template <class S, KvDtype kType>
__device__ __forceinline__ void fetch(const Lane& t, uint64_t row, int i) {
  const auto p = static_cast<uint32_t>(i) * S::kThreads;
  pieces::fetch_piece<kType>(t.raw + p * S::kSlot, t.scales + p * 4,
                             reinterpret_cast<const std::byte*>(row) + t.in_row, t.scale, true);
}
template <class S, KvDtype kType>
__device__ __forceinline__ void load(const Lane& t, int i, pieces::Piece<kType>* piece) {
  const auto p = static_cast<uint32_t>(i) * S::kThreads;
  pieces::load_piece<kType>(t.raw + p * S::kSlot, t.scales + p * 4, piece);
}
template <class S, KvDtype kType>
__device__ __forceinline__ void turn(const Lane& t, int i, const pieces::Piece<kType>& piece) {
  uint32_t v[4];
  pieces::turn_piece<kType>(piece, t.upper, v);
  pieces::store_piece(t.to + static_cast<uint32_t>(i) * (S::kStep * S::kPitch), v);
}

/// Where the rows of the tile from t0 start: keys, then values. Keys that are not there have the
/// address of one that is: their weights are 0.
template <class S, class Map>
__device__ __forceinline__ void find_rows_of(const KvLayer& l, const RowBlock& b, const Map& map,
                                             uint64_t t0, uint32_t rows) {
#pragma unroll
  for (uint32_t i = threadIdx.x; i < 2 * S::kKeys; i += S::kThreads) {
    const uint64_t key = min(max(t0 + i % S::kKeys, b.begin), b.end - 1);
    const uint64_t row = reinterpret_cast<uintptr_t>(row_at(l, map, key, i >= S::kKeys));
    asm volatile("st.shared.u64 [%0], %1;" ::"r"(rows + i * 8), "l"(row) : "memory");
  }
}

/// Matrices of a tile in registers, kAhead steps of products before they are used: load(step, four
/// registers).
template <int kAhead, int kSteps, class Load>
struct Matrices {
  uint32_t ring[kAhead + 1][4];
  const Load& load;
  __device__ __forceinline__ explicit Matrices(const Load& f) : load(f) {
#pragma unroll
    for (int u = 0; u < kAhead; ++u) load(u, ring[u]);
  }
  __device__ __forceinline__ const uint32_t (&at(int u))[4] {
    if (u + kAhead < kSteps) load(u + kAhead, ring[(u + kAhead) % (kAhead + 1)]);
    return ring[u % (kAhead + 1)];
  }
};

/// s = queries times a tile's keys, in steps of 16 keys by 16 dims. side->before(step) and
/// side->after(step) do something else before and after a step's products.
template <class S, class Side>
__device__ __forceinline__ void score_tile(const Queries<S>& held, uint32_t queries, uint32_t keys,
                                           const Softmax<S>& run, Scores<S>& s, Side* side) {
  constexpr int kRow = S::kKeys / 16;  // steps of the same 16 dims
  uint32_t q[2][S::kParts][4];
  const auto load_query = [&](int k) {
#pragma unroll
    for (int p = 0; p < S::kParts; ++p) {
      ldmatrix_x4(q[k % 2][p], (queries ^ static_cast<uint32_t>(k) * 32) + p * 16 * S::kPitch);
    }
  };
  const auto load_keys = [&](int u, uint32_t(&b)[4]) {
    ldmatrix_x4(b, (keys ^ static_cast<uint32_t>(u / kRow) * 32) + u % kRow * 16 * S::kPitch);
  };
  if constexpr (!S::kQueriesInRegisters) load_query(0);
  Matrices<S::kAhead, S::kSteps, decltype(load_keys)> matrices(load_keys);
#pragma unroll
  for (int u = 0; u < S::kSteps; ++u) {
    const int k = u / kRow, n = u % kRow * 2;
    side->before(u);
    if constexpr (!S::kQueriesInRegisters) {
      if (u % kRow == kRow / 2 && k + 1 < S::kDim / 16) load_query(k + 1);
    }
    const uint32_t(&b)[4] = matrices.at(u);
#pragma unroll
    for (int p = 0; p < S::kParts; ++p) {
      uint32_t a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        a[i] = S::kQueriesInRegisters ? held[S::kQueriesInRegisters ? k : 0][i] : q[k % 2][p][i];
      }
      if (k == 0) {
        mma_f16(s[p][n], a, b[0], b[1], run.base[p]);
        mma_f16(s[p][n + 1], a, b[2], b[3], run.base[p]);
      } else {
        mma_16(false, s[p][n], a, b[0], b[1]);
        mma_16(false, s[p][n + 1], a, b[2], b[3]);
      }
    }
    side->after(u);
  }
}

/// o += weights times a tile's values, in steps of 16 keys by 16 dims; the same.
template <class S, class Side>
__device__ __forceinline__ void weigh_tile(const Weights<S>& w, uint32_t values, Softmax<S>* run,
                                           Sums<S>& o, Side* side) {
  constexpr uint32_t kOnes = 0x3C003C00u;  // two f16
  constexpr int kRow = S::kDim / 16;       // steps of the same 16 keys
  const auto load_values = [&](int u, uint32_t(&b)[4]) {
    const auto n = static_cast<uint32_t>(u % kRow);  // of 16 dims
    ldmatrix_x4_trans(b, (values ^ n % 4 * 32) + n / 4 * 128 + u / kRow * 16 * S::kPitch);
  };
  Matrices<S::kAhead, S::kSteps, decltype(load_values)> matrices(load_values);
#pragma unroll
  for (int u = 0; u < S::kSteps; ++u) {
    const int k = u / kRow, n = u % kRow * 2;
    side->before(u);
    const uint32_t(&b)[4] = matrices.at(u);
#pragma unroll
    for (int p = 0; p < S::kParts; ++p) {
      if (n == 0) mma_16(false, run->sum[p], w[p][k], kOnes, kOnes);
      mma_16(false, o[p][n], w[p][k], b[0], b[1]);
      mma_16(false, o[p][n + 1], w[p][k], b[2], b[3]);
    }
    side->after(u);
  }
}

/// What a vector does not see gets no weight.
template <class S>
__device__ __forceinline__ void mask_tile(const AttentionArgs& a, const RowBlock& b,
                                          uint32_t vector0, uint64_t t0, Scores<S>& s) {
  const int64_t at = static_cast<int64_t>(t0) + threadIdx.x % 4 * 2;
#pragma unroll
  for (int p = 0; p < S::kParts; ++p) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t row = (vector0 + threadIdx.x % 32 / 4 + p * 16u + h * 8u) / a.group;
      const int64_t high = row < b.n ? static_cast<int64_t>(b.first_key + row) : -1;
      int64_t low = static_cast<int64_t>(b.low);
      if (a.p.kv.window != 0) low = max(low, high + 1 - int64_t{a.p.kv.window});
      const auto from = static_cast<int32_t>(min(max(low - at, int64_t{-1}), int64_t{S::kKeys}));
      const auto to = static_cast<int32_t>(max(min(high - at, int64_t{S::kKeys}), int64_t{-1}));
#pragma unroll
      for (int n = 0; n < S::kKeys / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (8 * n + i < from || 8 * n + i > to) s[p][n][2 * h + i] = -INFINITY;
        }
      }
    }
  }
}

/// Scores become weights. What they are in units of grows only where a score is more than 2^8 of
/// it: sums seldom have to shrink, and weights up to 256 are f16 as well as others.
template <class S>
__device__ __forceinline__ void fold_tile(Scores<S>& s, Softmax<S>* run, Weights<S>& w,
                                          Sums<S>& o) {
  constexpr float kSlack = 8.0f;
  float grown[S::kParts][2];
  bool more[S::kParts][2], grows = false;
#pragma unroll
  for (int p = 0; p < S::kParts; ++p) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float top = s[p][0][2 * h];
#pragma unroll
      for (int n = 0; n < S::kKeys / 8; ++n) {
        top = fmaxf(top, fmaxf(s[p][n][2 * h], s[p][n][2 * h + 1]));
      }
      top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 2));
      const bool first = __float_as_uint(run->base[p][2 * h]) == 0;
      more[p][h] = top > kSlack || (first && top > -INFINITY);
      grown[p][h] = more[p][h] ? top : 0.0f;
      grows = grows || more[p][h];
    }
  }
  if (__any_sync(0xFFFFFFFFu, grows)) {
#pragma unroll
    for (int p = 0; p < S::kParts; ++p) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float by = grown[p][h];
        const bool first = __float_as_uint(run->base[p][2 * h]) == 0;
        const float factor = first ? 1.0f : exp2_approx(-by);  // there is nothing to shrink yet
#pragma unroll
        for (int n = 0; n < S::kKeys / 8; ++n) s[p][n][2 * h] -= by, s[p][n][2 * h + 1] -= by;
#pragma unroll
        for (int n = 0; n < S::kDim / 8; ++n)
          o[p][n][2 * h] *= factor, o[p][n][2 * h + 1] *= factor;
        run->sum[p][2 * h] *= factor;
        run->sum[p][2 * h + 1] *= factor;
        const float base = run->base[p][2 * h] - by;
        const float now = base == 0.0f && more[p][h] ? -0.0f : base;
        run->base[p][2 * h] = run->base[p][2 * h + 1] = now;
      }
    }
  }
#pragma unroll
  for (int p = 0; p < S::kParts; ++p) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int n = 0; n < S::kKeys / 8; ++n) {
        const __half2 pair =
            __floats2half2_rn(exp2_approx(s[p][n][2 * h]), exp2_approx(s[p][n][2 * h + 1]));
        w[p][n / 2][n % 2 * 2 + h] = reinterpret_cast<const uint32_t&>(pair);
      }
    }
  }
}

/// Turns a thread's pieces of the tile that its lane `here` is of while a tile's products go on,
/// and sends for those of the tile that `next` is of, whose rows are at `rows`, in their place.
template <class S, KvDtype kHere, KvDtype kNext>
struct Turning {
  static constexpr int kEvery = S::kSteps / S::kPieces;  // steps
  static_assert(S::kSteps % S::kPieces == 0);
  const Lane &here, &next;
  uint32_t rows;
  pieces::Piece<kHere> piece;
  uint64_t row;
  __device__ __forceinline__ void before(int step) {
    if (step % kEvery != 0) return;
    load<S, kHere>(here, step / kEvery, &piece);
    row = row_of<S>(rows, step / kEvery);
  }
  __device__ __forceinline__ void after(int step) {
    if (step % kEvery != kEvery - 1) return;
    turn<S, kHere>(here, step / kEvery, piece);
    fetch<S, kNext>(next, row, step / kEvery);
  }
};

}  // namespace sharpi::cuda::wide
