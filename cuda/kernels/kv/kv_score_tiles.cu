// SPDX-License-Identifier: MIT
// Tiles of rows times terms with mma.sync: every device of compute capability 8.0 and up, every
// codec, every width of heads.
#include "cuda/kernels/kv/kv_rows.cuh"
#include "cuda/kernels/kv/kv_score.cuh"

namespace sharpi::cuda {
namespace {

constexpr uint32_t kThreads = kScoreThreads, kWarps = kThreads / 32;

/// A block's rows, 16 * kRows of a warp; kColumns dims of the terms are staged at a time.
template <int kSlotCount, int kRowTiles, int kColumnCount>
struct Tile {
  static constexpr int kSlots = kSlotCount, kRows = kRowTiles, kColumns = kColumnCount;
  static constexpr ScoreTile kTile = {kSlots, kRows, kColumns};
  static constexpr int kPart = 16 * kRows;  // rows of a warp: what maxima and sums are of
  static constexpr int kRowGroups = kSlots / kPart, kTermGroups = kWarps / kRowGroups;
  static constexpr int kOwn = kScoreTerms / kTermGroups;  // terms of a warp
  static constexpr uint32_t kPitch = kColumns * 2 + 16;   // bytes: an odd number of 16-byte pieces
  static constexpr uint32_t kStageBytes = 2 * kScoreTerms * kPitch;
  static_assert(kPitch == kTile.pitch() && kStageBytes == kTile.stage_bytes());
  static_assert(kOwn % 16 == 0 && kSlots <= kThreads);
};
template <class T>
struct Tag {};
/// f(Tag<Tile>{}) with the tile that choose_scores() says.
template <class F>
Status with_tile(const ScoreTile& t, const F& f) {
  using Wide = Tile<kWideScores.slots, kWideScores.row_tiles, kWideScores.columns>;
  using Deep = Tile<kDeepScores.slots, kDeepScores.row_tiles, kDeepScores.columns>;
  using WideFew = Tile<kWideScoresFew.slots, kWideScoresFew.row_tiles, kWideScoresFew.columns>;
  using DeepFew = Tile<kDeepScoresFew.slots, kDeepScoresFew.row_tiles, kDeepScoresFew.columns>;
  if (t == kWideScores) return f(Tag<Wide>{});
  if (t == kDeepScores) return f(Tag<Deep>{});
  return t == kWideScoresFew ? f(Tag<WideFew>{}) : f(Tag<DeepFew>{});
}

/// What score_bytes() counts: rows (hi, then lo unless they are bf16), stages of terms, and what is
/// known of the terms at work.
template <class T>
struct Layout {
  uint8_t *rows_hi, *rows_lo, *stages;
  float *offset, *weight;  // [kScoreTerms]
  uint32_t* visible;       // [kScoreTerms]
  __device__ __forceinline__ Layout(uint8_t* at, uint32_t dim, bool exact, uint32_t n_stages) {
    rows_hi = at;
    rows_lo = rows_hi + T::kSlots * score_pitch(dim);
    stages = exact ? rows_lo : rows_lo + T::kSlots * score_pitch(dim);
    offset = reinterpret_cast<float*>(stages + n_stages * T::kStageBytes);
    weight = offset + kScoreTerms;
    visible = reinterpret_cast<uint32_t*>(weight + kScoreTerms);
  }
};

/// Rows [t0, t0 + kSlots) of a KV head in one or two terms, zero past the end.
template <class T, bool kValue>
__device__ __forceinline__ void load_rows(const ScoreArgs& a, uint32_t kv, uint32_t t0, bool exact,
                                          const Layout<T>& to) {
  const uint32_t dim = a.kv.head_dim, pieces = dim / 8;
  const KvDtype type = kValue ? a.kv.v_dtype : a.kv.k_dtype;
  const std::byte* base = kValue ? a.kv.v : a.kv.k;
  const uint32_t row_bytes = kValue ? a.kv.v_row_bytes : a.kv.k_row_bytes;
#pragma unroll 4
  for (uint32_t i = threadIdx.x; i < T::kSlots * pieces; i += kThreads) {
    const uint32_t r = i / pieces, d = i % pieces * 8, slot = t0 + r;
    const uint32_t at = r * score_pitch(dim) + d * 2;
    const std::byte* row = score_row(a, base, row_bytes, slot);
    if (exact) {
      uint4 bits = {};
      if (slot < a.n_slots) bits = reinterpret_cast<const uint4*>(row)[(kv * dim + d) / 8];
      *reinterpret_cast<uint4*>(to.rows_hi + at) = bits;
      continue;
    }
    float v[8] = {};
    if (slot < a.n_slots) load_elements(type, row, a.kv.n_heads * dim, kv * dim + d, v);
    uint32_t hi[4], lo[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      hi[j] = pack_bf16(v[2 * j], v[2 * j + 1]);
      lo[j] = pack_rest(true, v[2 * j], v[2 * j + 1], hi[j]);
    }
    *reinterpret_cast<uint4*>(to.rows_hi + at) = {hi[0], hi[1], hi[2], hi[3]};
    *reinterpret_cast<uint4*>(to.rows_lo + at) = {lo[0], lo[1], lo[2], lo[3]};
  }
}

/// Starts copying columns [d0, d0 + kColumns) of the next terms.
template <class T>
__device__ __forceinline__ void fetch_terms(const ScoreArgs& a, uint32_t kv, uint32_t first,
                                            uint32_t d0, uint8_t* stage) {
  constexpr uint32_t kPieces = T::kColumns / 8;
  const uint16_t* from = a.image + (uint64_t{kv} * a.padded_terms + first) * 2 * a.width + d0;
#pragma unroll
  for (uint32_t i = threadIdx.x; i < 2 * kScoreTerms * kPieces; i += kThreads) {
    const uint32_t row = i / kPieces, c = i % kPieces;  // row: of a term, hi and lo in turn
    const uint32_t to = (row % 2 * kScoreTerms + row / 2) * T::kPitch + c * 16;
    cp_async_16(shared_address(stage + to), from + uint64_t{row} * a.width + c * 8);
  }
  cp_async_commit();
}

/// What add_terms needs to know of the next terms.
template <class T>
__device__ __forceinline__ void load_factors(const ScoreArgs& a, uint32_t kv, uint32_t first,
                                             const Layout<T>& to) {
  if (threadIdx.x >= kScoreTerms) return;
  const uint32_t term = first + threadIdx.x;
  const bool there = term < a.n_terms;
  const TermFactors f = a.factors[uint64_t{kv} * a.padded_terms + term];
  to.offset[threadIdx.x] = f.offset;
  to.weight[threadIdx.x] = f.weight;
  to.visible[threadIdx.x] = there ? a.visible[kv * a.n_queries + term % a.n_queries] : 0;
}

/// A warp's products: [m][n][2 h + e] = row (16 m + g + 8 h) . term (8 n + 2 t + e) of its own.
template <class T>
using Products = float[T::kRows][T::kOwn / 8][4];

/// The columns of a stage; kWhole: all kColumns of them.
template <class T, bool kExact, bool kWhole>
__device__ __forceinline__ void add_products(const Layout<T>& l, const uint8_t* stage, uint32_t d0,
                                             uint32_t columns, uint32_t dim, Products<T>& s) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, pitch = score_pitch(dim);
  const uint32_t row = warp % T::kRowGroups * T::kPart + lane % 16;
  const uint32_t row_at = row * pitch + lane / 16 * 16 + d0 * 2;
  const uint32_t term = warp / T::kRowGroups * T::kOwn + lane % 8 + lane / 16 * 8;
  const uint32_t rows_hi = shared_address(l.rows_hi) + row_at,
                 rows_lo = shared_address(l.rows_lo) + row_at;
  const uint32_t terms = shared_address(stage) + term * T::kPitch + lane / 8 % 2 * 16;
#pragma unroll(kWhole ? T::kColumns / 16 : 1)
  for (uint32_t d = 0; d < (kWhole ? T::kColumns : columns); d += 16) {
    uint32_t hi[T::kRows][4], lo[T::kRows][4];
#pragma unroll
    for (int m = 0; m < T::kRows; ++m) {
      ldmatrix_x4(hi[m], rows_hi + static_cast<uint32_t>(m) * 16 * pitch + d * 2);
      if constexpr (!kExact)
        ldmatrix_x4(lo[m], rows_lo + static_cast<uint32_t>(m) * 16 * pitch + d * 2);
    }
#pragma unroll
    for (int n = 0; n < T::kOwn / 8; n += 2) {
      uint32_t th[4], tl[4];
      const uint32_t at = terms + static_cast<uint32_t>(n) * 8 * T::kPitch + d * 2;
      ldmatrix_x4(th, at);
      ldmatrix_x4(tl, at + kScoreTerms * T::kPitch);
#pragma unroll
      for (int m = 0; m < T::kRows; ++m) {
        mma_16(true, s[m][n], hi[m], th[0], th[1]);
        mma_16(true, s[m][n + 1], hi[m], th[2], th[3]);
      }
#pragma unroll
      for (int m = 0; m < T::kRows; ++m) {
        mma_16(true, s[m][n], hi[m], tl[0], tl[1]);
        mma_16(true, s[m][n + 1], hi[m], tl[2], tl[3]);
      }
      if constexpr (!kExact) {
#pragma unroll
        for (int m = 0; m < T::kRows; ++m) {
          mma_16(true, s[m][n], lo[m], th[0], th[1]);
          mma_16(true, s[m][n + 1], lo[m], th[2], th[3]);
        }
      }
    }
  }
}

template <class T>
__device__ __forceinline__ void add_stage(const Layout<T>& l, const uint8_t* stage, uint32_t d0,
                                          uint32_t dim, bool exact, Products<T>& s) {
  if (dim - d0 < T::kColumns) {
    if (exact) {
      add_products<T, true, false>(l, stage, d0, dim - d0, dim, s);
    } else {
      add_products<T, false, false>(l, stage, d0, dim - d0, dim, s);
    }
  } else if (exact) {
    add_products<T, true, true>(l, stage, d0, T::kColumns, dim, s);
  } else {
    add_products<T, false, true>(l, stage, d0, T::kColumns, dim, s);
  }
}

/// Per term the maximum and the sum over the warp's visible rows. slot0: the first of them.
template <class T>
__device__ __forceinline__ void normalise(const ScoreArgs& a, uint32_t kv, uint32_t slot0,
                                          uint32_t first, bool masked, const Products<T>& s) {
  const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const uint32_t own = first + threadIdx.x / 32 / T::kRowGroups * T::kOwn;
  const uint32_t part = slot0 / T::kPart;
  if (part >= a.n_parts) return;
#pragma unroll
  for (int n = 0; n < T::kOwn / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const uint32_t term = own + 8 * static_cast<uint32_t>(n) + 2 * t + static_cast<uint32_t>(e);
      uint32_t visible = 0;
      if (masked && term < a.n_terms) visible = a.visible[kv * a.n_queries + term % a.n_queries];
      float x[T::kRows * 2], top = -INFINITY, sum = 0.0f;
#pragma unroll
      for (int i = 0; i < T::kRows * 2; ++i) {
        x[i] = s[i / 2][n][i % 2 * 2 + e] * a.scale;
        const uint32_t slot = slot0 + static_cast<uint32_t>(i) * 8 + g;
        if (masked && slot >= visible) x[i] = -INFINITY;
        top = fmaxf(top, x[i]);
      }
#pragma unroll
      for (int d = 16; d > 2; d /= 2) top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, d));
      const float base = top == -INFINITY ? 0.0f : top;
#pragma unroll
      for (int i = 0; i < T::kRows * 2; ++i) sum += exp2_approx(x[i] - base);
#pragma unroll
      for (int d = 16; d > 2; d /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, d);
      if (g == 0 && term < a.n_terms) {
        const uint64_t at = (uint64_t{part} * a.kv.n_heads + kv) * a.n_terms + term;
        a.part_max[at] = top;
        a.part_sum[at] = sum;
      }
    }
  }
}

