// SPDX-License-Identifier: MIT
// The gated delta net as the exact recurrence.
//   decode   one launch: a block per head and session holds the head's state in registers,
//   convolves
//            its own channels, and applies norm and gate.
//   rows     three launches: convolution of all rows; the recurrence with 32 rows of the state per
//            block in registers from the first token to the last, keys and queries streamed through
//            shared memory; norm and gate.
#include "cuda/kernels/delta_common.cuh"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/ptx.cuh"

namespace sharpi::cuda {
namespace {

constexpr uint32_t kDecodeThreads = 512, kDecodeWarps = kDecodeThreads / 32;
constexpr uint32_t kRowThreads = 256;

// --- decode ---

template <int kDim>
struct DecodeShared {
  float q[kDim], k[kDim], v[kDim], o[kDim];
  float kq, sum;
};

template <int kDim>
__device__ __forceinline__ void decode_conv(const DeltaNetParams& p, const BatchSequence& s,
                                            uint32_t head, DecodeShared<kDim>* sh) {
  const uint32_t key = head % p.shape.n_k_heads;
  const ConvSource source = conv_source(p, s);
  auto* tail = reinterpret_cast<float*>(s.state_out + p.conv_offset);
  for (uint32_t i = threadIdx.x; i < 3 * kDim; i += kDecodeThreads) {
    const uint32_t part = i / kDim, c = i % kDim;
    const uint32_t channel = part == 2 ? 2 * p.shape.key_dim() + head * kDim + c
                                       : part * p.shape.key_dim() + key * kDim + c;
    (part == 0 ? sh->q : part == 1 ? sh->k : sh->v)[c] = conv_value(source, p.conv1d, 0, channel);
    if (part == 2 || head == key) {
      for (uint32_t t = 0; t + 1 < source.kernel; ++t) {
        tail[t * source.dim + channel] = raw_value(
            source, static_cast<int32_t>(t + 2) - static_cast<int32_t>(source.kernel), channel);
      }
    }
  }
  __syncthreads();
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp < 2) {
    float* x = warp == 0 ? sh->q : sh->k;
    float sum = 0.0f;
    for (uint32_t c = lane; c < kDim; c += 32) sum = fmaf(x[c], x[c], sum);
    const float norm = fmaxf(sqrtf(delta_warp_sum(sum)), p.eps);
    const float f = (warp == 0 ? rsqrtf(static_cast<float>(kDim)) : 1.0f) / norm;
    for (uint32_t c = lane; c < kDim; c += 32) x[c] *= f;
  }
  __syncthreads();
  if (warp == 0) {
    float sum = 0.0f;
    for (uint32_t c = lane; c < kDim; c += 32) sum = fmaf(sh->k[c], sh->q[c], sum);
    sum = delta_warp_sum(sum);
    if (lane == 0) sh->kq = sum;
  }
  __syncthreads();
}

template <int kDim>
__global__ void __launch_bounds__(kDecodeThreads, 1)
    delta_decode_kernel(const __grid_constant__ DeltaNetParams p) {
  constexpr int kRows = kDim / static_cast<int>(kDecodeWarps), kPer = kDim / 32;
  __shared__ DecodeShared<kDim> sh;
  grid_dependents_launch();
  grid_dependency_wait();
  const uint32_t head = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const BatchSequence s = p.batch.table.sequences[blockIdx.y];
  if (s.n_rows == 0) return;
  const uint64_t row = s.first_row, at = uint64_t{head} * kDim * kDim;
  const float* from = reinterpret_cast<const float*>(s.state_in + p.state_offset) + at;
  float* to = reinterpret_cast<float*>(s.state_out + p.state_offset) + at;
  struct alignas(kPer * 4) Part {
    float x[kPer];
  };
  Part state[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    state[r] = reinterpret_cast<const Part*>(from + (warp * kRows + r) * kDim)[lane];
  }
  const float decay = expf(log_decay(p, row, head)), beta = write_strength(p, row, head);
  decode_conv<kDim>(p, s, head, &sh);
  const Part k = reinterpret_cast<const Part*>(sh.k)[lane],
             q = reinterpret_cast<const Part*>(sh.q)[lane];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const uint32_t j = warp * kRows + r;
    float sk = 0.0f, sq = 0.0f;
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      sk = fmaf(state[r].x[i], k.x[i], sk);
      sq = fmaf(state[r].x[i], q.x[i], sq);
    }
    sk = delta_warp_sum(sk);
    sq = delta_warp_sum(sq);
    const float d = beta * (sh.v[j] - decay * sk);
    if (lane == 0) sh.o[j] = fmaf(d, sh.kq, decay * sq);
    Part next;
#pragma unroll
    for (int i = 0; i < kPer; ++i) next.x[i] = fmaf(d, k.x[i], decay * state[r].x[i]);
    reinterpret_cast<Part*>(to + j * kDim)[lane] = next;
  }
  __syncthreads();
  if (warp == 0) {
    float sum = 0.0f;
    for (uint32_t c = lane; c < kDim; c += 32) sum = fmaf(sh.o[c], sh.o[c], sum);
    sum = delta_warp_sum(sum);
    if (lane == 0) sh.sum = 1.0f / sqrtf(sum / static_cast<float>(kDim) + p.eps);
  }
  __syncthreads();
  const uint64_t out = row * p.shape.value_dim() + head * kDim;
  for (uint32_t c = threadIdx.x; c < kDim; c += kDecodeThreads) {
    p.out[out + c] = sh.o[c] * sh.sum * p.norm[c] * silu(p.z[out + c]);
  }
}

