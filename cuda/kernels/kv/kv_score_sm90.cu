// SPDX-License-Identifier: MIT
// Tiles of rows times terms on Hopper's warpgroups, for heads of 64, 128, 192 or 256. A block walks
// tiles of a KV head: some warps copy rows, in blocks of 64 columns, a thread of another one the
// image's blocks through a ring, and warpgroups multiply, each 64 of a tile's rows by 128 terms, or
// 64 terms by 128 rows where terms are what is summed over rows. Exponentials of one warpgroup run
// beside products of the others: the ring lets them drift. A block of rows is refilled for the next
// tile as soon as the last product is through with it. bf16 rows are copied as they are, 256 a
// tile; others become two bf16 numbers, 128 a tile.
// Shared memory: 32 KiB a block of rows (at most 4), 3 x 32 KiB of terms. Bound: tensor cores.
#include "cuda/kernels/kv/kv_rows.cuh"
#include "cuda/kernels/kv/kv_score.cuh"
#include "cuda/kernels/wgmma.cuh"

namespace sharpi::cuda {

#ifdef SHARPI_HAVE_SM90A
namespace {

constexpr uint32_t kStages = kScoreRing, kMaxBlocks = kMostScoreBlocks;
constexpr uint32_t kRowBytes = kScoreColumns * 2;    // of a block, of one number
constexpr uint32_t kRest = kScoreTerms * kRowBytes;  // from first numbers to second ones
constexpr uint32_t kRowBlock = 2 * kRest, kTermBlock = 2 * kRest;
constexpr uint32_t kPart = 128;  // rows of a maximum and a sum
constexpr uint32_t kKnownHeads = kScoreKnownHeads;
static_assert(kRowBlock == kScoreBlockBytes && kTermBlock == kScoreBlockBytes);

/// Who does what: kExact rows are one number each.
template <bool kExact>
struct Roles {
  static constexpr uint32_t kWarpgroups = kExact ? 4 : 2;  // that multiply
  static constexpr uint32_t kCopyThreads = kExact ? 128 : 256, kRowThreads = kExact ? 64 : 224;
  static constexpr uint32_t kThreads = kWarpgroups * 128 + kCopyThreads;
  static_assert(kThreads == score_warpgroup_threads(kExact));
  static constexpr uint32_t kRows = kWarpgroups * 64;  // of a tile
};

/// Shared memory, from an address aligned to 1024: blocks of rows, the ring, barriers.
struct View {
  uint32_t rows, ring, barriers;
  __device__ uint32_t row_block(uint32_t c) const { return rows + c * kRowBlock; }
  __device__ uint32_t stage(uint32_t s) const { return ring + s * kTermBlock; }
  __device__ uint32_t terms_full(uint32_t s) const { return barriers + s * 8; }
  __device__ uint32_t terms_empty(uint32_t s) const { return barriers + (kStages + s) * 8; }
  __device__ uint32_t rows_full(uint32_t c) const { return barriers + (2 * kStages + c) * 8; }
  __device__ uint32_t rows_empty(uint32_t c) const {
    return barriers + (2 * kStages + kMaxBlocks + c) * 8;
  }
};

/// A tile: rows [t0, t0 + n_rows) of a KV head.
struct Place {
  uint32_t kv, t0;
  __device__ Place(const ScoreArgs& a, uint32_t tile, uint32_t n_rows)
      : kv(tile % a.kv.n_heads), t0(tile / a.kv.n_heads * n_rows) {}
};
template <bool kExact>
__host__ __device__ uint32_t n_tiles(const ScoreArgs& a) {
  constexpr uint32_t kRows = Roles<kExact>::kRows;
  return (a.n_slots + kRows - 1) / kRows * a.kv.n_heads;
}

/// Makes what the warp's threads have copied visible to the products, and says so.
__device__ __forceinline__ void rows_arrived(const View& v, uint32_t c) {
  async_proxy_fence();
  __syncwarp();
  if (threadIdx.x % 32 == 0) mbarrier_arrive(v.rows_full(c));
}

/// Rows of K or V.
struct Source {
  const std::byte* base;
  uint32_t row_bytes;
  KvDtype type;
  __device__ Source(const ScoreArgs& a, bool value)
      : base(value ? a.kv.v : a.kv.k),
        row_bytes(value ? a.kv.v_row_bytes : a.kv.k_row_bytes),
        type(value ? a.kv.v_dtype : a.kv.k_dtype) {}
  __device__ __forceinline__ const std::byte* row(const ScoreArgs& a, uint32_t slot) const {
    return score_row(a, base, row_bytes, slot);
  }
};

/// Where 16 bytes of a row lie in a block.
__device__ __forceinline__ uint32_t piece_at(uint32_t row, uint32_t piece) {
  return row * kRowBytes + ((piece ^ (row % 8)) * 16);
}

/// bf16 rows, asynchronously: a block is announced when the next one is on its way.
__device__ __forceinline__ void copy_rows(const ScoreArgs& a, const View& v, const Source& from,
                                          uint32_t thread) {
  using R = Roles<true>;
  const uint32_t n_blocks = a.kv.head_dim / kScoreColumns, all = n_tiles<true>(a);
  uint32_t parity = 1;  // all blocks start empty
  for (uint32_t tile = blockIdx.x; tile < all; tile += gridDim.x, parity ^= 1u) {
    const Place p(a, tile, R::kRows);
    for (uint32_t c = 0; c < n_blocks; ++c) {
      mbarrier_wait(v.rows_empty(c), parity);
      const uint32_t first = (p.kv * a.kv.head_dim + c * kScoreColumns) * 2;
#pragma unroll 4
      for (uint32_t i = thread; i < R::kRows * 8; i += R::kRowThreads) {
        const uint32_t slot = p.t0 + i / 8;
        const bool there = slot < a.n_slots;
        const std::byte* at = there ? from.row(a, slot) + first + i % 8 * 16 : from.base;
        cp_async_16_zfill(v.row_block(c) + piece_at(i / 8, i % 8), at, there ? 16 : 0);
      }
      cp_async_commit();
      if (c == 0) continue;
      cp_async_wait<1>();
      rows_arrived(v, c - 1);
    }
    cp_async_wait<0>();
    rows_arrived(v, n_blocks - 1);
  }
}

__device__ __forceinline__ void store_16(uint32_t to, const uint32_t (&v)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v[0]), "r"(v[1]),
               "r"(v[2]), "r"(v[3])
               : "memory");
}

