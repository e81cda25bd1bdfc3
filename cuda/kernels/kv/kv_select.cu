// SPDX-License-Identifier: MIT
// One block chooses a list's rows: scores become keys that order like them, three rounds of digits
// find the smallest key that stays, and warps write what they keep of consecutive rows, in order.
#include "cuda/kernels/kv/kv_select.h"
#include "cuda/kernels/launch.h"

namespace sharpi::cuda {
namespace {

constexpr uint32_t kThreads = 1024, kWarps = kThreads / 32;
constexpr uint32_t kRowThreads = 256;
constexpr uint32_t kDigits = 2048, kCopies = 4;  // of the counts: fewer threads meet

__device__ __forceinline__ uint32_t position_of(const RowPositions& at, uint32_t head,
                                                uint32_t slot) {
  if (slot >= at.n_compacted) return at.tail_position + (slot - at.n_compacted);
  return at.lists[uint64_t{head} * at.stride + slot];
}

__global__ void __launch_bounds__(kRowThreads)
    share_hits_kernel(HeldTerms t, RowPositions at, uint32_t* shared) {
  const uint32_t slot = blockIdx.x * kRowThreads + threadIdx.x, head = blockIdx.y;
  if (slot >= t.n_slots) return;
  // Not negative, so bits order like numbers.
  const float term = t.terms[uint64_t{head} * t.n_slots + slot];
  const uint32_t position = position_of(at, head, slot);
  if (position != kNoPosition) atomicMax(shared + position, __float_as_uint(term));
}

__global__ void __launch_bounds__(kRowThreads)
    take_hits_kernel(HeldTerms t, RowPositions at, const float* shared) {
  const uint32_t slot = blockIdx.x * kRowThreads + threadIdx.x, head = blockIdx.y;
  if (slot >= t.n_slots) return;
  float* term = t.terms + uint64_t{head} * t.n_slots + slot;
  const uint32_t position = position_of(at, head, slot);
  if (position != kNoPosition) *term = fmaxf(*term, shared[position]);
}

/// The sum over the block, to every thread, in a fixed order.
__device__ __forceinline__ double block_sum(double v) {
  __shared__ double parts[kWarps];
#pragma unroll
  for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(0xFFFFFFFFu, v, d);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
  __syncthreads();
  double all = 0.0;
  for (uint32_t w = 0; w < kWarps; ++w) all += parts[w];
  return all;
}

__global__ void __launch_bounds__(kThreads)
    join_terms_kernel(const __grid_constant__ JoinParams p) {
  const uint32_t n = p.out.n_slots;
  const uint64_t row = uint64_t{blockIdx.x} * n;
  if (p.norms != nullptr) {
    for (uint32_t i = threadIdx.x; i < n; i += kThreads) {
      const float mean = __fmul_rn(p.sum[row + i], p.scale);
      p.out.terms[row + i] = __fmul_rn(__fadd_rn(mean, kValueFloor), p.norms[row + i]);
    }
    return;
  }
  double sum = 0.0;
  for (uint32_t i = threadIdx.x; i < n; i += kThreads)
    sum += static_cast<double>(__fmul_rn(p.sum[row + i], p.scale));
  const auto floor = static_cast<float>(block_sum(sum) / n);
  for (uint32_t i = threadIdx.x; i < n; i += kThreads)
    p.out.terms[row + i] = fmaxf(p.top[row + i], floor);
}

__device__ __forceinline__ float spread_score(const SelectList& l, uint32_t span, uint32_t slot) {
  float best = __fmul_rn(l.terms[slot], l.scale);
  const auto mark = [&](uint32_t from, double decay) {
    const float term = __fmul_rn(l.terms[from], l.scale);
    best = fmaxf(best, __fmul_rn(term, static_cast<float>(decay)));
  };
  double decay = 1.0;
  for (uint32_t j = 1; j <= span && j <= slot; ++j) {
    decay *= static_cast<double>(kForwardDecay);
    mark(slot - j, decay);
  }
  decay = 1.0;
#pragma unroll
  for (uint32_t j = 1; j <= kBackward; ++j) {
    decay *= static_cast<double>(kBackwardDecay);
    if (slot + j < l.n_slots) mark(slot + j, decay);
  }
  return best;
}

__device__ __forceinline__ float pool_score(const SelectList& l, uint32_t width, uint32_t slot) {
  const auto half = static_cast<int64_t>(width / 2), last = static_cast<int64_t>(l.n_slots) - 1;
  double sum = 0.0;
  for (int64_t j = -half; j <= half; ++j) {
    const int64_t at = max(int64_t{0}, min(last, static_cast<int64_t>(slot) + j));
    sum += static_cast<double>(__fmul_rn(l.terms[at], l.scale));
  }
  return static_cast<float>(sum / width);
}

/// A number that orders like the float; zeros of both signs are one.
__device__ __forceinline__ uint32_t order_bits(float f) {
  const uint32_t u = __float_as_uint(f + 0.0f);
  return (u >> 31) != 0 ? ~u : u | 0x80000000u;
}

struct SelectShared {
  uint32_t counts[kCopies][kDigits];
  uint32_t sums[kWarps], equals[kWarps];
  uint32_t key, n_equal;  // what is known of the smallest key that stays; equals of it that stay
};

/// The digit at which the largest keys, counted downwards, are n_equal or more.
__device__ __forceinline__ void find_digit(SelectShared& s, uint32_t digits, uint32_t shift) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, wanted = s.n_equal;
  uint32_t count[2], before = 0;  // of this thread's two digits, the larger first
#pragma unroll
  for (uint32_t i = 0; i < 2; ++i) {
    const uint32_t rank = threadIdx.x * 2 + i;
    count[i] = 0;
    for (uint32_t c = 0; rank < digits && c < kCopies; ++c)
      count[i] += s.counts[c][digits - 1 - rank];
  }
  const uint32_t own = count[0] + count[1];
  uint32_t sum = own;
#pragma unroll
  for (uint32_t d = 1; d < 32; d *= 2) {
    const uint32_t v = __shfl_up_sync(0xFFFFFFFFu, sum, d);
    if (lane >= d) sum += v;
  }
  if (lane == 31) s.sums[warp] = sum;
  __syncthreads();
  for (uint32_t w = 0; w < warp; ++w) before += s.sums[w];
  before += sum - own;
#pragma unroll
  for (uint32_t i = 0; i < 2; ++i) {
    if (before < wanted && before + count[i] >= wanted) {  // true for one digit of one thread
      s.key |= (digits - 1 - (threadIdx.x * 2 + i)) << shift;
      s.n_equal = wanted - before;
    }
    before += count[i];
  }
  __syncthreads();
}

__device__ __forceinline__ void clear_counts(SelectShared& s) {
  for (uint32_t i = threadIdx.x; i < kCopies * kDigits; i += kThreads) (&s.counts[0][0])[i] = 0;
  __syncthreads();
}

/// The smallest key that stays, and how many of those equal to it. Keys of the first digit are
/// counted already.
__device__ __forceinline__ void find_threshold(const uint32_t* keys, uint32_t n, SelectShared& s) {
  uint32_t mask = 0;
  for (const uint32_t shift : {21u, 10u, 0u}) {
    const uint32_t digits = shift == 0 ? 1024 : kDigits;
    if (shift != 21) {
      clear_counts(s);
      const uint32_t known = s.key;
#pragma unroll 4
      for (uint32_t i = threadIdx.x; i < n; i += kThreads) {
        const uint32_t key = keys[i];
        if ((key & mask) == known) {
          atomicAdd(&s.counts[threadIdx.x / 32 % kCopies][key >> shift & (digits - 1)], 1u);
        }
      }
      __syncthreads();
    }
    find_digit(s, digits, shift);
    mask |= (digits - 1) << shift;
  }
}

/// Slots of the keys that stay, ascending; of equal ones the first.
__device__ __forceinline__ void write_kept(const uint32_t* keys, uint32_t first_slot, uint32_t n,
                                           SelectShared& s, uint32_t* out) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, below = (1u << lane) - 1;
  const uint32_t share = (n + kThreads - 1) / kThreads * 32;  // keys of a warp
  const uint32_t begin = min(n, warp * share), end = min(n, begin + share);
  uint32_t larger = 0, equal = 0;
#pragma unroll 4
  for (uint32_t i = begin + lane; i < end; i += 32) {
    larger += keys[i] > s.key ? 1 : 0;
    equal += keys[i] == s.key ? 1 : 0;
  }
  larger = __reduce_add_sync(0xFFFFFFFFu, larger);
  equal = __reduce_add_sync(0xFFFFFFFFu, equal);
  if (lane == 0) {
    s.sums[warp] = larger;
    s.equals[warp] = equal;
  }
  __syncthreads();
  uint32_t at = 0, rank = 0;
  for (uint32_t w = 0; w < warp; ++w) {
    at += s.sums[w];
    rank += s.equals[w];
  }
  at += min(rank, s.n_equal);
  for (uint32_t i0 = begin; i0 < end; i0 += 32) {
    const uint32_t i = i0 + lane;
    const uint32_t key = i < end ? keys[i] : 0;
    const bool same = i < end && key == s.key;
    const uint32_t sames = __ballot_sync(0xFFFFFFFFu, same);
    const bool stays =
        (i < end && key > s.key) || (same && rank + __popc(sames & below) < s.n_equal);
    const uint32_t stay = __ballot_sync(0xFFFFFFFFu, stays);
    if (stays) out[at + __popc(stay & below)] = first_slot + i;
    at += __popc(stay);
    rank += __popc(sames);
  }
}

