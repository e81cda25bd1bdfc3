// SPDX-License-Identifier: MIT
// Two ways. Heads of whole blocks of 32 whose pairs are whole blocks apart: a warp per head, in
// registers. Others: a block per row and part: eight query heads, or all K heads, or all V heads. A
// warp owns a head in shared memory; K and V rows are encoded by the whole block, since a q8_0
// block of 32 may reach into the next head.
#include <cmath>

#include "cuda/kernels/attention/qkv.h"
#include "cuda/kernels/attention/qkv_heads.cuh"
#include "cuda/kernels/attention/qkv_plan.h"
#include "cuda/kernels/attention/qkv_registers.cuh"
#include "cuda/kernels/kv/kv_rows.cuh"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/ptx.cuh"

namespace sharpi::cuda {
namespace {

constexpr uint32_t kThreads = kQkvThreads, kWarps = kQkvWarps;

/// Where the heads of a part come from and what happens to them.
struct HeadRun {
  const float* from;  // head h at h * stride
  const float* bias;  // likewise, or null
  uint32_t stride, n_heads;
  const float* weight;
  uint32_t weight_step;  // between heads: 0 or head_dim
  float inverse_rms;     // of the whole vector, if !own_rms
  bool norm, own_rms, rotate;
  float factor = 1.0f;  // of what has been rotated
};

/// Heads [0, n_heads) to `heads` in shared memory, a warp per head.
__device__ __forceinline__ void run_heads(const QkvParams& p, const HeadRun& run, uint32_t row,
                                          float* heads) {
  const uint32_t dim = p.kv.head_dim, lane = threadIdx.x % 32;
  for (uint32_t h = threadIdx.x / 32; h < run.n_heads; h += kWarps) {
    float* x = heads + h * dim;
    const float* from = run.from + uint64_t{h} * run.stride;
    const float* bias = run.bias != nullptr ? run.bias + uint64_t{h} * run.stride : nullptr;
    for (uint32_t i = lane; i < dim; i += 32) {
      x[i] = bias != nullptr ? from[i] + bias[i] : from[i];
    }
    __syncwarp();
    if (run.norm) {
      const float* w = run.weight != nullptr ? run.weight + h * run.weight_step : nullptr;
      norm_head(x, dim, w, run.inverse_rms, run.own_rms, p.eps);
    }
    if (run.rotate && p.n_half != 0) {
      rotate_head(x, p.n_half, p.neighbours, p.cos + uint64_t{row} * p.n_half,
                  p.sin + uint64_t{row} * p.n_half);
    }
    if (run.factor == 1.0f) continue;
    for (uint32_t i = lane; i < dim; i += 32) x[i] *= run.factor;
  }
}

/// What is stored rotated, or multiplied with what is: n floats in shared memory, whole heads, all
/// threads of the block. Afterwards all of it is there.
__device__ __forceinline__ void rotate_stored(KvDtype type, uint32_t dim, uint32_t n, float* x) {
  if (!is_rotated(type)) return;
  rotate_floats<false>(x, n, device_rotation(dim), threadIdx.x / 32, blockDim.x / 32);
  __syncthreads();
}

__device__ void query_part(const QkvParams& p, const BatchRow& br, uint32_t row, uint32_t part,
                           float* heads) {
  const uint32_t dim = p.kv.head_dim, first = part * kWarps;
  const uint64_t width = uint64_t{p.n_heads} * dim;
  const float* q = p.q + row * p.q_stride;
  HeadRun run = {};
  run.from = q + uint64_t{first} * p.q_head_stride;
  run.bias = p.q_bias != nullptr ? p.q_bias + uint64_t{first} * p.q_head_stride : nullptr;
  run.stride = p.q_head_stride;
  run.n_heads = min(kWarps, p.n_heads - first);
  run.norm = p.norm != HeadNorm::kNone;
  run.own_rms = p.norm == HeadNorm::kPerHead;
  run.rotate = true;
  run.factor = query_factor(p, br.position);
  run.weight = p.q_norm;
  if (p.norm == HeadNorm::kWholeVector) {
    run.inverse_rms = block_inverse_rms(q, static_cast<uint32_t>(width), p.eps);
    run.weight = p.q_norm + first * dim;
    run.weight_step = dim;
  }
  run_heads(p, run, row, heads);
  const BatchSequence& s = p.batch.table.sequences[br.sequence];
  float* to = p.q_out + row * width + uint64_t{first} * dim;
  float* captured = captured_queries(p.query_offset, br, s, width);
  if (captured != nullptr) captured += uint64_t{first} * dim;
  __syncthreads();
  if (captured != nullptr) {
    for (uint32_t i = threadIdx.x; i < run.n_heads * dim; i += kThreads) captured[i] = heads[i];
    __syncthreads();
  }
  rotate_stored(p.kv.k_dtype, dim, run.n_heads * dim, heads);
  for (uint32_t i = threadIdx.x; i < run.n_heads * dim; i += kThreads) to[i] = heads[i];
}

/// Rows in shared memory, to where they are stored.
template <bool kByHead>
__device__ __forceinline__ void store_part(const QkvParams& p, const BatchRow& br, bool value,
                                           const float* heads) {
  const KvLayer& l = p.kv;
  const KvDtype type = value ? l.v_dtype : l.k_dtype;
  const BatchSequence& s = p.batch.table.sequences[br.sequence];
  const BatchGroup& g = p.batch.table.groups[br.sequence * p.batch.table.n_groups + l.group];
  if constexpr (kByHead) {
    const KvHeadRows* own = head_rows(g, 0);
    for (uint32_t h = 0; own != nullptr && h < l.n_heads; ++h) {
      const uint64_t slot = uint64_t{g.n_slots} - own[h].lag + br.index;
      encode_row(type, heads + h * l.head_dim, l.head_dim,
                 {head_row(l, own[h], slot, value), nullptr});
    }
    if (own != nullptr) return;
  }
  std::byte *to, *twin = nullptr;
  if (l.window == 0) {
    to = store_row(l, g, uint64_t{g.n_slots} + br.index, value);
  } else {
    to = chunk_row(l, s.chunk_block, br.index, value);
    if (p.to_ring) twin = store_row(l, g, br.position % g.ring_slots, value);
  }
  encode_row(type, heads, l.n_heads * l.head_dim, {to, twin});
}

template <bool kByHead>
__device__ void row_part(const QkvParams& p, const BatchRow& br, uint32_t row, bool value,
                         float* heads) {
  const KvLayer& l = p.kv;
  const uint32_t n = l.n_heads * l.head_dim;
  HeadRun run = {};
  run.from = (value && p.v != nullptr ? p.v : p.k) + row * p.kv_stride;
  run.bias = value && p.v != nullptr ? p.v_bias : p.k_bias;
  run.stride = l.head_dim;
  run.n_heads = l.n_heads;
  run.norm = value ? p.v_norm : p.norm != HeadNorm::kNone;
  run.own_rms = value || p.norm == HeadNorm::kPerHead;
  run.rotate = !value;
  run.weight = value ? nullptr : p.k_norm;
  if (!value && p.norm == HeadNorm::kWholeVector) {
    run.inverse_rms = block_inverse_rms(run.from, n, p.eps);
    run.weight_step = l.head_dim;
  }
  run_heads(p, run, row, heads);
  __syncthreads();
  rotate_stored(value ? l.v_dtype : l.k_dtype, l.head_dim, n, heads);
  store_part<kByHead>(p, br, value, heads);
}

template <bool kByHead>
__global__ void __launch_bounds__(kThreads) qkv_kernel(const __grid_constant__ QkvParams p) {
  extern __shared__ float heads[];
  grid_dependents_launch();
  grid_dependency_wait();
  const uint32_t row = blockIdx.x, n_query_parts = (p.n_heads + kWarps - 1) / kWarps;
  const BatchRow br = p.batch.table.rows[row];
  if (br.sequence == kNoSequence) return;
  if (blockIdx.y < n_query_parts) {
    query_part(p, br, row, blockIdx.y, heads);
  } else {
    row_part<kByHead>(p, br, row, blockIdx.y > n_query_parts, heads);
  }
}

// --- a warp per head, its elements in registers ---

constexpr uint32_t kHeadThreads = 128, kHeadWarps = kHeadThreads / 32;

__host__ __device__ constexpr uint32_t blocks_of_heads(uint32_t n_heads) {
  return (n_heads + kHeadWarps - 1) / kHeadWarps;
}

/// What the call's table says of a row. In a step every sequence has the row of its own number, so
/// nothing has to be read first to know where to read on.
struct RowPlace {
  BatchRow row;
  BatchSequence sequence;
  BatchGroup group;
};
__device__ __forceinline__ RowPlace row_place(const Batch& b, uint32_t row, uint32_t group) {
  const BatchTable& t = b.table;
  RowPlace at;
  at.row = t.rows[row];
  const uint32_t s = b.n_rows == b.n_sequences        ? row
                     : at.row.sequence == kNoSequence ? 0
                                                      : at.row.sequence;
  at.sequence = t.sequences[s];
  at.group = t.groups[s * t.n_groups + group];
  return at;
}

__device__ __forceinline__ StoredTo stored_to(const QkvParams& p, const RowPlace& at, bool value) {
  const KvLayer& l = p.kv;
  if (l.window == 0) {
    return {store_row(l, at.group, uint64_t{at.group.n_slots} + at.row.index, value), nullptr};
  }
  StoredTo to = {chunk_row(l, at.sequence.chunk_block, at.row.index, value), nullptr};
  if (p.to_ring) to.twin = store_row(l, at.group, at.row.position % at.group.ring_slots, value);
  return to;
}

/// The same of a head whose rows are in blocks of one head.
__device__ __forceinline__ StoredTo stored_alone(const QkvParams& p, const RowPlace& at,
                                                 const KvHeadRows& own, bool value) {
  const uint64_t slot = uint64_t{at.group.n_slots} - own.lag + at.row.index;
  return {head_row(p.kv, own, slot, value), nullptr};
}

/// 1 / rms of n floats, aligned to 16 bytes; all kHeadThreads threads.
__device__ __forceinline__ float whole_inverse_rms(const float* x, uint32_t n, float eps) {
  __shared__ float parts[kHeadWarps];
  float4 sum = {};
#pragma unroll 4
  for (uint32_t i = threadIdx.x * 4; i < n; i += kHeadThreads * 4) {
    const float4 v = *reinterpret_cast<const float4*>(x + i);
    sum.x = fmaf(v.x, v.x, sum.x);
    sum.y = fmaf(v.y, v.y, sum.y);
    sum.z = fmaf(v.z, v.z, sum.z);
    sum.w = fmaf(v.w, v.w, sum.w);
  }
  const float mine = head_sum((sum.x + sum.y) + (sum.z + sum.w));
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = mine;
  __syncthreads();
  float all = 0.0f;
#pragma unroll
  for (uint32_t i = 0; i < kHeadWarps; ++i) all += parts[i];
  return 1.0f / sqrtf(all / static_cast<float>(n) + eps);
}

/// Heads of a row, those of a block all queries, keys or values. What does not depend on the
/// preceding launch is read before the wait; all that does is asked for at once after it. kMore:
/// with biases, or pairs of neighbours.
template <int kPer, bool kWhole, bool kMore, bool kByHead>
__global__ void __launch_bounds__(kHeadThreads, kPer > 4                         ? 1
                                                : kWhole || (kPer == 3 && kMore) ? 10
                                                                                 : 12)
    qkv_heads_kernel(const __grid_constant__ QkvParams p) {
  constexpr uint32_t kDim = kPer * 32;
  constexpr bool kFours = kPer % 4 == 0;
  constexpr int kAngles = kPer == 16 ? 8 : kFours ? 4 : 1;
  grid_dependents_launch();
  const KvLayer& l = p.kv;
  const uint32_t row = blockIdx.x;
  const uint32_t n_query = blocks_of_heads(p.n_heads), n_stored = blocks_of_heads(l.n_heads);
  const bool query = blockIdx.y < n_query, value = blockIdx.y >= n_query + n_stored;
  const uint32_t block = blockIdx.y - (query ? 0 : n_query + (value ? n_stored : 0));
  const uint32_t n_heads = query ? p.n_heads : l.n_heads;
  const uint32_t own = block * kHeadWarps + threadIdx.x / 32, h = min(own, n_heads - 1);
  const bool norm = value ? p.v_norm : p.norm != HeadNorm::kNone;
  const float* weight = value || !norm ? nullptr : query ? p.q_norm : p.k_norm;
  if (kWhole && weight != nullptr) weight += h * kDim;
  const float* all =
      query ? p.q + row * p.q_stride : (value && p.v != nullptr ? p.v : p.k) + row * p.kv_stride;
  const float* from = all + uint64_t{h} * (query ? p.q_head_stride : kDim);
  float x[kPer], w[kPer], cos[kAngles], sin[kAngles];
  [[maybe_unused]] float bias[kMore ? kPer : 1];
  const RowPlace at = row_place(p.batch, row, l.group);
  if (weight != nullptr) {
    load_head<kPer>(weight, w);
  } else {
#pragma unroll
    for (int i = 0; i < kPer; ++i) w[i] = 1.0f;
  }
  if constexpr (kMore) {
    const float* const of = query ? p.q_bias : value && p.v != nullptr ? p.v_bias : p.k_bias;
    if (of != nullptr) {
      load_head<kPer>(of + uint64_t{h} * (query ? p.q_head_stride : kDim), bias);
    } else {
#pragma unroll
      for (int i = 0; i < kPer; ++i) bias[i] = 0.0f;
    }
  }
  if (!query && is_rotated(value ? l.v_dtype : l.k_dtype)) prefetch_q4_steps();
  grid_dependency_wait();
  load_head<kPer>(from, x);
  if (!value && p.n_half != 0 && !(kMore && p.neighbours)) load_angles<kPer>(p, row, cos, sin);
  if constexpr (kMore) {
#pragma unroll
    for (int i = 0; i < kPer; ++i) x[i] += bias[i];
  }
  const KvHeadRows* apart = nullptr;  // the head's rows, where they are in blocks of one head
  if constexpr (kByHead) apart = query ? nullptr : head_rows(at.group, h);
  const StoredTo to = query                         ? StoredTo{}
                      : kByHead && apart != nullptr ? stored_alone(p, at, *apart, value)
                                                    : stored_to(p, at, value);
  float r = 1.0f;
  if (kWhole && !value) {
    r = whole_inverse_rms(all, n_heads * kDim, p.eps);
  } else if (norm) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kPer; ++i) sum = fmaf(x[i], x[i], sum);
    r = 1.0f / sqrtf(head_sum(sum) / static_cast<float>(kDim) + p.eps);
  }
  if (own >= n_heads || at.row.sequence == kNoSequence) return;
  if (norm) {
#pragma unroll
    for (int i = 0; i < kPer; ++i) x[i] = x[i] * r * w[i];
  }
  if (kMore && p.neighbours) {
    if (!value && p.n_half != 0) rotate_neighbours<kPer>(p, row, x);
  } else if (!value && p.n_half != 0) {
    if constexpr (kFours) {
      rotate_fours(p.n_half, cos, sin, x);
    } else {
      rotate_pair(cos[0], sin[0], x);
    }
  }
  if constexpr (kMore) {
    if (query && p.temperature != 0.0f) {
      const float factor = query_factor(p, at.row.position);
#pragma unroll
      for (int i = 0; i < kPer; ++i) x[i] *= factor;
    }
  }
  if (query) {
    const uint64_t width = uint64_t{p.n_heads} * kDim, first = uint64_t{h} * kDim;
    float* captured = captured_queries(p.query_offset, at.row, at.sequence, width);
    if (captured != nullptr) store_query(captured + first, x);
    if (is_rotated(l.k_dtype)) rotate_head_by<kFours>(x, device_rotation(kDim));
    store_query(p.q_out + row * width + first, x);
    return;
  }
  if (is_rotated(value ? l.v_dtype : l.k_dtype)) rotate_head_by<kFours>(x, device_rotation(kDim));
  const bool alone = kByHead && apart != nullptr;
  store_head(value ? l.v_dtype : l.k_dtype, alone ? 0 : h * kDim, alone ? kDim : l.n_heads * kDim,
             x, to);
}

