// SPDX-License-Identifier: MIT
// Attention of many rows on tensor cores (FlashAttention, arXiv 2205.14135, in the manner of its
// second version): a block takes 64 query vectors of one KV head (rows times group; 32 for heads of
// 512), a warp 16 of them. Raw bytes of the next tile of keys and values arrive by asynchronous
// copies while the current one, converted to f16 for every codec, is multiplied. Weights are f16,
// sums f32. Heads of 512: two warps share the rows, each sums half of the dims.
#include "cuda/kernels/attention/attention_flash.cuh"
#include "cuda/kernels/launch.h"

namespace sharpi::cuda {
namespace {

using namespace flash;

constexpr int kWarps = 4, kThreads = kWarps * 32;

/// kTurns: keys and values share one buffer, for blocks with less shared memory.
template <int kHeadDim, int kTileKeys, bool kTurns>
struct Shape {
  static constexpr int kDim = kHeadDim, kThreads = kWarps * 32;
  static constexpr bool kInTurn = kTurns;
  static constexpr int kShare = kDim > 256 ? 2 : 1;  // warps that share 16 vectors
  static constexpr int kVectors = 16 * kWarps / kShare;
  static constexpr int kKeys = kTileKeys;        // of a tile
  static constexpr int kOutDim = kDim / kShare;  // dims that a warp sums
  static constexpr bool kQueriesInRegisters = kDim <= 128;
  static constexpr uint32_t kPitch = kDim * 2 + 16;  // bytes: an odd number of 16-byte pieces
  static constexpr uint32_t kScalePitch = (kDim / 32 * 2 + 8 + 15) / 16 * 16;
  static constexpr uint32_t kQueryBytes = kVectors * kPitch, kTileBytes = kKeys * kPitch;
  /// Bytes of queries that stay where they are, before the tiles.
  static constexpr uint32_t kKeptQueries = kQueriesInRegisters ? 0 : kQueryBytes;
  static_assert(!kQueriesInRegisters || (kQueryBytes <= 2 * kTileBytes && !kTurns));
  static __device__ __forceinline__ uint32_t place(uint32_t r, uint32_t d) {
    return r * kPitch + d * 2;
  }
  static __device__ __forceinline__ uint32_t place_query(uint32_t v, uint32_t d) {
    return place(v, d);
  }
  /// After writing a tile, before the barrier.
  static __device__ __forceinline__ void publish() {}
};

template <class S>
__device__ __forceinline__ void score_tile(const Queries<S>& held, uint32_t queries, uint32_t tile,
                                           Scores<S>& s) {
  constexpr uint32_t kDim = S::kDim;
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t from = tile + (lane % 8 + lane / 16 * 8) * S::kPitch + lane / 8 % 2 * 16;
#pragma unroll
  for (int n = 0; n < S::kKeys / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s[n][i] = 0.0f;
  }
#pragma unroll
  for (int k = 0; k < static_cast<int>(kDim / 16); ++k) {
    uint32_t q[4];
    if constexpr (S::kQueriesInRegisters) {
#pragma unroll
      for (int i = 0; i < 4; ++i) q[i] = held[k][i];
    } else {
      ldmatrix_x4(q, queries + lane % 16 * S::kPitch + lane / 16 * 16 + k * 32);
    }
#pragma unroll
    for (int n = 0; n < S::kKeys / 8; n += 2) {
      uint32_t b[4];
      ldmatrix_x4(b, from + n * 8 * S::kPitch + k * 32);
      mma_16(false, s[n], q, b[0], b[1]);
      mma_16(false, s[n + 1], q, b[2], b[3]);
    }
  }
}

/// o += weights * values for the warp's dims from d0.
template <class S>
__device__ __forceinline__ void weigh_tile(const Scores<S>& s, uint32_t tile, uint32_t d0,
                                           Sums<S>& o) {
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t from = tile + lane % 16 * S::kPitch + lane / 16 * 16 + d0 * 2;
#pragma unroll
  for (int k = 0; k < S::kKeys / 16; ++k) {
    const __half2 w[4] = {__floats2half2_rn(s[2 * k][0], s[2 * k][1]),
                          __floats2half2_rn(s[2 * k][2], s[2 * k][3]),
                          __floats2half2_rn(s[2 * k + 1][0], s[2 * k + 1][1]),
                          __floats2half2_rn(s[2 * k + 1][2], s[2 * k + 1][3])};
    uint32_t p[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) p[i] = reinterpret_cast<const uint32_t&>(w[i]);
#pragma unroll
    for (int n = 0; n < S::kOutDim / 8; n += 2) {
      uint32_t b[4];
      ldmatrix_x4_trans(b, from + k * 16 * S::kPitch + n * 16);
      mma_16(false, o[n], p, b[0], b[1]);
      mma_16(false, o[n + 1], p, b[2], b[3]);
    }
  }
}

template <int kDim>
using Whole = Shape<kDim, kDim <= 128 ? 64 : 32, false>;
template <int kDim, int kKeys>
using InTurn = Shape<kDim, kKeys, true>;

template <class S, bool kByHead>
__global__ void __launch_bounds__(kThreads, S::kDim <= 128   ? 3
                                            : S::kDim <= 256 ? 2
                                                             : 1)
    attention_flash_kernel(const __grid_constant__ Args f) {
  constexpr int kDim = S::kDim;
  extern __shared__ __align__(128) uint8_t shared[];
  grid_dependents_launch();
  grid_dependency_wait();
  const AttentionArgs& a = f.a;
  RowBlock b;
  if (!find_rows(a, gridDim.y - 1 - blockIdx.y, &b)) return;
  find_keys(a, &b);
  const uint32_t kv = blockIdx.x;
  count_keys<kByHead>(a, kv, &b);
  const auto map = find_head<kByHead>(a, b.sequence, kv);
  const uint32_t e0 = first_element(map, kv, kDim);
  find_tile_rows<S>(f, b, map, e0, b.begin / S::kKeys * S::kKeys,
                    reinterpret_cast<uint64_t*>(shared + f.plan.rows));
  load_queries<S>(a, b, kv, shared);
  __syncthreads();
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t vector0 = warp / S::kShare * 16, d0 = warp % S::kShare * S::kOutDim;
  const uint32_t queries = shared_address(shared + vector0 * S::kPitch);
  Queries<S> held;
  if constexpr (S::kQueriesInRegisters) {
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
      ldmatrix_x4(held[k], queries + lane % 16 * S::kPitch + lane / 16 * 16 + k * 32);
    }
  }
  Running run = start(a, b, vector0 + lane / 4);
  Sums<S> o = {};
  const auto score = [&](Scores<S>& s) {
    score_tile<S>(held, queries, shared_address(shared + f.plan.k_tile), s);
  };
  const auto weigh = [&](const Scores<S>& s) {
    weigh_tile<S>(s, shared_address(shared + f.plan.v_tile), d0, o);
  };
  if constexpr (S::kInTurn) {
    run_tiles_in_turn<S>(f, b, map, e0, shared, &run, o, score, weigh);
  } else {
    run_tiles<S>(f, b, map, e0, shared, &run, o, score, weigh);
  }
  store<S>(a, b, kv, vector0 + lane / 4, d0, run, o);
}

template <class S>
Status launch(const AttentionArgs& a, bool pdl, cudaStream_t stream) {
  const Args f = make_args<S>(a);
  const LaunchShape shape = {dim3(a.p.kv.n_heads, f.a.n_blocks), dim3(kThreads), f.plan.bytes,
                             stream, pdl};
  return launch_kernel(
      "attention_flash", shape,
      a.p.by_head ? attention_flash_kernel<S, true> : attention_flash_kernel<S, false>, f);
}

template <class S>
Status prepare(int most) {
  for (auto* kernel : {attention_flash_kernel<S, false>, attention_flash_kernel<S, true>}) {
    SHARPI_TRY(kernel_status(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most),
        "attention_flash"));
  }
  return Status::ok();
}

