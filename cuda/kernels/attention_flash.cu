// SPDX-License-Identifier: MIT
// Attention of many rows on tensor cores (FlashAttention, arXiv 2205.14135, in the manner of its
// second version): a block takes 64 query vectors of one KV head (rows times group; 32 for heads of
// 512), a warp 16 of them. Raw bytes of the next tile of keys and values arrive by asynchronous
// copies while the current one, converted to f16 for every codec, is multiplied. Weights are f16,
// sums f32. Heads of 512: two warps share the rows, each sums half of the dims.
#include "cuda/kernels/attention_common.cuh"
#include "cuda/kernels/kv_fragments.cuh"
#include "cuda/kernels/launch.h"

namespace sharpi::cuda {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * 32;
constexpr float kLog2E = 1.4426950408889634f;

template <int kDim>
struct Shape {
  static constexpr int kShare = kDim > 256 ? 2 : 1;  // warps that share 16 vectors
  static constexpr int kVectors = 16 * kWarps / kShare;
  static constexpr int kKeys = kDim <= 128 ? 64 : 32;  // of a tile
  static constexpr int kOutDim = kDim / kShare;        // dims that a warp sums
  static constexpr bool kQueriesInRegisters = kDim <= 128;
  static constexpr uint32_t kPitch = kDim * 2 + 16;  // bytes: an odd number of 16-byte pieces
  static constexpr uint32_t kScalePitch = (kDim / 32 * 2 + 8 + 15) / 16 * 16;
  static constexpr uint32_t kQueryBytes = kVectors * kPitch, kTileBytes = kKeys * kPitch;
};

/// Offsets in shared memory.
struct Plan {
  uint32_t k_tile, v_tile;    // f16
  uint32_t k_raw, v_raw;      // stored bytes of the next tile
  uint32_t k_scale, v_scale;  // q8_0
  uint32_t rows;              // addresses of the next tile's rows: [2][kKeys]
  uint32_t bytes;
};
template <int kDim>
__host__ __device__ constexpr Plan make_plan(KvDtype k, KvDtype v) {
  using S = Shape<kDim>;
  Plan p = {};
  p.k_tile = S::kQueriesInRegisters ? 0 : S::kQueryBytes;  // registers: queries are read before
  p.v_tile = p.k_tile + S::kTileBytes;
  p.k_raw = p.v_tile + S::kTileBytes;
  static_assert(!S::kQueriesInRegisters || S::kQueryBytes <= 2 * S::kTileBytes);
  p.v_raw = p.k_raw + S::kKeys * kDim * element_bytes(k);
  p.k_scale = p.v_raw + S::kKeys * kDim * element_bytes(v);
  p.v_scale = p.k_scale + (k == KvDtype::kQ8_0 ? S::kKeys * S::kScalePitch : 0);
  p.rows = p.v_scale + (v == KvDtype::kQ8_0 ? S::kKeys * S::kScalePitch : 0);
  p.bytes = p.rows + 2 * S::kKeys * 8;
  return p;
}

struct FlashArgs {
  AttentionArgs a;
  Plan plan;
  uint32_t k_granule, v_granule;
};

/// Queries times scale and log2(e) as f16; unused vectors are zero.
template <int kDim>
__device__ __forceinline__ void load_queries(const AttentionArgs& a, const RowBlock& b, uint32_t kv,
                                             uint8_t* to) {
  using S = Shape<kDim>;
  const AttentionParams& p = a.p;
  const float scale = p.scale * kLog2E;
  const uint32_t n = b.n * a.group;
  const uint32_t first_row = p.batch.table.sequences[b.sequence].first_row + b.row0;
  for (uint32_t i = threadIdx.x; i < S::kVectors * kDim / 4; i += kThreads) {
    const uint32_t v = i / (kDim / 4), d = i % (kDim / 4) * 4;
    float4 x = {};
    if (v < n) {
      const uint64_t row = first_row + v / a.group;
      x = *reinterpret_cast<const float4*>(p.q + row * p.q_stride +
                                           (kv * a.group + v % a.group) * kDim + d);
    }
    *reinterpret_cast<uint2*>(to + v * S::kPitch + d * 2) = {pack_f16(x.x * scale, x.y * scale),
                                                             pack_f16(x.z * scale, x.w * scale)};
  }
}

/// Where the rows of a tile start (the head's part); 0 = no such key.
template <int kDim>
__device__ __forceinline__ void find_tile_rows(const FlashArgs& f, const RowBlock& b,
                                               const KeyMap& map, uint32_t e0, uint64_t t0,
                                               uint64_t* rows) {
  using S = Shape<kDim>;
  const KvLayer& l = f.a.p.kv;
  for (uint32_t i = threadIdx.x; i < 2 * S::kKeys; i += kThreads) {
    const bool value = i >= S::kKeys;
    const uint64_t key = t0 + i % S::kKeys;
    uint64_t row = 0;
    if (key >= b.begin && key < b.end) {
      row = reinterpret_cast<uintptr_t>(key_row(l, map, key, value)) +
            e0 * element_bytes(value ? l.v_dtype : l.k_dtype);
    }
    rows[i] = row;
  }
}

template <KvDtype kType, int kDim>
__device__ __forceinline__ void fetch_part(const uint64_t* rows, uint32_t granule, uint32_t e0,
                                           uint32_t n_elements, const void* any, uint8_t* raw,
                                           uint8_t* scales) {
  using S = Shape<kDim>;
  constexpr uint32_t bytes = kDim * element_bytes(kType);
  if (granule == 16) {
    constexpr uint32_t pieces = bytes / 16;
#pragma unroll 8
    for (uint32_t i = threadIdx.x; i < S::kKeys * pieces; i += kThreads) {
      const uint32_t r = i / pieces, c = i % pieces * 16;
      const uint64_t row = rows[r];
      cp_async_16_zfill(shared_address(raw + r * bytes + c),
                        row != 0 ? reinterpret_cast<const void*>(row + c) : any, row != 0 ? 16 : 0);
    }
  } else {
    for (uint32_t i = threadIdx.x; i < S::kKeys * bytes / 2; i += kThreads) {
      const uint32_t r = i / (bytes / 2), c = i % (bytes / 2) * 2;
      const uint64_t row = rows[r];
      *reinterpret_cast<uint16_t*>(raw + r * bytes + c) =
          row != 0 ? *reinterpret_cast<const uint16_t*>(row + c) : uint16_t{0};
    }
  }
  if (kType != KvDtype::kQ8_0) return;
  const uint32_t first = e0 / 32, n = (e0 + kDim - 1) / 32 - first + 1;
  for (uint32_t r = threadIdx.x; r < S::kKeys; r += kThreads) {
    uint8_t* to = scales + r * S::kScalePitch;
    const uint64_t at = rows[r] - e0 + n_elements + first * 2;
    const auto skip = static_cast<uint32_t>(at & 3u);
    if (rows[r] == 0) {
      for (uint32_t w = 0; w < S::kScalePitch / 4; ++w) reinterpret_cast<uint32_t*>(to)[w] = 0;
      continue;
    }
    for (uint32_t w = 0; w < (skip + 2 * n + 3) / 4; ++w) {
      cp_async_4(shared_address(to + 4 * w), reinterpret_cast<const void*>(at - skip + 4 * w));
    }
    *reinterpret_cast<uint32_t*>(to + S::kScalePitch - 4) = skip;
  }
}

template <int kDim>
__device__ __forceinline__ void fetch_part_of(KvDtype type, const uint64_t* rows, uint32_t granule,
                                              uint32_t e0, uint32_t n, const void* any,
                                              uint8_t* raw, uint8_t* scales) {
  if (type == KvDtype::kBf16) {
    fetch_part<KvDtype::kBf16, kDim>(rows, granule, e0, n, any, raw, scales);
  } else if (type == KvDtype::kQ8_0) {
    fetch_part<KvDtype::kQ8_0, kDim>(rows, granule, e0, n, any, raw, scales);
  } else {
    fetch_part<KvDtype::kF32, kDim>(rows, granule, e0, n, any, raw, scales);
  }
}

/// Starts the copies of the tile whose row addresses were found.
template <int kDim>
__device__ __forceinline__ void fetch(const FlashArgs& f, uint32_t e0, uint8_t* shared) {
  const KvLayer& l = f.a.p.kv;
  const uint32_t n = l.n_heads * kDim;
  const auto* rows = reinterpret_cast<const uint64_t*>(shared + f.plan.rows);
  fetch_part_of<kDim>(l.k_dtype, rows, f.k_granule, e0, n, f.a.p.q, shared + f.plan.k_raw,
                      shared + f.plan.k_scale);
  fetch_part_of<kDim>(l.v_dtype, rows + Shape<kDim>::kKeys, f.v_granule, e0, n, f.a.p.q,
                      shared + f.plan.v_raw, shared + f.plan.v_scale);
  cp_async_commit();
}

/// Stored bytes to a tile of f16: four pieces of eight elements in flight per thread.
template <KvDtype kType, int kDim>
__device__ __forceinline__ void convert_part(uint32_t e0, const uint8_t* raw, const uint8_t* scales,
                                             uint8_t* tile) {
  using S = Shape<kDim>;
  constexpr uint32_t kSize = element_bytes(kType), kAll = S::kKeys * kDim / 8;
#pragma unroll 4
  for (uint32_t i = threadIdx.x; i < kAll; i += kThreads) {
    const uint32_t r = i / (kDim / 8), d = i % (kDim / 8) * 8;
    const uint8_t* scale = nullptr;
    if (kType == KvDtype::kQ8_0) {
      scale = scales + r * S::kScalePitch;
      scale += *reinterpret_cast<const uint32_t*>(scale + S::kScalePitch - 4) +
               (kDim % 32 == 0 ? d / 32 : (e0 + d) / 32 - e0 / 32) * 2;
    }
    uint32_t v[4];
    fragment_f16(kType, raw + (r * kDim + d) * kSize, 16, scale, v);
    *reinterpret_cast<uint4*>(tile + r * S::kPitch + d * 2) = {v[0], v[1], v[2], v[3]};
  }
}
template <int kDim>
__device__ __forceinline__ void convert(KvDtype type, uint32_t e0, const uint8_t* raw,
                                        const uint8_t* scales, uint8_t* tile) {
  if (type == KvDtype::kBf16) {
    convert_part<KvDtype::kBf16, kDim>(e0, raw, scales, tile);
  } else if (type == KvDtype::kQ8_0) {
    convert_part<KvDtype::kQ8_0, kDim>(e0, raw, scales, tile);
  } else {
    convert_part<KvDtype::kF32, kDim>(e0, raw, scales, tile);
  }
}

template <int kDim>
using Scores = float[Shape<kDim>::kKeys / 8][4];
template <int kDim>
using Sums = float[Shape<kDim>::kOutDim / 8][4];
template <int kDim>
using Queries = uint32_t[Shape<kDim>::kQueriesInRegisters ? kDim / 16 : 1][4];

template <int kDim>
__device__ __forceinline__ void score_tile(const Queries<kDim>& held, uint32_t queries,
                                           uint32_t tile, Scores<kDim>& s) {
  using S = Shape<kDim>;
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t from = tile + (lane % 8 + lane / 16 * 8) * S::kPitch + lane / 8 % 2 * 16;
#pragma unroll
  for (int n = 0; n < S::kKeys / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s[n][i] = 0.0f;
  }
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) {
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
template <int kDim>
__device__ __forceinline__ void weigh_tile(const Scores<kDim>& s, uint32_t tile, uint32_t d0,
                                           Sums<kDim>& o) {
  using S = Shape<kDim>;
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

/// Running softmax of a thread's two vectors.
struct Running {
  float m[2], l[2];
  int64_t low[2], high[2];  // keys that the vector sees: [low, high]
};

__device__ __forceinline__ Running start(const AttentionArgs& a, const RowBlock& b,
                                         uint32_t vector) {
  Running r;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const uint32_t row = (vector + 8u * static_cast<uint32_t>(h)) / a.group;
    r.m[h] = -INFINITY;
    r.l[h] = 0.0f;
    r.high[h] = row < b.n ? static_cast<int64_t>(b.first_key + row) : -1;
    r.low[h] = static_cast<int64_t>(b.low);
    if (a.p.kv.window != 0) r.low[h] = max(r.low[h], r.high[h] + 1 - int64_t{a.p.kv.window});
  }
  return r;
}

/// Scores become weights; sums and o shrink by the growth of the maxima.
template <int kDim>
__device__ __forceinline__ void fold(Running* r, uint64_t t0, bool whole, Scores<kDim>& s,
                                     Sums<kDim>& o) {
  using S = Shape<kDim>;
  float factor[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int64_t at = static_cast<int64_t>(t0) + threadIdx.x % 4 * 2;
    const auto from = static_cast<int32_t>(max(r->low[h] - at, int64_t{-1}));
    const auto to = static_cast<int32_t>(max(min(r->high[h] - at, int64_t{S::kKeys}), int64_t{-1}));
    float top = r->m[h];
#pragma unroll
    for (int n = 0; n < S::kKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& x = s[n][2 * h + i];
        if (!whole && (8 * n + i < from || 8 * n + i > to)) x = -INFINITY;
        top = fmaxf(top, x);
      }
    }
    top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 2));
    const float base = top == -INFINITY ? 0.0f : top;
    factor[h] = exp2_approx(r->m[h] - base);
    r->m[h] = top;
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < S::kKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& x = s[n][2 * h + i];
        x = exp2_approx(x - base);
        sum += x;
      }
    }
    r->l[h] = fmaf(r->l[h], factor[h], sum);
  }
