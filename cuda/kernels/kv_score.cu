// SPDX-License-Identifier: MIT
// Scores and value norms are the same product of stored rows with many vectors: a block decodes a
// tile of rows once and takes all vectors ("terms") of its KV head past it. Products are made on
// tensor cores from operands in two bf16 terms each (hi * hi + hi * lo + lo * hi: relative error
// about 2^-16 of the products' sizes), summed in f32.
//   normalise  per term the maximum and the sum of exponentials over the tile; merged over tiles
//   mass       per row the sum and the maximum of the normalised exponentials over the terms
//   norm       per row the sum of magnitudes over the terms (rows of the output projection)
#include "cuda/kernels/kv_fragments.cuh"
#include "cuda/kernels/kv_rows.cuh"
#include "cuda/kernels/kv_score.h"
#include "cuda/kernels/launch.h"

namespace sharpi::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTerms = 64;                          // of a step
constexpr int kColumns = 64;                        // dims of a step
constexpr uint32_t kTermPitch = kColumns * 2 + 16;  // bytes
constexpr float kLog2E = 1.4426950408889634f;
constexpr uint32_t kSlabRows = 256;  // rows of the output projection that are dequantised at a time

enum class Mode : uint8_t { kNormalise, kMass, kNorm };

struct ScoreArgs {
  KvView kv;
  uint32_t n_slots, n_terms, n_tiles;
  uint32_t group;
  // scores
  const float* queries;
  uint64_t query_width;
  uint32_t query_rows, n_queries;
  uint64_t first_query;
  float scale;  // times log2(e)
  const uint32_t* visible;
  const float* weight;  // of a query's terms in max; nullptr = 1
  float* part_max;      // [n_tiles][kv heads][n_terms]; merged into tile 0
  float* part_sum;
  float *sum, *max;
  bool add;
  // norms
  const float* weights;  // [slab rows][n_heads * head_dim]
  uint32_t slab_rows;
  float* norms;
  float factor;  // of the last slab: 1 / group
};

__host__ __device__ constexpr uint32_t tile_slots(uint32_t dim) {
  return dim <= 256 ? 64 : 32;
}
__host__ __device__ constexpr uint32_t row_pitch(uint32_t dim) {
  return dim * 2 + 16;  // bytes: an odd number of 16-byte pieces
}

/// Eight warps: 16 slots each, times a part of the terms of a step.
template <int kSlots>
struct Split {
  static constexpr int kRowTiles = kSlots / 16, kParts = 8 / kRowTiles;
  static constexpr int kTiles = kTerms / kParts / 8;  // of 8 terms, per warp
};

/// Shared memory: rows (hi, lo), terms (hi, lo), what a step knows of its terms.
struct Layout {
  uint8_t *rows_hi, *rows_lo, *terms_hi, *terms_lo;
  float *top, *inverse;  // [kTerms]; normalise: [row tiles][kTerms] maxima and sums
  uint32_t* visible;     // [kTerms]
  float* weight;         // [kTerms]
};
template <int kSlots>
__host__ __device__ constexpr size_t layout_bytes(uint32_t dim) {
  return 2 * size_t{kSlots} * row_pitch(dim) + 2 * kTerms * kTermPitch +
         (2 * Split<kSlots>::kRowTiles + 2) * kTerms * 4;
}
template <int kSlots>
__device__ __forceinline__ Layout make_layout(uint8_t* at, uint32_t dim) {
  Layout l;
  l.rows_hi = at;
  l.rows_lo = l.rows_hi + kSlots * row_pitch(dim);
  l.terms_hi = l.rows_lo + kSlots * row_pitch(dim);
  l.terms_lo = l.terms_hi + kTerms * kTermPitch;
  l.top = reinterpret_cast<float*>(l.terms_lo + kTerms * kTermPitch);
  l.inverse = l.top + Split<kSlots>::kRowTiles * kTerms;
  l.visible = reinterpret_cast<uint32_t*>(l.inverse + Split<kSlots>::kRowTiles * kTerms);
  l.weight = reinterpret_cast<float*>(l.visible + kTerms);
  return l;
}