/// Reads the call's table only, so it does not wait before its work; the tables it writes have no
/// reader before it in the call.
__global__ void rope_table_kernel(const __grid_constant__ RopeTableParams p) {
  grid_dependents_launch();
  const uint32_t row = blockIdx.x;
  const BatchRow br = p.batch.table.rows[row];
  if (br.sequence != kNoSequence) {
    for (uint32_t j = threadIdx.x; j < p.n_half; j += blockDim.x) {
      double s, c;
      sincos(static_cast<double>(br.position) * p.inv_freq[j], &s, &c);
      p.cos[uint64_t{row} * p.n_half + j] = static_cast<float>(c * static_cast<double>(p.mscale));
      p.sin[uint64_t{row} * p.n_half + j] = static_cast<float>(s * static_cast<double>(p.mscale));
    }
  }
  grid_dependency_wait();
}

/// Moves 2 bytes at a time at least; rows are multiples of 2 and equally aligned in both places
/// when their size is.
__device__ __forceinline__ void copy_row(std::byte* to, const std::byte* from, uint32_t bytes) {
  if (bytes % 16 == 0) {
    for (uint32_t i = threadIdx.x * 16; i < bytes; i += blockDim.x * 16) {
      *reinterpret_cast<uint4*>(to + i) = *reinterpret_cast<const uint4*>(from + i);
    }
    return;
  }
  for (uint32_t i = threadIdx.x * 2; i < bytes; i += blockDim.x * 2) {
    *reinterpret_cast<uint16_t*>(to + i) = *reinterpret_cast<const uint16_t*>(from + i);
  }
}

