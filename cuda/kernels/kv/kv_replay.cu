// SPDX-License-Identifier: MIT
// Replay scores with mma.sync: any device of compute capability 8.0 and up, every codec, heads of
// whole sixteens up to 512 elements. A block has a chunk's keys of one KV head in shared memory and
// takes terms (a query and a query head) past them, 16 for each group of warps; the warps of a
// group share out the keys. Of each term: products with the unturned query, of which only the
// maximum and the sum of exponentials stay; then those with the turned one, whose exponentials stay
// in registers until the group's warps have told each other both. What a key counts at most is
// raised in registers over all terms of the block, and then in the session's scores. Arithmetic, of
// an 8B (32 layers of 32 heads of 128) in `fast`: a term sees 260 keys turned and half of 260
// unturned, of which a warp's whole pairs are multiplied, so 32 * 32 * (272 + 144) * 128 * 2 = 109
// MFLOP a token, where the model's products take 15 GFLOP: 0.7%, at half of their rate 1.5%.
// Exponentials: 0.4 million a token, 0.1 us of an H200's. `exact` takes three times as many
// products (hi * hi + lo * hi + hi * lo, as scoring does). Hopper's warpgroups take the heads that
// they can in `fast` (kv_replay_sm90.cu).
#include <algorithm>

#include "base/checked.h"
#include "cuda/kernels/kv/kv_fragments.cuh"
#include "cuda/kernels/kv/kv_q4.cuh"
#include "cuda/kernels/kv/kv_replay.cuh"
#include "cuda/kernels/kv/kv_replay.h"
#include "cuda/kernels/kv/kv_replay_plan.h"
#include "cuda/kernels/kv/kv_rows.cuh"
#include "cuda/kernels/launch.h"

namespace sharpi::cuda {
namespace {

constexpr uint32_t kThreads = kReplayWarps * 32;
constexpr float kLog2E = 1.4426950408889634f;

template <int kGroups, bool kExact>
struct Block {
  static constexpr int kSplits = static_cast<int>(kReplayWarps) / kGroups;
  static constexpr int kPairs = static_cast<int>(replay_pairs(kGroups));
  static constexpr uint32_t kTerms = 16 * kGroups;
  static constexpr uint32_t kNumbers = kExact ? 2 : 1;

  const ReplayArgs& a;
  const ReplaySlots c;
  const uint32_t kv, dim, lane, warp, group_of_warp, split;
  uint8_t *terms, *keys;  // [turned][number][kTerms] rows; [number][key_rows] rows
  float* head;            // of the warp
  float2* told;           // [kReplayWarps][16]

  __device__ Block(const ReplayArgs& args, uint8_t* memory)
      : a(args),
        c(args.p, blockIdx.y),
        kv(blockIdx.z),
        dim(args.p.kv.head_dim),
        lane(threadIdx.x % 32),
        warp(threadIdx.x / 32),
        group_of_warp(warp % kGroups),
        split(warp / kGroups) {
    terms = memory;
    keys = terms + 2 * kNumbers * kTerms * score_pitch(dim);
    uint8_t* heads = keys + (a.tight ? 0 : kNumbers * a.key_rows * score_pitch(a.columns));
    head = reinterpret_cast<float*>(heads) + warp * dim;
    told = reinterpret_cast<float2*>(memory + a.told_at);
  }

  __device__ __forceinline__ void store_numbers(uint8_t* at, uint32_t to_rest, float x,
                                                float y) const {
    const uint32_t hi = pack_bf16(x, y);
    *reinterpret_cast<uint32_t*>(at) = hi;
    if (kExact) *reinterpret_cast<uint32_t*>(at + to_rest) = pack_rest(true, x, y, hi);
  }

