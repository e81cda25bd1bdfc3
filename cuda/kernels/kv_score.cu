// SPDX-License-Identifier: MIT
// Scores and value norms are the same product of stored rows with many vectors: a block decodes a
// tile of rows once and takes all vectors ("terms") of its KV head past it, as an image that a
// launch before made of them. Products are made on tensor cores from operands in two bf16 terms
// each (hi * hi + hi * lo + lo * hi: relative error about 2^-16 of the products' sizes; bf16 rows
// have no lo), summed in f32.
//   normalise  per term the maximum and the sum of exponentials over a part of the rows; merged
//   mass       per row the sum and the maximum of the normalised exponentials over the terms
//   norm       per row the sum of magnitudes over the terms (rows of the output projection)
#include "cuda/kernels/kv_fragments.cuh"
#include "cuda/kernels/kv_rows.cuh"
#include "cuda/kernels/kv_score.h"
#include "cuda/kernels/launch.h"

namespace sharpi::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kTerms = 128;  // of a step
constexpr float kLog2E = 1.4426950408889634f;
constexpr uint32_t kSlabRows = 256;  // rows of the output projection that are dequantised at a time

enum class Mode : uint8_t { kNormalise, kMass, kNorm };

/// A block's rows, 16 * kRows of a warp; kColumns dims of the terms are staged at a time.
template <int kSlotCount, int kRowTiles, int kColumnCount>
struct Tile {
  static constexpr int kSlots = kSlotCount, kRows = kRowTiles, kColumns = kColumnCount;
  static constexpr int kPart = 16 * kRows;  // rows of a warp: what maxima and sums are of
  static constexpr int kRowGroups = kSlots / kPart, kTermGroups = kWarps / kRowGroups;
  static constexpr int kOwn = kTerms / kTermGroups;      // terms of a warp
  static constexpr uint32_t kPitch = kColumns * 2 + 16;  // bytes: an odd number of 16-byte pieces
  static constexpr uint32_t kStageBytes = 2 * kTerms * kPitch;
  static_assert(kOwn % 16 == 0 && kSlots <= kThreads);
};
using Wide = Tile<128, 4, 64>;    // heads of up to 256
using Deep = Tile<64, 4, 64>;     // wider heads
using WideFew = Tile<64, 4, 32>;  // the same for devices of little shared memory
using DeepFew = Tile<32, 2, 32>;

/// Rows that a maximum and a sum are of, at least.
uint32_t part_slots(uint32_t dim) {
  return dim <= 256 ? Wide::kPart : DeepFew::kPart;
}

struct ScoreArgs {
  KvView kv;
  uint32_t n_slots, n_terms;
  uint32_t padded_terms, width;  // of the image: multiples of kTerms and 64
  uint32_t n_parts, n_stages;
  uint32_t group;
  const uint16_t* image;  // [kv heads][padded_terms][hi, lo][width]
  // scores
  uint32_t n_queries;
  float scale;  // times log2(e)
  const uint32_t* visible;
  const float* weight;         // of a query's terms in max; nullptr = 1
  float *part_max, *part_sum;  // [n_parts][kv heads][n_terms]
  float* offset;               // [kv heads][n_terms]: maximum + log2(sum)
  float *sum, *max;
  bool add;
  // norms
  float* norms;
  float factor;  // of the last slab: 1 / group
};

/// Where a term's vector lies.
struct TermSource {
  const float* from;         // queries, or rows of the output projection
  uint64_t stride;           // floats
  uint32_t group, per_head;  // terms: head-major
  uint32_t ring;             // rows; first: the first term's
  uint64_t first;
};

__host__ __device__ constexpr uint32_t row_pitch(uint32_t dim) {
  return dim * 2 + 16;  // bytes: an odd number of 16-byte pieces
}

struct ImageArgs {
  TermSource terms;
  uint32_t n_kv, dim, n_terms, padded_terms, width;
  uint16_t* image;
};

