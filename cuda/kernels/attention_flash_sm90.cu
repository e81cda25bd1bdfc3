// SPDX-License-Identifier: MIT
// Attention of many rows on Hopper's warpgroup tensor cores: a block takes 128 query vectors of one
// KV head, a warpgroup 64 of them. Raw bytes of the next tile of keys and values arrive by
// asynchronous copies while the current one, converted to f16 once for all vectors, is multiplied
// where it lies: queries and weights come from registers, keys (K-major) and values (dims
// contiguous) from shared memory with the 128-byte swizzle.
#include "cuda/kernels/attention_flash.cuh"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/wgmma.cuh"

namespace sharpi::cuda {

#ifdef SHARPI_HAVE_SM90A
namespace {

using namespace flash;

constexpr uint32_t kRowBytes = 128;  // of a row of a block of 64 dims

template <int kHeadDim>
struct Shape {
  static constexpr int kDim = kHeadDim, kThreads = 256;
  static constexpr int kVectors = 128, kOutDim = kDim;
  static constexpr int kKeys = kDim <= 128 ? 64 : 32;  // of a tile
  static constexpr int kBlocks = kDim / 64;            // of 64 dims
  static constexpr bool kQueriesInRegisters = true;
  static constexpr uint32_t kPitch = kDim * 2 + 16;  // of queries
  static constexpr uint32_t kScalePitch = (kDim / 32 * 2 + 8 + 15) / 16 * 16;
  static constexpr uint32_t kQueryBytes = kVectors * kPitch, kTileBytes = kKeys * kDim * 2;
  static constexpr uint32_t kKeptQueries = 0;
  static_assert(kDim % 64 == 0 && kTileBytes % 1024 == 0);
  static __device__ __forceinline__ uint32_t place(uint32_t r, uint32_t d) {
    return d / 64 * kKeys * kRowBytes + r * kRowBytes + ((d % 64 * 2) ^ (r % 8 * 16));
  }
};

template <class S>
__device__ __forceinline__ void score_tile(const Queries<S>& q, uint32_t tile, Scores<S>& s) {
#pragma unroll
  for (int n = 0; n < S::kKeys / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s[n][i] = 0.0f;
  }
  const uint64_t keys = wgmma_operand(tile);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < S::kDim / 16; ++k) {
    // In units of 16 bytes: blocks of 64 dims, then 16 dims of a block.
    const uint64_t at = keys + static_cast<uint64_t>(k / 4 * S::kKeys * 8 + k % 4 * 2);
    wgmma_f16<S::kKeys>(s, q[k], at);
  }
  wgmma_commit();
  wgmma_wait<0>();
}

/// o += weights * values.
template <class S>
__device__ __forceinline__ void weigh_tile(const Scores<S>& s, uint32_t tile, Sums<S>& o) {
  uint32_t p[S::kKeys / 16][4];
#pragma unroll
  for (int k = 0; k < S::kKeys / 16; ++k) {
    p[k][0] = pack_f16(s[2 * k][0], s[2 * k][1]);
    p[k][1] = pack_f16(s[2 * k][2], s[2 * k][3]);
    p[k][2] = pack_f16(s[2 * k + 1][0], s[2 * k + 1][1]);
    p[k][3] = pack_f16(s[2 * k + 1][2], s[2 * k + 1][3]);
  }
  const uint64_t values = wgmma_operand(tile);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < S::kKeys / 16; ++k) {
#pragma unroll
    for (int c = 0; c < S::kBlocks; ++c) {
      wgmma_64<true>(o + 8 * c, p[k], values + static_cast<uint64_t>(c * S::kKeys * 8 + k * 128));
    }
  }
  wgmma_commit();
  wgmma_wait<0>();
}