/// Vector of a term of a KV head.
template <Mode kMode>
__device__ __forceinline__ const float* term_vector(const ScoreArgs& a, uint32_t kv,
                                                    uint32_t term) {
  if constexpr (kMode == Mode::kNorm) {
    const uint32_t head = kv * a.group + term / a.slab_rows, row = term % a.slab_rows;
    return a.weights + row * a.query_width + uint64_t{head} * a.kv.head_dim;
  } else {
    const uint32_t head = kv * a.group + term / a.n_queries;
    const uint64_t row = (a.first_query + term % a.n_queries) % a.query_rows;
    return a.queries + row * a.query_width + uint64_t{head} * a.kv.head_dim;
  }
}

/// Rows [t0, t0 + kSlots) of a KV head in two terms, zero past the end.
template <int kSlots, bool kValue>
__device__ __forceinline__ void load_rows(const ScoreArgs& a, uint32_t kv, uint32_t t0,
                                          const Layout& to) {
  const uint32_t dim = a.kv.head_dim, pieces = dim / 8;
  const KvDtype type = kValue ? a.kv.v_dtype : a.kv.k_dtype;
  const std::byte* base = kValue ? a.kv.v : a.kv.k;
  const uint32_t row_bytes = kValue ? a.kv.v_row_bytes : a.kv.k_row_bytes;
  for (uint32_t i = threadIdx.x; i < kSlots * pieces; i += kThreads) {
    const uint32_t r = i / pieces, d = i % pieces * 8, slot = t0 + r;
    float v[8] = {};
    if (slot < a.n_slots) {
      const std::byte* row = base + slot / kKvBlockSlots * a.kv.block_stride +
                             uint64_t{slot % kKvBlockSlots} * row_bytes;
      load_elements(type, row, a.kv.n_heads * dim, kv * dim + d, v);
    }
    uint32_t hi[4], lo[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      hi[j] = pack_bf16(v[2 * j], v[2 * j + 1]);
      lo[j] = pack_rest(true, v[2 * j], v[2 * j + 1], hi[j]);
    }
    const uint32_t at = r * row_pitch(dim) + d * 2;
    *reinterpret_cast<uint4*>(to.rows_hi + at) = {hi[0], hi[1], hi[2], hi[3]};
    *reinterpret_cast<uint4*>(to.rows_lo + at) = {lo[0], lo[1], lo[2], lo[3]};
  }
}

/// Columns [d0, d0 + kColumns) of the step's terms; what is absent is zero.
template <Mode kMode>
__device__ __forceinline__ void load_terms(const ScoreArgs& a, uint32_t kv, uint32_t first,
                                           uint32_t d0, const Layout& to) {
  constexpr uint32_t kPieces = kColumns / 4;
#pragma unroll
  for (uint32_t i = threadIdx.x; i < kTerms * kPieces; i += kThreads) {
    const uint32_t term = i / kPieces, c = i % kPieces * 4;
    float4 v = {};
    if (first + term < a.n_terms && d0 + c < a.kv.head_dim) {
      v = *reinterpret_cast<const float4*>(term_vector<kMode>(a, kv, first + term) + d0 + c);
    }
    const uint32_t x = pack_bf16(v.x, v.y), y = pack_bf16(v.z, v.w), at = term * kTermPitch + c * 2;
    *reinterpret_cast<uint2*>(to.terms_hi + at) = {x, y};
    *reinterpret_cast<uint2*>(to.terms_lo + at) = {pack_rest(true, v.x, v.y, x),
                                                   pack_rest(true, v.z, v.w, y)};
  }
}

/// What add_masses needs of the step's terms.
__device__ __forceinline__ void load_normalisers(const ScoreArgs& a, uint32_t kv, uint32_t first,
                                                 const Layout& to) {
  if (threadIdx.x >= kTerms) return;
  const uint32_t term = first + threadIdx.x;
  const bool there = term < a.n_terms;
  const uint64_t at = uint64_t{kv} * a.n_terms + term;
  const float all = there ? a.part_sum[at] : 0.0f;
  to.top[threadIdx.x] = there ? a.part_max[at] : 0.0f;
  to.inverse[threadIdx.x] = all > 0.0f ? 1.0f / all : 0.0f;
  to.weight[threadIdx.x] = there && a.weight != nullptr ? a.weight[term % a.n_queries] : 1.0f;
  to.visible[threadIdx.x] = there ? a.visible[kv * a.n_queries + term % a.n_queries] : 0;
}

