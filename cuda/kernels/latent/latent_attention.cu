// SPDX-License-Identifier: MIT
// A block has up to eight query heads of a row and a share of its keys, a tile at a time: a stored
// row is decoded once and is key and value to all of them. A warp has the products of every eighth
// key, then a head's softmax; a thread has the sums of every 256th element. Shares of the keys are
// joined by another launch. Bound: shared memory.
#include <cmath>

#include "cuda/kernels/attention/attention_common.cuh"
#include "cuda/kernels/latent/latent.h"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/ptx.cuh"

namespace sharpi::cuda {
namespace {

constexpr uint32_t kThreads = kLatentThreads, kVectors = kLatentVectors;
constexpr uint32_t kPer = kMostLatentDim / kThreads;  // elements of a thread
static_assert(kThreads == 32 * kVectors);

struct LatentArgs {
  AttentionParams p;
  uint32_t n_splits, keys;
  float* parts;  // [n_rows][n_heads][n_splits][latent_part()]
};

struct LatentRange {
  uint64_t first, last;  // slots of the block's share
};

__device__ __forceinline__ float lanes_sum(float v) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(0xFFFFFFFFu, v, d);
  return v;
}
__device__ __forceinline__ float lanes_max(float v) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) v = fmaxf(v, __shfl_xor_sync(0xFFFFFFFFu, v, d));
  return v;
}

/// Whole tiles for every share.
__device__ __forceinline__ LatentRange share_of(uint64_t begin, uint64_t end, uint32_t keys,
                                                uint32_t share, uint32_t n_splits) {
  const uint64_t tiles = (end - begin + keys - 1) / keys, each = (tiles + n_splits - 1) / n_splits;
  const uint64_t first = begin + share * each * keys, last = first + each * keys;
  return {first, last < end ? last : end};
}

/// Rows [t0, t0 + keys) as floats, zeros from `last` on.
__device__ __forceinline__ void load_rows(const KvLayer& l, const BatchGroup& g,
                                          const KvHeadRows* own, uint64_t t0, uint64_t last,
                                          uint32_t keys, float* tile) {
  const uint32_t dim = l.head_dim, pieces = dim / 8;
  for (uint32_t i = threadIdx.x; i < keys * pieces; i += kThreads) {
    const uint32_t key = i / pieces, d = i % pieces * 8;
    float v[8] = {};
    if (t0 + key < last) {
      const std::byte* row =
          own != nullptr ? head_row(l, *own, t0 + key, false) : store_row(l, g, t0 + key, false);
      load_elements(l.k_dtype, row, dim, d, v);
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) tile[key * dim + d + j] = v[j];
  }
}

/// scores[v][k] of the tile's keys for all vectors.
__device__ __forceinline__ void multiply(const float* q, const float* tile, uint32_t dim,
                                         uint32_t keys, uint32_t n_there, float* scores) {
  const uint32_t lane = threadIdx.x % 32;
  for (uint32_t k = threadIdx.x / 32; k < keys; k += kVectors) {
    float s[kVectors] = {};
    for (uint32_t d = lane; d < dim; d += 32) {
      const float x = tile[k * dim + d];
#pragma unroll
      for (uint32_t v = 0; v < kVectors; ++v) s[v] = fmaf(q[v * dim + d], x, s[v]);
    }
#pragma unroll
    for (uint32_t v = 0; v < kVectors; ++v) {
      const float sum = lanes_sum(s[v]);
      if (lane == 0) scores[v * kMostLatentKeys + k] = k < n_there ? sum : -INFINITY;
    }
  }
}