#pragma unroll
  for (int n = 0; n < S::kOutDim / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) o[n][i] *= factor[i / 2];
  }
}

template <int kDim>
__device__ __forceinline__ void store(const AttentionArgs& a, const RowBlock& b, uint32_t kv,
                                      uint32_t vector, uint32_t d0, const Running& r,
                                      const Sums<kDim>& o) {
  using S = Shape<kDim>;
  const uint32_t first_row = a.p.batch.table.sequences[b.sequence].first_row + b.row0;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float sum = r.l[h];
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
    const float inverse = sum > 0.0f ? 1.0f / sum : 0.0f;
    const uint32_t v = vector + 8u * static_cast<uint32_t>(h);
    if (v >= b.n * a.group) continue;
    const uint64_t row = first_row + v / a.group;
    const uint32_t head = kv * a.group + v % a.group;
    float* to = a.p.o + row * a.p.o_stride + uint64_t{head} * kDim;
#pragma unroll
    for (int n = 0; n < S::kOutDim / 8; ++n) {
      const uint32_t d = d0 + static_cast<uint32_t>(n) * 8 + threadIdx.x % 4 * 2;
      float2 x = {o[n][2 * h] * inverse, o[n][2 * h + 1] * inverse};
      if (a.p.gate != nullptr) {
        x.x *= gate_factor(a.p, row, head, d);
        x.y *= gate_factor(a.p, row, head, d + 1);
      }
      *reinterpret_cast<float2*>(to + d) = x;
    }
  }
}

