// SPDX-License-Identifier: MIT
// Replay scores on Hopper's warpgroups: products of bf16, heads of 64 and 128. A block has a
// chunk's keys of one KV head in shared memory; each of its two warpgroups takes tiles of 64 terms
// (a query and a query head) past them, on its own, so that products of one run beside exponentials
// of the other. A tile's queries come as they are while the one before is multiplied, and its warps
// make two operands of them: as they stand, and turned. Products of the first, 64 keys at a time,
// leave their maximum and sum of exponentials; those of the second, of all 256 keys, stay in
// registers until that sum is whole. What a key counts at most is kept as a logarithm, so that
// exponentials are taken once a product and once a key. Of an 8B (8 KV heads of 128, 32 query
// heads): 7.2 GFLOP and 26 million exponentials a layer of 2048 tokens, 8 to 12 us each.
// Shared memory: 66 KiB of keys, 32 KiB of operands and 32 KiB of queries a warpgroup.
#include <algorithm>

#include "base/checked.h"
#include "cuda/kernels/attention/attention_warpgroups.cuh"
#include "cuda/kernels/kv/kv_fragments.cuh"
#include "cuda/kernels/kv/kv_q4.cuh"
#include "cuda/kernels/kv/kv_replay.cuh"
#include "cuda/kernels/kv/kv_replay_plan.h"
#include "cuda/kernels/kv/kv_rows.cuh"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/wgmma.cuh"

namespace sharpi::cuda {

#ifdef SHARPI_HAVE_SM90A
namespace {

constexpr uint32_t kWarpgroups = kReplayWarpgroups, kThreads = kWarpgroups * 128;
constexpr uint32_t kTile = kReplayTile, kSinkRows = kReplaySinkRows, kPitch = kReplayFound;

template <int kHeadDim>
struct Shape {
  static constexpr uint32_t kDim = kHeadDim;
  static constexpr uint32_t kKeyBytes = kReplayChunk * kDim * 2, kSinkBytes = kSinkRows * kDim * 2;
  static constexpr uint32_t kTermBytes = kTile * kDim * 2;
  static constexpr uint32_t kLanes = kDim / 4;  // that a row of queries occupies
};

/// d = a (64 x 16) * b (16 x 8) of bf16, both from shared memory; added to d if `add`.
__device__ __forceinline__ void multiply_sinks(float (&d)[4], uint64_t a, uint64_t b,
                                               uint32_t add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %6, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, add, 1, 1, 0, "
      "0;\n}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "l"(a), "l"(b), "r"(add));
}

/// The threads of a warpgroup.
__device__ __forceinline__ void meet(uint32_t group) {
  asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
}

/// Maximum and sum of exponentials of a thread's products of two terms.
struct Sums {
  float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};
};

template <int kHeadDim>
struct Block {
  using S = Shape<kHeadDim>;
  static constexpr uint32_t kDim = S::kDim;

  const ReplayArgs& a;
  const ReplaySlots c;
  const uint32_t kv, lane, warp, group;  // warp of the warpgroup
  uint8_t* keys;
  uint8_t* terms;  // of the warpgroup: as they are, turned
  float* queries;  // of the warp
  uint32_t first_query;

  __device__ Block(const ReplayArgs& args, uint8_t* memory)
      : a(args),
        c(args.p, blockIdx.y),
        kv(blockIdx.z),
        lane(threadIdx.x % 32),
        warp(threadIdx.x / 32 % 4),
        group(threadIdx.x / 128) {
    keys = memory;
    terms = keys + S::kKeyBytes + S::kSinkBytes + group * replay_warpgroup_tile(kDim);
    queries = reinterpret_cast<float*>(terms + 2 * S::kTermBytes) + warp * 16 * kDim;
    first_query = static_cast<uint32_t>(args.p.first_query % args.p.query_rows);
  }

  // --- keys ---