/// sum and most of the thread's rows 8 i + g.
template <ScoreMode kMode, class T>
__device__ __forceinline__ void add_terms(const ScoreArgs& a, uint32_t slot0, const Layout<T>& l,
                                          bool masked, const Products<T>& s,
                                          float (&sum)[T::kRows * 2], float (&most)[T::kRows * 2]) {
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t own = threadIdx.x / 32 / T::kRowGroups * T::kOwn + lane % 4 * 2;
#pragma unroll
  for (int n = 0; n < T::kOwn / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const uint32_t term = own + 8 * static_cast<uint32_t>(n) + static_cast<uint32_t>(e);
      const float offset = l.offset[term], weight = l.weight[term];
      const uint32_t visible = masked ? l.visible[term] : 0;
#pragma unroll
      for (int i = 0; i < T::kRows * 2; ++i) {
        const float x = s[i / 2][n][i % 2 * 2 + e];
        if constexpr (kMode == ScoreMode::kNorm) {
          sum[i] += fabsf(x);  // absent terms are zero vectors
        } else {
          float p = exp2_approx(fmaf(x, a.scale, -offset));
          if (masked && slot0 + static_cast<uint32_t>(i) * 8 + lane / 4 >= visible) p = 0.0f;
          sum[i] += p;
          most[i] = fmaxf(most[i], p * weight);
        }
      }
    }
  }
}

