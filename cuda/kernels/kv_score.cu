// SPDX-License-Identifier: MIT
// Scores and value norms are the same product of stored rows with many vectors: a block decodes a
// tile of rows to f32 in shared memory once and takes all vectors ("terms") of its KV head past it.
//   normalise  per term the maximum and the sum of exponentials over the tile; merged over tiles
//   mass       per row the sum and the maximum of the normalised exponentials over the terms
//   norm       per row the sum of magnitudes over the terms (rows of the output projection)
#include "cuda/kernels/kv_rows.cuh"
#include "cuda/kernels/kv_score.h"
#include "cuda/kernels/launch.h"

namespace sharpi::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTerms = 64;    // of a step
constexpr int kColumns = 32;  // dims of a step
constexpr int kTermPitch = kColumns + 4;
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
  float* part_max;  // [n_tiles][kv heads][n_terms]; merged into tile 0
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

/// Rows [t0, t0 + kSlots) of a KV head as f32, zero past the end.
template <int kSlots, bool kValue>
__device__ __forceinline__ void load_rows(const ScoreArgs& a, uint32_t kv, uint32_t t0,
                                          float* rows) {
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
    auto* to = reinterpret_cast<float4*>(rows + r * (dim + 4) + d);
    to[0] = {v[0], v[1], v[2], v[3]};
    to[1] = {v[4], v[5], v[6], v[7]};
  }
}

/// s[i][j] = row (x + 16 i) . term (first + 4 y + j), x = thread % 16, y = thread / 16.
template <Mode kMode, int kSlots>
__device__ __forceinline__ void products(const ScoreArgs& a, uint32_t kv, uint32_t first,
                                         const float* rows, float* terms,
                                         float (&s)[kSlots / 16][4]) {
  const uint32_t dim = a.kv.head_dim;
  const uint32_t x = threadIdx.x % 16, y = threadIdx.x / 16;
#pragma unroll
  for (int i = 0; i < kSlots / 16; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) s[i][j] = 0.0f;
  }
  for (uint32_t d0 = 0; d0 < dim; d0 += kColumns) {
    const uint32_t columns = min(static_cast<uint32_t>(kColumns), dim - d0);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < kTerms * kColumns / 4; i += kThreads) {
      const uint32_t term = i / (kColumns / 4), c = i % (kColumns / 4) * 4;
      float4 v = {};
      if (first + term < a.n_terms && c < columns) {
        v = *reinterpret_cast<const float4*>(term_vector<kMode>(a, kv, first + term) + d0 + c);
      }
      *reinterpret_cast<float4*>(terms + term * kTermPitch + c) = v;
    }
    __syncthreads();
    for (uint32_t d = 0; d < columns; d += 4) {
      float4 r[kSlots / 16], t[4];
#pragma unroll
      for (int i = 0; i < kSlots / 16; ++i) {
        r[i] = *reinterpret_cast<const float4*>(rows + (x + 16 * i) * (dim + 4) + d0 + d);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        t[j] = *reinterpret_cast<const float4*>(terms + (4 * y + j) * kTermPitch + d);
      }
#pragma unroll
      for (int i = 0; i < kSlots / 16; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          s[i][j] = fmaf(r[i].x, t[j].x, s[i][j]);
          s[i][j] = fmaf(r[i].y, t[j].y, s[i][j]);
          s[i][j] = fmaf(r[i].z, t[j].z, s[i][j]);
          s[i][j] = fmaf(r[i].w, t[j].w, s[i][j]);
        }
      }
    }
  }
}

template <int kSlots>
__device__ __forceinline__ void normalise(const ScoreArgs& a, uint32_t kv, uint32_t tile,
                                          uint32_t first, const float (&s)[kSlots / 16][4]) {
  const uint32_t x = threadIdx.x % 16, y = threadIdx.x / 16;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const uint32_t term = first + 4 * y + j;
    const uint32_t visible =
        term < a.n_terms ? a.visible[kv * a.n_queries + term % a.n_queries] : 0;
    float top = -INFINITY;
#pragma unroll
    for (int i = 0; i < kSlots / 16; ++i) {
      if (tile * kSlots + x + 16 * i < visible) top = fmaxf(top, s[i][j] * a.scale);
    }
#pragma unroll
    for (int d = 8; d > 0; d /= 2) top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, d));
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kSlots / 16; ++i) {
      if (tile * kSlots + x + 16 * i < visible) sum += exp2f(s[i][j] * a.scale - top);
    }
