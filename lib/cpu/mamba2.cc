// SPDX-License-Identifier: MIT
#include "cpu/mamba2.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "cpu/mamba2_table.h"
#include "cpu/ops.h"
#include "cpu/recurrent_rows.h"

namespace sharpi::cpu {
namespace {

using namespace recurrent;

/// Channels of a convolution's job, and rows whose steps are one.
constexpr uint32_t kConvChannels = 64, kStepRows = 16;
/// Heads that share the products of their group in chunks, at most.
constexpr uint32_t kMostTogether = 16;

const Named<Mamba2Table>& table_for(const KernelSet& kernels, const Mamba2Shape& s) {
  const KernelSet* set = &kernels;
  const auto takes = [&](uint32_t width) {
    return s.head_dim % width == 0 && s.state_dim % width == 0;
  };
  while (set->narrower != nullptr && !takes(set->mamba2.table.width)) set = set->narrower;
  return set->mamba2;
}

/// Floats of one thread: the largest of what its jobs need, then a state that nobody keeps. Rows in
/// front and those of the call each have decays and steps, which are rounded up.
uint64_t work_floats(const Mamba2Shape& s, uint32_t n_rows) {
  constexpr uint64_t kRounding = 2 * (kAlign / sizeof(float));
  const uint64_t conv = 2ull * s.conv_kernel * kConvChannels;
  const uint64_t steps = 2ull * n_rows + kRounding;
  return aligned_floats(std::max({conv, steps, mamba_chunk_floats(s.head_dim, s.state_dim)}));
}
uint64_t worker_floats(const Mamba2Shape& s, uint32_t n_rows) {
  return work_floats(s, n_rows) + aligned_floats(s.head_state_floats());
}

uint32_t conv_jobs(const Mamba2Shape& s) {
  return (s.conv_dim() + kConvChannels - 1) / kConvChannels;
}
uint32_t step_jobs(const Mamba2Task& t) {
  return (t.n_rows + kStepRows - 1) / kStepRows;
}

void run_conv(const Mamba2Table& table, const Mamba2Task& t, uint32_t job, float* memory) {
  if (t.before != nullptr) run_conv(table, *t.before, job, memory);
  const Mamba2Shape& s = t.shape;
  const uint64_t c0 = uint64_t{job} * kConvChannels;
  ShortConv conv;
  conv.x = t.xbc + c0;
  conv.x_stride = s.conv_dim();
  conv.taps = t.conv1d + c0 * s.conv_kernel;
  conv.bias = t.conv_bias == nullptr ? nullptr : t.conv_bias + c0;
  conv.tail_in = (t.before == nullptr ? t.conv_in : t.before->conv_out) + c0;
  conv.tail_out = t.conv_out == nullptr ? nullptr : t.conv_out + c0;
  conv.tail_stride = s.conv_dim();
  conv.dim = std::min(kConvChannels, static_cast<uint32_t>(s.conv_dim() - c0));
  conv.kernel = s.conv_kernel;
  conv.n_rows = t.n_rows;
  conv.work = memory;
  table.conv(conv);
}

float softplus(float x) {
  return x > 20.0f ? x : std::log1p(std::exp(x));
}

void run_steps(const Mamba2Task& t, uint32_t job) {
  const uint32_t n = t.shape.n_heads, end = std::min(t.n_rows, (job + 1) * kStepRows);
  for (uint32_t r = job * kStepRows; r < end; ++r) {
    float* dt = t.dt + uint64_t{r} * n;
    for (uint32_t h = 0; h < n; ++h) dt[h] = softplus(dt[h] + t.dt_bias[h]);
  }
}

MambaHead head_job(const Mamba2Task& t, uint32_t head) {
  const Mamba2Shape& s = t.shape;
  const uint64_t group = uint64_t{head / s.heads_of_group()} * s.state_dim;
  const uint64_t channel = uint64_t{head} * s.head_dim, state = head * s.head_state_floats();
  MambaHead job;
  job.x = t.xbc + channel;
  job.b = t.xbc + s.inner() + group;
  job.c = job.b + s.group_dim();
  job.stride = s.conv_dim();
  job.dt = t.dt + head;
  job.dt_stride = s.n_heads;
  job.a = t.a[head];
  job.skip = t.d[head];
  job.state_in = t.state_in == nullptr ? nullptr : t.state_in + state;
  job.state_out = t.state_out == nullptr ? nullptr : t.state_out + state;
  job.out = t.out + channel;
  job.out_stride = s.inner();
  job.dim = s.head_dim;
  job.state_dim = s.state_dim;
  job.n_rows = t.n_rows;
  return job;
}

void run_head(const Mamba2Table& table, const Mamba2Task& t, uint32_t head, float* memory) {
  float* spare = memory + work_floats(t.shape, all_rows(t));
  MambaHead before, job = head_job(t, head);
  if (t.before != nullptr) {
    before = head_job(*t.before, head);
    before.work = memory;
    memory += aligned_floats(2ull * before.n_rows);
    job.before = &before;
  }
  if (job.state_out == nullptr) job.state_out = spare;
  job.work = memory;
  table.recurrence(job);
}

/// Which heads chunks take together: runs of one group, several of them for every thread.
struct Together {
  uint32_t n_heads, each, of_group;
  uint32_t runs_of_group() const { return (of_group + each - 1) / each; }
  uint32_t n_runs() const { return n_heads / of_group * runs_of_group(); }
};
Together heads_together(const Mamba2Task& t, uint32_t n_threads) {
  const uint32_t n = t.shape.n_heads, most = std::min(t.shape.heads_of_group(), kMostTogether);
  // A thread has room for one state that is not kept.
  const uint32_t each = t.state_out == nullptr ? 1 : std::max(1u, n / (4 * n_threads));
  return {n, std::min(each, most), t.shape.heads_of_group()};
}

void run_chunks(const Mamba2Table& table, const Mamba2Task& t, const Together& runs, uint32_t run,
                float* memory) {
  const uint32_t group = run / runs.runs_of_group();
  const uint32_t first = run % runs.runs_of_group() * runs.each;
  const uint32_t n = std::min(runs.each, runs.of_group - first);
  MambaHead heads[kMostTogether];
  for (uint32_t i = 0; i < n; ++i) {
    heads[i] = head_job(t, group * runs.of_group + first + i);
    if (heads[i].state_out == nullptr)
      heads[i].state_out = memory + work_floats(t.shape, all_rows(t));
  }
  table.chunks({heads, n, memory});
}

/// Gate and norm of one group's channels of a row.
void run_gate(const KernelSet& kernels, const Mamba2Task& t, uint32_t job) {
  const Mamba2Shape& s = t.shape;
  const uint64_t n = s.inner() / s.n_groups, group = job % s.n_groups;
  const uint64_t at = uint64_t{job / s.n_groups} * s.inner() + group * n;
  silu_gate(kernels, t.out + at, t.z + at, n);
  rms_norm(kernels, t.out + at, t.norm + group * n, t.eps, n, t.out + at);
}

/// each(n, body): body(item, a thread's own memory) for n items, on as many threads as said.
template <class Each>
void run_rows(const KernelSet& kernels, const Mamba2Task& task, bool sequential, uint32_t n_threads,
              std::byte* scratch, uint64_t scratch_bytes, const Each& each) {
  const Mamba2Shape& s = task.shape;
  if (task.n_rows == 0) return copy_state(task);
  const Mamba2Table& table = table_for(kernels, s).table;
  float* memory = aligned_memory(scratch);
  assert(scratch_bytes >= mamba2_scratch_bytes(s, n_threads, all_rows(task)));
  assert(task.before == nullptr ||
         goes_with(*task.before, task, sequential, n_threads, scratch_bytes));
  static_cast<void>(scratch_bytes);
  const uint32_t n_conv = conv_jobs(s), n_steps = step_jobs(task);
  const uint32_t n_before = task.before == nullptr ? 0 : step_jobs(*task.before);
  each(n_conv + n_steps + n_before, memory, [&](uint32_t job, float* mine) {
    if (job < n_conv) return run_conv(table, task, job, mine);
    job -= n_conv;
    job < n_steps ? run_steps(task, job) : run_steps(*task.before, job - n_steps);
  });
  if (takes_chunks(sequential, task.n_rows)) {
    const Together runs = heads_together(task, n_threads);
    each(runs.n_runs(), memory,
         [&](uint32_t run, float* mine) { run_chunks(table, task, runs, run, mine); });
  } else {
    each(s.n_heads, memory, [&](uint32_t head, float* mine) { run_head(table, task, head, mine); });
  }
  if (task.z == nullptr) return;
  each(task.n_rows * s.n_groups, memory,
       [&](uint32_t job, float*) { run_gate(kernels, task, job); });
}

}  // namespace

std::string mamba2_path(const KernelSet& kernels, const Mamba2Shape& shape, bool sequential,
                        uint32_t n_rows) {
  return std::string(takes_chunks(sequential, n_rows) ? "chunks-" : "recurrence-") +
         table_for(kernels, shape).name;
}

uint64_t mamba2_scratch_bytes(const Mamba2Shape& shape, uint32_t n_threads, uint32_t max_rows) {
  return worker_floats(shape, max_rows) * n_threads * sizeof(float) + kAlign;
}

bool goes_with(const Mamba2Task& before, const Mamba2Task& task, bool sequential,
               uint32_t n_threads, uint64_t scratch_bytes) {
  const uint32_t n = before.n_rows + task.n_rows;
  return both_in_steps(before, task, sequential) &&
         scratch_bytes >= mamba2_scratch_bytes(task.shape, n_threads, n);
}

void mamba2(ThreadPool& pool, const KernelSet& kernels, const Mamba2Task& task, bool sequential,
            std::byte* scratch, uint64_t scratch_bytes) {
  if (task.before != nullptr &&
      !goes_with(*task.before, task, sequential, pool.size(), scratch_bytes)) {
    return run_in_turn(task, [&](const Mamba2Task& one) {
      mamba2(pool, kernels, one, sequential, scratch, scratch_bytes);
    });
  }
  const uint64_t stride = worker_floats(task.shape, all_rows(task));
  run_rows(
      kernels, task, sequential, pool.size(), scratch, scratch_bytes,
      [&](uint32_t n, float* memory, const auto& body) { spread(pool, n, memory, stride, body); });
}

void mamba2_alone(const KernelSet& kernels, const Mamba2Task& task, bool sequential,
                  std::byte* scratch, uint64_t scratch_bytes) {
  run_rows(kernels, task, sequential, 1, scratch, scratch_bytes,
           [](uint32_t n, float* memory, const auto& body) {
             for (uint32_t item = 0; item < n; ++item) body(item, memory);
           });
}

}  // namespace sharpi::cpu
