// SPDX-License-Identifier: MIT
// The gated delta net as the exact recurrence.
//   decode   one launch (delta_decode.cuh; delta_few.cuh where sessions may draft, which is also
//            what verifies drafts).
//   rows     three launches: convolution of all rows; the recurrence with 32 rows of the state per
//            block in registers from the first token to the last, keys and queries streamed through
//            shared memory; norm and gate. Before them, where sessions may draft: what is pending.
#include "cuda/kernels/delta/delta_common.cuh"
#include "cuda/kernels/delta/delta_decode.cuh"
#include "cuda/kernels/delta/delta_few.cuh"
#include "cuda/kernels/delta/delta_replay.cuh"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/paths.h"
#include "cuda/kernels/ptx.cuh"

namespace sharpi::cuda {
namespace {

constexpr uint32_t kRowThreads = 256;

// --- rows ---

/// The new conv tail: raw rows [n - kernel + 1, n), older ones from what was before the call. n:
/// the rows that the working state has; of drafts none.
__device__ __forceinline__ void write_tail(const DeltaNetParams& p, const BatchSequence& s,
                                           const ConvSource& source, uint32_t index) {
  auto* tail = reinterpret_cast<float*>(s.state_out + p.conv_offset);
  const int32_t n_tail = static_cast<int32_t>(source.kernel) - 1;
  const bool drafted = is_drafted(p, s);
  if (drafted && source.n_pending == 0) return;
  const int32_t n = drafted ? 0 : static_cast<int32_t>(s.n_rows);
  const auto mine = static_cast<int32_t>(index);
  for (int32_t t = 0; t < n_tail; ++t) {
    const int32_t from = n - n_tail + t;
    if (from != mine && !(from < 0 && mine == 0)) continue;
    for (uint32_t c = threadIdx.x; c < source.dim; c += blockDim.x) {
      tail[static_cast<uint32_t>(t) * source.dim + c] = raw_value(source, from, c);
    }
  }
}

constexpr uint32_t kConvRows = 16;  // of a block

__device__ __forceinline__ void gates_and_tails(const DeltaArgs& a, uint32_t r0, uint32_t r1) {
  const DeltaNetParams& p = a.p;
  const uint32_t n_v = p.shape.n_v_heads;
  for (uint32_t i = threadIdx.x; i < (r1 - r0) * n_v; i += kRowThreads) {
    const uint32_t row = r0 + i / n_v, h = i % n_v;
    float* gate = a.gate + (uint64_t{row} * n_v + h) * 2;
    const float g = log_decay(p, row, h);
    gate[0] = a.q16 != nullptr ? g : expf(g);
    gate[1] = write_strength(p, row, h);
    if (!p.drafted) continue;
    const BatchRow br = p.batch.table.rows[row];
    if (br.sequence == kNoSequence) continue;
    const BatchSequence& s = p.batch.table.sequences[br.sequence];
    if (!is_drafted(p, s)) continue;
    const KeptPlanes<float> keep = kept_planes(p, s, s.keep);
    keep.alpha[br.index * n_v + h] = p.alpha[uint64_t{row} * n_v + h];
    keep.beta[br.index * n_v + h] = p.beta[uint64_t{row} * n_v + h];
  }
  for (uint32_t row = r0; row < r1; ++row) {
    const BatchRow br = p.batch.table.rows[row];
    if (br.sequence == kNoSequence) continue;
    const BatchSequence& s = p.batch.table.sequences[br.sequence];
    if (br.index == 0 || br.index + p.shape.conv_kernel > s.n_rows) {
      write_tail(p, s, conv_source(p, s), br.index);
    }
  }
}

/// A warp per key head (its q and k) or value head, kConvRows rows one after the other.
template <int kDim>
__global__ void __launch_bounds__(kRowThreads)
    delta_conv_kernel(const __grid_constant__ DeltaArgs a) {
  constexpr int kPer = kDim / 32;
  const DeltaNetParams& p = a.p;
  grid_dependents_launch();
  const uint32_t lane = threadIdx.x % 32, n_k = p.shape.n_k_heads, n_v = p.shape.n_v_heads;
  const uint32_t item = blockIdx.y * (kRowThreads / 32) + threadIdx.x / 32;
  const uint32_t key_dim = p.shape.key_dim();
  const bool is_key = item < n_k, is_value = !is_key && item < n_k + n_v;
  ConvHead<kDim> first, second;  // q and k, or v alone
  if (is_key || is_value) first.start(p, is_key ? item * kDim : 2 * key_dim + (item - n_k) * kDim);
  if (is_key) second.start(p, key_dim + item * kDim);
  grid_dependency_wait();
  const uint32_t r0 = blockIdx.x * kConvRows, r1 = min(r0 + kConvRows, p.batch.n_rows);
  if (blockIdx.y + 1 == gridDim.y) return gates_and_tails(a, r0, r1);
  if (!is_key && !is_value) return;
  uint32_t sequence = kNoSequence;
  ConvSource source = {};
  float* keep = nullptr;
#pragma unroll 4
  for (uint32_t row = r0; row < r1; ++row) {
    const BatchRow br = p.batch.table.rows[row];
    if (br.sequence == kNoSequence) continue;
    if (br.sequence != sequence) {
      sequence = br.sequence;
      const BatchSequence& s = p.batch.table.sequences[sequence];
      source = conv_source(p, s);
      keep = is_drafted(p, s) ? kept_planes(p, s, s.keep).qkv : nullptr;
      first.seek(source, static_cast<int32_t>(br.index));
      if (is_key) second.seek(source, static_cast<int32_t>(br.index));
    }
    float x[kPer], k[kPer];
    float* to = a.qkv + uint64_t{row} * p.shape.conv_dim();
    first.next(source, row, x);
    if (keep != nullptr) first.keep(keep + uint64_t{br.index} * source.dim);
    if (is_value) {
#pragma unroll
      for (int i = 0; i < kPer; ++i) to[first.channel(i)] = x[i];
      continue;
    }
    second.next(source, row, k);
    if (keep != nullptr) second.keep(keep + uint64_t{br.index} * source.dim);
    const float fq = rsqrtf(static_cast<float>(kDim)) / fmaxf(sqrtf(dot_head<kDim>(x, x)), p.eps);
    const float fk = 1.0f / fmaxf(sqrtf(dot_head<kDim>(k, k)), p.eps);
#pragma unroll
    for (int i = 0; i < kPer; ++i) x[i] *= fq, k[i] *= fk;
    if (a.q16 != nullptr) {
      const uint64_t at = uint64_t{row} * key_dim;
#pragma unroll
      for (int i = 0; i < kPer; ++i) {
        a.q16[at + first.channel(i)] = __float2half_rn(x[i]);
        a.k16[at + first.channel(i)] = __float2half_rn(k[i]);
      }
      continue;
    }
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      to[first.channel(i)] = x[i];
      to[second.channel(i)] = k[i];
    }
    const float kq = dot_head<kDim>(x, k);
    if (lane == 0) a.kq[uint64_t{row} * n_k + item] = kq;
  }
}

constexpr int kTokens = 16;  // of a stage in shared memory

template <int kDim>
struct RowsStage {
  float k[kTokens][kDim], q[kTokens][kDim];
  float v[kTokens][kStateRows];
  float gate[kTokens][2];  // decay, beta
  float kq[kTokens];
};

/// Tokens [t0, t0 + kTokens) of the sequence; those past its end are left out. One commit group.
template <int kDim>
__device__ __forceinline__ void load_stage(const DeltaArgs& a, const BatchSequence& s,
                                           uint32_t head, uint32_t j0, uint32_t t0,
                                           RowsStage<kDim>* stage) {
  const DeltaNetShape& shape = a.p.shape;
  const uint32_t n = min(static_cast<uint32_t>(kTokens), s.n_rows - t0);
  const uint32_t key = shape.key_of(head);
  const uint64_t row0 = uint64_t{s.first_row} + t0;
  const float* rows = a.qkv + row0 * shape.conv_dim();
  constexpr uint32_t kPieces = kDim / 4, kValuePieces = kStateRows / 4;
  for (uint32_t i = threadIdx.x; i < n * kPieces; i += kScanThreads) {
    const uint32_t t = i / kPieces, c = i % kPieces * 4;
    const float* row = rows + uint64_t{t} * shape.conv_dim() + key * kDim + c;
    cp_async_16(shared_address(&stage->q[t][c]), row);
    cp_async_16(shared_address(&stage->k[t][c]), row + shape.key_dim());
  }
  for (uint32_t i = threadIdx.x; i < n * kValuePieces; i += kScanThreads) {
    const uint32_t t = i / kValuePieces, c = i % kValuePieces * 4;
    cp_async_16(shared_address(&stage->v[t][c]),
                rows + uint64_t{t} * shape.conv_dim() + 2 * shape.key_dim() + head * kDim + j0 + c);
  }
  if (threadIdx.x < n) {
    const uint64_t row = row0 + threadIdx.x;
    const float* gate = a.gate + (row * shape.n_v_heads + head) * 2;
    cp_async_4(shared_address(&stage->gate[threadIdx.x][0]), gate);
    cp_async_4(shared_address(&stage->gate[threadIdx.x][1]), gate + 1);
    cp_async_4(shared_address(&stage->kq[threadIdx.x]), a.kq + row * shape.n_k_heads + key);
  }
  cp_async_commit();
}

template <int kDim>
__global__ void __launch_bounds__(kScanThreads)
    delta_rows_kernel(const __grid_constant__ DeltaArgs a) {
  __shared__ __align__(16) RowsStage<kDim> stages[2];
  grid_dependents_launch();
  grid_dependency_wait();
  const DeltaNetParams& p = a.p;
  const BatchSequence s = p.batch.table.sequences[blockIdx.z];
  if (s.n_rows == 0) return;
  const uint32_t head = blockIdx.x, j0 = blockIdx.y * kStateRows;
  const uint32_t lane = threadIdx.x % 8, j = threadIdx.x / 8 * 4;  // first of four rows
  const uint64_t at = (uint64_t{head} * kDim + j0 + j) * kDim;
  StateTile<kDim> state;
  state.load(reinterpret_cast<const float*>(first_state(p, s) + p.state_offset) + at);
  const uint32_t width = p.shape.value_dim();
  float* out = p.out + uint64_t{s.first_row} * width + head * kDim + j0 + j + lane % 4;
  load_stage<kDim>(a, s, head, j0, 0, &stages[0]);
  for (uint32_t t0 = 0, half = 0; t0 < s.n_rows; t0 += kTokens, half ^= 1) {
    if (t0 + kTokens < s.n_rows) {
      load_stage<kDim>(a, s, head, j0, t0 + kTokens, &stages[half ^ 1]);
      cp_async_wait<1>();
    } else {
      cp_async_wait<0>();
    }
    __syncthreads();
    const RowsStage<kDim>& stage = stages[half];
    const uint32_t n = min(static_cast<uint32_t>(kTokens), s.n_rows - t0);
#pragma unroll 2
    for (uint32_t t = 0; t < n; ++t) {
      const float o = state.advance(stage.k[t], stage.q[t], stage.v[t][j + lane % 4],
                                    stage.gate[t][0], stage.gate[t][1], stage.kq[t]);
      if (lane >= 4) out[uint64_t{t0 + t} * width] = o;
    }
    __syncthreads();
  }
  if (!is_drafted(p, s)) {
    state.store(reinterpret_cast<float*>(s.state_out + p.state_offset) + at);
  }
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

/// Chunks of all sequences, at most.
uint32_t chunks_of(const Batch& batch) {
  return batch.n_rows / kDeltaChunk + batch.n_sequences;
}

/// One row per session, drafts of sessions, or only what is pending: a block per head.
template <int kDim>
Status run_few(const KernelConfig& config, const DeltaNetParams& p, cudaStream_t stream) {
  const bool pdl =
      config.pdl && !p.replay;  // what follows a replay must not overtake what is before
  const LaunchShape shape = {dim3(p.shape.n_v_heads, p.alone ? 1 : p.batch.n_sequences),
                             dim3(kDecodeThreads<kDim>), 0, stream, pdl};
  return launch_kernel("delta_few", shape, delta_few_kernel<kDim>, p);
}

/// In the arithmetic of the steps that the rows would have been.
template <int kDim>
Status run_replay(const KernelConfig& config, DeltaNetParams p, cudaStream_t stream) {
  p.replay = true;
  if (!config.deterministic) return run_few<kDim>(config, p, stream);
  const LaunchShape shape = {
      dim3(p.shape.n_v_heads, kDim / kStateRows, p.alone ? 1 : p.batch.n_sequences),
      dim3(kScanThreads), 0, stream, false};
  return launch_kernel("delta_replay", shape, delta_replay_kernel<kDim>, p);
}

template <int kDim>
Status run_rows(const KernelConfig& config, const DeltaArgs& a, cudaStream_t stream) {
  const DeltaNetParams& p = a.p;
  const uint32_t n_v = p.shape.n_v_heads;
  if (p.drafts) SHARPI_TRY(run_replay<kDim>(config, p, stream));
  const uint32_t items = p.shape.n_k_heads + n_v;
  LaunchShape shape = {dim3((p.batch.n_rows + kConvRows - 1) / kConvRows,
                            (items * 32 + kRowThreads - 1) / kRowThreads + 1),
                       dim3(kRowThreads), 0, stream, config.pdl};
  SHARPI_TRY(launch_kernel("delta_conv", shape, delta_conv_kernel<kDim>, a));
  if (a.q16 != nullptr) {
    SHARPI_TRY(launch_delta_chunks(a, chunks_of(p.batch), config.pdl, stream));
  } else {
    shape.grid = dim3(n_v, kDim / kStateRows, p.batch.n_sequences);
    shape.block = dim3(kScanThreads);
    shape.pdl = false;  // blocks that come early crowd a few multiprocessors
    SHARPI_TRY(launch_kernel("delta_rows", shape, delta_rows_kernel<kDim>, a));
  }
  shape.block = dim3(kRowThreads);
  shape.pdl = config.pdl;
  shape.grid = dim3(p.batch.n_rows, (n_v * 32 + kRowThreads - 1) / kRowThreads);
  return launch_kernel("delta_gate", shape, delta_gate_kernel<kDim>, p);
}

template <int kDim>
Status run(const KernelConfig& config, const DeltaArgs& a, cudaStream_t stream) {
  const DeltaNetParams& p = a.p;
  // One kernel family for every row count where a row's bits must not depend on it.
  const bool single = p.batch.n_rows == p.batch.n_sequences;
  if (config.deterministic || (!single && !p.drafted)) return run_rows<kDim>(config, a, stream);
  if (p.drafts) return run_few<kDim>(config, p, stream);
  const LaunchShape shape = {dim3(p.shape.n_v_heads, p.batch.n_sequences),
                             dim3(kDecodeThreads<kDim>), 0, stream, config.pdl};
  return launch_kernel("delta_decode", shape, delta_decode_kernel<kDim>, p);
}

uint64_t aligned(uint64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

// Rows per sequence from which chunks pay, and sequences that their workspace is sized for.
constexpr uint32_t kChunkRows = 32, kChunkSequences = 8;

/// The parts of the workspace at a->p.workspace; returns their bytes. n_chunks = 0: the recurrence.
uint64_t carve(const DeltaNetShape& s, uint64_t n_rows, uint64_t n_chunks, DeltaArgs* a) {
  uint64_t used = 0;
  const auto take = [&](uint64_t bytes) {
    std::byte* at = a->p.workspace == nullptr ? nullptr : a->p.workspace + used;
    used += aligned(bytes);
    return at;
  };
  a->qkv = reinterpret_cast<float*>(take(n_rows * s.conv_dim() * sizeof(float)));
  a->gate = reinterpret_cast<float*>(take(n_rows * s.n_v_heads * 2 * sizeof(float)));
  a->kq = reinterpret_cast<float*>(take(n_rows * s.n_k_heads * sizeof(float)));
  if (n_chunks == 0) return used;
  const uint64_t units = n_chunks * s.n_v_heads;
  a->q16 = reinterpret_cast<__half*>(take(n_rows * s.key_dim() * sizeof(__half)));
  a->k16 = reinterpret_cast<__half*>(take(n_rows * s.key_dim() * sizeof(__half)));
  a->u = reinterpret_cast<__half*>(take(units * kDeltaChunk * s.head_dim * sizeof(__half)));
  a->w = reinterpret_cast<__half*>(take(units * kDeltaChunk * s.head_dim * sizeof(__half)));
  a->pairs = reinterpret_cast<__half*>(take(units * kDeltaChunk * kDeltaChunk * sizeof(__half)));
  a->sums = reinterpret_cast<float*>(take(units * kDeltaChunk * sizeof(float)));
  return used;
}

Status check(const DeltaNetParams& p) {
  const DeltaNetShape& s = p.shape;
  if (s.n_k_heads == 0 || s.n_v_heads == 0 || s.n_v_heads % s.n_k_heads != 0 || s.conv_kernel < 2 ||
      s.conv_kernel > 4) {
    return Status::error(
        Code::kUnsupported,
        "kernel delta_net cannot take %u key heads and %u value heads with a convolution over %u",
        s.n_k_heads, s.n_v_heads, s.conv_kernel);
  }
  if (p.batch.n_rows == 0 || p.batch.n_sequences == 0 || p.qkv == nullptr || p.z == nullptr ||
      p.out == nullptr || p.state_offset % 16 != 0 || p.conv_offset % 16 != 0) {
    return Status::error(Code::kInternal,
                         "kernel delta_net lacks an operand, or one is not aligned");
  }
  if (p.batch.n_rows != p.batch.n_sequences &&
      (p.workspace == nullptr ||
       p.workspace_bytes < delta_net_workspace_bytes(s, p.batch.n_rows))) {
    return Status::error(Code::kInternal,
                         "kernel delta_net needs a workspace of more than %llu bytes",
                         static_cast<unsigned long long>(p.workspace_bytes));
  }
  return Status::ok();
}

Status no_heads_of(const DeltaNetShape& s) {
  return Status::error(Code::kUnsupported, "kernel delta_net cannot take heads of %u elements",
                       s.head_dim);
}

bool takes_chunks(const KernelConfig& config, const DeltaNetShape& shape) {
  return shape.head_dim == 128 && !config.exact && !config.deterministic &&
         delta_chunks_fit(config.device);
}

}  // namespace

const char* delta_net_path(const KernelConfig& config, const DeltaNetShape& shape) {
  return takes_chunks(config, shape) ? "chunks on tensor cores" : "recurrence";
}

Status prepare_delta_net(const KernelConfig& config) {
  return prepare_delta_chunks(config);
}

uint64_t delta_net_workspace_bytes(const DeltaNetShape& s, uint32_t max_rows) {
  DeltaArgs a = {};
  const uint64_t rows = carve(s, max_rows, 0, &a);
  return s.head_dim == 128 ? carve(s, max_rows, max_rows / kDeltaChunk + kChunkSequences, &a)
                           : rows;
}

Status launch_delta_replay(const KernelConfig& config, const DeltaNetParams& p,
                           cudaStream_t stream) {
  DeltaNetParams alone = p;
  alone.drafts = alone.replay = alone.alone = true;
  alone.drafted = false;
  alone.next_conv1d = nullptr;
  switch (p.shape.head_dim) {
    case 32:
      return run_replay<32>(config, alone, stream);
    case 64:
      return run_replay<64>(config, alone, stream);
    case 128:
      return run_replay<128>(config, alone, stream);
    default:
      return no_heads_of(p.shape);
  }
}

Status launch_delta_net(const KernelConfig& config, const DeltaNetParams& p, cudaStream_t stream) {
  SHARPI_TRY(check(p));
  DeltaArgs a = {};
  a.p = p;
  const Batch& batch = p.batch;
  const bool chunks = takes_chunks(config, p.shape) &&
                      batch.n_rows >= kChunkRows * batch.n_sequences &&
                      batch.n_sequences <= kChunkSequences;
  carve(p.shape, batch.n_rows, chunks ? chunks_of(batch) : 0, &a);
  switch (p.shape.head_dim) {
    case 32:
      return run<32>(config, a, stream);
    case 64:
      return run<64>(config, a, stream);
    case 128:
      return run<128>(config, a, stream);
    default:
      return no_heads_of(p.shape);
  }
}

}  // namespace sharpi::cuda