  /// Dims [d0, d0 + columns) of all keys; what nobody sees is zero.
  __device__ void load_keys(uint32_t d0) const {
    const KvView& v = a.p.kv;
    const uint32_t pieces = a.columns / 8, pitch = score_pitch(a.columns);
    for (uint32_t i = threadIdx.x; i < a.key_rows * pieces; i += kThreads) {
      const uint32_t r = i / pieces, d = i % pieces * 8;
      float x[8] = {};
      if (r < c.n_seen() && d0 + d < dim) {
        const uint32_t slot = c.slot(r), block = slot / kKvBlockSlots;
        const uint64_t at = v.table == nullptr ? block * v.block_stride : v.table[block];
        const std::byte* row = v.k + at + uint64_t{slot % kKvBlockSlots} * v.k_row_bytes;
        load_elements(v.k_dtype, row, v.n_heads * dim, kv * dim + d0 + d, x);
      }
#pragma unroll
      for (int j = 0; j < 8; j += 2)
        store_numbers(keys + r * pitch + (d + j) * 2, a.key_rows * pitch, x[j], x[j + 1]);
    }
  }

  /// Elements of a lane of all terms of its warp.
  static constexpr int kEach = 2 * kGroups, kPart = 16 / kGroups;
  using Fetched = float[kEach][kPart];

  /// A warp's rows of terms [first, first + n), all on their way at once; others are zero.
  __device__ __forceinline__ void fetch_terms(uint32_t first, uint32_t n, Fetched& x) const {
    const ReplayParams& p = a.p;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const uint32_t t = warp + static_cast<uint32_t>(i) * kReplayWarps;
      const uint32_t row = p.first_asked + (first + t) / a.group * p.every;
      const float* from = p.queries + (p.first_query + row) % p.query_rows * p.query_stride +
                          uint64_t{kv * a.group + (first + t) % a.group} * dim;
#pragma unroll
      for (int k = 0; k < kPart; ++k) {
        const uint32_t d = static_cast<uint32_t>(k) * 32 + lane;
        x[i][k] = t < n && d < dim ? from[d] : 0.0f;
      }
    }
  }

  /// A fetched head, as RoPE left it or as the keys are rotated.
  __device__ __forceinline__ void put_head(const float (&x)[kPart], bool rotated) const {
    __syncwarp();
#pragma unroll
    for (int k = 0; k < kPart; ++k) {
      const uint32_t d = static_cast<uint32_t>(k) * 32 + lane;
      if (d < dim) head[d] = x[k];
    }
    __syncwarp();
    if (a.rotation == 0 || rotated == a.p.rotated) return;
    if (rotated) {
      rotate_floats<false>(head, dim, a.rotation, 0, 1);
    } else {
      rotate_floats<true>(head, dim, a.rotation, 0, 1);
    }
    __syncwarp();
  }

  __device__ void turn_head() const {
    __syncwarp();  // what was put has been read
    const uint32_t half = a.p.n_half;
    for (uint32_t j = lane; j < half; j += 32) {
      float &x = head[a.p.neighbours ? 2 * j : j], &y = head[a.p.neighbours ? 2 * j + 1 : j + half];
      const float cos = a.p.cos[j], sin = a.p.sin[j], before = x;
      x = before * cos - y * sin;
      y = before * sin + y * cos;
    }
    __syncwarp();
    if (a.rotation == 0) return;
    rotate_floats<false>(head, dim, a.rotation, 0, 1);
    __syncwarp();
  }

  __device__ void store_head(uint32_t term, bool turned) const {
    const uint32_t pitch = score_pitch(dim);
    uint8_t* to = terms + ((turned ? kNumbers : 0) * kTerms + term) * pitch;
    for (uint32_t d = 2 * lane; d < dim; d += 64)
      store_numbers(to + d * 2, kTerms * pitch, head[d], head[d + 1]);
  }