  /// Where elements [d, d + 8) of key r are, sinks behind the chunk's.
  __device__ __forceinline__ uint8_t* key_at(uint32_t r, uint32_t d) const {
    return r < kReplayChunk ? keys + flash::swizzled(kReplayChunk, r, d)
                            : keys + S::kKeyBytes + flash::swizzled(kSinkRows, r - kReplayChunk, d);
  }
  __device__ __forceinline__ bool is_key(uint32_t r) const {
    return r < kReplayChunk ? c.low + r < c.end : r - kReplayChunk < c.n_sinks;
  }
  __device__ __forceinline__ const std::byte* key_row(uint32_t r) const {
    const KvView& v = a.p.kv;
    const uint32_t slot = r < kReplayChunk ? c.low + r : r - kReplayChunk,
                   block = slot / kKvBlockSlots;
    const uint64_t at = v.table == nullptr ? block * v.block_stride : v.table[block];
    return v.k + at + uint64_t{slot % kKvBlockSlots} * v.k_row_bytes;
  }

  /// All of them, on their way at once; what is no key is zero.
  __device__ void copy_keys() const {
    constexpr uint32_t kPieces = kDim / 8;
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < (kReplayChunk + kSinkRows) * kPieces; i += kThreads) {
      const uint32_t r = i / kPieces, d = i % kPieces * 8;
      const bool there = is_key(r);
      const std::byte* from = there ? key_row(r) + (kv * kDim + d) * 2 : a.p.kv.k;
      cp_async_16_zfill(shared_address(key_at(r, d)), from, there ? 16 : 0);
    }
  }