/// Rows of other codecs as two bf16 numbers.
__device__ __forceinline__ void split_rows(const ScoreArgs& a, const View& v, const Source& from,
                                           uint32_t thread) {
  using R = Roles<false>;
  const uint32_t n_blocks = a.kv.head_dim / kScoreColumns, all = n_tiles<false>(a),
                 n_elements = a.kv.n_heads * a.kv.head_dim;
  uint32_t parity = 1;
  for (uint32_t tile = blockIdx.x; tile < all; tile += gridDim.x, parity ^= 1u) {
    const Place p(a, tile, R::kRows);
    for (uint32_t c = 0; c < n_blocks; ++c) {
      mbarrier_wait(v.rows_empty(c), parity);
      const uint32_t first = p.kv * a.kv.head_dim + c * kScoreColumns;
#pragma unroll 5
      for (uint32_t i = thread; i < R::kRows * 8; i += R::kRowThreads) {
        const uint32_t slot = p.t0 + i / 8;
        float x[8] = {};
        if (slot < a.n_slots)
          load_elements(from.type, from.row(a, slot), n_elements, first + i % 8 * 8, x);
        uint32_t hi[4], lo[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          hi[j] = pack_bf16(x[2 * j], x[2 * j + 1]);
          lo[j] = pack_rest(true, x[2 * j], x[2 * j + 1], hi[j]);
        }
        const uint32_t to = v.row_block(c) + piece_at(i / 8, i % 8);
        store_16(to, hi);
        store_16(to + kRest, lo);
      }
      rows_arrived(v, c);
    }
  }
}

/// One thread: the image's blocks, once for every tile.
template <bool kExact>
__device__ __forceinline__ void copy_terms(const ScoreArgs& a, const View& v) {
  const uint32_t all = n_tiles<kExact>(a),
                 n_blocks = a.padded_terms / kScoreTerms * (a.width / kScoreColumns);
  uint32_t stage = 0, parity = 1;
  for (uint32_t tile = blockIdx.x; tile < all; tile += gridDim.x) {
    const auto* from = reinterpret_cast<const uint8_t*>(a.image) +
                       uint64_t{Place(a, tile, 0).kv} * n_blocks * kTermBlock;
    for (uint32_t i = 0; i < n_blocks; ++i, from += kTermBlock) {
      mbarrier_wait(v.terms_empty(stage), parity);
      mbarrier_expect(v.terms_full(stage), kTermBlock);
      bulk_copy(v.stage(stage), from, kTermBlock, v.terms_full(stage));
      if (++stage == kStages) {
        stage = 0;
        parity ^= 1u;
      }
    }
  }
}

