// SPDX-License-Identifier: MIT
// The gated delta net of one row per session, in one launch: a block per head and session holds the
// head's state in registers, convolves its own channels, and applies norm and gate. What the
// preceding launch does not write is read before the wait for it: the committed state, the
// convolution's tail and weights. Heads shared by clusters of two, four or eight blocks were slower
// in whole models: a head in one place leaves more multiprocessors to the next launch's weights.
// Thread rule: device code.
#pragma once

#include "cuda/kernels/delta/delta_common.cuh"
#include "cuda/kernels/ptx.cuh"

namespace sharpi::cuda {
namespace {

/// Eight lanes hold two rows of the state.
template <int kDim>
constexpr uint32_t kDecodeThreads = 4 * kDim;

template <int kDim>
struct alignas(16) DecodeShared {
  static constexpr uint32_t kWarps = kDecodeThreads<kDim> / 32;
  float q[kDim], k[kDim], v[kDim];
  float qq[kDim / 32], kk[kDim / 32], kq[kDim / 32];  // partial sums of products
  float squares[kWarps];                              // of the outputs
};

/// One channel of the convolution.
struct DecodeChannel {
  float taps[4], x[4];   // fewer than four taps leave zeros in front; x[3] is the current row's
  bool started = false;  // x[3] is there
  /// What is known before the row.
  __device__ __forceinline__ void start(const DeltaNetParams& p, const float* tail, uint32_t c) {
    const uint32_t kernel = p.shape.conv_kernel, dim = p.shape.conv_dim();
    if (kernel == 4) {
      const float4 w = reinterpret_cast<const float4*>(p.conv1d)[c];
      taps[0] = w.x, taps[1] = w.y, taps[2] = w.z, taps[3] = w.w;
    }
#pragma unroll
    for (uint32_t t = 0; t < 4; ++t) {
      const bool used = t + kernel >= 4;
      if (kernel != 4) taps[t] = used ? p.conv1d[c * kernel + t + kernel - 4] : 0.0f;
      if (t < 3) x[t] = used ? tail[(t + kernel - 4) * dim + c] : 0.0f;
    }
  }
  /// The next row's value.
  __device__ __forceinline__ void next(float current) {
    if (started) x[0] = x[1], x[1] = x[2], x[2] = x[3];
    started = true;
    x[3] = current;
  }
  __device__ __forceinline__ float value() const {
    float y = taps[0] * x[0];
#pragma unroll
    for (int t = 1; t < 4; ++t) y = fmaf(taps[t], x[t], y);
    return silu(y);
  }
  __device__ __forceinline__ void store_tail(const DeltaNetShape& s, float* tail,
                                             uint32_t c) const {
#pragma unroll
    for (uint32_t t = 0; t < 3; ++t) {
      if (t + s.conv_kernel >= 4) tail[(t + s.conv_kernel - 4) * s.conv_dim() + c] = x[t + 1];
    }
  }
};

/// Sums of x[i] over the eight lanes of a group: lane l gets that of x[l % 4].
__device__ __forceinline__ float sum_four(float (&x)[4]) {
#pragma unroll
  for (int n = 2; n > 0; n /= 2) {
    const bool upper = (threadIdx.x & static_cast<uint32_t>(n)) != 0;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const float give = upper ? x[i] : x[i + n], keep = upper ? x[i + n] : x[i];
      x[i] = keep + __shfl_xor_sync(0xFFFFFFFFu, give, n);
    }
  }
  return x[0] + __shfl_xor_sync(0xFFFFFFFFu, x[0], 4);
}

/// Asks for one contiguous piece, multiple of 16 bytes, to be brought to the second-level cache.
__device__ __forceinline__ void bulk_prefetch(const void* from, uint32_t bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}

/// The block's share of `bytes` that all `n` blocks ask for.
__device__ __forceinline__ void prefetch_share(const void* from, uint32_t bytes, uint32_t block,
                                               uint32_t n) {
  const uint32_t share = (bytes / n + 15) / 16 * 16, first = block * share;
  if (first >= bytes) return;
  bulk_prefetch(static_cast<const std::byte*>(from) + first, min(share, bytes - first));
}

/// What the next delta net reads in this block's place. One thread.
template <uint32_t kBytes>
__device__ __forceinline__ void prefetch_next(const DeltaNetParams& p, const std::byte* state,
                                              uint32_t block, uint32_t n) {
  const uint32_t kernel = p.shape.conv_kernel, row = p.shape.conv_dim() * sizeof(float);
  bulk_prefetch(state + p.next_state_offset + uint64_t{block} * kBytes, kBytes);
  prefetch_share(state + p.next_conv_offset, (kernel - 1) * row, block, n);
  prefetch_share(p.next_conv1d, kernel * row, block, n);
}

/// Grid (heads, sessions). The first threads convolve a channel of the query and of the key each,
/// the last ones a value.
template <int kDim>
__global__ void __launch_bounds__(kDecodeThreads<kDim>)
    delta_decode_kernel(const __grid_constant__ DeltaNetParams p) {
  constexpr uint32_t kThreads = kDecodeThreads<kDim>, kWarps = kThreads / 32;
  constexpr uint32_t kPer = kDim / 32;  // four keys each of a lane
  __shared__ __align__(16) DecodeShared<kDim> sh;
  grid_dependents_launch();
  const uint32_t head = blockIdx.x, thread = threadIdx.x, warp = thread / 32, lane = thread % 8;
  const BatchSequence& s = p.batch.table.sequences[blockIdx.y];
  // Waits without rows, too: what is launched behind this waits for this alone.
  if (s.n_rows == 0) return grid_dependency_wait();
  const auto* tail = reinterpret_cast<const float*>(s.state_in + p.conv_offset);
  const uint32_t j = thread / 8 * 2;  // first of the lane's rows
  const uint64_t at = (uint64_t{head} * kDim + j) * kDim;
  const auto* from = reinterpret_cast<const float4*>(
      reinterpret_cast<const float*>(s.state_in + p.state_offset) + at);
  float4 state[2][kPer];
#pragma unroll
  for (uint32_t i = 0; i < 2 * kPer; ++i) {
    state[i / kPer][i % kPer] = from[i / kPer * (kDim / 4) + i % kPer * 8 + lane];
  }
  const uint32_t key = p.shape.key_of(head) * kDim, key_dim = p.shape.key_dim();
  const bool has_key = thread < kDim, has_value = thread >= kThreads - kDim;
  const uint32_t v = thread - (kThreads - kDim), value = 2 * key_dim + head * kDim + v;
  DecodeChannel cq, ck, cv;
  if (has_key) cq.start(p, tail, key + thread), ck.start(p, tail, key_dim + key + thread);
  if (has_value) cv.start(p, tail, value);
  const std::byte* committed = s.state_in;
  const float weight = p.norm[j + lane % 2];
  const uint64_t row = s.first_row;
  const uint64_t out = row * p.shape.value_dim() + head * kDim + j + lane % 2;
  auto* to = reinterpret_cast<float4*>(reinterpret_cast<float*>(s.state_out + p.state_offset) + at);
  auto* new_tail = reinterpret_cast<float*>(s.state_out + p.conv_offset);
  grid_dependency_wait();
  const float* x = p.qkv + row * p.shape.conv_dim();
  if (has_key) cq.x[3] = x[key + thread], ck.x[3] = x[key_dim + key + thread];
  if (has_value) cv.x[3] = x[value];
  const float gate = p.z[out];
  const float decay = expf(log_decay(p, row, head)), beta = write_strength(p, row, head);
  if (has_key) {
    const float a = cq.value(), b = ck.value();
    sh.q[thread] = a;
    sh.k[thread] = b;
    const float aa = delta_warp_sum(a * a), bb = delta_warp_sum(b * b), ab = delta_warp_sum(a * b);
    if (thread % 32 == 0) sh.qq[warp] = aa, sh.kk[warp] = bb, sh.kq[warp] = ab;
  }
  if (has_value) sh.v[v] = cv.value();
  __syncthreads();
  float qq = 0.0f, kk = 0.0f, kq = 0.0f;
#pragma unroll
  for (uint32_t i = 0; i < kPer; ++i) {
    qq += sh.qq[i];
    kk += sh.kk[i];
    kq += sh.kq[i];
  }
  const float fq = rsqrtf(static_cast<float>(kDim)) / fmaxf(sqrtf(qq), p.eps);
  const float fk = 1.0f / fmaxf(sqrtf(kk), p.eps);
  float4 k[kPer];
  float sums[4] = {};  // rows 0 and 1 with the key, then with the query
#pragma unroll
  for (uint32_t i = 0; i < kPer; ++i) {
    k[i] = reinterpret_cast<const float4*>(sh.k)[lane + 8 * i];
    const float4 q = reinterpret_cast<const float4*>(sh.q)[lane + 8 * i];
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      const float4 m = state[r][i];
      sums[r] = fmaf(m.w, k[i].w, fmaf(m.z, k[i].z, fmaf(m.y, k[i].y, fmaf(m.x, k[i].x, sums[r]))));
      sums[2 + r] = fmaf(m.w, q.w, fmaf(m.z, q.z, fmaf(m.y, q.y, fmaf(m.x, q.x, sums[2 + r]))));
    }
  }
  // Lanes 0 and 1 of every four have a row's product with the key, 2 and 3 with the query.
  const float sum = sum_four(sums);
  const float mine = beta * (sh.v[j + lane % 2] - decay * (fk * sum));
  const float d[2] = {__shfl_sync(0xFFFFFFFFu, mine, 0, 8), __shfl_sync(0xFFFFFFFFu, mine, 1, 8)};
  const float o = fmaf(lane % 2 == 0 ? d[0] : d[1], kq * fq * fk, decay * (fq * sum));
  float square = o * o;
#pragma unroll
  for (int n : {1, 8, 16}) square += __shfl_xor_sync(0xFFFFFFFFu, square, n);
  if (thread % 32 == 2) sh.squares[warp] = square;
  __syncthreads();
#pragma unroll
  for (uint32_t i = 0; i < 2 * kPer; ++i) {
    const float4 m = state[i / kPer][i % kPer], b = k[i % kPer];
    const float f = d[i / kPer] * fk;
    to[i / kPer * (kDim / 4) + i % kPer * 8 + lane] = {
        fmaf(f, b.x, decay * m.x), fmaf(f, b.y, decay * m.y), fmaf(f, b.z, decay * m.z),
        fmaf(f, b.w, decay * m.w)};
  }
  if (has_key && p.shape.leads(head)) {
    cq.store_tail(p.shape, new_tail, key + thread);
    ck.store_tail(p.shape, new_tail, key_dim + key + thread);
  }
  if (has_value) cv.store_tail(p.shape, new_tail, value);
  if (thread == 0 && p.next_conv1d != nullptr) {
    prefetch_next<kDim * kDim * sizeof(float)>(p, committed, head, gridDim.x);
  }
  float all = 0.0f;
#pragma unroll
  for (uint32_t i = 0; i < kWarps; ++i) all += sh.squares[i];
  const float r = 1.0f / sqrtf(all / static_cast<float>(kDim) + p.eps);
  if ((lane & 6) == 2) p.out[out] = o * r * weight * silu(gate);
}

}  // namespace
}  // namespace sharpi::cuda