__global__ void ring_flush_kernel(const __grid_constant__ RingFlushParams p) {
  grid_dependents_launch();
  grid_dependency_wait();
  const BatchRow br = p.batch.table.rows[blockIdx.x];
  if (br.sequence == kNoSequence) return;
  const BatchSequence& s = p.batch.table.sequences[br.sequence];
  const BatchGroup& g = p.batch.table.groups[br.sequence * p.batch.table.n_groups + p.kv.group];
  if (br.index + g.ring_slots < s.n_rows) return;
  const uint64_t slot = br.position % g.ring_slots;
  copy_row(store_row(p.kv, g, slot, false), chunk_row(p.kv, s.chunk_block, br.index, false),
           p.kv.k_row_bytes);
  copy_row(store_row(p.kv, g, slot, true), chunk_row(p.kv, s.chunk_block, br.index, true),
           p.kv.v_row_bytes);
}

Status check_codecs(const KvLayer& l, const char* kernel) {
  for (const KvDtype d : {l.k_dtype, l.v_dtype}) {
    if (!is_kv_codec(d)) {
      return Status::error(Code::kInternal, "kernel %s does not know KV codec %u", kernel,
                           static_cast<uint32_t>(d));
    }
  }
  return Status::ok();
}

/// qkv_in_registers(), where what is read in pieces of 16 bytes is aligned.
bool fits_registers(const QkvParams& p) {
  const uint32_t dim = p.kv.head_dim;
  if (!qkv_in_registers(dim, p.n_half)) return false;
  if (dim < 128) return true;
  const void* const read[] = {p.q,   p.k,   p.v,     p.q_norm, p.k_norm, p.q_bias,
                              p.cos, p.sin, p.q_out, p.k_bias, p.v_bias};
  for (const void* x : read) {
    if (reinterpret_cast<uintptr_t>(x) % 16 != 0) return false;
  }
  return p.q_stride % 4 == 0 && p.q_head_stride % 4 == 0 && p.kv_stride % 4 == 0;
}