/// s[n][2 h + e] = row (16 rt + g + 8 h) . term (part + 8 n + 2 t + e) of a warp's tile.
template <Mode kMode, int kSlots>
__device__ __forceinline__ void products(const ScoreArgs& a, uint32_t kv, uint32_t first,
                                         const Layout& l, float (&s)[Split<kSlots>::kTiles][4]) {
  using P = Split<kSlots>;
  const uint32_t dim = a.kv.head_dim, pitch = row_pitch(dim), lane = threadIdx.x % 32;
  const uint32_t warp = threadIdx.x / 32, part = warp / P::kRowTiles * P::kTiles * 8;
  const uint32_t row = warp % P::kRowTiles * 16 + lane % 16;
  const uint32_t row_at = row * pitch + lane / 16 * 16;
  const uint32_t term_at = (part + lane % 8 + lane / 16 * 8) * kTermPitch + lane / 8 % 2 * 16;
  const uint32_t rows_hi = shared_address(l.rows_hi) + row_at,
                 rows_lo = shared_address(l.rows_lo) + row_at,
                 terms_hi = shared_address(l.terms_hi) + term_at,
                 terms_lo = shared_address(l.terms_lo) + term_at;
  const bool exact_rows = (kMode == Mode::kNorm ? a.kv.v_dtype : a.kv.k_dtype) == KvDtype::kBf16;
#pragma unroll
  for (int n = 0; n < P::kTiles; ++n) {
#pragma unroll
    for (int j = 0; j < 4; ++j) s[n][j] = 0.0f;
  }
  for (uint32_t d0 = 0; d0 < dim; d0 += kColumns) {
    __syncthreads();
    load_terms<kMode>(a, kv, first, d0, l);
    if (kMode == Mode::kMass && d0 == 0) load_normalisers(a, kv, first, l);
    __syncthreads();
    const uint32_t columns = min(static_cast<uint32_t>(kColumns), dim - d0);
#pragma unroll 2
    for (uint32_t d = 0; d < columns; d += 16) {
      uint32_t hi[4], lo[4];
      ldmatrix_x4(hi, rows_hi + (d0 + d) * 2);
      if (!exact_rows) ldmatrix_x4(lo, rows_lo + (d0 + d) * 2);
#pragma unroll
      for (int n = 0; n < P::kTiles; n += 2) {
        uint32_t th[4], tl[4];
        ldmatrix_x4(th, terms_hi + static_cast<uint32_t>(n) * 8 * kTermPitch + d * 2);
        ldmatrix_x4(tl, terms_lo + static_cast<uint32_t>(n) * 8 * kTermPitch + d * 2);
        mma_16(true, s[n], hi, th[0], th[1]);
        mma_16(true, s[n + 1], hi, th[2], th[3]);
        mma_16(true, s[n], hi, tl[0], tl[1]);
        mma_16(true, s[n + 1], hi, tl[2], tl[3]);
        if (!exact_rows) {
          mma_16(true, s[n], lo, th[0], th[1]);
          mma_16(true, s[n + 1], lo, th[2], th[3]);
        }
      }
    }
  }
}

/// Per term the maximum and the sum over the tile's visible rows.
template <int kSlots>
__device__ __forceinline__ void normalise(const ScoreArgs& a, uint32_t kv, uint32_t tile,
                                          uint32_t first, const Layout& l,
                                          const float (&s)[Split<kSlots>::kTiles][4]) {
  using P = Split<kSlots>;
  const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32;
  const uint32_t row_tile = warp % P::kRowTiles, part = warp / P::kRowTiles * P::kTiles * 8;
  const uint32_t slot = tile * kSlots + row_tile * 16 + g;
#pragma unroll
  for (int n = 0; n < P::kTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const uint32_t in_step =
          part + 8 * static_cast<uint32_t>(n) + 2 * t + static_cast<uint32_t>(e);
      const uint32_t term = first + in_step;
      const uint32_t visible =
          term < a.n_terms ? a.visible[kv * a.n_queries + term % a.n_queries] : 0;
      const float lo = slot < visible ? s[n][e] * a.scale : -INFINITY;
      const float hi = slot + 8 < visible ? s[n][2 + e] * a.scale : -INFINITY;
      float top = fmaxf(lo, hi);
#pragma unroll
      for (int d = 16; d > 2; d /= 2) top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, d));
      float sum = 0.0f;
      if (top != -INFINITY) sum = exp2f(lo - top) + exp2f(hi - top);