// --- rows ---

/// The new conv tail: raw rows [n_rows - kernel + 1, n_rows), older ones from the old tail.
__device__ __forceinline__ void write_tail(const DeltaNetParams& p, const BatchSequence& s,
                                           const ConvSource& source, uint32_t index) {
  auto* tail = reinterpret_cast<float*>(s.state_out + p.conv_offset);
  const int32_t n_tail = static_cast<int32_t>(source.kernel) - 1;
  const int32_t n = static_cast<int32_t>(s.n_rows), mine = static_cast<int32_t>(index);
  for (int32_t t = 0; t < n_tail; ++t) {
    const int32_t from = n - n_tail + t;
    if (from != mine && !(from < 0 && mine == 0)) continue;
    for (uint32_t c = threadIdx.x; c < source.dim; c += blockDim.x) {
      tail[static_cast<uint32_t>(t) * source.dim + c] = raw_value(source, from, c);
    }
  }
}

/// One warp: convolves kDim channels from c0 and returns its lane's values.
template <int kDim>
__device__ __forceinline__ void conv_head(const DeltaNetParams& p, const ConvSource& source,
                                          uint32_t index, uint32_t c0, float (&y)[kDim / 32]) {
#pragma unroll
  for (int i = 0; i < kDim / 32; ++i) {
    const uint32_t channel = c0 + threadIdx.x % 32 + 32u * static_cast<uint32_t>(i);
    y[i] = conv_value(source, p.conv1d, static_cast<int32_t>(index), channel);
  }
}
template <int kDim>
__device__ __forceinline__ float dot_head(const float (&a)[kDim / 32],
                                          const float (&b)[kDim / 32]) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kDim / 32; ++i) sum = fmaf(a[i], b[i], sum);
  return delta_warp_sum(sum);
}

template <int kDim>
__global__ void __launch_bounds__(kRowThreads)
    delta_conv_kernel(const __grid_constant__ DeltaArgs a) {
  const DeltaNetParams& p = a.p;
  grid_dependents_launch();
  grid_dependency_wait();
  const uint32_t row = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const BatchRow br = p.batch.table.rows[row];
  if (br.sequence == kNoSequence) return;
  const BatchSequence& s = p.batch.table.sequences[br.sequence];
  const ConvSource source = conv_source(p, s);
  const uint32_t n_k = p.shape.n_k_heads, n_v = p.shape.n_v_heads, key_dim = p.shape.key_dim();
  float* to = a.qkv + uint64_t{row} * source.dim;
  for (uint32_t item = warp; item < n_k + n_v; item += kRowThreads / 32) {
    float x[kDim / 32];
    if (item >= n_k) {
      const uint32_t c0 = 2 * key_dim + (item - n_k) * kDim;
      conv_head<kDim>(p, source, br.index, c0, x);
#pragma unroll
      for (int i = 0; i < kDim / 32; ++i) to[c0 + lane + 32u * static_cast<uint32_t>(i)] = x[i];
      continue;
    }
    float k[kDim / 32];
    conv_head<kDim>(p, source, br.index, item * kDim, x);
    conv_head<kDim>(p, source, br.index, key_dim + item * kDim, k);
    const float fq = rsqrtf(static_cast<float>(kDim)) / fmaxf(sqrtf(dot_head<kDim>(x, x)), p.eps);
    const float fk = 1.0f / fmaxf(sqrtf(dot_head<kDim>(k, k)), p.eps);
#pragma unroll
    for (int i = 0; i < kDim / 32; ++i) {
      x[i] *= fq;
      k[i] *= fk;
      to[item * kDim + lane + 32u * static_cast<uint32_t>(i)] = x[i];
      to[key_dim + item * kDim + lane + 32u * static_cast<uint32_t>(i)] = k[i];
    }
    const float kq = dot_head<kDim>(x, k);
    if (lane == 0) a.kq[uint64_t{row} * n_k + item] = kq;
  }
  for (uint32_t h = threadIdx.x; h < n_v; h += kRowThreads) {
    float* gate = a.gate + (uint64_t{row} * n_v + h) * 2;
    gate[0] = log_decay(p, row, h);
    gate[1] = write_strength(p, row, h);
  }
  write_tail(p, s, source, br.index);
}