/// Per row, the sums and maxima of its four lanes and of the groups of terms, in order.
template <ScoreMode kMode, class T>
__device__ __forceinline__ void store_rows(const ScoreArgs& a, uint32_t kv, uint32_t t0,
                                           float (&sum)[T::kRows * 2], float (&most)[T::kRows * 2],
                                           float* scratch) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t terms = warp / T::kRowGroups;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < T::kRows * 2; ++i) {
#pragma unroll
    for (int d = 1; d < 4; d *= 2) {
      sum[i] += __shfl_xor_sync(0xFFFFFFFFu, sum[i], d);
      most[i] = fmaxf(most[i], __shfl_xor_sync(0xFFFFFFFFu, most[i], d));
    }
    const uint32_t row = warp % T::kRowGroups * T::kPart + static_cast<uint32_t>(i) * 8 + lane / 4;
    if (lane % 4 == 0) {
      scratch[terms * T::kSlots + row] = sum[i];
      scratch[(T::kTermGroups + terms) * T::kSlots + row] = most[i];
    }
  }
  __syncthreads();
  const uint32_t slot = t0 + threadIdx.x;
  if (threadIdx.x >= T::kSlots || slot >= a.n_slots) return;
  float total = 0.0f, top = 0.0f;
#pragma unroll
  for (int i = 0; i < T::kTermGroups; ++i) {
    total += scratch[i * T::kSlots + threadIdx.x];
    top = fmaxf(top, scratch[(T::kTermGroups + i) * T::kSlots + threadIdx.x]);
  }
  const uint64_t at = uint64_t{kv} * a.n_slots + slot;
  if constexpr (kMode == ScoreMode::kNorm) {
    a.norms[at] = ((a.add ? a.norms[at] : 0.0f) + total) * a.factor;
  } else {
    a.sum[at] = a.add ? a.sum[at] + total : total;
    a.max[at] = a.add ? fmaxf(a.max[at], top) : top;
  }
}

