// SPDX-License-Identifier: MIT
// Gated delta net (arXiv 2412.06464): causal depthwise convolution and the gated delta rule, as the
// exact recurrence (decode; also prefill in deterministic sessions) and in chunked form (prefill).
//   per v-head h, its key head m, S in R^{dk x dv}:
//   S *= exp(g); d = beta * (v - S^T k); S += k d^T; o = S^T q
// State layout: per v-head [dv][dk] (row = value channel, contiguous over key channel), heads
// outermost, f32. Conv state: [conv_kernel - 1][conv_dim], oldest row first, raw pre-activation.
// Thread rule: one call at a time per state and scratch; heads are spread over the pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/thread_pool.h"
#include "cpu/kernel_set.h"

namespace sharpi::cpu {

struct DeltaNetShape {
  uint32_t n_k_heads = 0, n_v_heads = 0, head_dim = 0, conv_kernel = 0;
  bool grouped = false;  // value heads of one key head follow each other; else key heads recur
  uint32_t key_of(uint32_t head) const {
    return grouped ? head / (n_v_heads / n_k_heads) : head % n_k_heads;
  }
  uint32_t key_dim() const { return n_k_heads * head_dim; }
  uint32_t value_dim() const { return n_v_heads * head_dim; }
  uint32_t conv_dim() const { return 2 * key_dim() + value_dim(); }
  uint64_t state_floats() const { return uint64_t{n_v_heads} * head_dim * head_dim; }
  uint64_t conv_floats() const { return uint64_t{conv_kernel - 1} * conv_dim(); }
};

/// The rows of one sequence in one layer. `qkv` is consumed (overwritten by the convolved rows).
struct DeltaNetTask {
  DeltaNetShape shape;
  float* qkv = nullptr;            // [n_rows][conv_dim] raw projections: q, k, v
  const float* z = nullptr;        // [n_rows][value_dim] gate projection; null: `out` is scratch
  const float* alpha = nullptr;    // [n_rows][n_v_heads]
  const float* beta = nullptr;     // [n_rows][n_v_heads], before the sigmoid
  const float* conv1d = nullptr;   // [conv_dim][conv_kernel], tap conv_kernel-1 = current row
  const float* dt_bias = nullptr;  // [n_v_heads]
  const float* a = nullptr;        // [n_v_heads], already -exp(A_log)
  const float* norm = nullptr;     // [head_dim]
  float eps = 1e-6f;
  const float* state_in = nullptr;  // committed state and conv tail
  const float* conv_in = nullptr;
  float* state_out = nullptr;  // working copies, fully written; may alias the inputs. Null: what
  float* conv_out = nullptr;   // these rows do to the state is not kept (drafts)
  float* out = nullptr;        // [n_rows][value_dim]: rms(o, norm) * silu(z)
  uint32_t n_rows = 0;
  /// Rows of the same layer in front of these, of which only the state is wanted (drafts that were
  /// accepted). They have states in and out, and these begin at what they leave; state_in and
  /// conv_in are not read then. `z` of theirs is null, and `out` scratch.
  const DeltaNetTask* before = nullptr;
};
/// Whether the rows in front of a task go with it in one call, which reads the state once: both
/// take the recurrence, and scratch for so many rows is there. Else they go before it.
bool goes_with(const DeltaNetTask& before, const DeltaNetTask& task, bool sequential,
               uint32_t n_threads, uint64_t scratch_bytes);

/// The path that n_rows rows take, for statistics: "recurrence-avx512", "chunks-avx512", ...
std::string delta_net_path(const KernelSet& kernels, uint32_t head_dim, bool sequential,
                           uint32_t n_rows);
uint64_t delta_net_scratch_bytes(const DeltaNetShape& shape, uint32_t n_threads, uint32_t max_rows);
/// sequential = the recurrence row by row whatever n_rows is.
void delta_net(ThreadPool& pool, const KernelSet& kernels, const DeltaNetTask& task,
               bool sequential, std::byte* scratch, uint64_t scratch_bytes);
/// The same on the caller's thread alone, with scratch for one thread.
void delta_net_alone(const KernelSet& kernels, const DeltaNetTask& task, bool sequential,
                     std::byte* scratch, uint64_t scratch_bytes);

}  // namespace sharpi::cpu
