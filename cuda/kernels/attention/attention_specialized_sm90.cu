// SPDX-License-Identifier: MIT
// Attention of many rows on Hopper, warps specialised (FlashAttention-3, arXiv 2407.08608): a block
// takes 128 query vectors of one KV head, two consumer warpgroups 64 of them each. Two more feed
// them: one turns stored keys into tiles of f16, one values (attention_feed.cuh), two tiles ahead.
// Two blocks with neighbouring rows are a cluster, of which each turns half of the rows for both.
// A consumer multiplies the next tile's keys and this tile's values while it computes weights, and
// the two take turns on the tensor cores. Heads of 64, 128 and 256; those of 512 have
// attention_flash_sm90.cu.
#include "cuda/kernels/attention/attention_feed.cuh"
#include "cuda/kernels/attention/attention_warpgroups.cuh"
#include "cuda/kernels/launch.h"

namespace sharpi::cuda {

#ifdef SHARPI_HAVE_SM90A
namespace {

using namespace flash;

template <int kHeadDim>
struct Shape {
  static constexpr uint32_t kCluster = 2;  // blocks that share tiles
  static constexpr SpecializedShape kPlanned = specialized_shape(kHeadDim);
  static constexpr int kDim = kHeadDim, kOutDim = kHeadDim, kThreads = kSpecializedThreads;
  static constexpr int kVectors = kSpecializedVectors, kKeys = kPlanned.keys;
  // Registers of a thread that feeds and of one that consumes; the kernel starts with 128 each.
  static constexpr int kFeederRegisters = kHeadDim == 256 ? 48 : 56;
  static constexpr int kConsumerRegisters = 256 - kFeederRegisters;
  static constexpr uint32_t kFeeders = 128;  // threads that feed keys, and as many that feed values
  static constexpr uint32_t kRingBytes = kPlanned.ring_bytes;  // of either
  static constexpr uint32_t kTileBytes = kPlanned.tile_bytes;
  static constexpr uint32_t kGroupBytes = 64 * kDim * 2;  // of a consumer's queries
  static_assert(kTileBytes % 1024 == 0 && kGroupBytes % 1024 == 0);
  static __device__ __forceinline__ uint32_t place(uint32_t r, uint32_t d) {
    return swizzled(kKeys, r, d);
  }
  static __device__ __forceinline__ uint32_t place_query(uint32_t v, uint32_t d) {
    return v / 64 * kGroupBytes + swizzled(64, v % 64, d);
  }
};

/// Addresses in shared memory.
struct Room {
  uint32_t queries, keys, values, key_ring, value_ring;
  uint32_t keys_full, keys_empty, values_full, values_empty;  // two barriers each
};

/// s = queries times a tile's keys, not waited for.
template <class S>
__device__ __forceinline__ void start_scores(uint32_t queries, uint32_t keys, Scores<S>& s) {
  const uint64_t a = wgmma_operand(queries), b = wgmma_operand(keys);
  wgmma_hold(s);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < S::kDim / 16; ++k) {
    wgmma_f16_shared<S::kKeys>(s, a + dims_at(k, 64), b + dims_at(k, S::kKeys), k != 0);
  }
  wgmma_commit();
}

/// o += weights times a tile's values, not waited for.
template <class S>
__device__ __forceinline__ void start_sums(const Weights<S>& p, uint32_t values, Sums<S>& o) {
  constexpr int kColumns = S::kDim < 128 ? S::kDim : 128;  // of a product
  const uint64_t b = wgmma_columns(values, S::kKeys * kBlockRowBytes);
  wgmma_hold(o);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < S::kKeys / 16; ++k) {
#pragma unroll
    for (int c = 0; c < S::kDim / kColumns; ++c) {
      constexpr int kBlock = S::kKeys * 8;  // of 64 columns, in units of 16 bytes
      wgmma_f16_columns<kColumns>(o + c * kColumns / 8, p[k],
                                  b + static_cast<uint64_t>(c * kColumns / 64 * kBlock + k * 128));
    }
  }
  wgmma_commit();
}