template <int kHeadDim>
__global__ void __launch_bounds__(256, 1)
    attention_flash_sm90_kernel(const __grid_constant__ Args f) {
  using S = Shape<kHeadDim>;
  extern __shared__ __align__(1024) uint8_t unaligned[];
  uint8_t* shared = unaligned + (1024 - shared_address(unaligned) % 1024) % 1024;
  grid_dependents_launch();
  grid_dependency_wait();
  const AttentionArgs& a = f.a;
  const KvLayer& l = a.p.kv;
  RowBlock b;
  if (!find_rows(a, gridDim.y - 1 - blockIdx.y, &b)) return;
  find_keys(a, &b);
  const uint32_t kv = blockIdx.x, e0 = kv * S::kDim;
  const KeyMap map = make_key_map(a, b.sequence);
  const uint64_t first = b.begin / S::kKeys, last = (b.end + S::kKeys - 1) / S::kKeys;
  load_queries<S>(a, b, kv, shared);
  __syncthreads();
  const uint32_t lane = threadIdx.x % 32, vector0 = threadIdx.x / 32 * 16;
  const uint32_t queries = shared_address(shared + vector0 * S::kPitch);
  Queries<S> held;
#pragma unroll
  for (int k = 0; k < S::kDim / 16; ++k) {
    ldmatrix_x4(held[k], queries + lane % 16 * S::kPitch + lane / 16 * 16 + k * 32);
  }
  __syncthreads();  // the queries' memory is used for rows
  auto* rows = reinterpret_cast<uint64_t*>(shared + f.plan.rows);
  find_tile_rows<S>(f, b, map, e0, first * S::kKeys, rows);
  __syncthreads();
  fetch<S>(f, e0, shared);
  Running run = start(a, b, vector0 + lane / 4);
  Sums<S> o = {};
  // Keys that every row of the block sees.
  const uint64_t all_from = l.window != 0 && b.end > b.low + l.window ? b.end - l.window : b.low;
  for (uint64_t tile = first; tile < last; ++tile) {
    const uint64_t t0 = tile * S::kKeys;
    cp_async_wait<0>();
    __syncthreads();
    if (tile + 1 < last) find_tile_rows<S>(f, b, map, e0, t0 + S::kKeys, rows);
    convert<S>(l.k_dtype, e0, shared + f.plan.k_raw, shared + f.plan.k_scale,
               shared + f.plan.k_tile);
    convert<S>(l.v_dtype, e0, shared + f.plan.v_raw, shared + f.plan.v_scale,
               shared + f.plan.v_tile);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (tile + 1 < last) fetch<S>(f, e0, shared);
    Scores<S> s;
    score_tile<S>(held, shared_address(shared + f.plan.k_tile), s);
    const bool whole = t0 >= all_from && t0 + S::kKeys <= b.first_key + 1;
    fold<S>(&run, t0, whole, s, o);
    weigh_tile<S>(s, shared_address(shared + f.plan.v_tile), o);
  }
  store<S>(a, b, kv, vector0 + lane / 4, 0, run, o);
}

template <int kHeadDim>
uint32_t shared_bytes(const KvLayer& l) {
  using S = Shape<kHeadDim>;
  const uint32_t plan = make_plan<S>(l.k_dtype, l.v_dtype).bytes;
  return (plan > S::kQueryBytes ? plan : S::kQueryBytes) + 1024;
}

template <int kHeadDim>
Status launch(const AttentionArgs& a, bool pdl, cudaStream_t stream) {
  const Args f = make_args<Shape<kHeadDim>>(a);
  const LaunchShape shape = {dim3(a.p.kv.n_heads, f.a.n_blocks), dim3(Shape<kHeadDim>::kThreads),
                             shared_bytes<kHeadDim>(a.p.kv), stream, pdl};
  return launch_kernel("attention_flash_sm90", shape, attention_flash_sm90_kernel<kHeadDim>, f);
}

template <int kHeadDim>
Status prepare(int most) {
  return kernel_status(cudaFuncSetAttribute(attention_flash_sm90_kernel<kHeadDim>,
                                            cudaFuncAttributeMaxDynamicSharedMemorySize, most),
                       "attention_flash_sm90");
}

}  // namespace

bool have_attention_flash_sm90(const MatmulConfig& config, const KvLayer& l) {
  return config.compute_capability == 90 &&
         (l.head_dim == 64 || l.head_dim == 128 || l.head_dim == 256);
}

Status launch_attention_flash_sm90(const AttentionArgs& a, bool pdl, cudaStream_t stream) {
  switch (a.p.kv.head_dim) {
    case 64:
      return launch<64>(a, pdl, stream);
    case 128:
      return launch<128>(a, pdl, stream);
    default:
      return launch<256>(a, pdl, stream);
  }
}

Status prepare_attention_flash_sm90(const MatmulConfig& config) {
  if (config.compute_capability != 90) return Status::ok();
  SHARPI_TRY(prepare<64>(config.max_shared_bytes));
  SHARPI_TRY(prepare<128>(config.max_shared_bytes));
  return prepare<256>(config.max_shared_bytes);
}

#else  // built without that architecture: attention_flash.cu runs everywhere

bool have_attention_flash_sm90(const MatmulConfig&, const KvLayer&) {
  return false;
}
Status launch_attention_flash_sm90(const AttentionArgs&, bool, cudaStream_t) {
  return Status::error(Code::kInternal, "attention_flash_sm90: not in this build");
}
Status prepare_attention_flash_sm90(const MatmulConfig&) {
  return Status::ok();
}

#endif

}  // namespace sharpi::cuda