/// Four dims of a term per thread; what is absent is zero.
__global__ void __launch_bounds__(kThreads)
    score_image_kernel(const __grid_constant__ ImageArgs a) {
  const uint32_t pieces = a.width / 4;
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= a.n_kv * a.padded_terms * pieces) return;
  const uint32_t d = i % pieces * 4, all = i / pieces, term = all % a.padded_terms,
                 kv = all / a.padded_terms;
  float4 v = {};
  if (term < a.n_terms && d < a.dim) {
    const uint32_t head = kv * a.terms.group + term / a.terms.per_head;
    const uint64_t row = (a.terms.first + term % a.terms.per_head) % a.terms.ring;
    v = *reinterpret_cast<const float4*>(a.terms.from + row * a.terms.stride +
                                         uint64_t{head} * a.dim + d);
  }
  const uint32_t x = pack_bf16(v.x, v.y), y = pack_bf16(v.z, v.w);
  uint16_t* to = a.image + uint64_t{all} * 2 * a.width + d;
  *reinterpret_cast<uint2*>(to) = {x, y};
  *reinterpret_cast<uint2*>(to + a.width) = {pack_rest(true, v.x, v.y, x),
                                             pack_rest(true, v.z, v.w, y)};
}

/// Shared memory: rows (hi, then lo unless they are bf16), stages of terms, what a step knows of
/// its terms.
template <class T>
struct Layout {
  uint8_t *rows_hi, *rows_lo, *stages;
  float *offset, *weight;  // [kTerms]
  uint32_t* visible;       // [kTerms]
  __host__ __device__ static constexpr size_t bytes(uint32_t dim, bool exact, uint32_t n_stages) {
    return (exact ? 1u : 2u) * size_t{T::kSlots} * row_pitch(dim) +
           size_t{n_stages} * T::kStageBytes + 3 * kTerms * 4;
  }
  __device__ __forceinline__ Layout(uint8_t* at, uint32_t dim, bool exact, uint32_t n_stages) {
    rows_hi = at;
    rows_lo = rows_hi + T::kSlots * row_pitch(dim);
    stages = exact ? rows_lo : rows_lo + T::kSlots * row_pitch(dim);
    offset = reinterpret_cast<float*>(stages + n_stages * T::kStageBytes);
    weight = offset + kTerms;
    visible = reinterpret_cast<uint32_t*>(weight + kTerms);
  }
};

/// Rows [t0, t0 + kSlots) of a KV head in one or two terms, zero past the end.
template <class T, bool kValue>
__device__ __forceinline__ void load_rows(const ScoreArgs& a, uint32_t kv, uint32_t t0, bool exact,
                                          const Layout<T>& to) {
  const uint32_t dim = a.kv.head_dim, pieces = dim / 8;
  const KvDtype type = kValue ? a.kv.v_dtype : a.kv.k_dtype;
  const std::byte* base = kValue ? a.kv.v : a.kv.k;
  const uint32_t row_bytes = kValue ? a.kv.v_row_bytes : a.kv.k_row_bytes;
#pragma unroll 4
  for (uint32_t i = threadIdx.x; i < T::kSlots * pieces; i += kThreads) {
    const uint32_t r = i / pieces, d = i % pieces * 8, slot = t0 + r;
    const uint32_t at = r * row_pitch(dim) + d * 2;
    const std::byte* row = base + slot / kKvBlockSlots * a.kv.block_stride +
                           uint64_t{slot % kKvBlockSlots} * row_bytes;
    if (exact) {
      uint4 bits = {};
      if (slot < a.n_slots) bits = reinterpret_cast<const uint4*>(row)[(kv * dim + d) / 8];
      *reinterpret_cast<uint4*>(to.rows_hi + at) = bits;
      continue;
    }
    float v[8] = {};
    if (slot < a.n_slots) load_elements(type, row, a.kv.n_heads * dim, kv * dim + d, v);
    uint32_t hi[4], lo[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      hi[j] = pack_bf16(v[2 * j], v[2 * j + 1]);
      lo[j] = pack_rest(true, v[2 * j], v[2 * j + 1], hi[j]);
    }
    *reinterpret_cast<uint4*>(to.rows_hi + at) = {hi[0], hi[1], hi[2], hi[3]};
    *reinterpret_cast<uint4*>(to.rows_lo + at) = {lo[0], lo[1], lo[2], lo[3]};
  }
}

