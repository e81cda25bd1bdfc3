// SPDX-License-Identifier: MIT
// Attention of many rows with heads of 512 on Hopper's warpgroup tensor cores (narrower heads have
// attention_specialized_sm90.cu). Raw bytes of the next tile of keys and values arrive by
// asynchronous copies while the current one, converted to f16 once for all vectors, is multiplied
// where it lies: weights come from registers, queries and keys (K-major) and values (dims
// contiguous) from shared memory with the 128-byte swizzle. Both warpgroups of a block have the
// same 64 query vectors of one KV head: each multiplies half of the dims, they add up their scores,
// and each sums half of the outputs.
#include "cuda/kernels/attention/attention_warpgroups.cuh"
#include "cuda/kernels/launch.h"

namespace sharpi::cuda {

#ifdef SHARPI_HAVE_SM90A
namespace {

using namespace flash;

template <int kTileKeys>
struct Shape {
  static constexpr int kDim = kWarpgroupDim, kThreads = kWarpgroupThreads;
  static constexpr bool kInTurn = false;
  static constexpr int kVectors = 64, kOutDim = kDim / 2, kKeys = kTileKeys;
  static constexpr int kBlocks = kOutDim / 64;  // of 64 dims that a warpgroup sums
  static constexpr uint32_t kScalePitch = (kDim / 32 * 2 + 8 + 15) / 16 * 16;
  static constexpr uint32_t kTileBytes = kKeys * kDim * 2;
  static constexpr uint32_t kKeptQueries = kVectors * kDim * 2;
  /// Scores on their way to the other warpgroup.
  static constexpr uint32_t kExchangeBytes = kThreads * kKeys / 2 * 4;
  static_assert(kDim % 64 == 0 && kTileBytes % 1024 == 0 && kKeptQueries % 1024 == 0);
  static __device__ __forceinline__ uint32_t place(uint32_t r, uint32_t d) {
    return swizzled(kKeys, r, d);
  }
  static __device__ __forceinline__ uint32_t place_query(uint32_t v, uint32_t d) {
    return swizzled(kVectors, v, d);
  }
  /// Tiles that were written become visible to the products, after a barrier.
  static __device__ __forceinline__ void publish() { async_proxy_fence(); }
};

template <class S>
__device__ __forceinline__ void clear(Scores<S>& s) {
#pragma unroll
  for (int n = 0; n < S::kKeys / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s[n][i] = 0.0f;
  }
}

/// A tile's scores, of which each warpgroup multiplies half of the dims.
template <class S>
__device__ __forceinline__ void score_tile(uint32_t queries, uint32_t tile, float* exchange,
                                           Scores<S>& s) {
  constexpr int kSteps = S::kDim / 32;
  const int first = static_cast<int>(threadIdx.x / 128) * kSteps;
  const uint64_t from = wgmma_operand(queries) + dims_at(first, S::kVectors);
  const uint64_t keys = wgmma_operand(tile) + dims_at(first, S::kKeys);
  clear<S>(s);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    wgmma_f16_shared<S::kKeys>(s, from + dims_at(k, S::kVectors), keys + dims_at(k, S::kKeys));
  }
  wgmma_commit();
  wgmma_wait<0>();
  auto* parts = reinterpret_cast<float4*>(exchange) + threadIdx.x % 128;
  constexpr uint32_t kHalf = S::kKeys / 8 * 128;  // pieces of a warpgroup
  const uint32_t mine = threadIdx.x / 128 * kHalf;
#pragma unroll
  for (uint32_t n = 0; n < S::kKeys / 8; ++n) {
    parts[mine + n * 128] = {s[n][0], s[n][1], s[n][2], s[n][3]};
  }
  // The two warps with the same vectors.
  asm volatile("bar.sync %0, 64;" ::"r"(threadIdx.x / 32 % 4 + 1) : "memory");
#pragma unroll
  for (uint32_t n = 0; n < S::kKeys / 8; ++n) {
    const float4 x = parts[kHalf - mine + n * 128];
    s[n][0] += x.x;
    s[n][1] += x.y;
    s[n][2] += x.z;
    s[n][3] += x.w;
  }
}

/// o += weights * values; tile: the first of the warpgroup's blocks of dims.
template <class S>
__device__ __forceinline__ void weigh_tile(const Scores<S>& s, uint32_t tile, Sums<S>& o) {
  Weights<S> p;
  pack_weights<S>(s, p);
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

template <int kTileKeys>
__global__ void __launch_bounds__(256, 1)
    attention_flash_sm90_kernel(const __grid_constant__ Args f) {
  using S = Shape<kTileKeys>;
  extern __shared__ __align__(1024) uint8_t unaligned[];
  uint8_t* shared = unaligned + (1024 - shared_address(unaligned) % 1024) % 1024;
  grid_dependents_launch();
  grid_dependency_wait();
  const AttentionArgs& a = f.a;
  RowBlock b;
  if (!find_rows(a, gridDim.y - 1 - blockIdx.y, &b)) return;
  find_keys(a, &b);
  const uint32_t kv = blockIdx.x, e0 = kv * S::kDim;
  const KeyMap map = make_key_map(a, b.sequence);
  load_queries<S>(a, b, kv, shared);
  const uint32_t lane = threadIdx.x % 32, group = threadIdx.x / 128;
  const uint32_t vector = threadIdx.x / 32 % 4 * 16 + lane / 4;
  find_tile_rows<S>(f, b, map, e0, b.begin / S::kKeys * S::kKeys,
                    reinterpret_cast<uint64_t*>(shared + f.plan.rows));
  __syncthreads();
  Running run = start(a, b, vector);
  Sums<S> o = {};
  const uint32_t keys = shared_address(shared + f.plan.k_tile), d0 = group * S::kOutDim;
  const uint32_t values = shared_address(shared + f.plan.v_tile) + d0 * S::kKeys * 2;
  run_tiles<S>(
      f, b, map, e0, shared, &run, o,
      [&](Scores<S>& s) {
        auto* exchange = reinterpret_cast<float*>(shared + f.plan.bytes);
        score_tile<S>(shared_address(shared), keys, exchange, s);
      },
      [&](const Scores<S>& s) { weigh_tile<S>(s, values, o); });
  store<S>(a, b, kv, vector, d0, run, o);
}

template <class S>
constexpr bool is_as_planned() {
  constexpr WarpgroupShape kPlanned = warpgroup_shape(S::kKeys);
  return flash_shape_of<S>() == kPlanned.tiles && S::kExchangeBytes == kPlanned.exchange_bytes;
}

template <int kTileKeys>
Status prepare(int most) {
  auto* kernel = attention_flash_sm90_kernel<kTileKeys>;
  return kernel_status(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most),
      "attention_flash_sm90");
}

}  // namespace

