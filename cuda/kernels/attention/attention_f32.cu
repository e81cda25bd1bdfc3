// SPDX-License-Identifier: MIT
// Attention in f32 throughout, for decode (split over the device) and prefill alike: tiles of keys
// are decoded to f32 in shared memory, products are f32 FMAs in register tiles.
#include "cuda/kernels/attention/attention_common.cuh"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/ptx.cuh"

namespace sharpi::cuda {
namespace {

constexpr int kThreads = 128;
constexpr float kLog2E = 1.4426950408889634f;
// Spans shorter than this are not worth a merge.
constexpr uint32_t kLeastKeys = 64;

// --- partial results of a split launch, merged by the last block of a unit ---

/// Counts this block's arrival; true in all threads of the last one of n. `flag`: shared memory.
/// The block's writes before the call are visible to the last block after it.
__device__ __forceinline__ bool last_to_arrive(uint32_t* counter, uint32_t n, uint32_t* flag) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    const uint32_t before = atomicAdd(counter, 1u);
    *flag = before + 1 == n ? 1u : 0u;
    if (*flag != 0) *counter = 0;
    __threadfence();
  }
  __syncthreads();
  return *flag != 0;
}

/// Weights of the splits for every vector of KV head kv: weights[2 * v * pitch + s]. A warp per
/// vector, lanes take splits in turn.
__device__ __forceinline__ void merge_weights(const AttentionArgs& a, uint32_t kv,
                                              const float* parts, uint64_t stride, uint32_t vectors,
                                              uint32_t n_splits, uint32_t pitch, float* weights) {
  const uint32_t lane = threadIdx.x % 32, dim = a.p.kv.head_dim;
  const float* from = parts + uint64_t{vectors} * dim;
#pragma unroll 8
  for (uint32_t i = threadIdx.x; i < n_splits * 2 * vectors; i += blockDim.x) {
    const uint32_t s = i / (2 * vectors), in = i - s * 2 * vectors;
    weights[(in < vectors ? 2 * in : 2 * (in - vectors) + 1) * pitch + s] =
        __ldcg(from + s * stride + in);
  }
  __syncthreads();
  for (uint32_t v = threadIdx.x / 32; v < vectors; v += blockDim.x / 32) {
    float* m = weights + 2 * v * pitch;
    float top = -INFINITY, sum = 0.0f;
    for (uint32_t s = lane; s < n_splits; s += 32) top = fmaxf(top, m[s]);
#pragma unroll
    for (int d = 16; d > 0; d /= 2) top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, d));
    for (uint32_t s = lane; s < n_splits; s += 32) {
      const float w = m[s] == -INFINITY ? 0.0f : exp2f(m[s] - top);
      sum = fmaf(w, m[pitch + s], sum);
      m[s] = w;
    }
#pragma unroll
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, d);
    const float inverse = inverse_sum(a.p, kv * a.group + v % a.group, top, sum);
    for (uint32_t s = lane; s < n_splits; s += 32) m[s] *= inverse;
  }
  __syncthreads();
}

/// Merges n_splits partial results of `vectors` query vectors (row * group + head of the group) in
/// ascending order and stores them. All threads of the block; `weights`: shared memory of
/// kMergeFloats floats.
__device__ __forceinline__ void merge_parts(const AttentionArgs& a, const RowBlock& b, uint32_t kv,
                                            const float* parts, uint64_t stride, uint32_t vectors,
                                            uint32_t n_splits, float* weights) {
  constexpr uint32_t kAhead = 34;  // splits that are on their way together
  const uint32_t dim = a.p.kv.head_dim, all = vectors * dim, pitch = n_splits | 1;
  float4 x[kAhead];
  const auto load = [&](uint32_t i, uint32_t s0) {
    if (i >= all) return;
    const float* from = parts + s0 * stride + i;
#pragma unroll
    for (uint32_t j = 0; j < kAhead; ++j, from += stride) {
      if (s0 + j < n_splits) x[j] = __ldcg(reinterpret_cast<const float4*>(from));
    }
  };
  load(threadIdx.x * 4, 0);  // they arrive while the weights are made
  merge_weights(a, kv, parts, stride, vectors, n_splits, pitch, weights);
  const uint32_t first_row = a.p.batch.table.sequences[b.sequence].first_row + b.row0;
  float4 sum = {};
#pragma unroll 1
  for (uint32_t i = threadIdx.x * 4, s0 = 0; i < all;) {
    const uint32_t v = i / dim;
    const float* w = weights + 2 * v * pitch + s0;
#pragma unroll
    for (uint32_t j = 0; j < kAhead; ++j) {
      if (s0 + j < n_splits) sum = fma4(w[j], x[j], sum);
    }
    s0 += kAhead;
    if (s0 >= n_splits) {
      store_result(a.p, first_row + v / a.group, kv * a.group + v % a.group, i - v * dim, sum);
      sum = {};
      s0 = 0;
      i += blockDim.x * 4;
    }
    load(i, s0);
  }
}