/// A warp tells all blocks of the cluster that it has read a tile.
template <class S>
__device__ __forceinline__ void release(uint32_t barrier) {
  if (threadIdx.x % 32 < S::kCluster) mbarrier_arrive_far(in_block(barrier, threadIdx.x % 32));
}

// The consumers' turns on the tensor cores: named barriers 1 and 2.
__device__ __forceinline__ void wait_turn(uint32_t group) {
  asm volatile("bar.sync %0, 256;" ::"r"(group + 1) : "memory");
}
__device__ __forceinline__ void pass_turn(uint32_t group) {
  asm volatile("bar.arrive %0, 256;" ::"r"(2 - group) : "memory");
}

/// Tiles that a block's rows see: [first, last) of the cluster's n.
struct Tiles {
  uint64_t zero;        // the first key of the first tile
  uint64_t begin, end;  // keys that the cluster sees
  uint32_t first, last, n;
};

/// Tile j, of which this block needs nothing.
template <class S>
__device__ __forceinline__ void pass_over(const Room& room, uint32_t j) {
  const uint32_t at = 8 * (j % 2), parity = j / 2 % 2;
  mbarrier_wait(room.keys_full + at, parity);
  release<S>(room.keys_empty + at);
  mbarrier_wait(room.values_full + at, parity);
  release<S>(room.values_empty + at);
}

/// What a consumer does: all tiles of keys that its 64 vectors see.
template <class S>
__device__ __forceinline__ void consume(const AttentionArgs& a, const RowBlock& b, const Tiles& t,
                                        const Room& room, uint32_t group, Running* run,
                                        Sums<S>& o) {
  const uint32_t queries = room.queries + group * S::kGroupBytes;
  const uint64_t window = a.p.kv.window;
  // Keys that every row of the block sees.
  const uint64_t all_from = window != 0 && b.end > b.low + window ? b.end - window : b.low;
  Scores<S> s;
  Weights<S> p;
  float factor[2];
  const auto fold_tile = [&](uint32_t j) {
    const uint64_t t0 = t.zero + j * uint64_t{S::kKeys};
    const bool whole = t0 >= all_from && t0 + S::kKeys <= b.first_key + 1;
    fold_scores<S>(run, t0, whole, s, factor);
  };
#pragma unroll 1
  for (uint32_t j = 0; j < t.first; ++j) pass_over<S>(room, j);
  const uint32_t at = t.first % 2;
  mbarrier_wait(room.keys_full + 8 * at, t.first / 2 % 2);
  start_scores<S>(queries, room.keys + at * S::kTileBytes, s);
  wgmma_wait<0>();
  wgmma_hold(s);
  release<S>(room.keys_empty + 8 * at);
  fold_tile(t.first);
  pack_weights<S>(s, p);
  if (group == 1) pass_turn(group);  // the first consumer begins
#pragma unroll 1
  for (uint32_t j = t.first; j + 1 < t.last; ++j) {
    const uint32_t at = j % 2, next = (j + 1) % 2;
    mbarrier_wait(room.keys_full + 8 * next, (j + 1) / 2 % 2);
    wait_turn(group);
    start_scores<S>(queries, room.keys + next * S::kTileBytes, s);
    mbarrier_wait(room.values_full + 8 * at, j / 2 % 2);
    start_sums<S>(p, room.values + at * S::kTileBytes, o);
    pass_turn(group);
    wgmma_wait<1>();
    wgmma_hold(s);
    release<S>(room.keys_empty + 8 * next);
    fold_tile(j + 1);
    wgmma_wait<0>();
    wgmma_hold(o);
    release<S>(room.values_empty + 8 * at);
    scale_sums<S>(factor, o);
    pack_weights<S>(s, p);
  }
  const uint32_t last = t.last - 1;
  mbarrier_wait(room.values_full + 8 * (last % 2), last / 2 % 2);
  start_sums<S>(p, room.values + last % 2 * S::kTileBytes, o);
  wgmma_wait<0>();
  wgmma_hold(o);
  release<S>(room.values_empty + 8 * (last % 2));
  if (group == 0) wait_turn(group);  // takes what the second one passed on last
#pragma unroll 1
  for (uint32_t j = t.last; j < t.n; ++j) pass_over<S>(room, j);
}