bool have_attention_flash_sm90(const KernelConfig& config, const KvLayer& l) {
  return choose_warpgroups(config.device, l.k_dtype, l.v_dtype, l.head_dim).keys != 0;
}

Status launch_attention_flash_sm90(const KernelConfig& config, const AttentionArgs& a,
                                   cudaStream_t stream) {
  const KvLayer& l = a.p.kv;
  const FlashChoice c = choose_warpgroups(config.device, l.k_dtype, l.v_dtype, l.head_dim);
  if (c.keys == 0) {
    return Status::error(Code::kInternal,
                         "kernel attention_flash_sm90 cannot take heads of %u elements",
                         l.head_dim);
  }
  const auto launch = [&]<int kTileKeys>() {
    using S = Shape<kTileKeys>;
    static_assert(is_as_planned<S>());
    const Args f = make_args<S>(a);
    const LaunchShape shape = {dim3(l.n_heads, f.a.n_blocks), dim3(S::kThreads), c.bytes, stream,
                               config.pdl};
    return launch_kernel("attention_flash_sm90", shape, attention_flash_sm90_kernel<kTileKeys>, f);
  };
  return c.keys == 32 ? launch.template operator()<32>() : launch.template operator()<16>();
}

Status prepare_attention_flash_sm90(const KernelConfig& config) {
  if (!config.device.wgmma) return Status::ok();
  SHARPI_TRY(prepare<32>(config.device.shared_per_block));
  return prepare<16>(config.device.shared_per_block);
}

#else  // built without that architecture: attention_flash.cu runs everywhere

bool have_attention_flash_sm90(const KernelConfig&, const KvLayer&) {
  return false;
}
Status launch_attention_flash_sm90(const KernelConfig&, const AttentionArgs&, cudaStream_t) {
  return Status::error(Code::kInternal, "kernel attention_flash_sm90 is not in this build");
}
Status prepare_attention_flash_sm90(const KernelConfig&) {
  return Status::ok();
}

#endif

}  // namespace sharpi::cuda
