// SPDX-License-Identifier: MIT
#include "cpu/delta_net.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "cpu/delta_net_table.h"
#include "cpu/recurrent_rows.h"

namespace sharpi::cpu {
namespace {

using namespace recurrent;

const Named<DeltaTable>& table_for(const KernelSet& kernels, uint32_t head_dim) {
  const KernelSet* set = &kernels;
  while (set->narrower != nullptr && head_dim % set->delta.table.width != 0) set = set->narrower;
  return set->delta;
}

/// Floats of one thread: the gates of a head, then the larger of the two phases' needs, then a
/// state that nobody keeps.
uint64_t work_floats(const DeltaNetShape& s, uint32_t n_rows) {
  const uint64_t conv = 2ull * s.conv_kernel * s.head_dim;
  const uint64_t chunk = kDeltaChunkMatrices * kDeltaChunk * s.head_dim +
                         kDeltaPairMatrices * kDeltaChunk * kDeltaChunk;
  const uint64_t rows = 2ull * n_rows;
  uint64_t most = conv > chunk ? conv : chunk;
  most = rows > most ? rows : most;
  return aligned_floats(most);
}
/// Where that state is. Rows in front and those of the call each have gates, which are rounded up.
uint64_t spare_state_offset(const DeltaNetShape& s, uint32_t n_rows) {
  constexpr uint64_t kRounding = 3 * (kAlign / sizeof(float));
  return 2 * aligned_floats(n_rows) + kRounding + work_floats(s, n_rows);
}
uint64_t worker_floats(const DeltaNetShape& s, uint32_t n_rows) {
  return spare_state_offset(s, n_rows) + aligned_floats(uint64_t{s.head_dim} * s.head_dim);
}

/// Heads of the convolution in order: query heads, key heads, value heads.
void run_conv(const DeltaTable& table, const DeltaNetTask& t, uint32_t head, float* memory) {
  if (t.before != nullptr) run_conv(table, *t.before, head, memory);
  const DeltaNetShape& s = t.shape;
  const uint64_t c0 = uint64_t{head} * s.head_dim;
  ShortConv job;
  job.x = t.qkv + c0;
  job.x_stride = s.conv_dim();
  job.taps = t.conv1d + c0 * s.conv_kernel;
  job.tail_in = (t.before == nullptr ? t.conv_in : t.before->conv_out) + c0;
  job.tail_out = t.conv_out == nullptr ? nullptr : t.conv_out + c0;
  job.tail_stride = s.conv_dim();
  job.dim = s.head_dim;
  job.kernel = s.conv_kernel;
  job.n_rows = t.n_rows;
  job.normalize = head < 2 * s.n_k_heads;
  job.eps = t.eps;
  job.norm_scale = head < s.n_k_heads ? 1.0f / std::sqrt(static_cast<float>(s.head_dim)) : 1.0f;
  job.work = memory;
  table.conv(job);
}

float softplus(float x) {
  return x > 20.0f ? x : std::log1p(std::exp(x));
}

/// The gates of a head's rows, to memory, where the rest of the job's work comes behind.
DeltaHead head_job(const DeltaNetTask& t, uint32_t head, float* memory) {
  const DeltaNetShape& s = t.shape;
  float* g = memory;
  float* beta = g + aligned_floats(t.n_rows);
  for (uint32_t r = 0; r < t.n_rows; ++r) {
    const uint64_t at = uint64_t{r} * s.n_v_heads + head;
    g[r] = t.a[head] * softplus(t.alpha[at] + t.dt_bias[head]);
    beta[r] = 1.0f / (1.0f + std::exp(-t.beta[at]));
  }
  const uint64_t key = uint64_t{s.key_of(head)} * s.head_dim;
  const uint64_t value = uint64_t{head} * s.head_dim;
  DeltaHead job;
  job.q = t.qkv + key;
  job.k = t.qkv + s.key_dim() + key;
  job.v = t.qkv + 2 * s.key_dim() + value;
  job.stride = s.conv_dim();
  job.g = g;
  job.beta = beta;
  job.state_in = t.state_in == nullptr ? nullptr : t.state_in + value * s.head_dim;
  job.state_out = t.state_out == nullptr ? nullptr : t.state_out + value * s.head_dim;
  job.dim = s.head_dim;
  job.n_rows = t.n_rows;
  job.work = beta + aligned_floats(t.n_rows);
  return job;
}

void run_head(const DeltaTable& table, const DeltaNetTask& t, bool sequential, uint32_t head,
              float* memory) {
  const DeltaNetShape& s = t.shape;
  float* state = memory + spare_state_offset(s, all_rows(t));
  DeltaHead before;
  if (t.before != nullptr) {
    before = head_job(*t.before, head, memory);
    memory = before.work + aligned_floats(before.n_rows);
  }
  DeltaHead job = head_job(t, head, memory);
  const uint64_t value = uint64_t{head} * s.head_dim;
  if (t.before != nullptr) job.before = &before;
  if (job.state_out == nullptr) job.state_out = state;
  job.out = t.out + value;
  job.out_stride = s.value_dim();
  if (takes_chunks(sequential, t.n_rows)) {
    table.chunks(job);
  } else {
    table.recurrence(job);
  }
  if (t.z == nullptr) return;
  table.gate({.out = job.out,
              .out_stride = job.out_stride,
              .z = t.z + value,
              .z_stride = s.value_dim(),
              .norm = t.norm,
              .eps = t.eps,
              .dim = s.head_dim,
              .n_rows = t.n_rows});
}

}  // namespace

std::string delta_net_path(const KernelSet& kernels, uint32_t head_dim, bool sequential,
                           uint32_t n_rows) {
  return std::string(takes_chunks(sequential, n_rows) ? "chunks-" : "recurrence-") +
         table_for(kernels, head_dim).name;
}

uint64_t delta_net_scratch_bytes(const DeltaNetShape& shape, uint32_t n_threads,
                                 uint32_t max_rows) {
  return worker_floats(shape, max_rows) * n_threads * sizeof(float) + kAlign;
}

bool goes_with(const DeltaNetTask& before, const DeltaNetTask& task, bool sequential,
               uint32_t n_threads, uint64_t scratch_bytes) {
  const uint32_t n = before.n_rows + task.n_rows;
  return both_in_steps(before, task, sequential) &&
         scratch_bytes >= delta_net_scratch_bytes(task.shape, n_threads, n);
}

namespace {

/// each(n, body): body(head, a thread's own memory) for n heads, on as many threads as said.
template <class Each>
void run_rows(const KernelSet& kernels, const DeltaNetTask& task, bool sequential,
              uint32_t n_threads, std::byte* scratch, uint64_t scratch_bytes, const Each& each) {
  const DeltaNetShape& s = task.shape;
  if (task.n_rows == 0) return copy_state(task);
  const DeltaTable& table = table_for(kernels, s.head_dim).table;
  float* memory = aligned_memory(scratch);
  assert(scratch_bytes >= delta_net_scratch_bytes(s, n_threads, all_rows(task)));
  assert(task.before == nullptr ||
         goes_with(*task.before, task, sequential, n_threads, scratch_bytes));
  static_cast<void>(n_threads);
  static_cast<void>(scratch_bytes);
  each(2 * s.n_k_heads + s.n_v_heads, memory,
       [&](uint32_t head, float* mine) { run_conv(table, task, head, mine); });
  each(s.n_v_heads, memory,
       [&](uint32_t head, float* mine) { run_head(table, task, sequential, head, mine); });
}

}  // namespace

void delta_net(ThreadPool& pool, const KernelSet& kernels, const DeltaNetTask& task,
               bool sequential, std::byte* scratch, uint64_t scratch_bytes) {
  if (task.before != nullptr &&
      !goes_with(*task.before, task, sequential, pool.size(), scratch_bytes)) {
    return run_in_turn(task, [&](const DeltaNetTask& one) {
      delta_net(pool, kernels, one, sequential, scratch, scratch_bytes);
    });
  }
  const uint64_t stride = worker_floats(task.shape, all_rows(task));
  run_rows(
      kernels, task, sequential, pool.size(), scratch, scratch_bytes,
      [&](uint32_t n, float* memory, const auto& body) { spread(pool, n, memory, stride, body); });
}

void delta_net_alone(const KernelSet& kernels, const DeltaNetTask& task, bool sequential,
                     std::byte* scratch, uint64_t scratch_bytes) {
  run_rows(kernels, task, sequential, 1, scratch, scratch_bytes,
           [](uint32_t n, float* memory, const auto& body) {
             for (uint32_t head = 0; head < n; ++head) body(head, memory);
           });
}

}  // namespace sharpi::cpu