/// What the first two warpgroups do: one feeds keys, one feeds values.
template <class S>
__device__ __forceinline__ void feed_block(const AttentionArgs& a, const RowBlock& b,
                                           const Tiles& t, uint8_t* shared, const Room& room) {
  const KvLayer& l = a.p.kv;
  const bool value = threadIdx.x >= S::kFeeders;
  const uint32_t thread = threadIdx.x % S::kFeeders, named = value ? 4 : 3;
  // In shared memory, because few registers are left.
  auto* source = reinterpret_cast<feed::Source*>(shared + S::kPlanned.source) + value;
  if (thread == 0) *source = feed::make_source(a, b.sequence, t.zero, t.begin, t.end, value);
  feed::meet<S>(named);
  const feed::Barriers bars = {value ? room.values_full : room.keys_full,
                               value ? room.values_empty : room.keys_empty};
  with_kv_codec<KvDtype::kF32>(value ? l.v_dtype : l.k_dtype, [&]<KvDtype kType>() {
    feed::feed_tiles<S, kType>(*source, blockIdx.x * S::kDim, thread, cluster_rank(), named, t.n,
                               value ? room.values : room.keys,
                               value ? room.value_ring : room.key_ring, bars);
  });
}

/// The rows of a block, and which tiles they see of those that their cluster sees.
template <class S>
__device__ __forceinline__ bool find_tiles(const AttentionArgs& a, RowBlock* b, Tiles* t) {
  // Blocks of a cluster are parts of one block of rows, so they have one sequence.
  const uint32_t clusters = gridDim.y / S::kCluster;
  if (!find_rows(a, clusters - 1 - blockIdx.y / S::kCluster, S::kCluster * a.block_rows, b)) {
    return false;
  }
  find_keys(a, b);
  t->begin = b->begin;
  t->end = b->end;
  t->zero = b->begin / kKvBlockSlots * kKvBlockSlots;  // so that a tile's rows lie in few blocks
  const uint32_t skip = min(cluster_rank() * a.block_rows, b->n);
  b->row0 += skip;
  b->n = min(a.block_rows, b->n - skip);
  find_keys(a, b);
  t->n = static_cast<uint32_t>((t->end - t->zero + S::kKeys - 1) / S::kKeys);
  t->first = static_cast<uint32_t>((b->begin - t->zero) / S::kKeys);
  t->last = static_cast<uint32_t>((b->end - t->zero + S::kKeys - 1) / S::kKeys);
  if (b->n == 0) t->first = 0, t->last = 1;  // a block without rows of its own
  return true;
}

template <class S>
__device__ __forceinline__ void make_barriers(const Room& room) {
  if (threadIdx.x >= 2) return;
  const uint32_t at = 8 * threadIdx.x;
  mbarrier_init(room.keys_full + at, 1);
  mbarrier_init(room.values_full + at, 1);
  mbarrier_init(room.keys_empty + at, 8 * S::kCluster);  // warps of the consumers
  mbarrier_init(room.values_empty + at, 8 * S::kCluster);
  mbarrier_init_fence();
}