template <int kDim>
__global__ void __launch_bounds__(kThreads, kDim <= 128   ? 3
                                            : kDim <= 256 ? 2
                                                          : 1)
    attention_flash_kernel(const __grid_constant__ FlashArgs f) {
  using S = Shape<kDim>;
  extern __shared__ __align__(128) uint8_t shared[];
  grid_dependents_launch();
  grid_dependency_wait();
  const AttentionArgs& a = f.a;
  const KvLayer& l = a.p.kv;
  RowBlock b;
  if (!find_rows(a, gridDim.y - 1 - blockIdx.y, &b)) return;
  find_keys(a, &b);
  const uint32_t kv = blockIdx.x, e0 = kv * kDim;
  const KeyMap map = make_key_map(a, b.sequence);
  auto* rows = reinterpret_cast<uint64_t*>(shared + f.plan.rows);
  const uint64_t first = b.begin / S::kKeys, last = (b.end + S::kKeys - 1) / S::kKeys;
  find_tile_rows<kDim>(f, b, map, e0, first * S::kKeys, rows);
  load_queries<kDim>(a, b, kv, shared);
  __syncthreads();
  fetch<kDim>(f, e0, shared);
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t vector0 = warp / S::kShare * 16, d0 = warp % S::kShare * S::kOutDim;
  const uint32_t queries = shared_address(shared + vector0 * S::kPitch);
  Queries<kDim> held;
  if constexpr (S::kQueriesInRegisters) {
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
      ldmatrix_x4(held[k], queries + lane % 16 * S::kPitch + lane / 16 * 16 + k * 32);
    }
  }
  Running run = start(a, b, vector0 + lane / 4);
  Sums<kDim> o = {};
  // Keys that every row of the block sees.
  const uint64_t all_from = l.window != 0 && b.end > b.low + l.window ? b.end - l.window : b.low;
  for (uint64_t tile = first; tile < last; ++tile) {
    const uint64_t t0 = tile * S::kKeys;
    cp_async_wait<0>();
    __syncthreads();
    if (tile + 1 < last) find_tile_rows<kDim>(f, b, map, e0, t0 + S::kKeys, rows);
    convert<kDim>(l.k_dtype, e0, shared + f.plan.k_raw, shared + f.plan.k_scale,
                  shared + f.plan.k_tile);
    convert<kDim>(l.v_dtype, e0, shared + f.plan.v_raw, shared + f.plan.v_scale,
                  shared + f.plan.v_tile);
    __syncthreads();
    if (tile + 1 < last) fetch<kDim>(f, e0, shared);
    Scores<kDim> s;
    score_tile<kDim>(held, queries, shared_address(shared + f.plan.k_tile), s);
    const bool whole = t0 >= all_from && t0 + S::kKeys <= b.first_key + 1;
    fold<kDim>(&run, t0, whole, s, o);
    weigh_tile<kDim>(s, shared_address(shared + f.plan.v_tile), d0, o);
  }
  store<kDim>(a, b, kv, vector0 + lane / 4, d0, run, o);
}