Status check_qkv(const QkvParams& p) {
  const uint32_t dim = p.kv.head_dim;
  if (p.batch.n_rows == 0 || p.n_heads == 0 || dim == 0 || dim % 8 != 0 || dim > 512 ||
      2 * p.n_half > dim || p.q == nullptr || p.q_out == nullptr || p.q == p.q_out ||
      p.q_head_stride < dim) {
    return Status::error(
        Code::kInternal,
        "kernel qkv cannot take %u rows of %u heads of %u elements, of which %u are rotated",
        p.batch.n_rows, p.n_heads, dim, 2 * p.n_half);
  }
  if (p.norm != HeadNorm::kNone && (p.q_norm == nullptr || (p.k != nullptr && !p.k_norm))) {
    return Status::error(Code::kInternal, "kernel qkv lacks the weights of a norm");
  }
  if (p.norm == HeadNorm::kWholeVector && p.q_head_stride != dim) {
    return Status::error(Code::kInternal,
                         "kernel qkv cannot take a norm of whole vectors of gated queries");
  }
  if (p.norm == HeadNorm::kWholeVector && (p.q_bias || p.k_bias || p.v_bias)) {
    return Status::error(Code::kInternal,
                         "kernel qkv cannot take a norm of whole vectors behind biases");
  }
  if (p.k == nullptr) return Status::ok();
  const bool fits = fits_registers(p) || qkv_bytes(p.kv.n_heads, dim) <= kMostQkvBytes;
  if (p.kv.n_heads == 0 || !fits || (p.kv.window != 0 && !p.kv.chunk)) {
    return Status::error(Code::kInternal, "kernel qkv cannot take %u KV heads of %u elements",
                         p.kv.n_heads, dim);
  }
  return check_codecs(p.kv, "qkv");
}