  __device__ __forceinline__ void store_terms(const Fetched& x) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const uint32_t t = warp + static_cast<uint32_t>(i) * kReplayWarps;
      put_head(x[i], true);
      store_head(t, false);
      if (a.rotation != 0) put_head(x[i], false);
      turn_head();
      store_head(t, true);
    }
  }

  using Products = float[2 * kPairs][4];

  /// Adds the products of the columns from d0 on; pairs from n_pairs on are left out.
  __device__ __forceinline__ void multiply(bool turned, uint32_t d0, uint32_t n_pairs,
                                           Products& s) const {
    const uint32_t pitch = score_pitch(dim), key_pitch = score_pitch(a.columns);
    const uint32_t row = (turned ? kNumbers : 0) * kTerms + group_of_warp * 16 + lane % 16;
    const uint32_t term = shared_address(terms) + row * pitch + lane / 16 * 16 + d0 * 2;
    const uint32_t key = shared_address(keys) +
                         (split * kPairs * 16 + lane % 8 + lane / 16 * 8) * key_pitch +
                         lane / 8 % 2 * 16;
    const uint32_t columns = min(a.columns, dim - d0);
    for (uint32_t d = 0; d < columns; d += 16) {
      uint32_t hi[4], lo[4];
      ldmatrix_x4(hi, term + d * 2);
      if constexpr (kExact) ldmatrix_x4(lo, term + kTerms * pitch + d * 2);
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        if (static_cast<uint32_t>(i) >= n_pairs) continue;
        uint32_t k[4];
        const uint32_t at = key + static_cast<uint32_t>(i) * 16 * key_pitch + d * 2;
        ldmatrix_x4(k, at);
        mma_16(true, s[2 * i], hi, k[0], k[1]);
        mma_16(true, s[2 * i + 1], hi, k[2], k[3]);
        if constexpr (kExact) {
          mma_16(true, s[2 * i], lo, k[0], k[1]);
          mma_16(true, s[2 * i + 1], lo, k[2], k[3]);
          if (!a.two_numbers) continue;
          ldmatrix_x4(k, at + a.key_rows * key_pitch);
          mma_16(true, s[2 * i], hi, k[0], k[1]);
          mma_16(true, s[2 * i + 1], hi, k[2], k[3]);
        }
      }
    }
  }

  __device__ void products(bool turned, uint32_t n_pairs, Products& s) const {
#pragma unroll
    for (int n = 0; n < 2 * kPairs; ++n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
    if (a.columns == dim) return multiply(turned, 0, n_pairs, s);
    for (uint32_t d0 = 0; d0 < dim; d0 += a.columns) {
      __syncthreads();
      load_keys(d0);
      __syncthreads();
      multiply(turned, d0, n_pairs, s);
    }
  }

  /// The place among the seen keys of product e of tile n.
  __device__ __forceinline__ uint32_t place(int n, int e) const {
    return split * kPairs * 16 + static_cast<uint32_t>(n) * 8 + lane % 4 * 2 +
           static_cast<uint32_t>(e);
  }
  /// Pairs of the warp that have a key in front of place `end`.
  __device__ __forceinline__ uint32_t pairs_before(uint32_t end) const {
    const uint32_t first = split * kPairs * 16;
    return end <= first ? 0 : min(static_cast<uint32_t>(kPairs), (end - first + 15) / 16);
  }

  /// Scores to exponentials below the warp's own maximum of term lane / 4 + 8 h; its sum.
  __device__ __forceinline__ float2 exponentials(Products& s, int h, uint32_t from,
                                                 uint32_t end) const {
    float top = -INFINITY, sum = 0.0f;
#pragma unroll
    for (int n = 0; n < 2 * kPairs; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = s[n][2 * h + e];
        const uint32_t i = place(n, e);
        x = i >= from && i < end ? x * a.scale : -INFINITY;
        top = fmaxf(top, x);
      }
    }
    for (int d = 1; d < 4; d *= 2) top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, d));
    const float base = top == -INFINITY ? 0.0f : top;