  template <KvDtype kType>
  __device__ void decode_keys() const {
    constexpr uint32_t kPieces = kDim / 8;
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < (kReplayChunk + kSinkRows) * kPieces; i += kThreads) {
      const uint32_t r = i / kPieces, d = i % kPieces * 8;
      float x[8] = {};
      if (is_key(r)) DeviceCodec<kType>::load(key_row(r), a.p.kv.n_heads * kDim, kv * kDim + d, x);
      const uint4 packed = {pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]),
                            pack_bf16(x[6], x[7])};
      *reinterpret_cast<uint4*>(key_at(r, d)) = packed;
    }
  }

  __device__ void load_keys() const {
    with_kv_codec(a.p.kv.k_dtype, [&]<KvDtype kType>() {
      if constexpr (kType == KvDtype::kBf16) {
        copy_keys();
      } else {
        decode_keys<kType>();
      }
    });
  }

  // --- terms ---

  /// A warp's rows of terms [first, first + n) set out; others are zero.
  __device__ void fetch(uint32_t first, uint32_t n) const {
    const ReplayParams& p = a.p;
    // Where row lane % 16 is: divisions are dear, so each lane makes them for one row.
    const uint32_t term = first + min(warp * 16 + lane % 16, n - 1);
    const uint32_t row = p.first_asked + term / a.group * p.every;
    const float* mine = p.queries + (first_query + row) % p.query_rows * p.query_stride +
                        (kv * a.group + term % a.group) * kDim;
    const uint32_t d = lane % S::kLanes * 4;
#pragma unroll
    for (uint32_t i = 0; i < 16 * S::kLanes / 32; ++i) {
      const uint32_t r = i * (32 / S::kLanes) + lane / S::kLanes;
      const auto from = __shfl_sync(0xFFFFFFFFu, reinterpret_cast<unsigned long long>(mine), r);
      cp_async_16_zfill(shared_address(queries + r * kDim + d),
                        reinterpret_cast<const float*>(from) + d, warp * 16 + r < n ? 16 : 0);
    }
  }

  /// How a lane's four elements are turned: x * cos + partner * sin.
  struct Turn {
    float cos[4], sin[4];
    uint32_t partner;  // element
  };
  __device__ Turn turn_of(uint32_t d) const {
    Turn t;
    const uint32_t half = a.p.n_half;
    const bool second = d >= half;
    const bool turned = a.p.neighbours || d < 2 * half;
    t.partner = !turned || a.p.neighbours ? d : second ? d - half : d + half;
#pragma unroll
    for (uint32_t e = 0; e < 4; ++e) {
      const uint32_t j = a.p.neighbours ? (d + e) / 2 : second ? d + e - half : d + e;
      const bool in = turned && j < half, adds = a.p.neighbours ? e % 2 == 1 : second;
      const float sin = in ? a.p.sin[j] : 0.0f;
      t.cos[e] = in ? a.p.cos[j] : 1.0f;
      t.sin[e] = adds ? sin : -sin;
    }
    return t;
  }
  __device__ __forceinline__ float4 turned(const Turn& t, uint32_t r, uint32_t d) const {
    const float4 x = *reinterpret_cast<const float4*>(queries + r * kDim + d);
    float4 y = *reinterpret_cast<const float4*>(queries + r * kDim + t.partner);
    if (a.p.neighbours) y = {x.y, x.x, x.w, x.z};
    return {x.x * t.cos[0] + y.x * t.sin[0], x.y * t.cos[1] + y.y * t.sin[1],
            x.z * t.cos[2] + y.z * t.sin[2], x.w * t.cos[3] + y.w * t.sin[3]};
  }

  __device__ __forceinline__ void store(uint8_t* to, uint32_t r, uint32_t d, float4 x) const {
    const uint2 packed = {pack_bf16(x.x, x.y), pack_bf16(x.z, x.w)};
    *reinterpret_cast<uint2*>(to + flash::swizzled(kTile, warp * 16 + r, d)) = packed;
  }
  __device__ __forceinline__ float4 query(uint32_t r, uint32_t d) const {
    return *reinterpret_cast<const float4*>(queries + r * kDim + d);
  }

  /// A warp's rows, which are there, to both operands.
  __device__ void store_terms() const {
    const uint32_t d = lane % S::kLanes * 4, r0 = lane / S::kLanes;
    constexpr uint32_t kStep = 32 / S::kLanes;
    uint8_t* to = terms + S::kTermBytes;
    const Turn t = turn_of(d);
    if (a.rotation == 0) {
#pragma unroll 4
      for (uint32_t r = r0; r < 16; r += kStep) {
        store(terms, r, d, query(r, d));
        store(to, r, d, turned(t, r, d));
      }
      return;
    }
    if (!a.p.rotated) rotate<false>();
    for (uint32_t r = r0; r < 16; r += kStep) store(terms, r, d, query(r, d));
    rotate<true>();
    for (uint32_t r = r0; r < 16; r += kStep) {
      const float4 x = turned(t, r, d);
      __syncwarp();
      *reinterpret_cast<float4*>(queries + r * kDim + d) = x;
    }
    rotate<false>();
    for (uint32_t r = r0; r < 16; r += kStep) store(to, r, d, query(r, d));
  }
  template <bool kBack>
  __device__ void rotate() const {
    __syncwarp();
    rotate_floats<kBack>(queries, 16 * kDim, a.rotation, 0, 1);
    __syncwarp();
  }

  // --- products ---

  /// The 64 terms times keys [first, first + 8 kTiles) of the chunk.
  template <int kTiles>
  __device__ __forceinline__ void start(bool is_turned, uint32_t first,
                                        float (&s)[kTiles][4]) const {
    const uint64_t x = wgmma_operand(shared_address(terms) + (is_turned ? S::kTermBytes : 0)),
                   y = wgmma_operand(shared_address(keys) + first * flash::kBlockRowBytes);
#pragma unroll
    for (int k = 0; k < static_cast<int>(kDim) / 16; ++k) {
      const uint64_t at = x + flash::dims_at(k, kTile), key = y + flash::dims_at(k, kReplayChunk);
      if constexpr (kTiles == 8) {
        wgmma_bf16_shared_64(s, at, key, k != 0);
      } else {
#pragma unroll
        for (int n = 0; n < kTiles; n += 16) wgmma_bf16_shared(s + n, at, key + n * 64, k != 0);
      }
    }
  }
  __device__ __forceinline__ void start_sinks(float (&s)[1][4]) const {
    const uint64_t x = wgmma_operand(shared_address(terms) + S::kTermBytes),
                   y = wgmma_operand(shared_address(keys) + S::kKeyBytes);
#pragma unroll
    for (int k = 0; k < static_cast<int>(kDim) / 16; ++k)
      multiply_sinks(s[0], x + flash::dims_at(k, kTile), y + flash::dims_at(k, kSinkRows), k != 0);
  }

  /// Takes products of keys [first, first + 8 kTiles) into the sums; kMasked: those before end[h].
  template <bool kMasked, int kTiles>
  __device__ __forceinline__ void fold(float (&s)[kTiles][4], uint32_t first,
                                       const uint32_t (&end)[2], Sums& all) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s[n][2 * h + e];
          if (kMasked && first + n * 8 + lane % 4 * 2 + e >= end[h]) x = -INFINITY;
          top[e] = fmaxf(top[e], x);
        }
      }
      const float now = fmaxf(all.top[h], fmaxf(top[0], top[1]) * a.scale),
                  base = now == -INFINITY ? 0.0f : now;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) sum[e] += exp2_approx(fmaf(s[n][2 * h + e], a.scale, -base));
      }
      all.sum[h] = all.sum[h] * exp2_approx(all.top[h] - base) + (sum[0] + sum[1]);
      all.top[h] = now;
    }
  }

  /// Of the four threads that have a term's products: log2 of the sum of all exponentials.
  __device__ __forceinline__ float log_sum(const Sums& all, int h) const {
    float top = all.top[h];
    for (int d = 1; d < 4; d *= 2) top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, d));
    float sum = all.sum[h] * exp2_approx(all.top[h] - top);
    for (int d = 1; d < 4; d *= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, d);
    return top + __log2f(sum);
  }

  using Most = float[kReplayChunk / 8][2];

  /// What terms [first, first + n), which are there, raise `most` to; logarithms.
  __device__ __forceinline__ void ask(uint32_t first, uint32_t n, Most& most) const {
    // Keys of the chunk that a term sees unturned: its own comes last.
    const auto seen_by = [&](uint32_t t) {
      const uint32_t row = a.p.first_asked + (first + min(t, n - 1)) / a.group * a.p.every;
      return a.p.first_slot + row - c.low + 1;
    };
    const uint32_t mine = warp * 16 + lane / 4, own[2] = {seen_by(mine), seen_by(mine + 8)};
    const uint32_t least = seen_by(0), last = seen_by(n - 1);
    Sums all;
#pragma unroll 1
    for (uint32_t k = 0; k < last; k += kTile) {
      float s[8][4];
      wgmma_hold(s);
      wgmma_fence();
      start(false, k, s);
      wgmma_commit();
      wgmma_wait<0>();
      wgmma_hold(s);
      if (k + kTile <= least) {
        fold<false>(s, k, own, all);
      } else {
        fold<true>(s, k, own, all);
      }
    }
    float s[kReplayChunk / 8][4], sinks[1][4];
    wgmma_hold(s);
    wgmma_hold(sinks);
    wgmma_fence();
    start_sinks(sinks);
    start(true, 0, s);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_hold(s);
    wgmma_hold(sinks);
    const uint32_t n_sinks[2] = {c.n_sinks, c.n_sinks}, n_keys = c.end - c.low;
    fold<true>(sinks, 0, n_sinks, all);
    if (n_keys == kReplayChunk) {
      fold<false>(s, 0, n_sinks, all);
    } else {
      const uint32_t end[2] = {n_keys, n_keys};
      fold<true>(s, 0, end, all);
    }
    float log[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float sum = log_sum(all, h);  // by all lanes
      log[h] = mine + 8 * h < n ? sum : INFINITY;
    }
#pragma unroll
    for (int i = 0; i < static_cast<int>(kReplayChunk) / 8; ++i) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float x = fmaxf(fmaf(s[i][e], a.scale, -log[0]), fmaf(s[i][2 + e], a.scale, -log[1]));
        most[i][e] = fmaxf(most[i][e], x);
      }
    }
  }

  /// To the session's scores; what is not negative has the order of its bits.
  __device__ void raise(const Most& most) const {
    auto* found = reinterpret_cast<float*>(keys);  // [8 a warp][kPitch]
    __syncthreads();
#pragma unroll
    for (int i = 0; i < static_cast<int>(kReplayChunk) / 8; ++i) {
      const float2 two = {most[i][0], most[i][1]};
      *reinterpret_cast<float2*>(found + (threadIdx.x / 4) * kPitch + i * 8 + lane % 4 * 2) = two;
    }
    __syncthreads();
    static_assert(kThreads == kReplayChunk);
    float x = -INFINITY;
#pragma unroll 16
    for (uint32_t i = 0; i < kThreads / 4; ++i) x = fmaxf(x, found[i * kPitch + threadIdx.x]);
    const uint32_t slot = c.low + threadIdx.x;
    if (slot < c.own || slot >= c.end) return;
    atomicMax(reinterpret_cast<int*>(a.p.scores + kv * a.p.stride + slot),
              __float_as_int(exp2_approx(x)));
  }
};

