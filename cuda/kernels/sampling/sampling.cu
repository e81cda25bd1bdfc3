// SPDX-License-Identifier: MIT
// Argmax and top-k of logits [rows, vocabulary]. Two launches each: blocks reduce a slice of a row
// to its best (k) keys, then one block per row reduces those. A key is (ordered bits of the value,
// complement of the id), 64 bits, all different: the k largest keys are the answer, ties included.
// The k-th key is found by radix selection, 8 bits a pass, in shared memory.
// Bound: reads the logits once, 4 * vocabulary bytes per row.
#include <math_constants.h>

#include <algorithm>

#include "cuda/kernels/launch.h"
#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/sampling/sampling.h"

namespace sharpi::cuda {
namespace {

using Key = unsigned long long;

constexpr uint32_t kThreads = kSamplingThreads;
static_assert(sizeof(Key) == kSamplingKeyBytes);

__device__ __forceinline__ Key make_key(float v, uint32_t id) {
  uint32_t bits = __float_as_uint(v);
  bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  if (v != v) bits = 0;
  if (v == 0.0f) bits = 0x80000000u;  // both zeros are equal
  return static_cast<Key>(bits) << 32 | (~id);
}
__device__ __forceinline__ uint32_t key_id(Key k) {
  return ~static_cast<uint32_t>(k);
}

/// A row's logit as it counts.
__device__ __forceinline__ float allowed_value(const AllowedTokens& a, float v, uint32_t id) {
  if (a.words == nullptr) return v;
  const uint32_t word = id / 32;
  return word < a.n_words && (a.words[word] >> (id % 32) & 1u) != 0 ? v : -CUDART_INF_F;
}

/// The largest key of the block's threads, in thread 0.
__device__ __forceinline__ Key block_max(Key best) {
  __shared__ Key part[kThreads / 32];
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    const Key other = __shfl_xor_sync(~0u, best, d);
    best = other > best ? other : best;
  }
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = best;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (const Key k : part) best = k > best ? k : best;
  }
  return best;
}

/// Grid (parts, rows).
__global__ void __launch_bounds__(kThreads)
    argmax_part_kernel(const __grid_constant__ ArgmaxParams p) {
  grid_dependents_launch();
  grid_dependency_wait();
  const SamplingSlices s = sampling_slices(p.n_vocab);
  const uint32_t first = blockIdx.x * s.length, end = min(first + s.length, p.n_vocab);
  const float* logits = p.logits + blockIdx.y * p.stride;
  Key best = 0;
  for (uint32_t i = first + threadIdx.x; i < end; i += kThreads) {
    const Key k = make_key(allowed_value(p.allowed, logits[i], i), i);
    best = k > best ? k : best;
  }
  best = block_max(best);
  if (threadIdx.x == 0)
    reinterpret_cast<Key*>(p.workspace)[blockIdx.y * s.n_parts + blockIdx.x] = best;
}

/// One warp per row.
__global__ void __launch_bounds__(32) argmax_row_kernel(const __grid_constant__ ArgmaxParams p) {
  grid_dependents_launch();
  grid_dependency_wait();
  const uint32_t n = sampling_slices(p.n_vocab).n_parts, row = blockIdx.x;
  const Key* keys = reinterpret_cast<const Key*>(p.workspace) + row * n;
  Key best = 0;
  for (uint32_t i = threadIdx.x; i < n; i += 32) best = keys[i] > best ? keys[i] : best;
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    const Key other = __shfl_xor_sync(~0u, best, d);
    best = other > best ? other : best;
  }
  if (threadIdx.x != 0) return;
  const uint32_t id = key_id(best);
  p.ids[row] = static_cast<int32_t>(id);
  if (p.values != nullptr) {
    p.values[row] = allowed_value(p.allowed, p.logits[row * p.stride + id], id);
  }
}

/// Moves the k largest of keys[0, n) to out[0, k), in any order. k <= n; all threads call it. What
/// is larger than the k-th key's known upper bits is taken, what equals them is looked at again.
__device__ void select_largest(const Key* keys, uint32_t n, uint32_t k, Key* out) {
  __shared__ uint32_t histogram[256];
  __shared__ uint32_t s_digit, s_above, s_taken;
  Key prefix = 0;
  uint32_t left = k;
  int shift = 56;
  for (;; shift -= 8) {
    if (threadIdx.x < 256) histogram[threadIdx.x] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n; i += kThreads) {
      const Key v = keys[i];
      const bool same = shift == 56 || v >> (shift + 8) == prefix;
      if (same) atomicAdd(&histogram[(v >> shift) & 255u], 1u);
    }
    __syncthreads();
    if (threadIdx.x < 32) {  // lane l: the eight digits below 256 - 8 l
      uint32_t mine = 0;
      const uint32_t top = 255 - threadIdx.x * 8;
      for (uint32_t d = 0; d < 8; ++d) mine += histogram[top - d];
      uint32_t before = mine;
      for (uint32_t d = 1; d < 32; d *= 2) {
        const uint32_t other = __shfl_up_sync(~0u, before, d);
        if (threadIdx.x >= d) before += other;
      }
      before -= mine;
      if (before < left && before + mine >= left) {
        uint32_t digit = top, above = before;
        while (above + histogram[digit] < left) above += histogram[digit--];
        s_digit = digit;
        s_above = above;
      }
    }
    __syncthreads();
    left -= s_above;
    prefix = prefix << 8 | s_digit;
    const bool done = shift == 0 || histogram[s_digit] == left;
    __syncthreads();
    if (done) break;
  }
  if (threadIdx.x == 0) s_taken = 0;
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < n; i += kThreads) {
    const Key v = keys[i];
    if (v >> shift >= prefix) out[atomicAdd(&s_taken, 1u)] = v;
  }
  __syncthreads();
}