#pragma unroll
    for (int n = 0; n < 2 * kPairs; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = s[n][2 * h + e];
        x = exp2_approx(x - base);
        sum += x;
      }
    }
    for (int d = 1; d < 4; d *= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, d);
    return {top, sum};
  }

  /// Of maxima and sums, where nothing was seen -infinity and 0.
  static __device__ __forceinline__ float2 merged(float2 x, float2 y) {
    const float top = fmaxf(x.x, y.x), base = top == -INFINITY ? 0.0f : top;
    return {top, x.y * exp2_approx(x.x - base) + y.y * exp2_approx(y.x - base)};
  }

  /// What terms [first, first + n) raise `most` to, of the warp's keys.
  __device__ void ask(uint32_t first, uint32_t n, float (&most)[2 * kPairs][2]) const {
    Products s;
    float2 of[2];
    const auto row_of = [&](uint32_t t) {
      return a.p.first_asked + (first + min(t, n - 1)) / a.group * a.p.every;
    };
    // Behind a query stand places that it has not seen: its own comes last.
    const auto behind = [&](uint32_t t) {
      return c.n_sinks + (a.p.first_slot + row_of(t) - c.low) + 1;
    };
    products(false, pairs_before(behind(group_of_warp * 16 + 15)), s);
#pragma unroll
    for (int h = 0; h < 2; ++h)
      of[h] = exponentials(s, h, c.n_sinks, behind(group_of_warp * 16 + lane / 4 + 8 * h));
    products(true, pairs_before(c.n_seen()), s);
    float base[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float2 turned = exponentials(s, h, 0, c.n_seen());
      base[h] = turned.x;
      of[h] = merged(turned, of[h]);
      if (lane % 4 == 0) told[warp * 16 + lane / 4 + 8 * h] = of[h];
    }
    __syncthreads();
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t t = lane / 4 + 8 * h;
      float2 all = told[group_of_warp * 16 + t];
      for (int i = 1; i < kSplits; ++i)
        all = merged(all, told[(i * kGroups + group_of_warp) * 16 + t]);
      const bool there = group_of_warp * 16 + t < n;
      const float factor = there ? exp2_approx(base[h] - all.x) / all.y : 0.0f;
#pragma unroll
      for (int i = 0; i < 2 * kPairs; ++i) {
#pragma unroll
        for (int e = 0; e < 2; ++e) most[i][e] = fmaxf(most[i][e], s[i][2 * h + e] * factor);
      }
    }
  }

  /// To the session's scores; what is not negative has the order of its bits.
  __device__ void raise(float (&most)[2 * kPairs][2]) const {
    float* scores = a.p.scores + kv * a.p.stride;
#pragma unroll
    for (int n = 0; n < 2 * kPairs; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float x = most[n][e];
        for (int d = 4; d < 32; d *= 2) x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, d));
        const uint32_t i = place(n, e);
        if (lane >= 4 || i < c.n_sinks || i >= c.n_seen() || c.slot(i) < c.own) continue;
        atomicMax(reinterpret_cast<int*>(scores + c.slot(i)), __float_as_int(x));
      }
    }
  }
};

template <int kGroups, bool kExact>
__global__ void __launch_bounds__(kThreads, 1) replay_kernel(const __grid_constant__ ReplayArgs a) {
  extern __shared__ float4 shared[];
  grid_dependents_launch();
  grid_dependency_wait();
  using B = Block<kGroups, kExact>;
  const B b(a, reinterpret_cast<uint8_t*>(shared));
  if (b.c.end <= b.c.own) return;
  const uint32_t begin = asked_before(a.p, b.c.own - a.p.first_slot) * a.group,
                 end = asked_before(a.p, b.c.end - a.p.first_slot) * a.group;
  if (begin + blockIdx.x * B::kTerms >= end) return;
  if (a.columns == b.dim) b.load_keys(0);
  float most[2 * B::kPairs][2] = {};
  const auto count = [&](uint32_t first) { return first < end ? min(B::kTerms, end - first) : 0u; };
  uint32_t first = begin + blockIdx.x * B::kTerms;
  typename B::Fetched x;
  b.fetch_terms(first, count(first), x);
  while (first < end) {
    const uint32_t now = first;
    __syncthreads();  // what was told, the terms in front and their last keys have been read
    b.store_terms(x);
    first += gridDim.x * B::kTerms;
    b.fetch_terms(first, count(first), x);  // on their way while these are multiplied
    __syncthreads();
    b.ask(now, count(now), most);
  }
  b.raise(most);
}

__global__ void __launch_bounds__(kThreads) replay_clear_kernel(const ReplayParams p) {
  grid_dependents_launch();
  grid_dependency_wait();
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= p.n_rows * p.kv.n_heads) return;
  p.scores[i / p.n_rows * p.stride + p.first_slot + i % p.n_rows] = 0.0f;
}

