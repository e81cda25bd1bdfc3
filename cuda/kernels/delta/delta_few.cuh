// SPDX-License-Identifier: MIT
// The gated delta net of few rows per session, in one launch: what an earlier pass kept and was
// accepted, then the rows of this one. A block per head and session holds the head's state in
// registers from the first row to the last. Every row takes the arithmetic of delta_decode.cuh,
// whether it is alone, a draft or applied later, so its bits do not depend on that.
// Rows that are pending were there before the call: they are applied before the wait for the
// preceding launch. The values of a row are asked for while the row before it is computed.
// Thread rule: device code.
#pragma once

#include "cuda/kernels/delta/delta_decode.cuh"

namespace sharpi::cuda {
namespace {

/// What one thread reads of a row.
struct FewValues {
  float q = 0.0f, k = 0.0f, v = 0.0f, alpha = 0.0f, beta = 0.0f;
};

/// The channels of a thread and the state's rows j and j + 1, a quarter of whose keys it holds.
template <int kDim>
struct FewThread {
  static constexpr uint32_t kThreads = kDecodeThreads<kDim>;
  static constexpr uint32_t kPer = kDim / 32;  // four keys each of a lane
  float4 state[2][kPer];
  DecodeChannel cq, ck, cv;
  uint32_t head, thread, lane, j;
  uint32_t key, key_dim, v, value;  // channels
  bool has_key, has_value;