#pragma unroll
    for (int d = 8; d > 0; d /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, d);
    if (x == 0 && term < a.n_terms) {
      const uint64_t at = (uint64_t{tile} * a.kv.n_heads + kv) * a.n_terms + term;
      a.part_max[at] = top;
      a.part_sum[at] = sum;
    }
  }
}

template <int kSlots>
__device__ __forceinline__ void add_masses(const ScoreArgs& a, uint32_t kv, uint32_t tile,
                                           uint32_t first, const float (&s)[kSlots / 16][4],
                                           float (&sum)[kSlots / 16], float (&most)[kSlots / 16]) {
  const uint32_t x = threadIdx.x % 16, y = threadIdx.x / 16;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const uint32_t term = first + 4 * y + j;
    if (term >= a.n_terms) break;
    const uint32_t visible = a.visible[kv * a.n_queries + term % a.n_queries];
    const float top = a.part_max[uint64_t{kv} * a.n_terms + term];
    const float all = a.part_sum[uint64_t{kv} * a.n_terms + term];
    const float inverse = all > 0.0f ? 1.0f / all : 0.0f;
    const float weight = a.weight != nullptr ? a.weight[term % a.n_queries] : 1.0f;
#pragma unroll
    for (int i = 0; i < kSlots / 16; ++i) {
      if (tile * kSlots + x + 16 * i >= visible) continue;
      const float p = exp2f(s[i][j] * a.scale - top) * inverse;
      sum[i] += p;
      most[i] = fmaxf(most[i], p * weight);
    }
  }
}

/// Per row, the 16 threads' sums and maxima to global memory; y ascending.
template <Mode kMode, int kSlots>
__device__ __forceinline__ void store_rows(const ScoreArgs& a, uint32_t kv, uint32_t tile,
                                           const float (&sum)[kSlots / 16],
                                           const float (&most)[kSlots / 16], float* scratch) {
  const uint32_t x = threadIdx.x % 16, y = threadIdx.x / 16;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kSlots / 16; ++i) {
    scratch[y * kSlots + x + 16 * i] = sum[i];
    scratch[(16 + y) * kSlots + x + 16 * i] = most[i];
  }
  __syncthreads();
  const uint32_t slot = tile * kSlots + threadIdx.x;
  if (threadIdx.x >= kSlots || slot >= a.n_slots) return;
  float total = 0.0f, top = 0.0f;
  for (uint32_t i = 0; i < 16; ++i) {
    total += scratch[i * kSlots + threadIdx.x];
    top = fmaxf(top, scratch[(16 + i) * kSlots + threadIdx.x]);
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
  auto* terms = reinterpret_cast<float*>(shared);
  float* rows = terms + kTerms * kTermPitch;
  const uint32_t tile = blockIdx.x, kv = blockIdx.y;
  load_rows<kSlots, kMode == Mode::kNorm>(a, kv, tile * kSlots, rows);
  float sum[kSlots / 16] = {}, most[kSlots / 16] = {};
  for (uint32_t first = 0; first < a.n_terms; first += kTerms) {
    float s[kSlots / 16][4];
    products<kMode, kSlots>(a, kv, first, rows, terms, s);
    if constexpr (kMode == Mode::kNormalise) {
      normalise<kSlots>(a, kv, tile, first, s);
    } else if constexpr (kMode == Mode::kMass) {
      add_masses<kSlots>(a, kv, tile, first, s, sum, most);
    } else {
#pragma unroll
      for (int i = 0; i < kSlots / 16; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[i] += fabsf(s[i][j]);  // absent terms are zero vectors
      }
    }
  }
  if constexpr (kMode != Mode::kNormalise) {
    store_rows<kMode, kSlots>(a, kv, tile, sum, most, rows);
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

size_t shared_bytes(uint32_t slots, uint32_t dim) {
  const size_t tile = size_t{slots} * (dim + 4), reduce = size_t{32} * slots;
  return (kTerms * kTermPitch + (tile > reduce ? tile : reduce)) * sizeof(float);
}

template <Mode kMode, int kSlots>
Status launch_tiles_of(const char* name, const ScoreArgs& a, cudaStream_t stream) {
  const size_t bytes = shared_bytes(kSlots, a.kv.head_dim);
  SHARPI_TRY(kernel_status(
      cudaFuncSetAttribute(score_kernel<kMode, kSlots>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(shared_bytes(kSlots, kSlots == 64 ? 256 : 512))),
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
      kv.head_dim % 8 != 0 || kv.head_dim > 512) {
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