template <int kPer>
Status launch_heads(const QkvParams& p, bool pdl, cudaStream_t stream) {
  const uint32_t n_stored = p.k != nullptr ? 2 * blocks_of_heads(p.kv.n_heads) : 0;
  const LaunchShape shape = {dim3(p.batch.n_rows, blocks_of_heads(p.n_heads) + n_stored),
                             dim3(kHeadThreads), 0, stream, pdl};
  if (p.by_head) {
    return launch_kernel("qkv", shape,
                         p.norm == HeadNorm::kWholeVector
                             ? qkv_heads_kernel<kPer, true, true, true>
                             : qkv_heads_kernel<kPer, false, true, true>,
                         p);
  }
  const bool more = p.neighbours || p.temperature != 0.0f || p.q_bias != nullptr ||
                    p.k_bias != nullptr || p.v_bias != nullptr;
  if (p.norm == HeadNorm::kWholeVector) {
    return launch_kernel("qkv", shape,
                         more ? qkv_heads_kernel<kPer, true, true, false>
                              : qkv_heads_kernel<kPer, true, false, false>,
                         p);
  }
  return launch_kernel("qkv", shape,
                       more ? qkv_heads_kernel<kPer, false, true, false>
                            : qkv_heads_kernel<kPer, false, false, false>,
                       p);
}

}  // namespace