constexpr int kTokens = 16;     // of a stage in shared memory
constexpr int kStateRows = 32;  // value channels of a block, 8 lanes each

template <int kDim>
struct RowsStage {
  float k[kTokens][kDim], q[kTokens][kDim];
  float v[kTokens][kStateRows];
  float decay[kTokens], beta[kTokens], kq[kTokens];
};

/// Tokens [t0, t0 + kTokens) of the sequence; those past its end are left out. One commit group.
template <int kDim>
__device__ __forceinline__ void load_stage(const DeltaArgs& a, const BatchSequence& s,
                                           uint32_t head, uint32_t j0, uint32_t t0,
                                           RowsStage<kDim>* stage) {
  const DeltaNetShape& shape = a.p.shape;
  const uint32_t n = min(static_cast<uint32_t>(kTokens), s.n_rows - t0);
  const uint32_t key = head % shape.n_k_heads;
  const float* rows = a.qkv + (uint64_t{s.first_row} + t0) * shape.conv_dim();
  constexpr uint32_t kPieces = kDim / 4, kValuePieces = kStateRows / 4;
  constexpr uint32_t kAll = 2 * kPieces + kValuePieces;
  for (uint32_t i = threadIdx.x; i < n * kAll; i += kRowThreads) {
    const uint32_t t = i / kAll, piece = i % kAll;
    const float* row = rows + uint64_t{t} * shape.conv_dim();
    if (piece < kPieces) {
      cp_async_16(shared_address(&stage->q[t][piece * 4]), row + key * kDim + piece * 4);
    } else if (piece < 2 * kPieces) {
      const uint32_t c = (piece - kPieces) * 4;
      cp_async_16(shared_address(&stage->k[t][c]), row + shape.key_dim() + key * kDim + c);
    } else {
      const uint32_t c = (piece - 2 * kPieces) * 4;
      cp_async_16(shared_address(&stage->v[t][c]),
                  row + 2 * shape.key_dim() + head * kDim + j0 + c);
    }
  }
  if (threadIdx.x < n) {
    const uint64_t row = uint64_t{s.first_row} + t0 + threadIdx.x;
    const float* gate = a.gate + (row * shape.n_v_heads + head) * 2;
    stage->decay[threadIdx.x] = expf(gate[0]);
    stage->beta[threadIdx.x] = gate[1];
    stage->kq[threadIdx.x] = a.kq[row * shape.n_k_heads + key];
  }
  cp_async_commit();
}