/// Accumulators of a warpgroup: [j][2 h + e] = line (warp * 16 + 8 h + g) of its 64, column
/// 8 j + 2 t + e of its 128.
using Sums = float[16][4];

/// Maximum and sum of two terms (lines) over 128 rows (columns).
__device__ __forceinline__ void normalise(const ScoreArgs& a, const Place& p, uint32_t first_term,
                                          uint32_t slot0, bool masked, Sums& s) {
  const uint32_t lane = threadIdx.x % 32, t = lane % 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const uint32_t term =
        first_term + threadIdx.x % 128 / 32 * 16 + static_cast<uint32_t>(h) * 8 + lane / 4;
    if (masked) {
      uint32_t visible = 0;
      if (term < a.n_terms) visible = a.visible[p.kv * a.n_queries + term % a.n_queries];
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const auto column = static_cast<uint32_t>(i / 2 * 8 + i % 2) + 2 * t;
        if (slot0 + column >= visible) s[i / 2][2 * h + i % 2] = -INFINITY;
      }
    }
    float top = -INFINITY, sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 32; ++i) top = fmaxf(top, s[i / 2][2 * h + i % 2]);
#pragma unroll
    for (int d = 1; d < 4; d *= 2) top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, d));
    top *= a.scale;
    const float base = top == -INFINITY ? 0.0f : top;
#pragma unroll
    for (int i = 0; i < 32; ++i) sum += exp2_approx(fmaf(s[i / 2][2 * h + i % 2], a.scale, -base));
#pragma unroll
    for (int d = 1; d < 4; d *= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, d);
    const uint32_t part = slot0 / kPart;
    if (t == 0 && term < a.n_terms && part < a.n_parts) {
      const uint64_t at = (uint64_t{part} * a.kv.n_heads + p.kv) * a.n_terms + term;
      a.part_max[at] = top;
      a.part_sum[at] = sum;
    }
  }
}

/// Sum and maximum of two rows (lines) over 128 terms (columns), added to what there is.
template <ScoreMode kMode>
__device__ __forceinline__ void add_terms(const ScoreArgs& a, const Place& p, uint32_t first_term,
                                          uint32_t slot, bool masked, const Sums& s,
                                          float (&sum)[2], float (&most)[2]) {
  const uint32_t t = threadIdx.x % 4;
  const TermFactors* factors = a.factors + uint64_t{p.kv} * a.padded_terms + first_term + 2 * t;
#pragma unroll
  for (int j = 0; j < 16; ++j) {
    if constexpr (kMode == ScoreMode::kNorm) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[i / 2] += fabsf(s[j][i]);  // absent terms are zero vectors
      continue;
    } else {
      // Offset and weight of two terms.
      const float4 f = __ldg(reinterpret_cast<const float4*>(factors + j * 8));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float x = exp2_approx(fmaf(s[j][i], a.scale, i % 2 == 0 ? -f.x : -f.z));
        if (masked) {
          const uint32_t term = first_term + static_cast<uint32_t>(j * 8 + i % 2) + 2 * t;
          uint32_t visible = 0;
          if (term < a.n_terms) visible = a.visible[p.kv * a.n_queries + term % a.n_queries];
          if (slot + static_cast<uint32_t>(i / 2) * 8 >= visible) x = 0.0f;
        }
        sum[i / 2] += x;
        most[i / 2] = fmaxf(most[i / 2], x * (i % 2 == 0 ? f.y : f.w));
      }
    }
  }
}

template <ScoreMode kMode>
__device__ __forceinline__ void store_rows(const ScoreArgs& a, const Place& p, uint32_t slot,
                                           float (&sum)[2], float (&most)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int d = 1; d < 4; d *= 2) {
      sum[h] += __shfl_xor_sync(0xFFFFFFFFu, sum[h], d);
      most[h] = fmaxf(most[h], __shfl_xor_sync(0xFFFFFFFFu, most[h], d));
    }
    const uint32_t row = slot + static_cast<uint32_t>(h) * 8;
    if (threadIdx.x % 4 != 0 || row >= a.n_slots) continue;
    const uint64_t at = uint64_t{p.kv} * a.n_slots + row;
    if constexpr (kMode == ScoreMode::kNorm) {
      a.norms[at] = ((a.add ? a.norms[at] : 0.0f) + sum[h]) * a.factor;
    } else {
      a.sum[at] = a.add ? a.sum[at] + sum[h] : sum[h];
      a.max[at] = a.add ? fmaxf(a.max[at], most[h]) : most[h];
    }
  }
}