#pragma unroll
      for (int d = 16; d > 2; d /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, d);
      if (g == 0) {
        l.top[row_tile * kTerms + in_step] = top;
        l.inverse[row_tile * kTerms + in_step] = sum;
      }
    }
  }
  __syncthreads();
  const uint32_t term = first + threadIdx.x;
  if (threadIdx.x >= kTerms || term >= a.n_terms) return;
  float top = -INFINITY, sum = 0.0f;
#pragma unroll
  for (int r = 0; r < P::kRowTiles; ++r) top = fmaxf(top, l.top[r * kTerms + threadIdx.x]);
#pragma unroll
  for (int r = 0; r < P::kRowTiles; ++r) {
    const float m = l.top[r * kTerms + threadIdx.x];
    if (m != -INFINITY) sum = fmaf(l.inverse[r * kTerms + threadIdx.x], exp2f(m - top), sum);
  }
  const uint64_t at = (uint64_t{tile} * a.kv.n_heads + kv) * a.n_terms + term;
  a.part_max[at] = top;
  a.part_sum[at] = sum;
}

/// sum[h] and most[h] of the thread's rows g and g + 8.
template <Mode kMode, int kSlots>
__device__ __forceinline__ void add_terms(const ScoreArgs& a, uint32_t tile, const Layout& l,
                                          const float (&s)[Split<kSlots>::kTiles][4],
                                          float (&sum)[2], float (&most)[2]) {
  using P = Split<kSlots>;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t part = warp / P::kRowTiles * P::kTiles * 8;
  const uint32_t slot = tile * kSlots + warp % P::kRowTiles * 16 + lane / 4;
#pragma unroll
  for (int n = 0; n < P::kTiles; ++n) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if constexpr (kMode == Mode::kNorm) {
        sum[j / 2] += fabsf(s[n][j]);  // absent terms are zero vectors
      } else {
        const uint32_t term = part + 8 * static_cast<uint32_t>(n) + lane % 4 * 2 + j % 2;
        if (slot + j / 2 * 8 >= l.visible[term]) continue;
        const float p = exp2f(s[n][j] * a.scale - l.top[term]) * l.inverse[term];
        sum[j / 2] += p;
        most[j / 2] = fmaxf(most[j / 2], p * l.weight[term]);
      }
    }
  }
}

/// Per row, the sums and maxima of its four lanes and of the parts of the terms, in order.
template <Mode kMode, int kSlots>
__device__ __forceinline__ void store_rows(const ScoreArgs& a, uint32_t kv, uint32_t tile,
                                           float (&sum)[2], float (&most)[2], float* scratch) {
  using P = Split<kSlots>;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  __syncthreads();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int d = 1; d < 4; d *= 2) {
      sum[h] += __shfl_xor_sync(0xFFFFFFFFu, sum[h], d);
      most[h] = fmaxf(most[h], __shfl_xor_sync(0xFFFFFFFFu, most[h], d));
    }
    const uint32_t row = warp % P::kRowTiles * 16 + lane / 4 + 8 * static_cast<uint32_t>(h);
    if (lane % 4 == 0) {
      scratch[warp / P::kRowTiles * kSlots + row] = sum[h];
      scratch[(P::kParts + warp / P::kRowTiles) * kSlots + row] = most[h];
    }
  }
  __syncthreads();
  const uint32_t slot = tile * kSlots + threadIdx.x;
  if (threadIdx.x >= kSlots || slot >= a.n_slots) return;
  float total = 0.0f, top = 0.0f;