// --- tiles ---

template <int kDim>
struct Shape {
  static constexpr int kVectors = kDim <= 256 ? 32 : 16;                // query vectors of a block
  static constexpr int kKeys = kDim <= 256 ? 32 : 16;                   // keys of a tile
  static constexpr int kPitch = kDim + 4;                               // floats between rows
  static constexpr int kRowsPer = kVectors / 16, kKeysPer = kKeys / 8;  // products per thread
  static constexpr int kOutRows = kVectors / 8, kOutColumns = kDim / 16;
  static constexpr size_t kTileFloats = (kVectors + kKeys) * kPitch;
  static constexpr size_t kUsed = kTileFloats + kKeys * kVectors + 3 * kVectors;
  static constexpr size_t kFloats = kUsed > kMergeFloats ? kUsed : kMergeFloats;
  static_assert(kFloats * sizeof(float) == attention_f32_bytes(kDim));
};

/// q[v][d] of the block's vectors, times scale and log2(e); unused vectors are zero.
template <int kDim>
__device__ __forceinline__ void load_queries(const AttentionArgs& a, const RowBlock& b, uint32_t kv,
                                             float* q) {
  using S = Shape<kDim>;
  const AttentionParams& p = a.p;
  const uint32_t n = b.n * a.group;
  const uint32_t first_row = p.batch.table.sequences[b.sequence].first_row + b.row0;
  for (uint32_t i = threadIdx.x; i < S::kVectors * kDim; i += kThreads) {
    const uint32_t v = i / kDim, d = i % kDim;
    float x = 0.0f;
    if (v < n) {
      const uint64_t row = first_row + v / a.group;
      x = p.q[row * p.q_stride + (kv * a.group + v % a.group) * kDim + d] * (p.scale * kLog2E);
    }
    q[v * S::kPitch + d] = x;
  }
}

/// Rows of tile keys [t0, t0 + kKeys), those outside [begin, end) are zero.
template <int kDim, class Map>
__device__ __forceinline__ void load_tile(const AttentionArgs& a, const RowBlock& b, const Map& map,
                                          uint32_t kv, uint64_t t0, bool value, float* tile) {
  using S = Shape<kDim>;
  const KvLayer& l = a.p.kv;
  const KvDtype type = value ? l.v_dtype : l.k_dtype;
  constexpr int kPieces = kDim / 8;
  for (uint32_t i = threadIdx.x; i < S::kKeys * kPieces; i += kThreads) {
    const uint32_t key = i / kPieces, d = i % kPieces * 8;
    float v[8] = {};
    if (t0 + key >= b.begin && t0 + key < b.end) {
      load_elements(type, row_at(l, map, t0 + key, value), row_elements(l, map, kDim),
                    first_element(map, kv, kDim) + d, v);
    }
    auto* to = reinterpret_cast<float4*>(tile + key * S::kPitch + d);
    to[0] = {v[0], v[1], v[2], v[3]};
    to[1] = {v[4], v[5], v[6], v[7]};
  }
}

template <int kDim>
struct Softmax {
  float m[Shape<kDim>::kRowsPer], l[Shape<kDim>::kRowsPer];
};