template <int kGroups, bool kExact>
Status launch_blocks(const DeviceProfile& device, const ReplayArgs& a, uint32_t bytes,
                     cudaStream_t stream) {
  constexpr auto kKernel = replay_kernel<kGroups, kExact>;
  // The same for all layers: another thread may launch this kernel for other heads.
  SHARPI_TRY(
      kernel_status(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         static_cast<int>(score_room(device))),
                    "replay_scores"));
  const ReplayParams& p = a.p;
  const auto n_chunks = static_cast<uint32_t>(div_up(p.first_place + p.n_rows, kReplayChunk));
  const auto n_tiles = static_cast<uint32_t>(
      div_up(div_up(kReplayChunk, p.every) * a.group, Block<kGroups, kExact>::kTerms));
  // Each block decodes the keys, and a processor has one at a time: as many as there are.
  const uint32_t each = static_cast<uint32_t>(device.n_sm) / (n_chunks * p.kv.n_heads);
  const LaunchShape shape = {dim3(std::clamp(each, 1u, n_tiles), n_chunks, p.kv.n_heads),
                             dim3(kThreads), bytes, stream, device.pdl};
  return launch_kernel("replay_scores", shape, kKernel, a);
}

template <bool kExact>
Status launch_chosen(const DeviceProfile& device, const ReplayArgs& a, const ReplayChoice& choice,
                     cudaStream_t stream) {
  switch (choice.groups) {
    case 4:
      return launch_blocks<4, kExact>(device, a, choice.bytes, stream);
    case 2:
      return launch_blocks<2, kExact>(device, a, choice.bytes, stream);
    default:
      return launch_blocks<1, kExact>(device, a, choice.bytes, stream);
  }
}

}  // namespace

Status launch_replay_scores(const DeviceProfile& device, const ReplayParams& p,
                            cudaStream_t stream) {
  const uint32_t dim = p.kv.head_dim, n_kv = p.kv.n_heads;
  if (p.n_rows == 0) return Status::ok();
  if (n_kv == 0 || p.n_heads == 0 || p.n_heads % n_kv != 0 || dim == 0 || dim % 16 != 0 ||
      dim > 512 || p.every == 0 || p.query_rows == 0 || !is_kv_codec(p.kv.k_dtype)) {
    return Status::error(Code::kInternal,
                         "kernel replay_scores cannot take %u query heads over %u KV heads of %u "
                         "elements, every %u of %u queries",
                         p.n_heads, n_kv, dim, p.every, p.query_rows);
  }
  ReplayArgs a = {};
  a.p = p;
  a.group = p.n_heads / n_kv;
  const ReplayChoice choice = choose_replay(device, dim, p.exact);
  a.columns = choice.columns;
  a.key_rows = choice.key_rows;
  a.told_at = choice.bytes - kReplayToldBytes;
  a.tight = choice.tight;
  a.rotation = is_rotated(p.kv.k_dtype) ? device_rotation(dim) : 0;
  a.two_numbers = !uses_bf16(p.kv.k_dtype);
  a.scale = p.scale * kLog2E;
  if (choice.groups == 0) {
    return Status::error(Code::kUnsupported,
                         "kernel replay_scores cannot take heads of %u elements: they do not fit "
                         "%d bytes of shared memory",
                         dim, device.shared_per_block);
  }
  if (!p.add) {
    const auto n = static_cast<uint32_t>(div_up(uint64_t{p.n_rows} * n_kv, kThreads));
    const LaunchShape shape = {dim3(n), dim3(kThreads), 0, stream, device.pdl};
    SHARPI_TRY(launch_kernel("replay_clear", shape, replay_clear_kernel, p));
  }
  if (replay_on_warpgroups(device, a)) return launch_replay_warpgroups(device, a, stream);
  return p.exact ? launch_chosen<true>(device, a, choice, stream)
                 : launch_chosen<false>(device, a, choice, stream);
}

}  // namespace sharpi::cuda