/// A warp's vector: its greatest score and sum of weights so far, the same in all lanes.
struct LatentSoftmax {
  float top = -INFINITY, total = 0.0f;
  /// Scores of a tile become weights; *factor: by which older sums shrink.
  __device__ __forceinline__ void add(uint32_t keys, float* scores, float* factor) {
    const uint32_t lane = threadIdx.x % 32;
    const float x = lane < keys ? scores[lane] : -INFINITY;
    const float most = fmaxf(top, lanes_max(x));
    const float weight = x == -INFINITY ? 0.0f : expf(x - most);
    const float shrinks = top == -INFINITY ? 0.0f : expf(top - most);
    if (lane < keys) scores[lane] = weight;
    if (lane == 0) *factor = shrinks;
    total = fmaf(total, shrinks, lanes_sum(weight));
    top = most;
  }
};

__device__ __forceinline__ void weigh(const float* tile, const float* weights, const float* factors,
                                      uint32_t dim, uint32_t keys, float (&sums)[kPer][kVectors]) {
#pragma unroll
  for (uint32_t j = 0; j < kPer; ++j) {
    const uint32_t d = threadIdx.x + j * kThreads;
    if (d >= dim) break;
#pragma unroll
    for (uint32_t v = 0; v < kVectors; ++v) sums[j][v] *= factors[v];
    for (uint32_t k = 0; k < keys; ++k) {
      const float x = tile[k * dim + d];
#pragma unroll
      for (uint32_t v = 0; v < kVectors; ++v)
        sums[j][v] = fmaf(weights[v * kMostLatentKeys + k], x, sums[j][v]);
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    latent_attention_kernel(const __grid_constant__ LatentArgs a) {
  extern __shared__ float latent_memory[];
  grid_dependents_launch();
  grid_dependency_wait();
  const AttentionParams& p = a.p;
  const KvLayer& l = p.kv;
  const uint32_t row = blockIdx.x, h0 = blockIdx.y * kVectors, dim = l.head_dim,
                 n = min(kVectors, p.n_heads - h0), warp = threadIdx.x / 32;
  const BatchRow br = p.batch.table.rows[row];
  if (br.sequence == kNoSequence) return;
  const BatchGroup& g = p.batch.table.groups[br.sequence * p.batch.table.n_groups + l.group];
  const KvHeadRows* own = p.by_head ? head_rows(g, 0) : nullptr;
  const uint64_t past = uint64_t{g.n_slots} - (own != nullptr ? own->lag : 0);
  const bool alone = (p.batch.table.sequences[br.sequence].flags & kSequenceNoContext) != 0;
  const LatentRange range =
      share_of(alone ? past : 0, past + br.index + 1, a.keys, blockIdx.z, a.n_splits);
  float *q = latent_memory, *tile = q + kVectors * dim, *scores = tile + a.keys * dim,
        *factors = scores + kVectors * kMostLatentKeys, *totals = factors + kVectors;
  for (uint32_t i = threadIdx.x; i < kVectors * dim; i += kThreads)
    q[i] = i < n * dim ? p.q[row * p.q_stride + uint64_t{h0} * dim + i] * p.scale : 0.0f;
  LatentSoftmax softmax;
  float sums[kPer][kVectors] = {};
  for (uint64_t t = range.first; t < range.last; t += a.keys) {
    __syncthreads();
    load_rows(l, g, own, t, range.last, a.keys, tile);
    __syncthreads();
    const uint64_t left = range.last - t;
    multiply(q, tile, dim, a.keys, left < a.keys ? static_cast<uint32_t>(left) : a.keys, scores);
    __syncthreads();
    softmax.add(a.keys, scores + warp * kMostLatentKeys, factors + warp);
    __syncthreads();
    weigh(tile, scores, factors, dim, a.keys, sums);
  }
  if (threadIdx.x % 32 == 0) totals[warp] = softmax.total;
  __syncthreads();
  const bool whole = a.n_splits == 1;
#pragma unroll
  for (uint32_t v = 0; v < kVectors; ++v) {
    if (v >= n) break;
    const uint64_t unit = (uint64_t{row} * p.n_heads + h0 + v) * a.n_splits + blockIdx.z;
    float* to =
        whole ? p.o + row * p.o_stride + uint64_t{h0 + v} * dim : a.parts + unit * latent_part(dim);
    const float scale = whole ? 1.0f / totals[v] : 1.0f;
#pragma unroll
    for (uint32_t j = 0; j < kPer; ++j) {
      const uint32_t d = threadIdx.x + j * kThreads;
      if (d < dim) to[d] = sums[j][v] * scale;
    }
    if (!whole && threadIdx.x == 32 * v) to[dim] = softmax.top, to[dim + 1] = softmax.total;
  }
}

/// A head of a row, of its shares.
__global__ void __launch_bounds__(kThreads)
    latent_join_kernel(const __grid_constant__ LatentArgs a) {
  grid_dependents_launch();
  grid_dependency_wait();
  const uint32_t row = blockIdx.x, h = blockIdx.y, dim = a.p.kv.head_dim;
  if (a.p.batch.table.rows[row].sequence == kNoSequence) return;
  const float* from = a.parts + (uint64_t{row} * a.p.n_heads + h) * a.n_splits * latent_part(dim);
  float top = -INFINITY, total = 0.0f, sums[kPer] = {};
  for (uint32_t s = 0; s < a.n_splits; ++s) top = fmaxf(top, from[s * latent_part(dim) + dim]);
  for (uint32_t s = 0; s < a.n_splits; ++s) {
    const float* part = from + s * latent_part(dim);
    const float weight = part[dim] == -INFINITY ? 0.0f : expf(part[dim] - top);
    total = fmaf(weight, part[dim + 1], total);
#pragma unroll
    for (uint32_t j = 0; j < kPer; ++j) {
      const uint32_t d = threadIdx.x + j * kThreads;
      if (d < dim) sums[j] = fmaf(weight, part[d], sums[j]);
    }
  }
#pragma unroll
  for (uint32_t j = 0; j < kPer; ++j) {
    const uint32_t d = threadIdx.x + j * kThreads;
    if (d < dim) a.p.o[row * a.p.o_stride + uint64_t{h} * dim + d] = sums[j] / total;
  }
}

}  // namespace

uint64_t latent_workspace_bytes(const KernelConfig& config, uint32_t n_heads, uint32_t head_dim) {
  return kAttentionCounterBytes +
         latent_part_bytes(static_cast<uint32_t>(config.device.n_sm), n_heads, head_dim);
}

Status launch_latent_attention(const KernelConfig& config, const AttentionParams& p,
                               cudaStream_t stream) {
  const uint32_t dim = p.kv.head_dim, n_rows = p.batch.n_rows;
  if (n_rows == 0) return Status::ok();
  if (p.kv.n_heads != 1 || dim > kMostLatentDim || dim % 8 != 0 || p.kv.window != 0 ||
      p.sinks != nullptr || p.gate != nullptr ||
      p.workspace_bytes < latent_workspace_bytes(config, p.n_heads, dim)) {
    return Status::error(Code::kInternal,
                         "kernel latent_attention cannot take %u heads of %u elements, or has no "
                         "room for them",
                         p.n_heads, dim);
  }
  LatentArgs a = {};
  a.p = p;
  a.keys = latent_keys(dim);
  a.n_splits = latent_splits(static_cast<uint32_t>(config.device.n_sm), n_rows, p.n_heads,
                             config.deterministic);
  a.parts = reinterpret_cast<float*>(p.workspace + kAttentionCounterBytes);
  LaunchShape shape = {dim3(n_rows, latent_head_blocks(p.n_heads), a.n_splits), dim3(kThreads),
                       latent_bytes(dim), stream, config.pdl};
  SHARPI_TRY(launch_kernel("latent_attention", shape, latent_attention_kernel, a));
  if (a.n_splits != 1) {
    shape = {dim3(n_rows, p.n_heads), dim3(kThreads), 0, stream, config.pdl};
    SHARPI_TRY(launch_kernel("latent_join", shape, latent_join_kernel, a));
  }
  return is_rotated(p.kv.v_dtype) ? launch_attention_back(p, config.pdl, stream) : Status::ok();
}

}  // namespace sharpi::cuda