template <class S>
struct Tag {
  static_assert(flash_shape_of<S>() == flash_shape(S::kDim, S::kKeys, S::kInTurn));
};

/// f(Tag<S>{}) with the shape that choose_flash() says; `none` if there is none.
template <class R, class F>
R with_shape(const KernelConfig& config, const KvLayer& l, R none, const F& f) {
  const FlashChoice c = choose_flash(config.device, l.k_dtype, l.v_dtype, l.head_dim);
  if (c.keys == 0) return none;
  switch (l.head_dim) {
    case 64:
      return f(Tag<Whole<64>>{});
    case 80:
      return f(Tag<Whole<80>>{});
    case 96:
      return f(Tag<Whole<96>>{});
    case 128:
      return f(Tag<Whole<128>>{});
    case 256:
      return c.in_turn ? f(Tag<InTurn<256, 32>>{}) : f(Tag<Whole<256>>{});
    default:
      break;
  }
  if (!c.in_turn) return f(Tag<Whole<512>>{});
  return c.keys == 32 ? f(Tag<InTurn<512, 32>>{}) : f(Tag<InTurn<512, 16>>{});
}

}  // namespace

bool attention_flash_fits(const KernelConfig& config, const KvLayer& l) {
  return with_shape(config, l, false, [](auto) { return true; });
}

Status prepare_attention_flash(const KernelConfig& config) {
  const int most = config.device.shared_per_block;
  SHARPI_TRY(prepare<Whole<64>>(most));
  SHARPI_TRY(prepare<Whole<80>>(most));
  SHARPI_TRY(prepare<Whole<96>>(most));
  SHARPI_TRY(prepare<Whole<128>>(most));
  SHARPI_TRY(prepare<Whole<256>>(most));
  SHARPI_TRY(prepare<Whole<512>>(most));
  SHARPI_TRY((prepare<InTurn<256, 32>>(most)));
  SHARPI_TRY((prepare<InTurn<512, 32>>(most)));
  return prepare<InTurn<512, 16>>(most);
}

Status launch_attention_flash(const KernelConfig& config, const AttentionArgs& a,
                              cudaStream_t stream) {
  const Status none =
      Status::error(Code::kUnsupported, "kernel attention_flash cannot take heads of %u elements",
                    a.p.kv.head_dim);
  return with_shape(config, a.p.kv, none,
                    [&]<class S>(Tag<S>) { return launch<S>(a, config.pdl, stream); });
}

}  // namespace sharpi::cuda
