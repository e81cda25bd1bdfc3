// SPDX-License-Identifier: MIT
// The gated delta net in chunks of 64 tokens on tensor cores (arXiv 2412.06464, section 3.3). G is
// the running sum of the log decay inside a chunk, exponents are subtracted before exp:
//   A_ij = beta_i (k_i.k_j) e^{G_i-G_j}, j < i;  P_ij = (q_i.k_j) e^{G_i-G_j}, j <= i
//   (I + A) U = beta V;  (I + A) W = beta e^G K
//   V' = U - W S;  O = e^G (Q S) + P V';  S <- e^{G_C} S + K^T (e^{G_C-G} V')
// Two launches: everything that does not need the state, for all chunks at once; then the chunks of
// a head one after the other, 64 value channels of the state per block in f32 registers. Operands
// of products are f16, the triangular systems are solved in f32.
#include <cuda_fp16.h>

#include "cuda/kernels/delta/delta_common.cuh"
#include "cuda/kernels/kv/kv_fragments.cuh"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/ptx.cuh"

namespace sharpi::cuda {
namespace {

constexpr int kC = kDeltaChunk, kDim = kDeltaChunkHeads;
constexpr int kThreads = kDeltaChunkThreads;
constexpr uint32_t kPitch = delta_pitch(kDim);    // of a row of keys in shared memory
constexpr uint32_t kPairPitch = delta_pitch(kC);  // of pairs of tokens
constexpr int kSlice = 64;                        // value channels of a block
constexpr uint32_t kSolvePitch = kC + 4;          // floats

/// Which chunk of which sequence a block has.
struct ChunkRef {
  uint32_t sequence, t0, n;
  uint64_t row0;  // of the call
};
__device__ __forceinline__ bool find_chunk(const Batch& batch, uint32_t index, ChunkRef* c) {
  for (uint32_t i = 0; i < batch.n_sequences; ++i) {
    const BatchSequence& s = batch.table.sequences[i];
    const uint32_t chunks = (s.n_rows + kC - 1) / kC;
    if (index < chunks) {
      c->sequence = i;
      c->t0 = index * kC;
      c->n = min(static_cast<uint32_t>(kC), s.n_rows - c->t0);
      c->row0 = uint64_t{s.first_row} + c->t0;
      return true;
    }
    index -= chunks;
  }
  return false;
}

/// `rows` rows of kBytes to shared memory; rows past n become zero.
template <uint32_t kBytes>
__device__ __forceinline__ void copy_tile(const __half* from, uint64_t stride, uint32_t n,
                                          uint32_t pitch, uint8_t* to) {
  constexpr uint32_t kPieces = kBytes / 16;
#pragma unroll
  for (uint32_t i = threadIdx.x; i < kC * kPieces; i += kThreads) {
    const uint32_t r = i / kPieces, c = i % kPieces;
    cp_async_16_zfill(shared_address(to + r * pitch + c * 16),
                      from + (r < n ? r : 0) * stride + c * 8, r < n ? 16 : 0);
  }
}

/// Fragments of 16 rows (A) or of 16 rows as columns (B) of a row-major tile, 16 columns from k.
__device__ __forceinline__ uint32_t a_address(uint32_t tile, uint32_t row, uint32_t pitch,
                                              uint32_t k) {
  const uint32_t lane = threadIdx.x % 32;
  return tile + (row + lane % 16) * pitch + (k + lane / 16 * 8) * 2;
}
__device__ __forceinline__ uint32_t b_address(uint32_t tile, uint32_t row, uint32_t pitch,
                                              uint32_t k) {
  const uint32_t lane = threadIdx.x % 32;
  return tile + (row + lane % 8 + lane / 16 * 8) * pitch + (k + lane / 8 % 2 * 8) * 2;
}
/// B of 16 rows as k and 16 columns (trans), and A of 16 columns as rows and 16 rows as k (trans).
__device__ __forceinline__ uint32_t bt_address(uint32_t tile, uint32_t row, uint32_t pitch,
                                               uint32_t column) {
  const uint32_t lane = threadIdx.x % 32;
  return tile + (row + lane % 16) * pitch + (column + lane / 16 * 8) * 2;
}
__device__ __forceinline__ uint32_t at_address(uint32_t tile, uint32_t row, uint32_t pitch,
                                               uint32_t column) {
  const uint32_t lane = threadIdx.x % 32;
  return tile + (row + lane % 8 + lane / 16 * 8) * pitch + (column + lane / 8 % 2 * 8) * 2;
}

// --- what does not need the state ---

struct PrepareShared {
  float pairs[kC][kSolvePitch];  // A
  float sums[kC], beta[kC];
  __align__(16) uint8_t k[kC * kPitch];
  uint8_t q[kC * kPitch];
};
static_assert(sizeof(PrepareShared) == kDeltaPrepareBytes);

/// G and beta of the chunk's tokens; padding decays by nothing and writes nothing.
__device__ __forceinline__ void load_gates(const DeltaArgs& a, const ChunkRef& c, uint32_t head,
                                           float* sums, float* beta) {
  if (threadIdx.x >= 32) return;
  const uint32_t n_v = a.p.shape.n_v_heads, lane = threadIdx.x;
  float g[2];
#pragma unroll
  for (uint32_t i = 0; i < 2; ++i) {
    const uint32_t t = 2 * lane + i;
    const float* gate = a.gate + ((c.row0 + min(t, c.n - 1)) * n_v + head) * 2;
    g[i] = t < c.n ? gate[0] : 0.0f;
    beta[t] = t < c.n ? gate[1] : 0.0f;
  }
  float sum = g[0] + g[1];
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const float before = __shfl_up_sync(0xFFFFFFFFu, sum, static_cast<unsigned>(d));
    if (lane >= static_cast<uint32_t>(d)) sum += before;
  }
  sums[2 * lane + 1] = sum;
  sums[2 * lane] = sum - g[1];
}

/// A to shared memory, P to the workspace.
__device__ __forceinline__ void pair_products(PrepareShared* sh, __half* pairs_out) {
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const uint32_t row0 = warp % 4 * 16, column0 = warp / 4 * 32;
  const uint32_t k = shared_address(sh->k), q = shared_address(sh->q);
  float kk[4][4] = {}, qk[4][4] = {};
#pragma unroll
  for (uint32_t d = 0; d < kDim; d += 16) {
    uint32_t ak[4], aq[4];
    ldmatrix_x4(ak, a_address(k, row0, kPitch, d));
    ldmatrix_x4(aq, a_address(q, row0, kPitch, d));
#pragma unroll
    for (uint32_t n = 0; n < 2; ++n) {
      uint32_t b[4];
      ldmatrix_x4(b, b_address(k, column0 + 16 * n, kPitch, d));
      mma_16(false, kk[2 * n], ak, b[0], b[1]);
      mma_16(false, kk[2 * n + 1], ak, b[2], b[3]);
      mma_16(false, qk[2 * n], aq, b[0], b[1]);
      mma_16(false, qk[2 * n + 1], aq, b[2], b[3]);
    }
  }
#pragma unroll
  for (uint32_t n = 0; n < 4; ++n) {
#pragma unroll
    for (uint32_t h = 0; h < 2; ++h) {
      const uint32_t i = row0 + g + 8 * h, j = column0 + 8 * n + 2 * t;
      float p[2];
#pragma unroll
      for (uint32_t e = 0; e < 2; ++e) {
        const float f = j + e <= i ? expf(sh->sums[i] - sh->sums[j + e]) : 0.0f;
        p[e] = qk[n][2 * h + e] * f;
        sh->pairs[i][j + e] = j + e < i ? sh->beta[i] * kk[n][2 * h + e] * f : 0.0f;
      }
      *reinterpret_cast<__half2*>(pairs_out + i * kC + j) = __floats2half2_rn(p[0], p[1]);
    }
  }
}

/// Forward substitution: thread c solves column c of U (beta V) or of W (beta e^G K).
__device__ __forceinline__ void solve(const DeltaArgs& a, const ChunkRef& c, uint32_t head,
                                      const PrepareShared& sh, __half* u, __half* w) {
  const uint32_t column = threadIdx.x % kDim;
  const bool values = threadIdx.x < kDim;
  const DeltaNetShape& shape = a.p.shape;
  const float* v = a.qkv + c.row0 * shape.conv_dim() + 2 * shape.key_dim() + head * kDim + column;
  float x[kC];
#pragma unroll
  for (int i = 0; i < kC; ++i) {
    if (values) {
      x[i] = static_cast<uint32_t>(i) < c.n ? v[static_cast<uint64_t>(i) * shape.conv_dim()] : 0.0f;
    } else {
      x[i] = __half2float(*reinterpret_cast<const __half*>(sh.k + i * kPitch + column * 2)) *
             expf(sh.sums[i]);
    }
    x[i] *= sh.beta[i];
  }
#pragma unroll
  for (int i = 1; i < kC; ++i) {
#pragma unroll
    for (int s = 0; s < i; s += 4) {  // past i the coefficients are zero
      const auto f = *reinterpret_cast<const float4*>(&sh.pairs[i][s]);
      x[i] = fmaf(-f.x, x[s], x[i]);
      if (s + 1 < i) x[i] = fmaf(-f.y, x[s + 1], x[i]);
      if (s + 2 < i) x[i] = fmaf(-f.z, x[s + 2], x[i]);
      if (s + 3 < i) x[i] = fmaf(-f.w, x[s + 3], x[i]);
    }
  }
  __half* to = (values ? u : w) + column;
#pragma unroll
  for (int i = 0; i < kC; ++i) {
    to[i * kDim] = __float2half_rn(fminf(fmaxf(x[i], -65504.0f), 65504.0f));
  }
}

__global__ void __launch_bounds__(kThreads)
    delta_prepare_kernel(const __grid_constant__ DeltaArgs a) {
  extern __shared__ __align__(16) uint8_t memory[];
  auto& sh = *reinterpret_cast<PrepareShared*>(memory);
  grid_dependents_launch();
  grid_dependency_wait();
  ChunkRef c;
  if (!find_chunk(a.p.batch, blockIdx.x, &c)) return;
  const DeltaNetShape& shape = a.p.shape;
  const uint32_t head = blockIdx.y, key = shape.key_of(head);
  const uint64_t at = c.row0 * shape.key_dim() + key * kDim;
  copy_tile<kDim * 2>(a.k16 + at, shape.key_dim(), c.n, kPitch, sh.k);
  copy_tile<kDim * 2>(a.q16 + at, shape.key_dim(), c.n, kPitch, sh.q);
  cp_async_commit();
  load_gates(a, c, head, sh.sums, sh.beta);
  cp_async_wait<0>();
  __syncthreads();
  const uint64_t unit = uint64_t{blockIdx.x} * shape.n_v_heads + head;
  pair_products(&sh, a.pairs + unit * kC * kC);
  if (threadIdx.x < kC) a.sums[unit * kC + threadIdx.x] = sh.sums[threadIdx.x];
  __syncthreads();
  solve(a, c, head, sh, a.u + unit * kC * kDim, a.w + unit * kC * kDim);
}

// --- the chunks of a head in order ---

struct ScanStage {
  uint8_t w[kC * kPitch], q[kC * kPitch], k[kC * kPitch], p[kC * kPairPitch];
};
struct ScanShared {
  ScanStage stage[2];
  uint8_t s[kDim * kPairPitch];                       // the state, f16 [key][value]
  uint8_t v[kC * kPairPitch], late[kC * kPairPitch];  // V', e^{G_C-G} V'
  float sums[2][kC];
};
static_assert(sizeof(ScanShared) == kDeltaScanBytes);

__device__ __forceinline__ void load_scan(const DeltaArgs& a, const BatchSequence& s, uint32_t head,
                                          uint32_t t0, uint64_t unit, ScanStage* stage,
                                          float* sums) {
  const DeltaNetShape& shape = a.p.shape;
  const uint32_t n = min(static_cast<uint32_t>(kC), s.n_rows - t0);
  const uint64_t at = (uint64_t{s.first_row} + t0) * shape.key_dim() + shape.key_of(head) * kDim;
  copy_tile<kDim * 2>(a.w + unit * kC * kDim, kDim, kC, kPitch, stage->w);
  copy_tile<kDim * 2>(a.q16 + at, shape.key_dim(), n, kPitch, stage->q);
  copy_tile<kDim * 2>(a.k16 + at, shape.key_dim(), n, kPitch, stage->k);
  copy_tile<kC * 2>(a.pairs + unit * kC * kC, kC, kC, kPairPitch, stage->p);
  if (threadIdx.x < kC / 4) {
    cp_async_16(shared_address(sums + threadIdx.x * 4), a.sums + unit * kC + threadIdx.x * 4);
  }
  cp_async_commit();
}

/// One chunk; `state` is rows [16 warp, +16) of S as C fragments, `out` the chunk's first row.
__device__ __forceinline__ void scan_chunk(ScanShared* sh, const ScanStage& stage,
                                           const float* sums, const __half* u, uint32_t n,
                                           float* out, uint32_t width, float (&state)[8][4]) {
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const uint32_t row0 = warp % 4 * 16, column0 = warp / 4 * 32;
  __half2 before[4][2];  // U
#pragma unroll
  for (uint32_t c = 0; c < 4; ++c) {
#pragma unroll
    for (uint32_t h = 0; h < 2; ++h) {
      before[c][h] = *reinterpret_cast<const __half2*>(u + (row0 + g + 8 * h) * kDim + column0 +
                                                       8 * c + 2 * t);
    }
  }
#pragma unroll
  for (uint32_t c = 0; c < 8; ++c) {
#pragma unroll
    for (uint32_t h = 0; h < 2; ++h) {
      *reinterpret_cast<uint32_t*>(sh->s + (16 * warp + g + 8 * h) * kPairPitch +
                                   (8 * c + 2 * t) * 2) =
          pack_f16(state[c][2 * h], state[c][2 * h + 1]);
    }
  }
  __syncthreads();
  const uint32_t w = shared_address(stage.w), q = shared_address(stage.q),
                 k = shared_address(stage.k), p = shared_address(stage.p),
                 s = shared_address(sh->s), v = shared_address(sh->v),
                 late = shared_address(sh->late);
  float ws[4][4] = {}, o[4][4] = {};
#pragma unroll
  for (uint32_t d = 0; d < kDim; d += 16) {
    uint32_t aw[4], aq[4];
    ldmatrix_x4(aw, a_address(w, row0, kPitch, d));
    ldmatrix_x4(aq, a_address(q, row0, kPitch, d));
#pragma unroll
    for (uint32_t c = 0; c < 2; ++c) {
      uint32_t b[4];
      ldmatrix_x4_trans(b, bt_address(s, d, kPairPitch, column0 + 16 * c));
      mma_16(false, ws[2 * c], aw, b[0], b[1]);
      mma_16(false, ws[2 * c + 1], aw, b[2], b[3]);
      mma_16(false, o[2 * c], aq, b[0], b[1]);
      mma_16(false, o[2 * c + 1], aq, b[2], b[3]);
    }
  }
  const float end = sums[kC - 1];
#pragma unroll
  for (uint32_t h = 0; h < 2; ++h) {
    const uint32_t i = row0 + g + 8 * h;
    const float grown = expf(sums[i]), rest = expf(end - sums[i]);
#pragma unroll
    for (uint32_t c = 0; c < 4; ++c) {
      const float2 x = __half22float2(before[c][h]);
      const float lo = x.x - ws[c][2 * h], hi = x.y - ws[c][2 * h + 1];
      const uint32_t at = i * kPairPitch + (column0 + 8 * c + 2 * t) * 2;
      *reinterpret_cast<uint32_t*>(sh->v + at) = pack_f16(lo, hi);
      *reinterpret_cast<uint32_t*>(sh->late + at) = pack_f16(lo * rest, hi * rest);
      o[c][2 * h] *= grown;
      o[c][2 * h + 1] *= grown;
    }
  }
  __syncthreads();
#pragma unroll
  for (uint32_t j = 0; j < kC; j += 16) {
    uint32_t ap[4], ak[4];
    ldmatrix_x4(ap, a_address(p, row0, kPairPitch, j));
#pragma unroll
    for (uint32_t c = 0; c < 2; ++c) {
      uint32_t b[4];
      ldmatrix_x4_trans(b, bt_address(v, j, kPairPitch, column0 + 16 * c));
      mma_16(false, o[2 * c], ap, b[0], b[1]);
      mma_16(false, o[2 * c + 1], ap, b[2], b[3]);
    }
    if (j == 0) {
      const float decay = expf(end);
#pragma unroll
      for (uint32_t c = 0; c < 8; ++c) {
#pragma unroll
        for (int e = 0; e < 4; ++e) state[c][e] *= decay;
      }
    }
    ldmatrix_x4_trans(ak, at_address(k, j, kPitch, 16 * warp));
#pragma unroll
    for (uint32_t c = 0; c < 4; ++c) {
      uint32_t b[4];
      ldmatrix_x4_trans(b, bt_address(late, j, kPairPitch, 16 * c));
      mma_16(false, state[2 * c], ak, b[0], b[1]);
      mma_16(false, state[2 * c + 1], ak, b[2], b[3]);
    }
  }
#pragma unroll
  for (uint32_t h = 0; h < 2; ++h) {
    const uint32_t i = row0 + g + 8 * h;
    if (i >= n) continue;
#pragma unroll
    for (uint32_t c = 0; c < 4; ++c) {
      *reinterpret_cast<float2*>(out + uint64_t{i} * width + column0 + 8 * c + 2 * t) = {
          o[c][2 * h], o[c][2 * h + 1]};
    }
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    delta_scan_kernel(const __grid_constant__ DeltaArgs a) {
  extern __shared__ __align__(16) uint8_t memory[];
  auto& sh = *reinterpret_cast<ScanShared*>(memory);
  grid_dependents_launch();
  grid_dependency_wait();
  const DeltaNetParams& p = a.p;
  const BatchSequence s = p.batch.table.sequences[blockIdx.z];
  if (s.n_rows == 0) return;
  uint32_t chunk = 0;
  for (uint32_t i = 0; i < blockIdx.z; ++i) {
    chunk += (p.batch.table.sequences[i].n_rows + kC - 1) / kC;
  }
  const uint32_t head = blockIdx.y, n_v = p.shape.n_v_heads, width = p.shape.value_dim();
  const uint32_t first = blockIdx.x * kSlice;  // value channel
  const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const uint64_t at = (uint64_t{head} * kDim + first) * kDim + 16 * warp + g;
  const float* from = reinterpret_cast<const float*>(first_state(p, s) + p.state_offset) + at;
  float state[8][4];
#pragma unroll
  for (uint32_t c = 0; c < 8; ++c) {
#pragma unroll
    for (uint32_t e = 0; e < 4; ++e) {
      state[c][e] = from[(8 * c + 2 * t + e % 2) * kDim + e / 2 * 8];
    }
  }
  float* out = p.out + uint64_t{s.first_row} * width + head * kDim + first;
  load_scan(a, s, head, 0, uint64_t{chunk} * n_v + head, &sh.stage[0], sh.sums[0]);
  for (uint32_t t0 = 0, half = 0; t0 < s.n_rows; t0 += kC, half ^= 1, ++chunk) {
    cp_async_wait<0>();
    __syncthreads();
    const uint64_t unit = uint64_t{chunk} * n_v + head;
    if (t0 + kC < s.n_rows) {
      load_scan(a, s, head, t0 + kC, unit + n_v, &sh.stage[half ^ 1], sh.sums[half ^ 1]);
    }
    scan_chunk(&sh, sh.stage[half], sh.sums[half], a.u + unit * kC * kDim + first,
               min(static_cast<uint32_t>(kC), s.n_rows - t0), out + uint64_t{t0} * width, width,
               state);
  }
  float* to = reinterpret_cast<float*>(s.state_out + p.state_offset) + at;
#pragma unroll
  for (uint32_t c = 0; c < 8; ++c) {
#pragma unroll
    for (uint32_t e = 0; e < 4; ++e) {
      to[(8 * c + 2 * t + e % 2) * kDim + e / 2 * 8] = state[c][e];
    }
  }
}

}  // namespace

Status prepare_delta_chunks(const KernelConfig& config) {
  if (!delta_chunks_fit(config.device)) return Status::ok();
  SHARPI_TRY(kernel_status(
      cudaFuncSetAttribute(delta_prepare_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(kDeltaPrepareBytes)),
      "delta_prepare"));
  return kernel_status(
      cudaFuncSetAttribute(delta_scan_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(kDeltaScanBytes)),
      "delta_scan");
}

Status launch_delta_chunks(const DeltaArgs& a, uint32_t n_chunks, bool pdl, cudaStream_t stream) {
  const uint32_t n_v = a.p.shape.n_v_heads;
  LaunchShape shape = {dim3(n_chunks, n_v), dim3(kThreads), kDeltaPrepareBytes, stream, pdl};
  SHARPI_TRY(launch_kernel("delta_prepare", shape, delta_prepare_kernel, a));
  shape.grid = dim3(kDim / kSlice, n_v, a.p.batch.n_sequences);
  shape.shared_bytes = kDeltaScanBytes;
  return launch_kernel("delta_scan", shape, delta_scan_kernel, a);
}

}  // namespace sharpi::cuda