/// Starts copying columns [d0, d0 + kColumns) of a step's terms.
template <class T>
__device__ __forceinline__ void fetch_terms(const ScoreArgs& a, uint32_t kv, uint32_t first,
                                            uint32_t d0, uint8_t* stage) {
  constexpr uint32_t kPieces = T::kColumns / 8;
  const uint16_t* from = a.image + (uint64_t{kv} * a.padded_terms + first) * 2 * a.width + d0;
#pragma unroll
  for (uint32_t i = threadIdx.x; i < 2 * kTerms * kPieces; i += kThreads) {
    const uint32_t row = i / kPieces, c = i % kPieces;  // row: of a term, hi and lo in turn
    const uint32_t to = (row % 2 * kTerms + row / 2) * T::kPitch + c * 16;
    cp_async_16(shared_address(stage + to), from + uint64_t{row} * a.width + c * 8);
  }
  cp_async_commit();
}

/// What add_terms needs of the step's terms.
template <class T>
__device__ __forceinline__ void load_step(const ScoreArgs& a, uint32_t kv, uint32_t first,
                                          const Layout<T>& to) {
  if (threadIdx.x >= kTerms) return;
  const uint32_t term = first + threadIdx.x;
  const bool there = term < a.n_terms;
  to.offset[threadIdx.x] = there ? a.offset[uint64_t{kv} * a.n_terms + term] : INFINITY;
  to.weight[threadIdx.x] = there && a.weight != nullptr ? a.weight[term % a.n_queries] : 1.0f;
  to.visible[threadIdx.x] = there ? a.visible[kv * a.n_queries + term % a.n_queries] : 0;
}

/// A warp's products: [m][n][2 h + e] = row (16 m + g + 8 h) . term (8 n + 2 t + e) of its own.
template <class T>
using Products = float[T::kRows][T::kOwn / 8][4];

/// The columns of a stage; kWhole: all kColumns of them.
template <class T, bool kExact, bool kWhole>
__device__ __forceinline__ void add_products(const Layout<T>& l, const uint8_t* stage, uint32_t d0,
                                             uint32_t columns, uint32_t dim, Products<T>& s) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, pitch = row_pitch(dim);
  const uint32_t row = warp % T::kRowGroups * T::kPart + lane % 16;
  const uint32_t row_at = row * pitch + lane / 16 * 16 + d0 * 2;
  const uint32_t term = warp / T::kRowGroups * T::kOwn + lane % 8 + lane / 16 * 8;
  const uint32_t rows_hi = shared_address(l.rows_hi) + row_at,
                 rows_lo = shared_address(l.rows_lo) + row_at;
  const uint32_t terms = shared_address(stage) + term * T::kPitch + lane / 8 % 2 * 16;
#pragma unroll(kWhole ? T::kColumns / 16 : 1)
  for (uint32_t d = 0; d < (kWhole ? T::kColumns : columns); d += 16) {
    uint32_t hi[T::kRows][4], lo[T::kRows][4];
#pragma unroll
    for (int m = 0; m < T::kRows; ++m) {
      ldmatrix_x4(hi[m], rows_hi + static_cast<uint32_t>(m) * 16 * pitch + d * 2);
      if constexpr (!kExact)
        ldmatrix_x4(lo[m], rows_lo + static_cast<uint32_t>(m) * 16 * pitch + d * 2);
    }
#pragma unroll
    for (int n = 0; n < T::kOwn / 8; n += 2) {
      uint32_t th[4], tl[4];
      const uint32_t at = terms + static_cast<uint32_t>(n) * 8 * T::kPitch + d * 2;
      ldmatrix_x4(th, at);
      ldmatrix_x4(tl, at + kTerms * T::kPitch);
#pragma unroll
      for (int m = 0; m < T::kRows; ++m) {
        mma_16(true, s[m][n], hi[m], th[0], th[1]);
        mma_16(true, s[m][n + 1], hi[m], th[2], th[3]);
      }
#pragma unroll
      for (int m = 0; m < T::kRows; ++m) {
        mma_16(true, s[m][n], hi[m], tl[0], tl[1]);
        mma_16(true, s[m][n + 1], hi[m], tl[2], tl[3]);
      }
      if constexpr (!kExact) {
#pragma unroll
        for (int m = 0; m < T::kRows; ++m) {
          mma_16(true, s[m][n], lo[m], th[0], th[1]);
          mma_16(true, s[m][n + 1], lo[m], th[2], th[3]);
        }
      }
    }
  }
}