/// Products of a block of 64 columns: of first numbers, and of first with second ones.
template <bool kLinesRest, bool kColumnsRest>
__device__ __forceinline__ void multiply(uint64_t lines, uint64_t columns, bool first, Sums& s) {
  wgmma_fence();
#pragma unroll
  for (uint32_t k = 0; k < kScoreColumns / 16; ++k) {
    const uint64_t l = lines + 2 * k, c = columns + 2 * k;  // in 16 bytes, as addresses there
    wgmma_bf16_shared(s, l, c, first && k == 0 ? 0 : 1);
    if constexpr (kLinesRest) wgmma_bf16_shared(s, l + kRest / 16, c, 1);
    if constexpr (kColumnsRest) wgmma_bf16_shared(s, l, c + kRest / 16, 1);
  }
  wgmma_commit();
}

template <ScoreMode kMode, bool kExact>
__device__ __forceinline__ void compute(const ScoreArgs& a, const View& v, const uint32_t* lowest) {
  constexpr bool kByTerm = kMode == ScoreMode::kNormalise;
  constexpr uint32_t kRows = Roles<kExact>::kRows;
  const uint32_t group = threadIdx.x / 128, n_blocks = a.width / kScoreColumns,
                 all = n_tiles<kExact>(a);
  const bool signals = threadIdx.x % 128 == 0;
  const uint32_t line = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
  uint32_t stage = 0, parity = 0, row_parity = 0, last_stage = 0;
  for (uint32_t tile = blockIdx.x; tile < all; tile += gridDim.x, row_parity ^= 1u) {
    const Place p(a, tile, kRows);
    const bool masked =
        kMode != ScoreMode::kNorm && (p.kv >= kKnownHeads || p.t0 + kRows > lowest[p.kv]);
    const uint32_t slot = p.t0 + group * 64 + line;
    float sum[2] = {}, most[2] = {};
    for (uint32_t first = 0; first < a.padded_terms; first += kScoreTerms) {
      const bool last = first + kScoreTerms == a.padded_terms;
      Sums s;
      for (uint32_t c = 0; c < n_blocks; ++c) {
        mbarrier_wait(v.terms_full(stage), parity);
        if (first == 0) mbarrier_wait(v.rows_full(c), row_parity);
        if constexpr (kByTerm) {
          multiply<true, !kExact>(wgmma_operand(v.stage(stage) + group % 2 * 64 * kRowBytes),
                                  wgmma_operand(v.row_block(c) + group / 2 * 128 * kRowBytes),
                                  c == 0, s);
        } else {
          multiply<!kExact, true>(wgmma_operand(v.row_block(c) + group * 64 * kRowBytes),
                                  wgmma_operand(v.stage(stage)), c == 0, s);
        }
        if (c != 0) {
          wgmma_wait<1>();
          if (signals) mbarrier_arrive(v.terms_empty(last_stage));
          if (signals && last) mbarrier_arrive(v.rows_empty(c - 1));
        }
        last_stage = stage;
        if (++stage == kStages) {
          stage = 0;
          parity ^= 1u;
        }
      }
      wgmma_wait<0>();
      if (signals) mbarrier_arrive(v.terms_empty(last_stage));
      if (signals && last) mbarrier_arrive(v.rows_empty(n_blocks - 1));
      if constexpr (kByTerm) {
        normalise(a, p, first + group % 2 * 64, p.t0 + group / 2 * 128, masked, s);
      } else {
        add_terms<kMode>(a, p, first, slot, masked, s, sum, most);
      }
    }
    if constexpr (!kByTerm) store_rows<kMode>(a, p, slot, sum, most);
  }
}