__global__ void __launch_bounds__(kThreads) select_kernel(const __grid_constant__ SelectParams p) {
  __shared__ SelectShared s;
  const SelectList l = p.lists[blockIdx.x];
  const KeepParts& k = l.parts;
  const uint32_t n = k.last - k.first;
  const bool choose = k.take != 0 && k.take != n;
  if (choose) {
    clear_counts(s);
    for (uint32_t i = threadIdx.x; i < n; i += kThreads) {
      const uint32_t slot = k.first + i;
      const uint32_t key = order_bits(p.smooth == Smooth::kPool ? pool_score(l, p.reach, slot)
                                                                : spread_score(l, p.reach, slot));
      l.keys[i] = key;
      atomicAdd(&s.counts[threadIdx.x / 32 % kCopies][key >> 21], 1u);
    }
    if (threadIdx.x == 0) {
      s.key = 0;
      s.n_equal = k.take;
    }
    __syncthreads();
    find_threshold(l.keys, n, s);
  }
  // The terms are read: their place takes the list.
  auto* out = reinterpret_cast<uint32_t*>(l.terms);
  if (choose) write_kept(l.keys, k.first, n, s, out + k.first);
  for (uint32_t i = threadIdx.x; i < k.first; i += kThreads) out[i] = i;
  if (k.take == n) {
    for (uint32_t i = threadIdx.x; i < n; i += kThreads) out[k.first + i] = k.first + i;
  }
  for (uint32_t i = threadIdx.x; i < l.n_slots - k.last; i += kThreads)
    out[k.first + k.take + i] = k.last + i;
}