template <class T>
__device__ __forceinline__ void add_stage(const Layout<T>& l, const uint8_t* stage, uint32_t d0,
                                          uint32_t dim, bool exact, Products<T>& s) {
  if (dim - d0 < T::kColumns) {
    if (exact) {
      add_products<T, true, false>(l, stage, d0, dim - d0, dim, s);
    } else {
      add_products<T, false, false>(l, stage, d0, dim - d0, dim, s);
    }
  } else if (exact) {
    add_products<T, true, true>(l, stage, d0, T::kColumns, dim, s);
  } else {
    add_products<T, false, true>(l, stage, d0, T::kColumns, dim, s);
  }
}

/// Per term the maximum and the sum over the warp's visible rows. slot0: the first of them.
template <class T>
__device__ __forceinline__ void normalise(const ScoreArgs& a, uint32_t kv, uint32_t slot0,
                                          uint32_t first, bool masked, const Products<T>& s) {
  const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const uint32_t own = first + threadIdx.x / 32 / T::kRowGroups * T::kOwn;
  const uint32_t part = slot0 / T::kPart;
  if (part >= a.n_parts) return;
#pragma unroll
  for (int n = 0; n < T::kOwn / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const uint32_t term = own + 8 * static_cast<uint32_t>(n) + 2 * t + static_cast<uint32_t>(e);
      uint32_t visible = 0;
      if (masked && term < a.n_terms) visible = a.visible[kv * a.n_queries + term % a.n_queries];
      float x[T::kRows * 2], top = -INFINITY, sum = 0.0f;
#pragma unroll
      for (int i = 0; i < T::kRows * 2; ++i) {
        x[i] = s[i / 2][n][i % 2 * 2 + e] * a.scale;
        const uint32_t slot = slot0 + static_cast<uint32_t>(i) * 8 + g;
        if (masked && slot >= visible) x[i] = -INFINITY;
        top = fmaxf(top, x[i]);
      }
#pragma unroll
      for (int d = 16; d > 2; d /= 2) top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, d));
      const float base = top == -INFINITY ? 0.0f : top;
#pragma unroll
      for (int i = 0; i < T::kRows * 2; ++i) sum += exp2_approx(x[i] - base);
#pragma unroll
      for (int d = 16; d > 2; d /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, d);
      if (g == 0 && term < a.n_terms) {
        const uint64_t at = (uint64_t{part} * a.kv.n_heads + kv) * a.n_terms + term;
        a.part_max[at] = top;
        a.part_sum[at] = sum;
      }
    }
  }
}

/// sum and most of the thread's rows 8 i + g.
template <Mode kMode, class T>
__device__ __forceinline__ void add_terms(const ScoreArgs& a, uint32_t slot0, const Layout<T>& l,
                                          bool masked, const Products<T>& s,
                                          float (&sum)[T::kRows * 2], float (&most)[T::kRows * 2]) {
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t own = threadIdx.x / 32 / T::kRowGroups * T::kOwn + lane % 4 * 2;
#pragma unroll
  for (int n = 0; n < T::kOwn / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const uint32_t term = own + 8 * static_cast<uint32_t>(n) + static_cast<uint32_t>(e);
      const float offset = l.offset[term], weight = l.weight[term];
      const uint32_t visible = masked ? l.visible[term] : 0;
#pragma unroll
      for (int i = 0; i < T::kRows * 2; ++i) {
        const float x = s[i / 2][n][i % 2 * 2 + e];
        if constexpr (kMode == Mode::kNorm) {
          sum[i] += fabsf(x);  // absent terms are zero vectors
        } else {
          float p = exp2_approx(fmaf(x, a.scale, -offset));
          if (masked && slot0 + static_cast<uint32_t>(i) * 8 + lane / 4 >= visible) p = 0.0f;
          sum[i] += p;
          most[i] = fmaxf(most[i], p * weight);
        }
      }
    }
  }
}