template <int kHeadDim>
__global__ void __launch_bounds__(kThreads, 1)
    replay_warpgroup_kernel(const __grid_constant__ ReplayArgs a) {
  extern __shared__ __align__(1024) uint8_t unaligned[];
  grid_dependents_launch();
  grid_dependency_wait();
  using B = Block<kHeadDim>;
  const B b(a, unaligned + (1024 - shared_address(unaligned) % 1024) % 1024);
  if (b.c.end <= b.c.own) return;
  const uint32_t begin = asked_before(a.p, b.c.own - a.p.first_slot) * a.group,
                 end = asked_before(a.p, b.c.end - a.p.first_slot) * a.group;
  uint32_t first = begin + blockIdx.x * kWarpgroups * kTile;
  if (first >= end) return;
  first += b.group * kTile;
  const auto fetch = [&](uint32_t at) {
    if (at < end) b.fetch(at, min(kTile, end - at));
    cp_async_commit();
  };
  b.load_keys();
  fetch(first);
  cp_async_wait<0>();
  async_proxy_fence();
  __syncthreads();
  typename B::Most most;
#pragma unroll
  for (auto& two : most) two[0] = two[1] = -INFINITY;
#pragma unroll 1
  while (first < end) {
    const uint32_t n = min(kTile, end - first), now = first;
    cp_async_wait<0>();
    __syncwarp();
    b.store_terms();
    async_proxy_fence();
    meet(b.group);
    first += gridDim.x * kWarpgroups * kTile;
    fetch(first);  // comes while these are multiplied
    b.ask(now, n, most);
    meet(b.group);  // all have read these terms
  }
  b.raise(most);
}