/// Grid (parts, rows); shared: the slice's keys.
__global__ void __launch_bounds__(kThreads)
    top_k_part_kernel(const __grid_constant__ TopKParams p) {
  extern __shared__ __align__(16) Key keys[];
  grid_dependents_launch();
  grid_dependency_wait();
  const SamplingSlices s = sampling_slices(p.n_vocab);
  const uint32_t first = min(blockIdx.x * s.length, p.n_vocab);
  const uint32_t n = min(s.length, p.n_vocab - first), k = min(p.k, n);
  const float* logits = p.logits + blockIdx.y * p.stride;
  for (uint32_t i = threadIdx.x; i < n; i += kThreads)
    keys[i] = make_key(allowed_value(p.allowed, logits[first + i], first + i), first + i);
  __syncthreads();
  Key* out = reinterpret_cast<Key*>(p.workspace) + (blockIdx.y * s.n_parts + blockIdx.x) * p.k;
  if (k != 0) select_largest(keys, n, k, out);
  for (uint32_t i = k + threadIdx.x; i < p.k; i += kThreads) out[i] = 0;
}

/// One block per row: the best of the parts' keys, sorted.
__global__ void __launch_bounds__(kThreads) top_k_row_kernel(const __grid_constant__ TopKParams p) {
  __shared__ Key best[kMaxTopK];
  grid_dependents_launch();
  grid_dependency_wait();
  const uint32_t row = blockIdx.x, n = sampling_slices(p.n_vocab).n_parts * p.k;
  if (threadIdx.x < kMaxTopK) best[threadIdx.x] = 0;
  __syncthreads();
  select_largest(reinterpret_cast<const Key*>(p.workspace) + uint64_t{row} * n, n, p.k, best);
  for (uint32_t size = 2; size <= kMaxTopK; size *= 2) {  // bitonic, descending
    for (uint32_t d = size / 2; d > 0; d /= 2) {
      if (threadIdx.x < kMaxTopK / 2) {
        const uint32_t i = threadIdx.x / d * 2 * d + threadIdx.x % d;
        const bool down = (i & size) == 0;
        const Key a = best[i], b = best[i + d];
        if ((a < b) == down) {
          best[i] = b;
          best[i + d] = a;
        }
      }
      __syncthreads();
    }
  }
  if (threadIdx.x >= p.k) return;
  const uint32_t id = key_id(best[threadIdx.x]);
  p.ids[row * p.k + threadIdx.x] = static_cast<int32_t>(id);
  p.values[row * p.k + threadIdx.x] = allowed_value(p.allowed, p.logits[row * p.stride + id], id);
}

Status check(const char* name, const float* logits, uint32_t n_rows, uint32_t n_vocab, uint32_t k,
             const void* ids, uint64_t workspace_bytes) {
  const uint64_t needed = sampling_workspace_bytes(n_rows, n_vocab, k);
  if (logits == nullptr || ids == nullptr || n_rows == 0 || n_rows > 65535 || n_vocab == 0 ||
      k == 0 || k > most_best(n_vocab) || workspace_bytes < needed) {
    return Status::error(Code::kInternal,
                         "kernel %s cannot take the best %u of %u logits of %u rows with a "
                         "workspace of %llu bytes; %llu are needed",
                         name, k, n_vocab, n_rows, static_cast<unsigned long long>(workspace_bytes),
                         static_cast<unsigned long long>(needed));
  }
  return Status::ok();
}

}  // namespace

uint64_t sampling_workspace_bytes(uint32_t max_rows, uint32_t n_vocab, uint32_t max_k) {
  const uint64_t bytes =
      uint64_t{max_rows} * sampling_slices(n_vocab).n_parts * max_k * sizeof(Key);
  return (bytes + 255) / 256 * 256;
}

Status launch_argmax(const ArgmaxParams& p, cudaStream_t stream) {
  SHARPI_TRY(check("argmax", p.logits, p.n_rows, p.n_vocab, 1, p.ids, p.workspace_bytes));
  LaunchShape shape;
  shape.grid = dim3(sampling_slices(p.n_vocab).n_parts, p.n_rows);
  shape.block = dim3(kThreads);
  shape.stream = stream;
  shape.pdl = p.pdl;
  SHARPI_TRY(launch_kernel("argmax_part", shape, argmax_part_kernel, p));
  shape.grid = dim3(p.n_rows);
  shape.block = dim3(32);
  return launch_kernel("argmax_row", shape, argmax_row_kernel, p);
}

Status launch_top_k(const TopKParams& p, cudaStream_t stream) {
  SHARPI_TRY(check("top_k", p.logits, p.n_rows, p.n_vocab, p.k, p.ids, p.workspace_bytes));
  const SamplingSlices s = sampling_slices(p.n_vocab);
  LaunchShape shape;
  shape.grid = dim3(s.n_parts, p.n_rows);
  shape.block = dim3(kThreads);
  shape.shared_bytes = s.length * sizeof(Key);
  shape.stream = stream;
  shape.pdl = p.pdl;
  if (p.values == nullptr)
    return Status::error(Code::kInternal, "kernel top_k has no place for values");
  SHARPI_TRY(launch_kernel("top_k_part", shape, top_k_part_kernel, p));
  shape.grid = dim3(p.n_rows);
  shape.shared_bytes = 0;
  return launch_kernel("top_k_row", shape, top_k_row_kernel, p);
}

}  // namespace sharpi::cuda