/// Per row, the sums and maxima of its four lanes and of the groups of terms, in order.
template <Mode kMode, class T>
__device__ __forceinline__ void store_rows(const ScoreArgs& a, uint32_t kv, uint32_t t0,
                                           float (&sum)[T::kRows * 2], float (&most)[T::kRows * 2],
                                           float* scratch) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t terms = warp / T::kRowGroups;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < T::kRows * 2; ++i) {
#pragma unroll
    for (int d = 1; d < 4; d *= 2) {
      sum[i] += __shfl_xor_sync(0xFFFFFFFFu, sum[i], d);
      most[i] = fmaxf(most[i], __shfl_xor_sync(0xFFFFFFFFu, most[i], d));
    }
    const uint32_t row = warp % T::kRowGroups * T::kPart + static_cast<uint32_t>(i) * 8 + lane / 4;
    if (lane % 4 == 0) {
      scratch[terms * T::kSlots + row] = sum[i];
      scratch[(T::kTermGroups + terms) * T::kSlots + row] = most[i];
    }
  }
  __syncthreads();
  const uint32_t slot = t0 + threadIdx.x;
  if (threadIdx.x >= T::kSlots || slot >= a.n_slots) return;
  float total = 0.0f, top = 0.0f;
#pragma unroll
  for (int i = 0; i < T::kTermGroups; ++i) {
    total += scratch[i * T::kSlots + threadIdx.x];
    top = fmaxf(top, scratch[(T::kTermGroups + i) * T::kSlots + threadIdx.x]);
  }
  const uint64_t at = uint64_t{kv} * a.n_slots + slot;
  if constexpr (kMode == Mode::kNorm) {
    a.norms[at] = ((a.add ? a.norms[at] : 0.0f) + total) * a.factor;
  } else {
    a.sum[at] = a.add ? a.sum[at] + total : total;
    a.max[at] = a.add ? fmaxf(a.max[at], top) : top;
  }
}

/// True if some query does not see all rows before `end`.
__device__ __forceinline__ bool some_masked(const ScoreArgs& a, uint32_t kv, uint32_t end) {
  bool some = end > a.n_slots;
  for (uint32_t i = threadIdx.x; i < a.n_queries; i += kThreads) {
    some = some || a.visible[kv * a.n_queries + i] < end;
  }
  return __syncthreads_or(some);
}

template <Mode kMode, class T>
__global__ void __launch_bounds__(kThreads, 1) score_kernel(const __grid_constant__ ScoreArgs a) {
  extern __shared__ float4 shared[];
  const uint32_t dim = a.kv.head_dim, kv = blockIdx.y, t0 = blockIdx.x * T::kSlots;
  const bool exact = (kMode == Mode::kNorm ? a.kv.v_dtype : a.kv.k_dtype) == KvDtype::kBf16;
  const Layout<T> l(reinterpret_cast<uint8_t*>(shared), dim, exact, a.n_stages);
  const uint32_t slot0 = t0 + threadIdx.x / 32 % T::kRowGroups * T::kPart;
  const uint32_t n_chunks = (dim + T::kColumns - 1) / T::kColumns;
  const uint32_t n = a.padded_terms / kTerms * n_chunks;
  const auto fetch = [&](uint32_t i) {
    fetch_terms<T>(a, kv, i / n_chunks * kTerms, i % n_chunks * T::kColumns,
                   l.stages + i % a.n_stages * T::kStageBytes);
  };
  fetch(0);
  const bool masked = kMode != Mode::kNorm && some_masked(a, kv, t0 + T::kSlots);
  load_rows<T, kMode == Mode::kNorm>(a, kv, t0, exact, l);
  float sum[T::kRows * 2] = {}, most[T::kRows * 2] = {};
  Products<T> s;
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t chunk = i % n_chunks, first = i / n_chunks * kTerms;
    cp_async_wait<0>();
    __syncthreads();
    if (a.n_stages > 1 && i + 1 < n) fetch(i + 1);
    if (chunk == 0) {
      if (kMode == Mode::kMass) load_step<T>(a, kv, first, l);
#pragma unroll
      for (int m = 0; m < T::kRows; ++m) {
#pragma unroll
        for (int j = 0; j < T::kOwn / 8; ++j) {
#pragma unroll
          for (int e = 0; e < 4; ++e) s[m][j][e] = 0.0f;
        }
      }
    }
    add_stage<T>(l, l.stages + i % a.n_stages * T::kStageBytes, chunk * T::kColumns, dim, exact, s);
    if (a.n_stages == 1 || n_chunks == 1) __syncthreads();
    if (a.n_stages == 1 && i + 1 < n) fetch(i + 1);
    if (chunk + 1 != n_chunks) continue;
    if constexpr (kMode == Mode::kNormalise) {
      normalise<T>(a, kv, slot0, first, masked, s);
    } else {
      add_terms<kMode, T>(a, slot0, l, masked, s, sum, most);
    }
  }
  if constexpr (kMode != Mode::kNormalise) {
    store_rows<kMode, T>(a, kv, t0, sum, most, reinterpret_cast<float*>(l.rows_hi));
  }
}