uint32_t granule_of(KvDtype type, uint32_t row_bytes, uint32_t dim) {
  return type != KvDtype::kQ8_0 || (row_bytes | dim) % 16 == 0 ? 16 : 2;
}

template <int kDim>
Status launch(const AttentionArgs& a, bool pdl, cudaStream_t stream) {
  FlashArgs f = {};
  const KvLayer& l = a.p.kv;
  f.a = a;
  f.plan = make_plan<kDim>(l.k_dtype, l.v_dtype);
  f.k_granule = granule_of(l.k_dtype, l.k_row_bytes, kDim);
  f.v_granule = granule_of(l.v_dtype, l.v_row_bytes, kDim);
  f.a.block_rows = Shape<kDim>::kVectors / a.group;
  const bool single = a.p.batch.n_rows == a.p.batch.n_sequences;
  f.a.n_blocks =
      single ? a.p.batch.n_rows : a.p.batch.n_rows / f.a.block_rows + a.p.batch.n_sequences;
  const LaunchShape shape = {dim3(l.n_heads, f.a.n_blocks), dim3(kThreads), f.plan.bytes, stream,
                             pdl};
  return launch_kernel("attention_flash", shape, attention_flash_kernel<kDim>, f);
}

template <int kDim>
Status prepare(int most) {
  auto* kernel = attention_flash_kernel<kDim>;
  return kernel_status(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most),
      "attention_flash");
}

}  // namespace