template <ScoreMode kMode, bool kExact>
__global__ void __launch_bounds__(Roles<kExact>::kThreads, 1)
    score_warpgroup_kernel(const __grid_constant__ ScoreArgs a) {
  using R = Roles<kExact>;
  extern __shared__ uint8_t shared[];
  __shared__ uint32_t lowest[kKnownHeads];  // rows that all queries see
  View v;
  v.rows = (shared_address(shared) + 1023u) & ~1023u;
  v.ring = v.rows + a.width / kScoreColumns * kRowBlock;
  v.barriers = v.ring + kStages * kTermBlock;
  if (threadIdx.x < kStages) {
    mbarrier_init(v.terms_full(threadIdx.x), 1);
    mbarrier_init(v.terms_empty(threadIdx.x), R::kWarpgroups);
  }
  if (threadIdx.x < kMaxBlocks) {
    mbarrier_init(v.rows_full(threadIdx.x), R::kRowThreads / 32);
    mbarrier_init(v.rows_empty(threadIdx.x), R::kWarpgroups);
  }
  for (uint32_t kv = threadIdx.x / 32;
       kMode != ScoreMode::kNorm && kv < min(a.kv.n_heads, kKnownHeads); kv += R::kThreads / 32) {
    uint32_t least = a.n_slots;
    for (uint32_t i = threadIdx.x % 32; i < a.n_queries; i += 32)
      least = min(least, a.visible[kv * a.n_queries + i]);
    least = __reduce_min_sync(0xFFFFFFFFu, least);
    if (threadIdx.x % 32 == 0) lowest[kv] = least;
  }
  mbarrier_init_fence();
  __syncthreads();
  if (threadIdx.x < R::kWarpgroups * 128) {
    // 640 threads start with 96 each; of what copying gives away, 512 take 8 more.
    if constexpr (kExact) asm volatile("setmaxnreg.inc.sync.aligned.u32 104;");
    compute<kMode, kExact>(a, v, lowest);
    return;
  }
  if constexpr (kExact) asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
  const uint32_t thread = threadIdx.x - R::kWarpgroups * 128;
  if (thread == R::kRowThreads) copy_terms<kExact>(a, v);
  if (thread >= R::kRowThreads) return;
  const Source from(a, kMode == ScoreMode::kNorm);
  if constexpr (kExact) {
    copy_rows(a, v, from, thread);
  } else {
    split_rows(a, v, from, thread);
  }
}

template <ScoreMode kMode, bool kExact>
Status launch(const DeviceProfile& device, const char* name, ScoreArgs* a, cudaStream_t stream) {
  const uint32_t bytes = score_warpgroup_bytes(a->kv.head_dim);
  // The same for all layers: another thread may launch this kernel for other heads.
  SHARPI_TRY(kernel_status(cudaFuncSetAttribute(score_warpgroup_kernel<kMode, kExact>,
                                                cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                static_cast<int>(score_warpgroup_room(device))),
                           name));
  a->n_parts = (a->n_slots + kPart - 1) / kPart;
  const uint32_t tiles = n_tiles<kExact>(*a), n = static_cast<uint32_t>(device.n_sm);
  const LaunchShape shape = {dim3(tiles < n ? tiles : n), dim3(Roles<kExact>::kThreads), bytes,
                             stream, false};
  return launch_kernel(name, shape, score_warpgroup_kernel<kMode, kExact>, *a);
}

}  // namespace

template <ScoreMode kMode>
Status launch_score_warpgroups(const DeviceProfile& device, const char* name, ScoreArgs* a,
                               cudaStream_t stream) {
  return uses_bf16(a->dtype(kMode)) ? launch<kMode, true>(device, name, a, stream)
                                    : launch<kMode, false>(device, name, a, stream);
}

bool score_on_warpgroups(const DeviceProfile& device, uint32_t head_dim) {
  return score_warpgroups_fit(device, head_dim);
}

#else  // nothing of 9.0 is built

template <ScoreMode kMode>
Status launch_score_warpgroups(const DeviceProfile&, const char* name, ScoreArgs*, cudaStream_t) {
  return Status::error(Code::kInternal, "kernel %s is not in this build for sm_90a", name);
}
bool score_on_warpgroups(const DeviceProfile&, uint32_t) {
  return false;
}
#endif

template Status launch_score_warpgroups<ScoreMode::kNormalise>(const DeviceProfile&, const char*,
                                                               ScoreArgs*, cudaStream_t);
template Status launch_score_warpgroups<ScoreMode::kMass>(const DeviceProfile&, const char*,
                                                          ScoreArgs*, cudaStream_t);
template Status launch_score_warpgroups<ScoreMode::kNorm>(const DeviceProfile&, const char*,
                                                          ScoreArgs*, cudaStream_t);

}  // namespace sharpi::cuda