template <int kHeadDim>
Status launch(const DeviceProfile& device, const ReplayArgs& a, cudaStream_t stream) {
  constexpr auto kKernel = replay_warpgroup_kernel<kHeadDim>;
  constexpr uint32_t kBytes = replay_warpgroup_bytes(kHeadDim);
  SHARPI_TRY(kernel_status(
      cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
      "replay_scores"));
  const ReplayParams& p = a.p;
  const auto n_chunks = static_cast<uint32_t>(div_up(p.first_place + p.n_rows, kReplayChunk));
  const auto n_tiles =
      static_cast<uint32_t>(div_up(div_up(kReplayChunk, p.every) * a.group, kWarpgroups * kTile));
  // Each block decodes the keys, and a processor has one at a time: as many as there are.
  const uint32_t each = static_cast<uint32_t>(device.n_sm) / (n_chunks * p.kv.n_heads);
  const LaunchShape shape = {dim3(std::clamp(each, 1u, n_tiles), n_chunks, p.kv.n_heads),
                             dim3(kThreads), kBytes, stream, device.pdl};
  return launch_kernel("replay_scores", shape, kKernel, a);
}

}  // namespace

bool replay_on_warpgroups(const DeviceProfile& device, const ReplayArgs& a) {
  return replay_warpgroups_fit(device, a.p.kv.head_dim) && !a.p.exact &&
         (a.p.neighbours || a.p.n_half % 4 == 0);
}

Status launch_replay_warpgroups(const DeviceProfile& device, const ReplayArgs& a,
                                cudaStream_t stream) {
  return a.p.kv.head_dim == 64 ? launch<64>(device, a, stream) : launch<128>(device, a, stream);
}

#else  // nothing of 9.0 is built

bool replay_on_warpgroups(const DeviceProfile&, const ReplayArgs&) {
  return false;
}
Status launch_replay_warpgroups(const DeviceProfile&, const ReplayArgs&, cudaStream_t) {
  return Status::error(Code::kInternal, "kernel replay_scores is not in this build for sm_90a");
}
#endif

}  // namespace sharpi::cuda