  __device__ __forceinline__ uint64_t at() const { return (uint64_t{head} * kDim + j) * kDim; }
  __device__ __forceinline__ void start(const DeltaNetParams& p, const BatchSequence& s) {
    head = blockIdx.x, thread = threadIdx.x, lane = thread % 8, j = thread / 8 * 2;
    key_dim = p.shape.key_dim(), key = p.shape.key_of(head) * kDim + thread;
    has_key = thread < kDim, has_value = thread >= kThreads - kDim;
    v = thread - (kThreads - kDim), value = 2 * key_dim + head * kDim + v;
    const auto* from = reinterpret_cast<const float4*>(
        reinterpret_cast<const float*>(s.state_in + p.state_offset) + at());
#pragma unroll
    for (uint32_t i = 0; i < 2 * kPer; ++i) {
      state[i / kPer][i % kPer] = from[i / kPer * (kDim / 4) + i % kPer * 8 + lane];
    }
    const auto* tail = reinterpret_cast<const float*>(s.state_in + p.conv_offset);
    if (has_key) cq.start(p, tail, key), ck.start(p, tail, key_dim + key);
    if (has_value) cv.start(p, tail, value);
  }
  __device__ __forceinline__ FewValues read(const float* qkv, const float* alpha,
                                            const float* beta) const {
    FewValues x;
    if (has_key) x.q = qkv[key], x.k = qkv[key_dim + key];
    if (has_value) x.v = qkv[value];
    x.alpha = alpha[head];
    x.beta = beta[head];
    return x;
  }
  __device__ __forceinline__ void keep(const DeltaNetParams& p, const FewValues& x, float* qkv,
                                       float* alpha, float* beta) const {
    if (has_key && p.shape.leads(head)) qkv[key] = x.q, qkv[key_dim + key] = x.k;
    if (has_value) qkv[value] = x.v;
    if (thread == 0) alpha[head] = x.alpha, beta[head] = x.beta;
  }
  /// The state and the rows before the next one, to the working copy.
  __device__ __forceinline__ void store(const DeltaNetParams& p, const BatchSequence& s) const {
    auto* to =
        reinterpret_cast<float4*>(reinterpret_cast<float*>(s.state_out + p.state_offset) + at());
#pragma unroll
    for (uint32_t i = 0; i < 2 * kPer; ++i) {
      to[i / kPer * (kDim / 4) + i % kPer * 8 + lane] = state[i / kPer][i % kPer];
    }
    auto* tail = reinterpret_cast<float*>(s.state_out + p.conv_offset);
    if (has_key && p.shape.leads(head)) {
      cq.store_tail(p.shape, tail, key);
      ck.store_tail(p.shape, tail, key_dim + key);
    }
    if (has_value) cv.store_tail(p.shape, tail, value);
  }
  /// One row; the output of the state's row j + lane % 2, before the norm. Holds one barrier.
  __device__ __forceinline__ float advance(const DeltaNetParams& p, const FewValues& x,
                                           DecodeShared<kDim>* sh);
};

template <int kDim>
__device__ __forceinline__ float FewThread<kDim>::advance(const DeltaNetParams& p,
                                                          const FewValues& x,
                                                          DecodeShared<kDim>* sh) {
  if (has_key) {
    cq.next(x.q), ck.next(x.k);
    const float a = cq.value(), b = ck.value();
    sh->q[thread] = a;
    sh->k[thread] = b;
    const float aa = delta_warp_sum(a * a), bb = delta_warp_sum(b * b), ab = delta_warp_sum(a * b);
    if (thread % 32 == 0) {
      sh->qq[thread / 32] = aa, sh->kk[thread / 32] = bb, sh->kq[thread / 32] = ab;
    }
  }
  if (has_value) {
    cv.next(x.v);
    sh->v[v] = cv.value();
  }
  const float decay = expf(log_decay_of(p, x.alpha, head)), beta = write_strength_of(x.beta);
  __syncthreads();
  float qq = 0.0f, kk = 0.0f, kq = 0.0f;
#pragma unroll
  for (uint32_t i = 0; i < kPer; ++i) {
    qq += sh->qq[i];
    kk += sh->kk[i];
    kq += sh->kq[i];
  }
  const float fq = rsqrtf(static_cast<float>(kDim)) / fmaxf(sqrtf(qq), p.eps);
  const float fk = 1.0f / fmaxf(sqrtf(kk), p.eps);
  float4 k[kPer];
  float sums[4] = {};  // rows 0 and 1 with the key, then with the query
#pragma unroll
  for (uint32_t i = 0; i < kPer; ++i) {
    k[i] = reinterpret_cast<const float4*>(sh->k)[lane + 8 * i];
    const float4 q = reinterpret_cast<const float4*>(sh->q)[lane + 8 * i];
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      const float4 m = state[r][i];
      sums[r] = fmaf(m.w, k[i].w, fmaf(m.z, k[i].z, fmaf(m.y, k[i].y, fmaf(m.x, k[i].x, sums[r]))));
      sums[2 + r] = fmaf(m.w, q.w, fmaf(m.z, q.z, fmaf(m.y, q.y, fmaf(m.x, q.x, sums[2 + r]))));
    }
  }
  // Lanes 0 and 1 of every four have a row's product with the key, 2 and 3 with the query.
  const float sum = sum_four(sums);
  const float mine = beta * (sh->v[j + lane % 2] - decay * (fk * sum));
  const float d[2] = {__shfl_sync(0xFFFFFFFFu, mine, 0, 8), __shfl_sync(0xFFFFFFFFu, mine, 1, 8)};
#pragma unroll
  for (uint32_t i = 0; i < 2 * kPer; ++i) {
    float4& m = state[i / kPer][i % kPer];
    const float4 b = k[i % kPer];
    const float f = d[i / kPer] * fk;
    m = {fmaf(f, b.x, decay * m.x), fmaf(f, b.y, decay * m.y), fmaf(f, b.z, decay * m.z),
         fmaf(f, b.w, decay * m.w)};
  }
  return fmaf(lane % 2 == 0 ? d[0] : d[1], kq * fq * fk, decay * (fq * sum));
}

/// Grid (heads, sessions). Longer than most kernels, for the state stays in registers across it.
template <int kDim>
__global__ void __launch_bounds__(kDecodeThreads<kDim>)
    delta_few_kernel(const __grid_constant__ DeltaNetParams p) {
  constexpr uint32_t kWarps = kDecodeThreads<kDim> / 32;
  // Two buffers are used alternately, so that a row's writes do not meet reads of the row before
  // it.
  __shared__ __align__(16) DecodeShared<kDim> shared[2];
  grid_dependents_launch();
  const BatchSequence s = p.alone ? p.sequence : p.batch.table.sequences[blockIdx.y];
  const uint32_t n_pending = s.n_pending, n_rows = p.replay ? 0 : s.n_rows;
  if (p.replay ? n_pending == 0 : n_rows == 0) return grid_dependency_wait();
  const bool drafted = n_rows != 0 && is_drafted(p, s);
  const uint32_t conv_dim = p.shape.conv_dim(), n_v = p.shape.n_v_heads, end = n_pending + n_rows;
  FewThread<kDim> own;
  own.start(p, s);
  const float weight = p.norm[own.j + own.lane % 2];
  const KeptPlanes<const float> kept = kept_planes(p, s, s.kept);
  bool waited = false;
  const auto read = [&](uint32_t t) {
    if (t < n_pending) {
      return own.read(kept.qkv + uint64_t{t} * conv_dim, kept.alpha + t * n_v, kept.beta + t * n_v);
    }
    if (!waited) grid_dependency_wait();
    waited = true;
    const uint64_t row = uint64_t{s.first_row} + (t - n_pending);
    return own.read(p.qkv + row * conv_dim, p.alpha + row * n_v, p.beta + row * n_v);
  };
  FewValues next = read(0);
  for (uint32_t t = 0; t < end; ++t) {
    const FewValues x = next;
    if (t + 1 < end) next = read(t + 1);
    if (t == n_pending && t != 0 && drafted) own.store(p, s);
    DecodeShared<kDim>& sh = shared[t % 2];
    const float o = own.advance(p, x, &sh);
    if (t < n_pending) continue;
    const uint32_t index = t - n_pending;
    if (drafted) {
      const KeptPlanes<float> keep = kept_planes(p, s, s.keep);
      own.keep(p, x, keep.qkv + uint64_t{index} * conv_dim, keep.alpha + index * n_v,
               keep.beta + index * n_v);
    }
    const uint64_t out = (uint64_t{s.first_row} + index) * p.shape.value_dim() + own.head * kDim +
                         own.j + own.lane % 2;
    const float gate = p.z[out];
    float square = o * o;
#pragma unroll
    for (int n : {1, 8, 16}) square += __shfl_xor_sync(0xFFFFFFFFu, square, n);
    if (own.thread % 32 == 2) sh.squares[own.thread / 32] = square;
    __syncthreads();
    float all = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < kWarps; ++i) all += sh.squares[i];
    const float r = 1.0f / sqrtf(all / static_cast<float>(kDim) + p.eps);
    if ((own.lane & 6) == 2) p.out[out] = o * r * weight * silu(gate);
  }
  if (!waited) grid_dependency_wait();
  if (!drafted) own.store(p, s);
  if (own.thread == 0 && p.next_conv1d != nullptr) {
    prefetch_next<kDim * kDim * sizeof(float)>(p, s.state_in, own.head, gridDim.x);
  }
}

}  // namespace
}  // namespace sharpi::cuda
