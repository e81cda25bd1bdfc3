// SPDX-License-Identifier: MIT
// Attention of many rows on Hopper's warpgroup tensor cores: a block takes 128 query vectors of one
// KV head, a warpgroup 64 of them. Raw bytes of the next tile of keys and values arrive by
// asynchronous copies while the current one, converted to f16 once for all vectors, is multiplied
// where it lies: queries and weights come from registers, keys (K-major) and values (dims
// contiguous) from shared memory with the 128-byte swizzle. Heads of 512: both warpgroups have the
// same 64 vectors, in shared memory; each multiplies half of the dims, they add up their scores,
// and each sums half of the outputs.
#include "cuda/kernels/attention/attention_flash.cuh"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/wgmma.cuh"

namespace sharpi::cuda {

#ifdef SHARPI_HAVE_SM90A
namespace {

using namespace flash;

constexpr uint32_t kRowBytes = 128;  // of a row of a block of 64 dims

template <int kHeadDim, int kTileKeys>
struct Shape {
  static constexpr int kDim = kHeadDim, kThreads = kWarpgroupThreads;
  static constexpr bool kInTurn = false;
  static constexpr int kShare = kDim > 256 ? 2 : 1;  // warpgroups that share vectors
  static constexpr int kVectors = 128 / kShare, kOutDim = kDim / kShare;
  static constexpr int kKeys = kTileKeys;
  static constexpr int kBlocks = kOutDim / 64;  // of 64 dims that a warpgroup sums
  static constexpr bool kQueriesInRegisters = kShare == 1;
  static constexpr uint32_t kPitch = kDim * 2 + 16;  // of queries on their way to registers
  static constexpr uint32_t kScalePitch = (kDim / 32 * 2 + 8 + 15) / 16 * 16;
  static constexpr uint32_t kTileBytes = kKeys * kDim * 2;
  static constexpr uint32_t kQueryBytes = kVectors * (kShare == 1 ? kPitch : kDim * 2);
  static constexpr uint32_t kKeptQueries = kShare == 1 ? 0 : kQueryBytes;
  /// Scores on their way to the other warpgroup.
  static constexpr uint32_t kExchangeBytes = kShare == 1 ? 0 : kThreads * kKeys / 2 * 4;
  static_assert(kDim % 64 == 0 && kTileBytes % 1024 == 0 && kKeptQueries % 1024 == 0);
  static __device__ __forceinline__ uint32_t swizzled(uint32_t rows, uint32_t r, uint32_t d) {
    return d / 64 * rows * kRowBytes + r * kRowBytes + ((d % 64 * 2) ^ (r % 8 * 16));
  }
  static __device__ __forceinline__ uint32_t place(uint32_t r, uint32_t d) {
    return swizzled(kKeys, r, d);
  }
  static __device__ __forceinline__ uint32_t place_query(uint32_t v, uint32_t d) {
    return kShare == 1 ? v * kPitch + d * 2 : swizzled(kVectors, v, d);
  }
  /// Tiles that were written become visible to the products, after a barrier.
  static __device__ __forceinline__ void publish() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
};

template <class S>
__device__ __forceinline__ void clear(Scores<S>& s) {
#pragma unroll
  for (int n = 0; n < S::kKeys / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s[n][i] = 0.0f;
  }
}

/// In units of 16 bytes: dims 16k of rows that lie as blocks of 64 dims of `rows` rows.
__device__ __forceinline__ constexpr uint64_t dims_at(int k, int rows) {
  return static_cast<uint64_t>(k / 4 * rows * 8 + k % 4 * 2);
}

template <class S>
__device__ __forceinline__ void score_tile(const Queries<S>& q, uint32_t tile, Scores<S>& s) {
  clear<S>(s);
  const uint64_t keys = wgmma_operand(tile);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < S::kDim / 16; ++k) {
    wgmma_f16<S::kKeys>(s, q[k], keys + dims_at(k, S::kKeys));
  }
  wgmma_commit();
  wgmma_wait<0>();
}

/// The same where two warpgroups multiply half of the dims each.
template <class S>
__device__ __forceinline__ void score_tile_shared(uint32_t queries, uint32_t tile, float* exchange,
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

template <int kHeadDim, int kTileKeys>
__global__ void __launch_bounds__(256, 1)
    attention_flash_sm90_kernel(const __grid_constant__ Args f) {
  using S = Shape<kHeadDim, kTileKeys>;
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
  const uint32_t vector0 = threadIdx.x / 32 % (S::kVectors / 16) * 16;
  Queries<S> held;
  if constexpr (S::kQueriesInRegisters) {
    __syncthreads();
    const uint32_t queries = shared_address(shared + vector0 * S::kPitch);
#pragma unroll
    for (int k = 0; k < S::kDim / 16; ++k) {
      ldmatrix_x4(held[k], queries + lane % 16 * S::kPitch + lane / 16 * 16 + k * 32);
    }
    __syncthreads();  // the queries' memory is used for rows
  }
  find_tile_rows<S>(f, b, map, e0, b.begin / S::kKeys * S::kKeys,
                    reinterpret_cast<uint64_t*>(shared + f.plan.rows));
  __syncthreads();
  Running run = start(a, b, vector0 + lane / 4);
  Sums<S> o = {};
  const uint32_t keys = shared_address(shared + f.plan.k_tile);
  const uint32_t d0 = S::kShare == 1 ? 0 : group * S::kOutDim;
  const uint32_t values = shared_address(shared + f.plan.v_tile) + d0 * S::kKeys * 2;
  run_tiles<S>(
      f, b, map, e0, shared, &run, o,
      [&](Scores<S>& s) {
        if constexpr (S::kShare == 1) {
          score_tile<S>(held, keys, s);
        } else {
          auto* exchange = reinterpret_cast<float*>(shared + f.plan.bytes);
          score_tile_shared<S>(shared_address(shared), keys, exchange, s);
        }
      },
      [&](const Scores<S>& s) { weigh_tile<S>(s, values, o); });
  store<S>(a, b, kv, vector0 + lane / 4, d0, run, o);
}

template <class S>
constexpr bool is_as_planned() {
  constexpr WarpgroupShape kPlanned = warpgroup_shape(S::kDim, S::kKeys);
  return flash_shape_of<S>() == kPlanned.tiles && S::kQueryBytes == kPlanned.query_bytes &&
         S::kExchangeBytes == kPlanned.exchange_bytes;
}

/// f.operator()<dim, keys>() for the shape that choose_warpgroups() says.
template <class F>
auto with_shape(uint32_t dim, uint32_t keys, const F& f) {
  switch (dim) {
    case 64:
      return f.template operator()<64, 64>();
    case 128:
      return f.template operator()<128, 64>();
    case 256:
      return f.template operator()<256, 32>();
    default:
      return keys == 32 ? f.template operator()<512, 32>() : f.template operator()<512, 16>();
  }
}

template <int kHeadDim, int kTileKeys>
Status prepare(int most) {
  auto* kernel = attention_flash_sm90_kernel<kHeadDim, kTileKeys>;
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
  return with_shape(l.head_dim, c.keys, [&]<int kHeadDim, int kTileKeys>() {
    using S = Shape<kHeadDim, kTileKeys>;
    static_assert(is_as_planned<S>());
    const Args f = make_args<S>(a);
    const LaunchShape shape = {dim3(l.n_heads, f.a.n_blocks), dim3(S::kThreads), c.bytes, stream,
                               config.pdl};
    return launch_kernel("attention_flash_sm90", shape,
                         attention_flash_sm90_kernel<kHeadDim, kTileKeys>, f);
  });
}

Status prepare_attention_flash_sm90(const KernelConfig& config) {
  if (!config.device.wgmma) return Status::ok();
  SHARPI_TRY((prepare<64, 64>(config.device.shared_per_block)));
  SHARPI_TRY((prepare<128, 64>(config.device.shared_per_block)));
  SHARPI_TRY((prepare<256, 32>(config.device.shared_per_block)));
  SHARPI_TRY((prepare<512, 32>(config.device.shared_per_block)));
  return prepare<512, 16>(config.device.shared_per_block);
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