bool attention_flash_fits(const MatmulConfig& config, const KvLayer& l) {
  uint32_t bytes = make_plan<128>(l.k_dtype, l.v_dtype).bytes;
  if (l.head_dim == 256) bytes = make_plan<256>(l.k_dtype, l.v_dtype).bytes;
  if (l.head_dim == 512) bytes = make_plan<512>(l.k_dtype, l.v_dtype).bytes;
  return bytes <= static_cast<uint32_t>(config.max_shared_bytes);
}

Status prepare_attention_flash(const MatmulConfig& config) {
  const int most = config.max_shared_bytes;
  SHARPI_TRY(prepare<64>(most));
  SHARPI_TRY(prepare<80>(most));
  SHARPI_TRY(prepare<96>(most));
  SHARPI_TRY(prepare<128>(most));
  SHARPI_TRY(prepare<256>(most));
  return prepare<512>(most);
}

Status launch_attention_flash(const AttentionArgs& a, bool pdl, cudaStream_t stream) {
  switch (a.p.kv.head_dim) {
    case 64:
      return launch<64>(a, pdl, stream);
    case 80:
      return launch<80>(a, pdl, stream);
    case 96:
      return launch<96>(a, pdl, stream);
    case 128:
      return launch<128>(a, pdl, stream);
    case 256:
      return launch<256>(a, pdl, stream);
    case 512:
      return launch<512>(a, pdl, stream);
    default:
      return Status::error(Code::kUnsupported, "kernel attention_flash: heads of %u elements",
                           a.p.kv.head_dim);
  }
}

}  // namespace sharpi::cuda