/// Scores of the tile, folded into the running softmax; weights[key][vector] and the factors by
/// which older sums shrink go to shared memory.
template <int kDim>
__device__ __forceinline__ void score_tile(const AttentionArgs& a, const RowBlock& b, uint64_t t0,
                                           const float* q, const float* tile, float* weights,
                                           float* factors, Softmax<kDim>* state) {
  using S = Shape<kDim>;
  const int kg = threadIdx.x % 8, rg = threadIdx.x / 8;
  float s[S::kRowsPer][S::kKeysPer] = {};
#pragma unroll 2
  for (int d = 0; d < kDim; d += 4) {
    float4 x[S::kRowsPer], y[S::kKeysPer];
#pragma unroll
    for (int i = 0; i < S::kRowsPer; ++i) {
      x[i] = *reinterpret_cast<const float4*>(q + (rg * S::kRowsPer + i) * S::kPitch + d);
    }
#pragma unroll
    for (int j = 0; j < S::kKeysPer; ++j) {
      y[j] = *reinterpret_cast<const float4*>(tile + (kg + 8 * j) * S::kPitch + d);
    }
#pragma unroll
    for (int i = 0; i < S::kRowsPer; ++i) {
#pragma unroll
      for (int j = 0; j < S::kKeysPer; ++j) {
        s[i][j] = fmaf(x[i].x, y[j].x, s[i][j]);
        s[i][j] = fmaf(x[i].y, y[j].y, s[i][j]);
        s[i][j] = fmaf(x[i].z, y[j].z, s[i][j]);
        s[i][j] = fmaf(x[i].w, y[j].w, s[i][j]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < S::kRowsPer; ++i) {
    const uint32_t v = rg * S::kRowsPer + i, row = v / a.group;
    float top = state->m[i];
#pragma unroll
    for (int j = 0; j < S::kKeysPer; ++j) {
      if (row >= b.n || !sees(a, b, row, t0 + kg + 8 * j)) s[i][j] = -INFINITY;
      top = fmaxf(top, s[i][j]);
    }
#pragma unroll
    for (int d = 4; d > 0; d /= 2) top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, d));
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < S::kKeysPer; ++j) {
      const float w = s[i][j] == -INFINITY ? 0.0f : exp2f(s[i][j] - top);
      weights[(kg + 8 * j) * S::kVectors + v] = w;
      sum += w;
    }
#pragma unroll
    for (int d = 4; d > 0; d /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, d);
    const float factor = state->m[i] == -INFINITY ? 0.0f : exp2f(state->m[i] - top);
    state->m[i] = top;
    state->l[i] = fmaf(state->l[i], factor, sum);
    if (kg == 0) factors[v] = factor;
  }
}

template <int kDim>
using OutTile = float[Shape<kDim>::kOutRows][Shape<kDim>::kOutColumns];

template <int kDim>
__device__ __forceinline__ void weigh_tile(const float* tile, const float* weights,
                                           const float* factors, OutTile<kDim>& o) {
  using S = Shape<kDim>;
  const int c = threadIdx.x % 16, r0 = threadIdx.x / 16 * S::kOutRows;
#pragma unroll
  for (int i = 0; i < S::kOutRows; ++i) {
    const float f = factors[r0 + i];
#pragma unroll
    for (int j = 0; j < S::kOutColumns; ++j) o[i][j] *= f;
  }
  for (int key = 0; key < S::kKeys; ++key) {
    float w[S::kOutRows];
#pragma unroll
    for (int i = 0; i < S::kOutRows; ++i) w[i] = weights[key * S::kVectors + r0 + i];
#pragma unroll
    for (int j = 0; j < S::kOutColumns; ++j) {
      const float v = tile[key * S::kPitch + c + 16 * j];
#pragma unroll
      for (int i = 0; i < S::kOutRows; ++i) o[i][j] = fmaf(w[i], v, o[i][j]);
    }
  }
}

/// The block's sums to `o`, or as a partial result to `part`.
template <int kDim>
__device__ __forceinline__ void store_block(const AttentionArgs& a, const RowBlock& b, uint32_t kv,
                                            const OutTile<kDim>& o, const float* m, const float* l,
                                            float* part) {
  using S = Shape<kDim>;
  const int c = threadIdx.x % 16, r0 = threadIdx.x / 16 * S::kOutRows;
  const uint32_t n = b.n * a.group;
  const uint32_t first_row = a.p.batch.table.sequences[b.sequence].first_row + b.row0;
#pragma unroll
  for (int i = 0; i < S::kOutRows; ++i) {
    const uint32_t v = r0 + i;
    if (v >= n) break;
    const uint32_t head = kv * a.group + v % a.group;
    const float inverse = part == nullptr ? inverse_sum(a.p, head, m[v], l[v]) : 1.0f;
#pragma unroll
    for (int j = 0; j < S::kOutColumns; ++j) {
      const uint32_t d = c + 16 * j;
      if (part != nullptr) {
        part[v * kDim + d] = o[i][j];
      } else {
        store_result(a.p, first_row + v / a.group, head, d, o[i][j] * inverse);
      }
    }
    if (part != nullptr && c == 0) {
      part[n * kDim + v] = m[v];
      part[n * kDim + n + v] = l[v];
    }
  }
}

