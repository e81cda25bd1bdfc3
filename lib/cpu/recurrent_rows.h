// SPDX-License-Identifier: MIT
// What gated delta nets and Mamba-2 share around their kernels: when rows are computed in chunks,
// how scratch is divided, how jobs are spread over the threads, and rows that were drafted and
// accepted before those of a call. A Task has n_rows, shape, before, state_in, state_out, conv_in
// and conv_out. Thread rule: as the calls that use it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/thread_pool.h"

namespace sharpi::cpu::recurrent {

// From this many rows on the chunked form is used.
inline constexpr uint32_t kChunkedRows = 16;
inline constexpr uint64_t kAlign = 64;

inline bool takes_chunks(bool sequential, uint32_t n_rows) {
  return !sequential && n_rows >= kChunkedRows;
}

constexpr uint64_t aligned_floats(uint64_t n) {
  constexpr uint64_t kUnit = kAlign / sizeof(float);
  return (n + kUnit - 1) / kUnit * kUnit;
}

inline float* aligned_memory(std::byte* scratch) {
  const auto address = reinterpret_cast<uintptr_t>(scratch);
  return reinterpret_cast<float*>(scratch + (kAlign - address % kAlign) % kAlign);
}

/// Runs body(item, thread's memory) for n items over the pool.
template <class Body>
void spread(ThreadPool& pool, uint32_t n, float* memory, uint64_t stride, Body body) {
  std::atomic<uint32_t> next{0};
  pool.run(n < pool.size() ? n : pool.size(), [&](uint32_t i) {
    float* mine = memory + i * stride;
    for (uint32_t item = next.fetch_add(1); item < n; item = next.fetch_add(1)) body(item, mine);
  });
}

/// The rows of the call and those in front.
template <class Task>
uint32_t all_rows(const Task& t) {
  return t.n_rows + (t.before == nullptr ? 0 : t.before->n_rows);
}

/// No rows: the state is copied unchanged.
template <class Task>
void copy_state(const Task& task) {
  if (task.state_out != nullptr && task.state_out != task.state_in)
    std::copy_n(task.state_in, task.shape.state_floats(), task.state_out);
  if (task.conv_out != nullptr && task.conv_out != task.conv_in)
    std::copy_n(task.conv_in, task.shape.conv_floats(), task.conv_out);
}

/// Whether both take the recurrence, as rows do that are computed together.
template <class Task>
bool both_in_steps(const Task& before, const Task& task, bool sequential) {
  return task.n_rows != 0 && !takes_chunks(sequential, before.n_rows) &&
         !takes_chunks(sequential, task.n_rows);
}

/// run(task) of the rows in front, then of the call's rows on top of the state that they leave.
template <class Task, class Run>
void run_in_turn(const Task& task, Run&& run) {
  Task rest = task;
  rest.before = nullptr;
  rest.state_in = task.before->state_out;
  rest.conv_in = task.before->conv_out;
  run(*task.before);
  run(rest);
}

}  // namespace sharpi::cpu::recurrent
