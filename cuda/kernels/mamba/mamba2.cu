// SPDX-License-Identifier: MIT

#include "cuda/kernels/launch.h"
#include "cuda/kernels/mamba/mamba2.h"
#include "cuda/kernels/ptx.cuh"

namespace sharpi::cuda {
namespace {

/// Channels of a head that a block has, rows that it convolves at once, and threads of a group's
/// norm.
constexpr uint32_t kChannels = 32, kHeldRows = 8, kGateThreads = 256;

/// Lanes that have a channel's part of the state together, four elements at a time.
template <uint32_t kState>
constexpr uint32_t kLanes = kState < 32 ? kState / 4 : 8;
template <uint32_t kState>
constexpr uint32_t kMambaThreads = kChannels* kLanes<kState>;

__device__ __forceinline__ float silu(float x) {
  return x / (1.0f + expf(-x));
}
__device__ __forceinline__ float softplus(float x) {
  return x > 20.0f ? x : log1pf(expf(x));
}

/// A sequence's rows, those that were pending before them, and the conv tail before these. Row
/// numbers count from the first pending one.
struct MambaSource {
  const float *rows, *dt;       // of the sequence's row 0
  const float *kept, *kept_dt;  // of the first pending row
  const float* tail;            // [kernel - 1][conv_dim]
  float *keep, *keep_dt;        // of a drafted sequence
  uint32_t n_pending, n_rows, conv_dim, n_heads, kernel;