template <int kDim, bool kByHead>
__global__ void __launch_bounds__(kThreads)
    attention_f32_kernel(const __grid_constant__ AttentionArgs a) {
  using S = Shape<kDim>;
  extern __shared__ float4 shared[];
  __shared__ uint32_t flag;
  auto* q = reinterpret_cast<float*>(shared);
  float* tile = q + S::kVectors * S::kPitch;
  float* weights = tile + S::kKeys * S::kPitch;
  float* factors = weights + S::kKeys * S::kVectors;
  float *m = factors + S::kVectors, *l = m + S::kVectors;
  grid_dependents_launch();
  grid_dependency_wait();
  RowBlock b;
  if (!find_rows(a, gridDim.x - 1 - blockIdx.x, &b)) return;
  find_keys(a, &b);
  const uint32_t kv = blockIdx.y;
  count_keys<kByHead>(a, kv, &b);
  const uint32_t n_splits = split_count(a, b, S::kKeys, kLeastKeys / S::kKeys);
  if (blockIdx.z >= n_splits) return;
  const TileRange range = split_tiles(b, S::kKeys, blockIdx.z, n_splits);
  const auto map = find_head<kByHead>(a, b.sequence, kv);
  load_queries<kDim>(a, b, kv, q);
  Softmax<kDim> state;
#pragma unroll
  for (int i = 0; i < S::kRowsPer; ++i) state.m[i] = -INFINITY, state.l[i] = 0.0f;
  OutTile<kDim> o = {};
  for (uint64_t t = range.first; t < range.last; ++t) {
    __syncthreads();
    load_tile<kDim>(a, b, map, kv, t * S::kKeys, false, tile);
    __syncthreads();
    score_tile<kDim>(a, b, t * S::kKeys, q, tile, weights, factors, &state);
    __syncthreads();
    load_tile<kDim>(a, b, map, kv, t * S::kKeys, true, tile);
    __syncthreads();
    weigh_tile<kDim>(tile, weights, factors, o);
  }
  if (threadIdx.x % 8 == 0) {
#pragma unroll
    for (int i = 0; i < S::kRowsPer; ++i) {
      m[threadIdx.x / 8 * S::kRowsPer + i] = state.m[i];
      l[threadIdx.x / 8 * S::kRowsPer + i] = state.l[i];
    }
  }
  __syncthreads();
  if (n_splits == 1) {
    store_block<kDim>(a, b, kv, o, m, l, nullptr);
    return;
  }
  const uint32_t n = b.n * a.group;
  const uint64_t stride = part_floats(a.block_rows * a.group, kDim);
  const uint64_t unit = uint64_t{gridDim.x - 1 - blockIdx.x} * gridDim.y + kv;
  float* parts = a.parts + unit * a.max_splits * stride;
  store_block<kDim>(a, b, kv, o, m, l, parts + blockIdx.z * stride);
  if (!last_to_arrive(a.counters + unit, n_splits, &flag)) return;
  merge_parts(a, b, kv, parts, stride, n, n_splits, reinterpret_cast<float*>(shared));
}

template <int kDim>
Status launch(const AttentionArgs& a, bool pdl, cudaStream_t stream) {
  AttentionArgs args = a;
  if (a.max_splits == 1) {
    args.block_rows = Shape<kDim>::kVectors / a.group;
    args.n_blocks = most_row_blocks(a.p.batch, args.block_rows);
  }
  LaunchShape shape = {dim3(args.n_blocks, a.p.kv.n_heads, a.max_splits), dim3(kThreads), 0, stream,
                       pdl};
  shape.shared_bytes = Shape<kDim>::kFloats * sizeof(float);
  return launch_kernel(
      "attention_f32", shape,
      a.p.by_head ? attention_f32_kernel<kDim, true> : attention_f32_kernel<kDim, false>, args);
}

template <int kDim>
Status prepare() {
  const auto bytes = static_cast<int>(Shape<kDim>::kFloats * sizeof(float));
  for (const auto kernel : {attention_f32_kernel<kDim, false>, attention_f32_kernel<kDim, true>}) {
    SHARPI_TRY(kernel_status(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "attention_f32"));
  }
  return Status::ok();
}

}  // namespace

Status prepare_attention_f32() {
  SHARPI_TRY(prepare<64>());
  SHARPI_TRY(prepare<80>());
  SHARPI_TRY(prepare<96>());
  SHARPI_TRY(prepare<128>());
  SHARPI_TRY(prepare<256>());
  return prepare<512>();
}

Status launch_attention_f32(const AttentionArgs& a, bool pdl, cudaStream_t stream) {
  switch (a.p.kv.head_dim) {
    case 64:
      return launch<64>(a, pdl, stream);
    case 80:
      return launch<80>(a, pdl, stream);
    case 96:
      return launch<96>(a, pdl, stream);
    case 128:
      return launch<128>(a, pdl, stream);
    case 256:
      return launch<256>(a, pdl, stream);
    case 512:
      return launch<512>(a, pdl, stream);
    default:
      return Status::error(Code::kUnsupported,
                           "kernel attention_f32 cannot take heads of %u elements",
                           a.p.kv.head_dim);
  }
}

}  // namespace sharpi::cuda