#pragma unroll
  for (int i = 0; i < P::kParts; ++i) {
    total += scratch[i * kSlots + threadIdx.x];
    top = fmaxf(top, scratch[(P::kParts + i) * kSlots + threadIdx.x]);
  }
  const uint64_t at = uint64_t{kv} * a.n_slots + slot;
  if constexpr (kMode == Mode::kNorm) {
    a.norms[at] = ((a.add ? a.norms[at] : 0.0f) + total) * a.factor;
  } else {
    a.sum[at] = a.add ? a.sum[at] + total : total;
    a.max[at] = a.add ? fmaxf(a.max[at], top) : top;
  }
}

template <Mode kMode, int kSlots>
__global__ void __launch_bounds__(kThreads) score_kernel(const __grid_constant__ ScoreArgs a) {
  extern __shared__ float4 shared[];
  const Layout l = make_layout<kSlots>(reinterpret_cast<uint8_t*>(shared), a.kv.head_dim);
  const uint32_t tile = blockIdx.x, kv = blockIdx.y;
  load_rows<kSlots, kMode == Mode::kNorm>(a, kv, tile * kSlots, l);
  float sum[2] = {}, most[2] = {};
  for (uint32_t first = 0; first < a.n_terms; first += kTerms) {
    float s[Split<kSlots>::kTiles][4];
    products<kMode, kSlots>(a, kv, first, l, s);
    if constexpr (kMode == Mode::kNormalise) {
      normalise<kSlots>(a, kv, tile, first, l, s);
    } else {
      add_terms<kMode, kSlots>(a, tile, l, s, sum, most);
    }
  }
  if constexpr (kMode != Mode::kNormalise) {
    store_rows<kMode, kSlots>(a, kv, tile, sum, most, reinterpret_cast<float*>(l.rows_hi));
  }
}

/// Merges a term's parts over the tiles into tile 0: a warp per term, lanes take tiles in turn.
__global__ void __launch_bounds__(kThreads)
    score_merge_kernel(const __grid_constant__ ScoreArgs a) {
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t i = blockIdx.x * (kThreads / 32) + threadIdx.x / 32;
  const uint64_t n = uint64_t{a.kv.n_heads} * a.n_terms;
  if (i >= n) return;
  float top = -INFINITY, sum = 0.0f;
  for (uint32_t tile = lane; tile < a.n_tiles; tile += 32) {
    const float m = a.part_max[tile * n + i], l = a.part_sum[tile * n + i];
    if (l == 0.0f) continue;
    const float high = fmaxf(top, m);
    sum = sum * exp2f(top - high) + l * exp2f(m - high);
    top = high;
  }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    const float m = __shfl_xor_sync(0xFFFFFFFFu, top, d), l = __shfl_xor_sync(0xFFFFFFFFu, sum, d);
    const float high = fmaxf(top, m);
    const float mine = sum == 0.0f ? 0.0f : sum * exp2f(top - high);
    const float other = l == 0.0f ? 0.0f : l * exp2f(m - high);
    sum = mine + other;
    top = high;
  }
  __syncwarp();
  if (lane == 0) {
    a.part_max[i] = top;
    a.part_sum[i] = sum;
  }
}

