// SPDX-License-Identifier: MIT
// Causal attention over stored KV rows: decode (few rows; the keys are split over the device and
// the partial results merged by the last blocks or by a second launch, known as split-KV or
// flash-decoding), prefill (blocks of query rows, FlashAttention), full or sliding window, any
// codec, grouped queries (GQA).
//   o = sum_t softmax_t(scale * q.k_t) v_t, then o *= sigmoid(gate) if there is a gate. A head's
//   sink is one more score of its softmax, without a value.
//   fast   tensor cores, f32 accumulation. Decode: bf16 rows unconverted (queries and weights as
//          two bf16 terms), f32 rows as f16, q8_0 keys as integers times queries of two signed
//          bytes, q8_0 values as f16. Prefill: all rows as f16.
//   exact  f32 throughout.
// Splits depend on the length of the row and constants of the launch only; partial results are
// merged in one order: equal calls give equal bits.
// All launchers check their arguments, allocate nothing and can be captured into a graph.
// Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "cuda/kernels/batch.h"
#include "cuda/kernels/products/matmul.h"
#include "cuda/kernels/stream_handle.h"

namespace sharpi::cuda {

/// Calls of up to this many rows, and decode of any batch, use the split kernels.
constexpr uint32_t kSplitRows = 16;

struct AttentionParams {
  Batch batch;
  KvLayer kv;
  uint32_t n_heads =
      0;  // query heads; head h reads KV head h / (n_heads / kv.n_heads); group <= 16
  float scale = 0.0f;
  const float* sinks = nullptr;  // device, [n_heads]; nullptr = none
  /// [n_rows][q_stride], head h at h * head_dim; aligned to 16. Rotated where keys are stored so.
  const float* q = nullptr;
  uint64_t q_stride = 0;
  /// Output gate: o[r][h][d] *= sigmoid(gate[r * gate_stride + h * gate_head_stride + d]).
  const float* gate = nullptr;
  uint64_t gate_stride = 0;
  uint32_t gate_head_stride = 0;
  float* o = nullptr;  // [n_rows][o_stride], head h at h * head_dim; may not overlap q
  uint64_t o_stride = 0;
  std::byte* workspace = nullptr;  // attention_workspace_bytes(), aligned to 256
  uint64_t workspace_bytes = 0;
  /// Blocks of a step's launch may wait for each other: no other launch whose blocks do so runs on
  /// the device (Device::launch_mutex()).
  bool may_wait = false;
  /// Rows of some sequences are in blocks of one KV head (device/batch.h): these kernels read rows
  /// of both kinds.
  bool by_head = false;
};

/// Raises the shared-memory limits of the kernels, once per device before the first launch.
Status prepare_attention(const KernelConfig& config);

/// The workspace's first kAttentionCounterBytes must be zero before the first launch that uses it;
/// every launch leaves them zero. One call at a time.
constexpr uint64_t kAttentionCounterBytes = 8192;
/// For every layer of up to max_heads query heads of up to max_head_dim, any number of rows.
uint64_t attention_workspace_bytes(const KernelConfig& config, uint32_t max_heads,
                                   uint32_t max_head_dim);

/// config: exact, deterministic (f32, one split: a row's bits do not depend on the chunking or on
/// other rows), pdl, n_sm are read.
Status launch_attention(const KernelConfig& config, const AttentionParams& p, cudaStream_t stream);

}  // namespace sharpi::cuda
