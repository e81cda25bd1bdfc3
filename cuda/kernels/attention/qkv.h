// SPDX-License-Identifier: MIT
// From the projections of an attention layer to what attention reads: norms of q, k and v, rotary
// embedding, captured queries, K and V rows appended in their codec.
// All launchers check their arguments, allocate nothing and can be captured into a graph.
// Thread rule: pure functions.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/status.h"
#include "cuda/kernels/batch.h"

namespace sharpi::cuda {

/// Rotary tables of a call: for each row r and pair j, cos and sin of position * inv_freq[j],
/// reduced in double and rounded to f32 once, times mscale. One launch per distinct rope per call.
struct RopeTableParams {
  Batch batch;
  const double* inv_freq = nullptr;  // device, [n_half]; scaling, YaRN and factors included
  uint32_t n_half = 0;               // n_rot / 2
  float mscale = 1.0f;
  float* cos = nullptr;  // [n_rows][n_half]
  float* sin = nullptr;
};
Status launch_rope_table(const RopeTableParams& p, bool pdl, cudaStream_t stream);

enum class HeadNorm : uint8_t { kNone, kPerHead, kWholeVector };

/// Per row: biases added, q, k normed (norm weights of head_dim, or of the whole vector), rotated
/// over the first 2 * n_half dims of each head (pairs j, j + n_half, or neighbours); v = v or raw
/// k, normed without weight if v_norm. The rotated q goes to q_out and, if the sequence captures,
/// to its query rows; what goes to q_out is then rotated as a codec of keys that rotates asks, and
/// so are K and V before they are encoded. K and V are encoded into the store at slot n_slots +
/// index (full) or into the chunk scratch (windowed).
struct QkvParams {
  Batch batch;
  KvLayer kv;
  uint32_t n_heads = 0;
  /// [n_rows][q_stride]; head h at h * q_head_stride: head_dim, or 2 * head_dim when each head's
  /// query is followed by its output gate (which stays where it is: AttentionParams::gate).
  const float* q = nullptr;
  uint64_t q_stride = 0;
  uint32_t q_head_stride = 0;
  const float* k = nullptr;  // [n_rows][kv_stride]; nullptr = the layer reads another's rows
  const float* v = nullptr;  // nullptr = raw k
  uint64_t kv_stride = 0;
  /// Biases of q, k and v, each laid out like one row of them; nullptr = none. Not with a norm of
  /// the whole vector.
  const float* q_bias = nullptr;
  const float* k_bias = nullptr;
  const float* v_bias = nullptr;
  HeadNorm norm = HeadNorm::kNone;
  const float* q_norm = nullptr;
  const float* k_norm = nullptr;
  bool v_norm = false;
  float eps = 1e-6f;
  const float* cos = nullptr;  // [n_rows][n_half]
  const float* sin = nullptr;
  uint32_t n_half = 0;      // 0 = no rotation
  bool neighbours = false;  // pairs 2j, 2j + 1
  /// Queries are multiplied by 1 + temperature ln(1 + floor(position / temperature_rows)); 0 = not.
  float temperature = 0.0f;
  uint32_t temperature_rows = 1;
  float* q_out = nullptr;  // [n_rows][n_heads * head_dim]; must not overlap q
  /// Floats per captured position before this layer (QueryLayout::offset_of_layer); -1 = this
  /// layer's queries are not captured. Row i of the layer lies at
  /// queries + query_offset * query_rows + i * n_heads * head_dim.
  int64_t query_offset = -1;
  /// Windowed layers: also store into the ring, so that no launch_ring_flush is needed. Only where
  /// no sequence has more than ring_slots - window + 1 rows and the pass is not transient.
  bool to_ring = false;
  /// Rows of some sequences are in blocks of one KV head (device/batch.h).
  bool by_head = false;
};
Status launch_qkv(const QkvParams& p, bool pdl, cudaStream_t stream);

/// Windowed layers: the rows of the chunk scratch go to the ring (the last ring_slots of each
/// sequence, at position % ring_slots). After the last layer that reads this chunk; before the
/// scratch is filled again.
struct RingFlushParams {
  Batch batch;
  KvLayer kv;
};
Status launch_ring_flush(const RingFlushParams& p, bool pdl, cudaStream_t stream);

}  // namespace sharpi::cuda