template <Mode kMode, int kSlots>
Status launch_tiles_of(const char* name, const ScoreArgs& a, cudaStream_t stream) {
  const size_t bytes = layout_bytes<kSlots>(a.kv.head_dim);
  SHARPI_TRY(kernel_status(
      cudaFuncSetAttribute(score_kernel<kMode, kSlots>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(layout_bytes<kSlots>(kSlots == 64 ? 256 : 512))),
      name));
  const LaunchShape shape = {dim3(a.n_tiles, a.kv.n_heads), dim3(kThreads), bytes, stream, false};
  return launch_kernel(name, shape, score_kernel<kMode, kSlots>, a);
}
template <Mode kMode>
Status launch_tiles(const char* name, const ScoreArgs& a, cudaStream_t stream) {
  return tile_slots(a.kv.head_dim) == 64 ? launch_tiles_of<kMode, 64>(name, a, stream)
                                         : launch_tiles_of<kMode, 32>(name, a, stream);
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

uint64_t score_workspace_bytes(uint32_t n_slots, uint32_t n_queries, uint32_t n_heads) {
  const uint64_t tiles = (uint64_t{n_slots} + 31) / 32;
  return 2 * tiles * n_heads * n_queries * sizeof(float);
}

Status launch_score(const ScoreParams& p, cudaStream_t stream) {
  SHARPI_TRY(check_view("score", p.kv, p.n_heads, p.kv.k_dtype));
  if (p.n_slots == 0) return Status::ok();
  if (p.queries == nullptr || p.n_queries == 0 || p.query_rows == 0 || p.visible == nullptr) {
    return Status::error(Code::kInternal, "kernel score: %u queries of %u", p.n_queries,
                         p.query_rows);
  }
  if (p.workspace_bytes < score_workspace_bytes(p.n_slots, p.n_queries, p.n_heads)) {
    return small_workspace("score", p.workspace_bytes);
  }
  ScoreArgs a = {};
  a.kv = p.kv;
  a.n_slots = p.n_slots;
  a.group = p.n_heads / p.kv.n_heads;
  a.n_terms = a.group * p.n_queries;
  a.n_tiles = (p.n_slots + tile_slots(p.kv.head_dim) - 1) / tile_slots(p.kv.head_dim);
  a.queries = p.queries;
  a.query_width = uint64_t{p.n_heads} * p.kv.head_dim;
  a.query_rows = p.query_rows;
  a.n_queries = p.n_queries;
  a.first_query = p.first_query;
  a.scale = p.scale * kLog2E;
  a.visible = p.visible;
  a.weight = p.weight;
  a.part_max = reinterpret_cast<float*>(p.workspace);
  a.part_sum = a.part_max + uint64_t{a.n_tiles} * p.kv.n_heads * a.n_terms;
  a.sum = p.sum;
  a.max = p.max;
  a.add = p.add;
  SHARPI_TRY(launch_tiles<Mode::kNormalise>("score_normalise", a, stream));
  const uint32_t n = p.kv.n_heads * a.n_terms;
  const LaunchShape shape = {dim3((n * 32 + kThreads - 1) / kThreads), dim3(kThreads), 0, stream,
                             false};
  SHARPI_TRY(launch_kernel("score_merge", shape, score_merge_kernel, a));
  return launch_tiles<Mode::kMass>("score_mass", a, stream);
}

uint64_t value_norm_workspace_bytes(uint32_t n_heads, uint32_t head_dim) {
  return uint64_t{kSlabRows} * n_heads * head_dim * sizeof(float);
}

Status launch_value_norms(const ValueNormParams& p, cudaStream_t stream) {
  SHARPI_TRY(check_view("value_norms", p.kv, p.n_heads, p.kv.v_dtype));
  if (p.n_slots == 0) return Status::ok();
  if (!p.o || p.o.n_in != p.n_heads * p.kv.head_dim) {
    return Status::error(Code::kInternal, "kernel value_norms: projection of %u columns", p.o.n_in);
  }
  if (p.workspace_bytes < value_norm_workspace_bytes(p.n_heads, p.kv.head_dim)) {
    return small_workspace("value_norms", p.workspace_bytes);
  }
  ScoreArgs a = {};
  a.kv = p.kv;
  a.n_slots = p.n_slots;
  a.group = p.n_heads / p.kv.n_heads;
  a.n_tiles = (p.n_slots + tile_slots(p.kv.head_dim) - 1) / tile_slots(p.kv.head_dim);
  a.query_width = p.o.n_in;
  a.weights = reinterpret_cast<const float*>(p.workspace);
  a.norms = p.norms;
  for (uint32_t first = 0; first < p.o.n_out; first += kSlabRows) {
    DequantizeParams d;
    d.w = p.o;
    d.first_row = first;
    d.n_rows = p.o.n_out - first < kSlabRows ? p.o.n_out - first : kSlabRows;
    d.y_f32 = reinterpret_cast<float*>(p.workspace);
    SHARPI_TRY(launch_dequantize(d, stream));
    a.slab_rows = d.n_rows;
    a.n_terms = a.group * d.n_rows;
    a.add = first != 0;
    a.factor = first + d.n_rows == p.o.n_out ? 1.0f / static_cast<float>(a.group) : 1.0f;
    SHARPI_TRY(launch_tiles<Mode::kNorm>("value_norms", a, stream));
  }
  return Status::ok();
}

}  // namespace sharpi::cuda