/// True if some query does not see all rows before `end`.
__device__ __forceinline__ bool some_masked(const ScoreArgs& a, uint32_t kv, uint32_t end) {
  bool some = end > a.n_slots;
  for (uint32_t i = threadIdx.x; i < a.n_queries; i += kThreads) {
    some = some || a.visible[kv * a.n_queries + i] < end;
  }
  return __syncthreads_or(some);
}

template <ScoreMode kMode, class T>
__global__ void __launch_bounds__(kThreads, 1) score_kernel(const __grid_constant__ ScoreArgs a) {
  extern __shared__ float4 shared[];
  const uint32_t dim = a.kv.head_dim, kv = blockIdx.y, t0 = blockIdx.x * T::kSlots;
  const bool exact = uses_bf16(a.dtype(kMode));
  const Layout<T> l(reinterpret_cast<uint8_t*>(shared), dim, exact, a.n_stages);
  const uint32_t slot0 = t0 + threadIdx.x / 32 % T::kRowGroups * T::kPart;
  const uint32_t n_chunks = (dim + T::kColumns - 1) / T::kColumns;
  const uint32_t n = a.padded_terms / kScoreTerms * n_chunks;
  const auto fetch = [&](uint32_t i) {
    fetch_terms<T>(a, kv, i / n_chunks * kScoreTerms, i % n_chunks * T::kColumns,
                   l.stages + i % a.n_stages * T::kStageBytes);
  };
  fetch(0);
  const bool masked = kMode != ScoreMode::kNorm && some_masked(a, kv, t0 + T::kSlots);
  load_rows<T, kMode == ScoreMode::kNorm>(a, kv, t0, exact, l);
  float sum[T::kRows * 2] = {}, most[T::kRows * 2] = {};
  Products<T> s;
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t chunk = i % n_chunks, first = i / n_chunks * kScoreTerms;
    cp_async_wait<0>();
    __syncthreads();
    if (a.n_stages > 1 && i + 1 < n) fetch(i + 1);
    if (chunk == 0) {
      if (kMode == ScoreMode::kMass) load_factors<T>(a, kv, first, l);
#pragma unroll
      for (int m = 0; m < T::kRows; ++m) {
#pragma unroll
        for (int j = 0; j < T::kOwn / 8; ++j) {
#pragma unroll
          for (int e = 0; e < 4; ++e) s[m][j][e] = 0.0f;
        }
      }
    }
    add_stage<T>(l, l.stages + i % a.n_stages * T::kStageBytes, chunk * T::kColumns, dim, exact, s);
    if (a.n_stages == 1 || n_chunks == 1) __syncthreads();
    if (a.n_stages == 1 && i + 1 < n) fetch(i + 1);
    if (chunk + 1 != n_chunks) continue;
    if constexpr (kMode == ScoreMode::kNormalise) {
      normalise<T>(a, kv, slot0, first, masked, s);
    } else {
      add_terms<kMode, T>(a, slot0, l, masked, s, sum, most);
    }
  }
  if constexpr (kMode != ScoreMode::kNormalise) {
    store_rows<kMode, T>(a, kv, t0, sum, most, reinterpret_cast<float*>(l.rows_hi));
  }
}