template <int kDim>
__global__ void __launch_bounds__(kRowThreads)
    delta_rows_kernel(const __grid_constant__ DeltaArgs a) {
  constexpr int kPer = kDim / 32;  // groups of four keys per lane
  __shared__ RowsStage<kDim> stages[2];
  grid_dependents_launch();
  grid_dependency_wait();
  const DeltaNetParams& p = a.p;
  const BatchSequence s = p.batch.table.sequences[blockIdx.z];
  if (s.n_rows == 0) return;
  const uint32_t head = blockIdx.x, j0 = blockIdx.y * kStateRows;
  const uint32_t lane = threadIdx.x % 8, j = threadIdx.x / 8;
  const uint64_t at = (uint64_t{head} * kDim + j0 + j) * kDim;
  const auto* from = reinterpret_cast<const float4*>(
      reinterpret_cast<const float*>(s.state_in + p.state_offset) + at);
  float4 state[kPer];
#pragma unroll
  for (int i = 0; i < kPer; ++i) state[i] = from[lane + 8u * static_cast<uint32_t>(i)];
  float* out = p.out + uint64_t{s.first_row} * p.shape.value_dim() + head * kDim + j0 + j;
  load_stage<kDim>(a, s, head, j0, 0, &stages[0]);
  for (uint32_t t0 = 0, turn = 0; t0 < s.n_rows; t0 += kTokens, turn ^= 1) {
    if (t0 + kTokens < s.n_rows) {
      load_stage<kDim>(a, s, head, j0, t0 + kTokens, &stages[turn ^ 1]);
      cp_async_wait<1>();
    } else {
      cp_async_wait<0>();
    }
    __syncthreads();
    const RowsStage<kDim>& stage = stages[turn];
    const uint32_t n = min(static_cast<uint32_t>(kTokens), s.n_rows - t0);
#pragma unroll 1
    for (uint32_t t = 0; t < n; ++t) {
      float4 k[kPer];
      float sk[4] = {}, sq[4] = {};
#pragma unroll
      for (int i = 0; i < kPer; ++i) {
        k[i] = reinterpret_cast<const float4*>(stage.k[t])[lane + 8u * static_cast<uint32_t>(i)];
        const float4 q =
            reinterpret_cast<const float4*>(stage.q[t])[lane + 8u * static_cast<uint32_t>(i)];
        sk[0] = fmaf(state[i].x, k[i].x, sk[0]);
        sk[1] = fmaf(state[i].y, k[i].y, sk[1]);
        sk[2] = fmaf(state[i].z, k[i].z, sk[2]);
        sk[3] = fmaf(state[i].w, k[i].w, sk[3]);
        sq[0] = fmaf(state[i].x, q.x, sq[0]);
        sq[1] = fmaf(state[i].y, q.y, sq[1]);
        sq[2] = fmaf(state[i].z, q.z, sq[2]);
        sq[3] = fmaf(state[i].w, q.w, sq[3]);
      }
      float k_sum = (sk[0] + sk[1]) + (sk[2] + sk[3]), q_sum = (sq[0] + sq[1]) + (sq[2] + sq[3]);
#pragma unroll
      for (int d = 4; d > 0; d /= 2) {
        k_sum += __shfl_xor_sync(0xFFFFFFFFu, k_sum, d);
        q_sum += __shfl_xor_sync(0xFFFFFFFFu, q_sum, d);
      }
      const float decay = stage.decay[t];
      const float d = stage.beta[t] * (stage.v[t][j] - decay * k_sum);
      if (lane == 0) {
        out[uint64_t{t0 + t} * p.shape.value_dim()] = fmaf(d, stage.kq[t], decay * q_sum);
      }
#pragma unroll
      for (int i = 0; i < kPer; ++i) {
        state[i].x = fmaf(d, k[i].x, decay * state[i].x);
        state[i].y = fmaf(d, k[i].y, decay * state[i].y);
        state[i].z = fmaf(d, k[i].z, decay * state[i].z);
        state[i].w = fmaf(d, k[i].w, decay * state[i].w);
      }
    }
    __syncthreads();
  }
  auto* to = reinterpret_cast<float4*>(reinterpret_cast<float*>(s.state_out + p.state_offset) + at);
#pragma unroll
  for (int i = 0; i < kPer; ++i) to[lane + 8u * static_cast<uint32_t>(i)] = state[i];
}

/// out := rms(out, norm) * silu(z), a warp per row and head.
template <int kDim>
__global__ void __launch_bounds__(kRowThreads)
    delta_gate_kernel(const __grid_constant__ DeltaNetParams p) {
  grid_dependents_launch();
  grid_dependency_wait();
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t head = blockIdx.y * (kRowThreads / 32) + threadIdx.x / 32;
  if (head >= p.shape.n_v_heads || p.batch.table.rows[blockIdx.x].sequence == kNoSequence) return;
  const uint64_t at = uint64_t{blockIdx.x} * p.shape.value_dim() + head * kDim;
  float x[kDim / 32];
#pragma unroll
  for (int i = 0; i < kDim / 32; ++i) x[i] = p.out[at + lane + 32u * static_cast<uint32_t>(i)];
  const float r = 1.0f / sqrtf(dot_head<kDim>(x, x) / static_cast<float>(kDim) + p.eps);
#pragma unroll
  for (int i = 0; i < kDim / 32; ++i) {
    const uint32_t c = lane + 32u * static_cast<uint32_t>(i);
    p.out[at + c] = x[i] * r * p.norm[c] * silu(p.z[at + c]);
  }
}