constexpr uint32_t kMergeTerms = 32, kMergeGroups = 32;

/// Maximum + log2(sum) of every term over the parts; groups of threads take parts in turn.
__global__ void __launch_bounds__(kMergeTerms* kMergeGroups)
    score_merge_kernel(const __grid_constant__ ScoreArgs a) {
  __shared__ float tops[kMergeGroups][kMergeTerms + 1], sums[kMergeGroups][kMergeTerms + 1];
  const uint32_t n = a.kv.n_heads * a.n_terms, group = threadIdx.x / kMergeTerms,
                 column = threadIdx.x % kMergeTerms, i = blockIdx.x * kMergeTerms + column;
  float top = -INFINITY, sum = 0.0f;
  if (i < n) {
#pragma unroll 8
    for (uint32_t p = group; p < a.n_parts; p += kMergeGroups) {
      top = fmaxf(top, a.part_max[uint64_t{p} * n + i]);
    }
    const float base = top == -INFINITY ? 0.0f : top;
#pragma unroll 8
    for (uint32_t p = group; p < a.n_parts; p += kMergeGroups) {
      const float m = a.part_max[uint64_t{p} * n + i], s = a.part_sum[uint64_t{p} * n + i];
      sum = fmaf(s, exp2f(m - base), sum);
    }
  }
  tops[group][column] = top;
  sums[group][column] = sum;
  __syncthreads();
  if (group != 0 || i >= n) return;
#pragma unroll
  for (uint32_t g = 0; g < kMergeGroups; ++g) top = fmaxf(top, tops[g][column]);
  const float base = top == -INFINITY ? 0.0f : top;
  float all = 0.0f;
#pragma unroll
  for (uint32_t g = 0; g < kMergeGroups; ++g) {
    all = fmaf(sums[g][column], exp2f(tops[g][column] - base), all);
  }
  a.offset[i] = all > 0.0f ? top + log2f(all) : INFINITY;
}

// --- host ---

