// SPDX-License-Identifier: MIT
// Scores of blocks of archived keys by their bounds. max(q low, q high) is the product of q's
// negative part with the lower bound plus that of its positive part with the upper one, so all
// blocks and queries of a KV head are one product of matrices: a block's bounds, which lie one
// behind the other, are a row of 2 head_dim bf16, and a query's parts a column of two bf16 numbers
// each (relative error about 2^-17). Heads that tensor cores do not divide are scored element by
// element.
#include "cuda/kernels/kv/kv_archive.h"
#include "cuda/kernels/kv/kv_fragments.cuh"
#include "cuda/kernels/launch.h"

namespace sharpi::cuda {
namespace {

using device::BoundsParams;

constexpr uint32_t kThreads = 256, kWarpLanes = 32, kWarps = kThreads / kWarpLanes;

/// The queries of a group, one after the other: those of all heads, then the next query.
struct BoundsTerm {
  const float* query;
  float weight;  // its logarithm
};
__device__ __forceinline__ BoundsTerm bounds_term(const BoundsParams& p, uint32_t g, uint32_t group,
                                                  uint32_t term) {
  const uint32_t i = term / group;
  const uint64_t row = (p.first_query + i) % p.query_rows,
                 head = uint64_t{g} * group + term % group;
  return {p.queries + (row * p.n_heads + head) * p.head_dim, logf(p.weight[i])};
}

/// A warp has 16 blocks, in registers; terms come in tiles, over shared memory. The order of
/// elements is free, as long as bounds and terms have the same: a lane has eight neighbours, which
/// are operands of two products.
template <uint32_t kDim>
struct BoundsTile {
  static constexpr uint32_t kRows = 16, kBlockRows = kRows * kWarps;
  static constexpr uint32_t kPieces = 2 * kDim / 32;         // of eight elements a lane
  static constexpr uint32_t kTerms = kDim <= 128 ? 32 : 16;  // of a tile
  static constexpr uint32_t kPitch = 2 * kDim + 16;          // elements: rows meet no bank twice
};

template <uint32_t kDim>
__device__ __forceinline__ void stage_terms(const BoundsParams& p, uint32_t g, uint32_t first,
                                            uint16_t (*terms)[2][BoundsTile<kDim>::kPitch],
                                            float* weights) {
  using Tile = BoundsTile<kDim>;
  const uint32_t group = p.n_heads / p.n_kv, n_terms = group * p.n_queries;
  for (uint32_t i = threadIdx.x; i < Tile::kTerms * (kDim / 2); i += kThreads) {
    const uint32_t t = i / (kDim / 2), e = i % (kDim / 2) * 2;
    float2 q = {0.0f, 0.0f};
    float weight = -INFINITY;
    if (first + t < n_terms) {
      const BoundsTerm term = bounds_term(p, g, group, first + t);
      q = *reinterpret_cast<const float2*>(term.query + e);
      weight = term.weight;
    }
    if (e == 0) weights[t] = weight;
#pragma unroll
    for (uint32_t upper = 0; upper < 2; ++upper) {
      const float x = upper != 0 ? fmaxf(q.x, 0.0f) : fminf(q.x, 0.0f),
                  y = upper != 0 ? fmaxf(q.y, 0.0f) : fminf(q.y, 0.0f);
      const uint32_t packed = pack_bf16(x, y);
      *reinterpret_cast<uint32_t*>(&terms[t][0][upper * kDim + e]) = packed;
      *reinterpret_cast<uint32_t*>(&terms[t][1][upper * kDim + e]) = pack_rest(true, x, y, packed);
    }
  }
}

template <uint32_t kDim>
__global__ void __launch_bounds__(kThreads)
    bounds_products_kernel(const __grid_constant__ BoundsParams p) {
  using Tile = BoundsTile<kDim>;
  __shared__ __align__(16) uint16_t terms[Tile::kTerms][2][Tile::kPitch];
  __shared__ float weights[Tile::kTerms];
  const uint32_t g = blockIdx.y, lane = threadIdx.x % kWarpLanes, warp = threadIdx.x / kWarpLanes;
  const uint32_t n_terms = p.n_heads / p.n_kv * p.n_queries;
  const uint32_t row = blockIdx.x * Tile::kBlockRows + warp * Tile::kRows + lane / 4;
  uint4 bounds[2][Tile::kPieces];
#pragma unroll
  for (uint32_t half = 0; half < 2; ++half) {
    const uint32_t block = min(row + 8 * half, p.n_blocks - 1);
    const auto* from = reinterpret_cast<const uint4*>(
        p.bounds + (uint64_t{g} * p.stride + block) * 2 * kDim + lane % 4 * 8);
#pragma unroll
    for (uint32_t c = 0; c < Tile::kPieces; ++c) bounds[half][c] = from[c * 4];
  }
  float most[2] = {-INFINITY, -INFINITY};
  for (uint32_t first = 0; first < n_terms; first += Tile::kTerms) {
    __syncthreads();
    stage_terms<kDim>(p, g, first, terms, weights);
    __syncthreads();
#pragma unroll
    for (uint32_t t = 0; t < Tile::kTerms; t += 8) {
      float sums[4] = {};
#pragma unroll
      for (uint32_t c = 0; c < Tile::kPieces; ++c) {
        const uint4 &low = bounds[0][c], &high = bounds[1][c];
        const uint32_t a0[4] = {low.x, high.x, low.y, high.y},
                       a1[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
        for (uint32_t part = 0; part < 2; ++part) {
          const uint4 b =
              *reinterpret_cast<const uint4*>(&terms[t + lane / 4][part][c * 32 + lane % 4 * 8]);
          mma_16(true, sums, a0, b.x, b.y);
          mma_16(true, sums, a1, b.z, b.w);
        }
      }
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i)
        most[i / 2] = fmaxf(most[i / 2], sums[i] * p.scale + weights[t + lane % 4 * 2 + i % 2]);
    }
  }
#pragma unroll
  for (uint32_t half = 0; half < 2; ++half) {
    most[half] = fmaxf(most[half], __shfl_xor_sync(0xFFFFFFFFu, most[half], 1));
    most[half] = fmaxf(most[half], __shfl_xor_sync(0xFFFFFFFFu, most[half], 2));
    const uint32_t block = row + 8 * half;
    if (lane % 4 != 0 || block >= p.n_blocks) continue;
    float* out = p.out + uint64_t{g} * p.n_blocks + block;
    *out = p.add ? fmaxf(*out, most[half]) : most[half];
  }
}

/// A warp has a block of a KV head, its lanes the bounds of some elements in registers, and goes
/// through the queries of the group.
template <uint32_t kElements>
__global__ void __launch_bounds__(kThreads)
    kv_bounds_kernel(const __grid_constant__ BoundsParams p) {
  const uint32_t block = blockIdx.x * kWarps + threadIdx.x / kWarpLanes;
  const uint32_t g = blockIdx.y, lane = threadIdx.x % kWarpLanes, group = p.n_heads / p.n_kv;
  if (block >= p.n_blocks) return;
  const uint64_t at = uint64_t{g} * p.n_blocks + block;
  const uint16_t* low = p.bounds + (uint64_t{g} * p.stride + block) * 2 * p.head_dim;
  const uint16_t* high = low + p.head_dim;
  float lows[kElements], highs[kElements];
#pragma unroll
  for (uint32_t k = 0; k < kElements; ++k) {
    const uint32_t e = lane + k * kWarpLanes;
    lows[k] = e < p.head_dim ? __uint_as_float(uint32_t{low[e]} << 16) : 0.0f;
    highs[k] = e < p.head_dim ? __uint_as_float(uint32_t{high[e]} << 16) : 0.0f;
  }
  float most = p.add ? p.out[at] : -INFINITY;
#pragma unroll kElements> 8 ? 1 : 4
  for (uint32_t term = 0; term < group * p.n_queries; ++term) {
    const BoundsTerm t = bounds_term(p, g, group, term);
    float sum = 0.0f;
#pragma unroll
    for (uint32_t k = 0; k < kElements; ++k) {
      const uint32_t e = lane + k * kWarpLanes;
      const float x = e < p.head_dim ? t.query[e] : 0.0f;
      sum += fmaxf(x * lows[k], x * highs[k]);
    }
#pragma unroll
    for (uint32_t step = kWarpLanes / 2; step > 0; step /= 2)
      sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
    most = fmaxf(most, sum * p.scale + t.weight);
  }
  if (lane == 0) p.out[at] = most;
}

LaunchShape bounds_shape(const BoundsParams& p, uint32_t blocks_at_once, cudaStream_t stream) {
  return {dim3((p.n_blocks + blocks_at_once - 1) / blocks_at_once, p.n_kv), dim3(kThreads), 0,
          stream, false};
}

template <uint32_t kDim>
Status launch_products(const BoundsParams& p, cudaStream_t stream) {
  return launch_kernel("bounds_products", bounds_shape(p, BoundsTile<kDim>::kBlockRows, stream),
                       bounds_products_kernel<kDim>, p);
}
template <uint32_t kElements>
Status launch_elements(const BoundsParams& p, cudaStream_t stream) {
  return launch_kernel("kv_bounds", bounds_shape(p, kWarps, stream), kv_bounds_kernel<kElements>,
                       p);
}

}  // namespace

Status launch_kv_bounds(const BoundsParams& p, cudaStream_t stream) {
  if (p.n_blocks == 0) return Status::ok();
  if (p.bounds == nullptr || p.queries == nullptr || p.weight == nullptr || p.out == nullptr ||
      p.n_kv == 0 || p.n_kv > 65535 || p.n_heads % p.n_kv != 0 || p.query_rows == 0) {
    return Status::error(Code::kInternal,
                         "kernel kv_bounds cannot take %u heads of %u, or lacks an operand",
                         p.n_heads, p.n_kv);
  }
  if (p.head_dim == 64) return launch_products<64>(p, stream);
  if (p.head_dim == 128) return launch_products<128>(p, stream);
  if (p.head_dim == 256) return launch_products<256>(p, stream);
  const uint32_t elements = (p.head_dim + kWarpLanes - 1) / kWarpLanes;
  if (elements <= 4) return launch_elements<4>(p, stream);
  if (elements <= 8) return launch_elements<8>(p, stream);
  if (elements <= 16) return launch_elements<16>(p, stream);
  if (elements <= 32) return launch_elements<32>(p, stream);
  return Status::error(Code::kUnsupported, "kernel kv_bounds cannot take heads of %u elements",
                       p.head_dim);
}

}  // namespace sharpi::cuda