template <int kDim>
Status run_rows(const MatmulConfig& config, const DeltaArgs& a, cudaStream_t stream) {
  const DeltaNetParams& p = a.p;
  const uint32_t n_v = p.shape.n_v_heads;
  LaunchShape shape = {dim3(p.batch.n_rows), dim3(kRowThreads), 0, stream, config.pdl};
  SHARPI_TRY(launch_kernel("delta_conv", shape, delta_conv_kernel<kDim>, a));
  shape.grid = dim3(n_v, kDim / kStateRows, p.batch.n_sequences);
  SHARPI_TRY(launch_kernel("delta_rows", shape, delta_rows_kernel<kDim>, a));
  shape.grid = dim3(p.batch.n_rows, (n_v * 32 + kRowThreads - 1) / kRowThreads);
  return launch_kernel("delta_gate", shape, delta_gate_kernel<kDim>, p);
}

template <int kDim>
Status run(const MatmulConfig& config, const DeltaArgs& a, cudaStream_t stream) {
  const DeltaNetParams& p = a.p;
  // One kernel family for every row count where a row's bits must not depend on it.
  if (config.deterministic || p.batch.n_rows != p.batch.n_sequences)
    return run_rows<kDim>(config, a, stream);
  const LaunchShape shape = {dim3(p.shape.n_v_heads, p.batch.n_sequences), dim3(kDecodeThreads), 0,
                             stream, config.pdl};
  return launch_kernel("delta_decode", shape, delta_decode_kernel<kDim>, p);
}

uint64_t aligned(uint64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

Status check(const DeltaNetParams& p) {
  const DeltaNetShape& s = p.shape;
  if (s.n_k_heads == 0 || s.n_v_heads == 0 || s.n_v_heads % s.n_k_heads != 0 || s.conv_kernel < 2 ||
      s.conv_kernel > 4) {
    return Status::error(Code::kUnsupported,
                         "kernel delta_net: %u key heads, %u value heads, convolution over %u",
                         s.n_k_heads, s.n_v_heads, s.conv_kernel);
  }
  if (p.batch.n_rows == 0 || p.batch.n_sequences == 0 || p.qkv == nullptr || p.z == nullptr ||
      p.out == nullptr || p.state_offset % 16 != 0 || p.conv_offset % 16 != 0) {
    return Status::error(Code::kInternal, "kernel delta_net: operands are missing or unaligned");
  }
  if (p.batch.n_rows != p.batch.n_sequences &&
      (p.workspace == nullptr ||
       p.workspace_bytes < delta_net_workspace_bytes(s, p.batch.n_rows))) {
    return Status::error(Code::kInternal, "kernel delta_net: workspace of %llu bytes is too small",
                         static_cast<unsigned long long>(p.workspace_bytes));
  }
  return Status::ok();
}

}  // namespace

Status prepare_delta_net(const MatmulConfig&) {
  return Status::ok();
}

uint64_t delta_net_workspace_bytes(const DeltaNetShape& s, uint32_t max_rows) {
  return aligned(uint64_t{max_rows} * s.conv_dim() * sizeof(float)) +
         aligned(uint64_t{max_rows} * s.n_v_heads * 2 * sizeof(float)) +
         aligned(uint64_t{max_rows} * s.n_k_heads * sizeof(float));
}

Status launch_delta_net(const MatmulConfig& config, const DeltaNetParams& p, cudaStream_t stream) {
  SHARPI_TRY(check(p));
  DeltaArgs a = {};
  a.p = p;
  std::byte* at = p.workspace;
  a.qkv = reinterpret_cast<float*>(at);
  at += aligned(uint64_t{p.batch.n_rows} * p.shape.conv_dim() * sizeof(float));
  a.gate = reinterpret_cast<float*>(at);
  at += aligned(uint64_t{p.batch.n_rows} * p.shape.n_v_heads * 2 * sizeof(float));
  a.kq = reinterpret_cast<float*>(at);
  switch (p.shape.head_dim) {
    case 32:
      return run<32>(config, a, stream);
    case 64:
      return run<64>(config, a, stream);
    case 128:
      return run<128>(config, a, stream);
    default:
      return Status::error(Code::kUnsupported, "kernel delta_net: heads of %u elements",
                           p.shape.head_dim);
  }
}

}  // namespace sharpi::cuda