Status check_terms(const char* name, const HeldTerms& t, const void* other) {
  if (t.terms != nullptr && other != nullptr && t.n_heads <= 65535) return Status::ok();
  return Status::error(Code::kInternal,
                       "kernel %s cannot take %u heads of %u rows, or lacks an operand", name,
                       t.n_heads, t.n_slots);
}

LaunchShape row_shape(const HeldTerms& t, cudaStream_t stream) {
  return {dim3((t.n_slots + kRowThreads - 1) / kRowThreads, t.n_heads), dim3(kRowThreads), 0,
          stream, false};
}

}  // namespace

Status launch_share_hits(const HeldTerms& t, const RowPositions& at, float* shared,
                         cudaStream_t stream) {
  if (t.n_slots == 0 || t.n_heads == 0) return Status::ok();
  SHARPI_TRY(check_terms("share_hits", t, shared));
  return launch_kernel("share_hits", row_shape(t, stream), share_hits_kernel, t, at,
                       reinterpret_cast<uint32_t*>(shared));
}

Status launch_take_hits(const HeldTerms& t, const RowPositions& at, const float* shared,
                        cudaStream_t stream) {
  if (t.n_slots == 0 || t.n_heads == 0) return Status::ok();
  SHARPI_TRY(check_terms("take_hits", t, shared));
  return launch_kernel("take_hits", row_shape(t, stream), take_hits_kernel, t, at, shared);
}

Status launch_join_terms(const JoinParams& p, cudaStream_t stream) {
  if (p.out.n_slots == 0 || p.out.n_heads == 0) return Status::ok();
  SHARPI_TRY(check_terms("join_terms", p.out, p.sum));
  SHARPI_TRY(check_terms("join_terms", p.out, p.norms != nullptr ? p.norms : p.top));
  const LaunchShape shape = {dim3(p.out.n_heads), dim3(kThreads), 0, stream, false};
  return launch_kernel("join_terms", shape, join_terms_kernel, p);
}

Status launch_select(const SelectParams& p, cudaStream_t stream) {
  if (p.n_lists == 0) return Status::ok();
  if (p.lists == nullptr || (p.smooth == Smooth::kPool && p.reach == 0)) {
    return Status::error(
        Code::kInternal,
        "kernel select cannot take %u lists with a reach of %u, or lacks the lists", p.n_lists,
        p.reach);
  }
  const LaunchShape shape = {dim3(p.n_lists), dim3(kThreads), 0, stream, false};
  return launch_kernel("select", shape, select_kernel, p);
}

}  // namespace sharpi::cuda