template <ScoreMode kMode, class T>
Status launch_tiles_of(const DeviceProfile& device, const char* name, ScoreArgs* a,
                       const ScoreChoice& choice, cudaStream_t stream) {
  a->n_stages = choice.n_stages;
  a->n_parts = (a->n_slots + T::kPart - 1) / T::kPart;
  // The same for all layers: another thread may launch this kernel for other heads.
  SHARPI_TRY(kernel_status(
      cudaFuncSetAttribute(score_kernel<kMode, T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(score_room(device))),
      name));
  const LaunchShape shape = {dim3((a->n_slots + T::kSlots - 1) / T::kSlots, a->kv.n_heads),
                             dim3(kThreads), choice.bytes, stream, false};
  return launch_kernel(name, shape, score_kernel<kMode, T>, *a);
}

}  // namespace

template <ScoreMode kMode>
Status launch_score_tiles(const DeviceProfile& device, const char* name, ScoreArgs* a,
                          cudaStream_t stream) {
  const ScoreChoice choice = choose_scores(device, uses_bf16(a->dtype(kMode)), a->kv.head_dim);
  if (choice.n_stages == 0) {
    return Status::error(
        Code::kUnsupported,
        "kernel %s cannot take heads of %u elements: they do not fit %d bytes of shared memory",
        name, a->kv.head_dim, device.shared_per_block);
  }
  return with_tile(choice.tile, [&]<class T>(Tag<T>) {
    return launch_tiles_of<kMode, T>(device, name, a, choice, stream);
  });
}
template Status launch_score_tiles<ScoreMode::kNormalise>(const DeviceProfile&, const char*,
                                                          ScoreArgs*, cudaStream_t);
template Status launch_score_tiles<ScoreMode::kMass>(const DeviceProfile&, const char*, ScoreArgs*,
                                                     cudaStream_t);
template Status launch_score_tiles<ScoreMode::kNorm>(const DeviceProfile&, const char*, ScoreArgs*,
                                                     cudaStream_t);

}  // namespace sharpi::cuda
