// SPDX-License-Identifier: MIT
// Mamba-2 (arXiv 2405.21060): causal depthwise convolution, then the recurrence of its state space
// as it stands (decode; also prefill in deterministic sessions) or in chunks (prefill), then gate
// and norm. Per head, its group's B and C, S in R^{dim x state_dim}:
//   dt = softplus(dt + bias);  S = e^{a dt} S + dt x B^T;  o = S C + d x
//   y = rms over a group's channels (o silu(z)) * norm
// State layout: per head [dim][state_dim], heads outermost, f32. Conv state: [conv_kernel - 1]
// [conv_dim], oldest row first, raw pre-activation. Thread rule: one call at a time per state and
// scratch; heads are spread over the pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/thread_pool.h"
#include "cpu/kernel_set.h"

namespace sharpi::cpu {

struct Mamba2Shape {
  uint32_t n_heads = 0, head_dim = 0, n_groups = 0, state_dim = 0, conv_kernel = 0;
  uint32_t inner() const { return n_heads * head_dim; }
  uint32_t group_dim() const { return n_groups * state_dim; }
  uint32_t conv_dim() const { return inner() + 2 * group_dim(); }
  uint32_t heads_of_group() const { return n_heads / n_groups; }
  uint64_t head_state_floats() const { return uint64_t{head_dim} * state_dim; }
  uint64_t state_floats() const { return n_heads * head_state_floats(); }
  uint64_t conv_floats() const { return uint64_t{conv_kernel - 1} * conv_dim(); }
};

/// The rows of one sequence in one layer. `xbc` and `dt` are consumed: overwritten by the convolved
/// rows and by steps.
struct Mamba2Task {
  Mamba2Shape shape;
  float* xbc = nullptr;              // [n_rows][conv_dim] raw projections: x, B, C
  float* dt = nullptr;               // [n_rows][n_heads]
  const float* z = nullptr;          // [n_rows][inner] gate projection; null: `out` is scratch
  const float* conv1d = nullptr;     // [conv_dim][conv_kernel], tap conv_kernel-1 = current row
  const float* conv_bias = nullptr;  // [conv_dim]; null: none
  const float* dt_bias = nullptr;    // [n_heads]
  const float* a = nullptr;          // [n_heads], already -exp(A_log)
  const float* d = nullptr;          // [n_heads]
  const float* norm = nullptr;       // [inner]
  float eps = 1e-5f;
  const float* state_in = nullptr;  // committed state and conv tail
  const float* conv_in = nullptr;
  float* state_out = nullptr;  // working copies, fully written; may alias the inputs. Null: what
  float* conv_out = nullptr;   // these rows do to the state is not kept (drafts)
  float* out = nullptr;        // [n_rows][inner]
  uint32_t n_rows = 0;
  /// Rows of the same layer in front of these, of which only the state is wanted (drafts that were
  /// accepted). They have states in and out, and these begin at what they leave; state_in and
  /// conv_in are not read then. `z` of theirs is null, and `out` scratch.
  const Mamba2Task* before = nullptr;
};
/// Whether the rows in front of a task go with it in one call, which reads the state once: both
/// take the recurrence, and scratch for so many rows is there. Else they go before it.
bool goes_with(const Mamba2Task& before, const Mamba2Task& task, bool sequential,
               uint32_t n_threads, uint64_t scratch_bytes);

/// The path that n_rows rows take, for statistics: "recurrence-avx512", "chunks-avx512", ...
std::string mamba2_path(const KernelSet& kernels, const Mamba2Shape& shape, bool sequential,
                        uint32_t n_rows);
uint64_t mamba2_scratch_bytes(const Mamba2Shape& shape, uint32_t n_threads, uint32_t max_rows);
/// sequential = the recurrence row by row whatever n_rows is.
void mamba2(ThreadPool& pool, const KernelSet& kernels, const Mamba2Task& task, bool sequential,
            std::byte* scratch, uint64_t scratch_bytes);
/// The same on the caller's thread alone, with scratch for one thread.
void mamba2_alone(const KernelSet& kernels, const Mamba2Task& task, bool sequential,
                  std::byte* scratch, uint64_t scratch_bytes);

}  // namespace sharpi::cpu