  __device__ __forceinline__ float raw(int32_t row, uint32_t channel) const {
    const auto pending = static_cast<int32_t>(n_pending);
    if (row >= pending) return rows[static_cast<uint64_t>(row - pending) * conv_dim + channel];
    if (row >= 0) return kept[static_cast<uint64_t>(row) * conv_dim + channel];
    return tail[static_cast<uint64_t>(row + static_cast<int32_t>(kernel) - 1) * conv_dim + channel];
  }
  __device__ __forceinline__ float step(uint32_t row, uint32_t head) const {
    return row < n_pending ? kept_dt[uint64_t{row} * n_heads + head]
                           : dt[uint64_t{row - n_pending} * n_heads + head];
  }
};

__device__ __forceinline__ MambaSource source_of(const Mamba2Params& p, const BatchSequence& s) {
  MambaSource m = {};
  m.n_pending = p.drafts || p.replay ? s.n_pending : 0;
  m.n_rows = p.replay ? 0 : s.n_rows;
  m.conv_dim = p.shape.conv_dim();
  m.n_heads = p.shape.n_heads;
  m.kernel = p.shape.conv_kernel;
  m.tail = reinterpret_cast<const float*>(s.state_in + p.conv_offset);
  if (!p.replay) {
    m.rows = p.xbc + uint64_t{s.first_row} * m.conv_dim;
    m.dt = p.dt + uint64_t{s.first_row} * m.n_heads;
  }
  const uint64_t plane = p.kept_unit * s.kept_rows, next = uint64_t{s.kept_rows} * m.conv_dim;
  if (m.n_pending != 0) m.kept = s.kept + plane, m.kept_dt = m.kept + next;
  const bool drafted = p.drafted && !p.replay && (s.flags & kSequenceDrafted) != 0;
  if (drafted) m.keep = s.keep + plane, m.keep_dt = m.keep + next;
  return m;
}

__device__ __forceinline__ float convolved(const Mamba2Params& p, const MambaSource& m,
                                           uint32_t row, uint32_t channel) {
  float y = p.conv_bias == nullptr ? 0.0f : p.conv_bias[channel];
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    if (i >= m.kernel) continue;
    const int32_t at = static_cast<int32_t>(row + i) - static_cast<int32_t>(m.kernel) + 1;
    y = fmaf(p.conv1d[uint64_t{channel} * m.kernel + i], m.raw(at, channel), y);
  }
  return silu(y);
}

/// Rows of a head, convolved, with the decay and the step of each.
template <uint32_t kState>
struct alignas(16) HeldRows {
  float b[kHeldRows][kState], c[kHeldRows][kState];
  float x[kHeldRows][kChannels];
  float decay[kHeldRows], step[kHeldRows];
};

/// The block's channels: of x its own, of B and C where it is the first of its group.
template <uint32_t kState>
struct OwnChannels {
  uint32_t x, n_x, b, c;
  bool leads;
  template <class Each>
  __device__ __forceinline__ void each(Each&& body) const {
    for (uint32_t i = threadIdx.x; i < n_x; i += kMambaThreads<kState>) body(x + i);
    if (!leads) return;
    for (uint32_t i = threadIdx.x; i < 2 * kState; i += kMambaThreads<kState>)
      body(i < kState ? b + i : c + i - kState);
  }
};

/// What the convolution looks back at after `n` rows.
template <uint32_t kState>
__device__ __forceinline__ void store_tail(const MambaSource& m, const OwnChannels<kState>& own,
                                           uint32_t n, float* to) {
  own.each([&](uint32_t channel) {
    for (uint32_t i = 0; i + 1 < m.kernel; ++i) {
      const int32_t at = static_cast<int32_t>(n + i) - static_cast<int32_t>(m.kernel) + 1;
      to[uint64_t{i} * m.conv_dim + channel] = m.raw(at, channel);
    }
  });
}

/// Raw rows of a draft, as a replay reads them.
template <uint32_t kState>
__device__ __forceinline__ void keep_rows(const MambaSource& m, const OwnChannels<kState>& own,
                                          uint32_t head) {
  for (uint32_t t = 0; t < m.n_rows; ++t) {
    const uint64_t at = uint64_t{t} * m.conv_dim;
    own.each([&](uint32_t channel) { m.keep[at + channel] = m.rows[at + channel]; });
    if (blockIdx.y == 0 && threadIdx.x == 0)
      m.keep_dt[uint64_t{t} * m.n_heads + head] = m.dt[uint64_t{t} * m.n_heads + head];
  }
}

/// Brings rows t0 to t0 + n - 1.
template <uint32_t kState>
__device__ __forceinline__ void hold_rows(const Mamba2Params& p, const MambaSource& m,
                                          const OwnChannels<kState>& own, uint32_t head,
                                          uint32_t t0, uint32_t n, HeldRows<kState>* held) {
  constexpr uint32_t kWidth = 2 * kState + kChannels;
  for (uint32_t i = threadIdx.x; i < n * kWidth; i += kMambaThreads<kState>) {
    const uint32_t t = i / kWidth, e = i % kWidth;
    if (e < kState) {
      held->b[t][e] = convolved(p, m, t0 + t, own.b + e);
    } else if (e < 2 * kState) {
      held->c[t][e - kState] = convolved(p, m, t0 + t, own.c + e - kState);
    } else if (e - 2 * kState < own.n_x) {
      held->x[t][e - 2 * kState] = convolved(p, m, t0 + t, own.x + e - 2 * kState);
    }
  }
  if (threadIdx.x < n) {
    const float step = softplus(m.step(t0 + threadIdx.x, head) + p.dt_bias[head]);
    held->step[threadIdx.x] = step;
    held->decay[threadIdx.x] = expf(p.a[head] * step);
  }
}

/// Grid (heads, parts of a head's channels, sequences): what is pending, then the rows.
template <uint32_t kState>
__global__ void __launch_bounds__(kMambaThreads<kState>)
    mamba2_kernel(const __grid_constant__ Mamba2Params p) {
  constexpr uint32_t kWide = kLanes<kState>, kPer = kState / (4 * kWide);
  __shared__ HeldRows<kState> held;
  grid_dependents_launch();
  grid_dependency_wait();
  const BatchSequence s = p.replay ? p.sequence : p.batch.table.sequences[blockIdx.z];
  const MambaSource m = source_of(p, s);
  const uint32_t end = m.n_pending + m.n_rows;
  if (p.replay ? m.n_pending == 0 : m.n_rows == 0) return;
  const uint32_t head = blockIdx.x, first = blockIdx.y * kChannels, dim = p.shape.head_dim;
  const uint32_t group = head / p.shape.heads_of_group();
  OwnChannels<kState> own;
  own.x = head * dim + first, own.n_x = min(kChannels, dim - first);
  own.b = p.shape.inner() + group * kState, own.c = own.b + p.shape.group_dim();
  own.leads = blockIdx.y == 0 && head % p.shape.heads_of_group() == 0;
  const uint32_t lane = threadIdx.x % kWide, j = threadIdx.x / kWide;
  const bool mine = j < own.n_x;
  const uint64_t at = (uint64_t{own.x} + (mine ? j : 0)) * (kState / 4) + lane;
  const auto* from = reinterpret_cast<const float4*>(s.state_in + p.state_offset) + at;
  auto* to = reinterpret_cast<float4*>(s.state_out + p.state_offset) + at;
  auto* new_tail = reinterpret_cast<float*>(s.state_out + p.conv_offset);
  float4 state[kPer];
#pragma unroll
  for (uint32_t i = 0; i < kPer; ++i) state[i] = from[i * kWide];
  const auto store = [&] {
#pragma unroll
    for (uint32_t i = 0; i < kPer; ++i) {
      if (mine) to[i * kWide] = state[i];
    }
  };
  const bool drafted = m.keep != nullptr;
  if (drafted) keep_rows(m, own, head);
  for (uint32_t t0 = 0; t0 < end; t0 += kHeldRows) {
    const uint32_t n = min(kHeldRows, end - t0);
    __syncthreads();
    hold_rows(p, m, own, head, t0, n, &held);
    __syncthreads();
    for (uint32_t t = 0; t < n; ++t) {
      if (drafted && m.n_pending != 0 && t0 + t == m.n_pending) store();
      const float x = mine ? held.x[t][j] : 0.0f, decay = held.decay[t], add = held.step[t] * x;
      float o = 0.0f;
#pragma unroll
      for (uint32_t i = 0; i < kPer; ++i) {
        const float4 b = reinterpret_cast<const float4*>(held.b[t])[i * kWide + lane];
        const float4 c = reinterpret_cast<const float4*>(held.c[t])[i * kWide + lane];
        float4& v = state[i];
        v = {fmaf(add, b.x, decay * v.x), fmaf(add, b.y, decay * v.y), fmaf(add, b.z, decay * v.z),
             fmaf(add, b.w, decay * v.w)};
        o = fmaf(v.w, c.w, fmaf(v.z, c.z, fmaf(v.y, c.y, fmaf(v.x, c.x, o))));
      }
#pragma unroll
      for (uint32_t w = kWide / 2; w > 0; w /= 2) o += __shfl_xor_sync(0xFFFFFFFFu, o, w);
      if (!mine || lane != 0 || t0 + t < m.n_pending) continue;
      const uint64_t row = uint64_t{s.first_row} + (t0 + t - m.n_pending);
      p.out[row * p.shape.inner() + own.x + j] = fmaf(p.d[head], x, o);
    }
  }
  if (!drafted) {
    store();
    store_tail(m, own, end, new_tail);
  } else if (m.n_pending != 0) {
    store_tail(m, own, m.n_pending, new_tail);
  }
}

__device__ __forceinline__ float block_sum(float v) {
  __shared__ float part[kGateThreads / 32];
#pragma unroll
  for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(0xFFFFFFFFu, v, d);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
  __syncthreads();
  float all = 0.0f;
#pragma unroll
  for (uint32_t i = 0; i < kGateThreads / 32; ++i) all += part[i];
  return all;
}

/// Grid (rows, groups): out := rms(out * silu(z)) * norm over a group's channels.
__global__ void __launch_bounds__(kGateThreads)
    mamba2_gate_kernel(const __grid_constant__ Mamba2Params p) {
  grid_dependents_launch();
  grid_dependency_wait();
  if (p.batch.table.rows[blockIdx.x].sequence == kNoSequence) return;
  const uint32_t n = p.shape.inner() / p.shape.n_groups;
  const uint64_t at = uint64_t{blockIdx.x} * p.shape.inner() + uint64_t{blockIdx.y} * n;
  float* y = p.out + at;
  const float *z = p.z + at, *weight = p.norm + uint64_t{blockIdx.y} * n;
  float sum = 0.0f;
  for (uint32_t i = threadIdx.x; i < n; i += kGateThreads) {
    const float v = y[i] * silu(z[i]);
    y[i] = v;
    sum = fmaf(v, v, sum);
  }
  const float scale = 1.0f / sqrtf(block_sum(sum) / static_cast<float>(n) + p.eps);
  for (uint32_t i = threadIdx.x; i < n; i += kGateThreads) y[i] *= scale * weight[i];
}

template <uint32_t kState>
Status run_rows(const Mamba2Params& p, bool pdl, cudaStream_t stream) {
  const LaunchShape shape = {dim3(p.shape.n_heads, (p.shape.head_dim + kChannels - 1) / kChannels,
                                  p.replay ? 1 : p.batch.n_sequences),
                             dim3(kMambaThreads<kState>), 0, stream, pdl};
  return launch_kernel("mamba2", shape, mamba2_kernel<kState>, p);
}

Status run_recurrence(const Mamba2Params& p, bool pdl, cudaStream_t stream) {
  switch (p.shape.state_dim) {
    case 16:
      return run_rows<16>(p, pdl, stream);
    case 32:
      return run_rows<32>(p, pdl, stream);
    case 64:
      return run_rows<64>(p, pdl, stream);
    case 128:
      return run_rows<128>(p, pdl, stream);
    case 256:
      return run_rows<256>(p, pdl, stream);
    default:
      break;  // check() has refused it
  }
  return Status::error(Code::kInternal, "kernel mamba2 has no states of %u elements",
                       p.shape.state_dim);
}

Status check(const Mamba2Params& p) {
  const Mamba2Shape& s = p.shape;
  if (!takes_mamba2(s)) {
    return Status::error(Code::kUnsupported,
                         "kernel mamba2 cannot take %u heads of %u elements in %u groups, states "
                         "of %u and a convolution over %u",
                         s.n_heads, s.head_dim, s.n_groups, s.state_dim, s.conv_kernel);
  }
  if (p.state_offset % 16 == 0 && p.conv_offset % 16 == 0) return Status::ok();
  return Status::error(Code::kInternal, "kernel mamba2 has a state that is not aligned");
}

}  // namespace

Status launch_mamba2(const KernelConfig& config, const Mamba2Params& p, cudaStream_t stream) {
  SHARPI_TRY(check(p));
  if (p.batch.n_rows == 0 || p.batch.n_sequences == 0 || p.xbc == nullptr || p.z == nullptr ||
      p.dt == nullptr || p.out == nullptr) {
    return Status::error(Code::kInternal, "kernel mamba2 lacks an operand");
  }
  SHARPI_TRY(run_recurrence(p, config.pdl, stream));
  const LaunchShape shape = {dim3(p.batch.n_rows, p.shape.n_groups), dim3(kGateThreads), 0, stream,
                             config.pdl};
  return launch_kernel("mamba2_gate", shape, mamba2_gate_kernel, p);
}

/// What follows a replay must not overtake what is before.
Status launch_mamba2_replay(const Mamba2Params& p, cudaStream_t stream) {
  SHARPI_TRY(check(p));
  Mamba2Params alone = p;
  alone.replay = alone.drafts = true;
  alone.drafted = false;
  return run_recurrence(alone, false, stream);
}

}  // namespace sharpi::cuda