template <class S>
__global__ void __launch_bounds__(kSpecializedThreads, 1)
    attention_specialized_sm90_kernel(const __grid_constant__ AttentionArgs a) {
  extern __shared__ __align__(1024) uint8_t unaligned[];
  uint8_t* shared = unaligned + (1024 - shared_address(unaligned) % 1024) % 1024;
  grid_dependents_launch();
  Room room;
  room.queries = shared_address(shared);
  room.keys = room.queries + S::kPlanned.query_bytes;
  room.values = room.keys + 2 * S::kTileBytes;
  room.key_ring = room.values + 2 * S::kTileBytes;
  room.value_ring = room.key_ring + S::kRingBytes;
  room.keys_full = room.queries + S::kPlanned.barriers;
  room.keys_empty = room.keys_full + 16;
  room.values_full = room.keys_full + 32;
  room.values_empty = room.keys_full + 48;
  make_barriers<S>(room);
  grid_dependency_wait();
  RowBlock b;
  Tiles t;
  if (!find_tiles<S>(a, &b, &t)) return;  // so do all of the cluster
  load_queries<S>(a, b, blockIdx.x, shared);
  async_proxy_fence();
  cluster_sync();
  if (threadIdx.x < 2 * S::kFeeders) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(S::kFeederRegisters));
    feed_block<S>(a, b, t, shared, room);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(S::kConsumerRegisters));
    const uint32_t group = threadIdx.x / 128 - 2, lane = threadIdx.x % 32;
    const uint32_t vector = group * 64 + threadIdx.x / 32 % 4 * 16 + lane / 4;
    Running run = start(a, b, vector);
    Sums<S> o = {};
    consume<S>(a, b, t, room, group, &run, o);
    store<S>(a, b, blockIdx.x, vector, 0, run, o);
  }
  cluster_sync();  // nobody writes to a block that has ended
}

/// f.operator()<shape>() for a dim that takes_specialized() has.
template <class F>
auto with_shape(uint32_t dim, const F& f) {
  switch (dim) {
    case 64:
      return f.template operator()<Shape<64>>();
    case 128:
      return f.template operator()<Shape<128>>();
    default:
      return f.template operator()<Shape<256>>();
  }
}

template <class S>
Status prepare(int most) {
  return kernel_status(cudaFuncSetAttribute(attention_specialized_sm90_kernel<S>,
                                            cudaFuncAttributeMaxDynamicSharedMemorySize, most),
                       "attention_specialized_sm90");
}

}  // namespace

bool have_attention_specialized_sm90(const KernelConfig& config, const KvLayer& l) {
  return takes_specialized(config.device, l.head_dim) &&
         granule_of(l.k_dtype, l.k_row_bytes, l.head_dim) == 16 &&
         granule_of(l.v_dtype, l.v_row_bytes, l.head_dim) == 16;
}

Status launch_attention_specialized_sm90(const KernelConfig& config, const AttentionArgs& a,
                                         cudaStream_t stream) {
  const KvLayer& l = a.p.kv;
  if (!have_attention_specialized_sm90(config, l)) {
    return Status::error(Code::kInternal,
                         "kernel attention_specialized_sm90 cannot take heads of %u elements",
                         l.head_dim);
  }
  AttentionArgs f = a;
  f.block_rows = kSpecializedVectors / a.group;
  return with_shape(l.head_dim, [&]<class S>() {
    f.n_blocks = S::kCluster * most_row_blocks(a.p.batch, S::kCluster * f.block_rows);
    LaunchShape shape = {dim3(l.n_heads, f.n_blocks), dim3(kSpecializedThreads),
                         specialized_bytes(l.head_dim), stream, config.pdl};
    shape.cluster = S::kCluster;
    return launch_kernel("attention_specialized_sm90", shape, attention_specialized_sm90_kernel<S>,
                         f);
  });
}

Status prepare_attention_specialized_sm90(const KernelConfig& config) {
  if (!config.device.wgmma) return Status::ok();
  for (const uint32_t dim : {64u, 128u, 256u}) {
    SHARPI_TRY(
        with_shape(dim, [&]<class S>() { return prepare<S>(config.device.shared_per_block); }));
  }
  return Status::ok();
}

#else  // built without that architecture: attention_flash.cu runs everywhere

bool have_attention_specialized_sm90(const KernelConfig&, const KvLayer&) {
  return false;
}
Status launch_attention_specialized_sm90(const KernelConfig&, const AttentionArgs&, cudaStream_t) {
  return Status::error(Code::kInternal, "kernel attention_specialized_sm90 is not in this build");
}
Status prepare_attention_specialized_sm90(const KernelConfig&) {
  return Status::ok();
}

#endif

}  // namespace sharpi::cuda