uint32_t round_to(uint32_t n, uint32_t to) {
  return (n + to - 1) / to * to;
}
uint64_t aligned(uint64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

/// Bytes of the image of n terms in all, whatever heads they belong to.
uint64_t image_bytes(uint64_t n_terms, uint32_t n_kv, uint32_t dim) {
  return aligned((n_terms + uint64_t{n_kv} * (kTerms - 1)) * 2 * round_to(dim, 64) *
                 sizeof(uint16_t));
}

Status make_image(ScoreArgs* a, const TermSource& terms, std::byte* memory, cudaStream_t stream) {
  ImageArgs i = {};
  i.terms = terms;
  i.n_kv = a->kv.n_heads;
  i.dim = a->kv.head_dim;
  i.n_terms = a->n_terms;
  i.padded_terms = a->padded_terms = round_to(a->n_terms, kTerms);
  i.width = a->width = round_to(i.dim, 64);
  i.image = reinterpret_cast<uint16_t*>(memory);
  a->image = i.image;
  const uint64_t pieces = uint64_t{i.n_kv} * i.padded_terms * (i.width / 4);
  const LaunchShape shape = {dim3(static_cast<uint32_t>((pieces + kThreads - 1) / kThreads)),
                             dim3(kThreads), 0, stream, false};
  return launch_kernel("score_image", shape, score_image_kernel, i);
}

/// Two stages where they fit, else one; false if not even that.
template <class T>
bool choose_stages(ScoreArgs* a, bool exact, int room) {
  a->n_stages = 2;
  while (a->n_stages > 0 &&
         Layout<T>::bytes(a->kv.head_dim, exact, a->n_stages) > static_cast<size_t>(room)) {
    --a->n_stages;
  }
  return a->n_stages != 0;
}

template <Mode kMode, class T>
Status launch_tiles_of(const char* name, ScoreArgs* a, bool exact, int room, cudaStream_t stream) {
  const size_t bytes = Layout<T>::bytes(a->kv.head_dim, exact, a->n_stages);
  a->n_parts = (a->n_slots + T::kPart - 1) / T::kPart;
  SHARPI_TRY(kernel_status(cudaFuncSetAttribute(score_kernel<kMode, T>,
                                                cudaFuncAttributeMaxDynamicSharedMemorySize, room),
                           name));
  const LaunchShape shape = {dim3((a->n_slots + T::kSlots - 1) / T::kSlots, a->kv.n_heads),
                             dim3(kThreads), bytes, stream, false};
  return launch_kernel(name, shape, score_kernel<kMode, T>, *a);
}

/// The widest tile that fits the device.
template <Mode kMode>
Status launch_tiles(const char* name, ScoreArgs* a, cudaStream_t stream) {
  int device = 0, room = 0;
  SHARPI_TRY(kernel_status(cudaGetDevice(&device), name));
  SHARPI_TRY(kernel_status(
      cudaDeviceGetAttribute(&room, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), name));
  room -= 1024;  // what a kernel has of its own
  const bool exact = (kMode == Mode::kNorm ? a->kv.v_dtype : a->kv.k_dtype) == KvDtype::kBf16;
  if (a->kv.head_dim <= 256) {
    if (choose_stages<Wide>(a, exact, room)) {
      return launch_tiles_of<kMode, Wide>(name, a, exact, room, stream);
    }
    if (choose_stages<WideFew>(a, exact, room)) {
      return launch_tiles_of<kMode, WideFew>(name, a, exact, room, stream);
    }
  } else {
    if (choose_stages<Deep>(a, exact, room)) {
      return launch_tiles_of<kMode, Deep>(name, a, exact, room, stream);
    }
    if (choose_stages<DeepFew>(a, exact, room)) {
      return launch_tiles_of<kMode, DeepFew>(name, a, exact, room, stream);
    }
  }
  return Status::error(Code::kUnsupported, "kernel %s: heads of %u do not fit %d bytes", name,
                       a->kv.head_dim, room);
}

Status check_view(const char* name, const KvView& kv, uint32_t n_heads, KvDtype dtype) {
  if (kv.n_heads == 0 || n_heads == 0 || n_heads % kv.n_heads != 0 || kv.head_dim == 0 ||
      kv.head_dim % 16 != 0 || kv.head_dim > 512) {
    return Status::error(Code::kUnsupported, "kernel %s: %u query heads, %u KV heads of %u", name,
                         n_heads, kv.n_heads, kv.head_dim);
  }
  if (dtype != KvDtype::kF32 && dtype != KvDtype::kBf16 && dtype != KvDtype::kQ8_0) {
    return Status::error(Code::kInternal, "kernel %s: unknown KV codec %u", name,
                         static_cast<uint32_t>(dtype));
  }
  return Status::ok();
}

Status small_workspace(const char* name, uint64_t bytes) {
  return Status::error(Code::kInternal, "kernel %s: workspace of %llu bytes is too small", name,
                       static_cast<unsigned long long>(bytes));
}

}  // namespace

uint64_t score_workspace_bytes(uint32_t n_slots, uint32_t n_queries, uint32_t n_heads,
                               uint32_t n_kv_heads, uint32_t head_dim) {
  const uint64_t parts = (uint64_t{n_slots} + part_slots(head_dim) - 1) / part_slots(head_dim);
  const uint64_t terms = uint64_t{n_heads} * n_queries;
  return aligned((2 * parts + 1) * terms * sizeof(float)) +
         image_bytes(terms, n_kv_heads, head_dim);
}