Status launch_rope_table(const RopeTableParams& p, bool pdl, cudaStream_t stream) {
  if (p.batch.n_rows == 0 || p.n_half == 0 || p.inv_freq == nullptr || p.cos == nullptr ||
      p.sin == nullptr) {
    return Status::error(Code::kInternal,
                         "kernel rope_table cannot take %u rows of %u angles, or lacks an operand",
                         p.batch.n_rows, p.n_half);
  }
  const uint32_t threads = p.n_half < 128 ? (p.n_half + 31) / 32 * 32 : 128;
  const LaunchShape shape = {dim3(p.batch.n_rows), dim3(threads), 0, stream, pdl};
  return launch_kernel("rope_table", shape, rope_table_kernel, p);
}

Status launch_qkv(const QkvParams& p, bool pdl, cudaStream_t stream) {
  SHARPI_TRY(check_qkv(p));
  if (fits_registers(p)) {
    switch (p.kv.head_dim) {
      case 64:
        return launch_heads<2>(p, pdl, stream);
      case 96:
        return launch_heads<3>(p, pdl, stream);
      case 128:
        return launch_heads<4>(p, pdl, stream);
      case 256:
        return launch_heads<8>(p, pdl, stream);
      default:
        return launch_heads<16>(p, pdl, stream);
    }
  }
  const uint32_t parts = (p.n_heads + kWarps - 1) / kWarps + (p.k != nullptr ? 2 : 0);
  LaunchShape shape = {dim3(p.batch.n_rows, parts), dim3(kThreads), 0, stream, pdl};
  shape.shared_bytes = qkv_bytes(p.k != nullptr ? p.kv.n_heads : 0, p.kv.head_dim);
  return launch_kernel("qkv", shape, p.by_head ? qkv_kernel<true> : qkv_kernel<false>, p);
}

Status launch_ring_flush(const RingFlushParams& p, bool pdl, cudaStream_t stream) {
  if (p.batch.n_rows == 0 || p.kv.window == 0 || p.kv.chunk == nullptr) {
    return Status::error(Code::kInternal,
                         "kernel ring_flush cannot take a window of %u, or lacks rows",
                         p.kv.window);
  }
  SHARPI_TRY(check_codecs(p.kv, "ring_flush"));
  const LaunchShape shape = {dim3(p.batch.n_rows), dim3(128), 0, stream, pdl};
  return launch_kernel("ring_flush", shape, ring_flush_kernel, p);
}

}  // namespace sharpi::cuda