Status launch_score(const ScoreParams& p, cudaStream_t stream) {
  SHARPI_TRY(check_view("score", p.kv, p.n_heads, p.kv.k_dtype));
  if (p.n_slots == 0) return Status::ok();
  if (p.queries == nullptr || p.n_queries == 0 || p.query_rows == 0 || p.visible == nullptr) {
    return Status::error(Code::kInternal, "kernel score: %u queries of %u", p.n_queries,
                         p.query_rows);
  }
  const uint32_t dim = p.kv.head_dim;
  if (p.workspace_bytes <
      score_workspace_bytes(p.n_slots, p.n_queries, p.n_heads, p.kv.n_heads, dim)) {
    return small_workspace("score", p.workspace_bytes);
  }
  ScoreArgs a = {};
  a.kv = p.kv;
  a.n_slots = p.n_slots;
  a.group = p.n_heads / p.kv.n_heads;
  a.n_terms = a.group * p.n_queries;
  a.n_queries = p.n_queries;
  a.scale = p.scale * kLog2E;
  a.visible = p.visible;
  a.weight = p.weight;
  const uint64_t terms = uint64_t{p.n_heads} * p.n_queries;
  const uint64_t parts = (uint64_t{p.n_slots} + part_slots(dim) - 1) / part_slots(dim);
  a.part_max = reinterpret_cast<float*>(p.workspace);
  a.part_sum = a.part_max + parts * terms;
  a.offset = a.part_sum + parts * terms;
  a.sum = p.sum;
  a.max = p.max;
  a.add = p.add;
  const TermSource source = {
      p.queries, uint64_t{p.n_heads} * dim, a.group, p.n_queries, p.query_rows, p.first_query};
  std::byte* image = p.workspace + aligned((2 * parts + 1) * terms * sizeof(float));
  SHARPI_TRY(make_image(&a, source, image, stream));
  SHARPI_TRY(launch_tiles<Mode::kNormalise>("score_normalise", &a, stream));
  const uint32_t n = p.kv.n_heads * a.n_terms;
  const LaunchShape shape = {dim3((n + kMergeTerms - 1) / kMergeTerms),
                             dim3(kMergeTerms * kMergeGroups), 0, stream, false};
  SHARPI_TRY(launch_kernel("score_merge", shape, score_merge_kernel, a));
  return launch_tiles<Mode::kMass>("score_mass", &a, stream);
}

uint64_t value_norm_workspace_bytes(uint32_t n_heads, uint32_t n_kv_heads, uint32_t head_dim) {
  const uint64_t terms = uint64_t{kSlabRows} * n_heads;
  return aligned(terms * head_dim * sizeof(float)) + image_bytes(terms, n_kv_heads, head_dim);
}

Status launch_value_norms(const ValueNormParams& p, cudaStream_t stream) {
  SHARPI_TRY(check_view("value_norms", p.kv, p.n_heads, p.kv.v_dtype));
  if (p.n_slots == 0) return Status::ok();
  const uint32_t dim = p.kv.head_dim;
  if (!p.o || p.o.n_in != p.n_heads * dim) {
    return Status::error(Code::kInternal, "kernel value_norms: projection of %u columns", p.o.n_in);
  }
  if (p.workspace_bytes < value_norm_workspace_bytes(p.n_heads, p.kv.n_heads, dim)) {
    return small_workspace("value_norms", p.workspace_bytes);
  }
  ScoreArgs a = {};
  a.kv = p.kv;
  a.n_slots = p.n_slots;
  a.group = p.n_heads / p.kv.n_heads;
  a.norms = p.norms;
  auto* slab = reinterpret_cast<float*>(p.workspace);
  std::byte* image = p.workspace + aligned(uint64_t{kSlabRows} * p.o.n_in * sizeof(float));
  for (uint32_t first = 0; first < p.o.n_out; first += kSlabRows) {
    DequantizeParams d;
    d.w = p.o;
    d.first_row = first;
    d.n_rows = p.o.n_out - first < kSlabRows ? p.o.n_out - first : kSlabRows;
    d.y_f32 = slab;
    SHARPI_TRY(launch_dequantize(d, stream));
    a.n_terms = a.group * d.n_rows;
    const TermSource source = {slab, p.o.n_in, a.group, d.n_rows, d.n_rows, 0};
    SHARPI_TRY(make_image(&a, source, image, stream));
    a.add = first != 0;
    a.factor = first + d.n_rows == p.o.n_out ? 1.0f / static_cast<float>(a.group) : 1.0f;
    SHARPI_TRY(launch_tiles<Mode::kNorm>("value_norms", &a, stream));
  }
  return Status::ok();
}

}  // namespace sharpi::cuda
