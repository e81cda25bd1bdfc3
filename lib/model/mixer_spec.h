// SPDX-License-Identifier: MIT
// What the mixers of layers are: attention, and those that carry a state from row to row. Thread
// rule: plain values.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "gguf/gguf_file.h"
#include "model/tensor_ref.h"

namespace sharpi {

enum class QkNorm : uint8_t { kNone, kPerHead, kWholeVector };
/// Which elements of a head a rotation turns together: j and j + n_rot/2 (NEOX), or 2j and 2j + 1
/// (NORM), for which converters have permuted the rows of the projections.
enum class RopePairs : uint8_t { kHalves, kNeighbours };

/// Rotary embedding over the first n_rot dims of a head; 0 = a layer without (NoPE).
struct RopeSpec {
  uint32_t n_rot = 0;
  RopePairs pairs = RopePairs::kHalves;
  double freq_base = 10000.0;
  double freq_scale = 1.0;                   // 1/factor for linear scaling
  const GgufTensor* freq_factors = nullptr;  // n_rot/2 f32 divisors of the angles
  /// Their values, read from the file: sessions ask for them long after it was loaded.
  std::shared_ptr<const std::vector<float>> freq_values;
  /// Divisors of contexts of more than long_from tokens (LongRoPE, arXiv 2402.13753); is_long:
  /// those are taken, for all sessions of a plan alike (spec_for_context()).
  const GgufTensor* long_factors = nullptr;
  std::shared_ptr<const std::vector<float>> long_values;
  uint32_t long_from = 0;
  bool is_long = false;
  const std::vector<float>* divisors() const { return (is_long ? long_values : freq_values).get(); }
  double magnitude = 1.0;  // multiplies cosines and sines
  /// arXiv 2309.00071.
  bool yarn = false;
  double yarn_factor = 1.0, yarn_orig_ctx = 0.0, yarn_ext = 1.0;
  double yarn_beta_fast = 32.0, yarn_beta_slow = 1.0;
  bool yarn_whole_pairs = true;  // the ramp begins and ends at whole pairs of elements
};

/// Multi-head latent attention (MLA, arXiv 2405.04434) with keys and values as a token's latent
/// gives them. A row of the one KV head is the key of all query heads: n_rot elements that RoPE
/// turns, then the latent, which is the value, too. k_b takes a query head to the latent's
/// elements, v_b takes a head's sum of latents to its output.
struct LatentSpec {
  uint32_t rank = 0;                    // elements of the latent; 0: attention without one
  uint32_t key_dim = 0, value_dim = 0;  // of a head: what k_b reads, what v_b gives
  TensorRef q_a, q_norm;                // {E, q_rank}, f32: in front of `q` (optional)
  TensorRef kv_norm;                    // f32 {rank}: of the latent
  TensorRef k_b, v_b;                   // {key_dim, rank} and {rank, value_dim} for each head
  explicit operator bool() const { return rank != 0; }
};

struct AttentionSpec {
  uint32_t n_heads = 0, n_kv_heads = 0, head_dim = 0;
  float scale = 0.0f;   // of q.k
  uint32_t window = 0;  // 0 = full causal; else keys with 0 <= q_pos - k_pos < window
  /// False: a row sees the rows of its text on both sides (in a window those less than `window`
  /// away), all of which come in one pass. Nothing is stored.
  bool causal = true;
  bool fused_qkv = false;  // `q` has the rows of q, k and v, in this order; k and v are absent
  QkNorm qk_norm = QkNorm::kNone;
  /// Queries are scaled by 1 + temperature ln(1 + floor(position / temperature_rows)); 0 = not.
  float temperature = 0.0f;
  uint32_t temperature_rows = 1;
  bool v_norm = false;       // weightless RMS norm of each V head
  bool v_from_k = false;     // V = raw K projection (before norm and RoPE); no attn_v weight
  bool output_gate = false;  // attn_q rows are (query, gate) per head; o *= sigmoid(gate)
  int32_t kv_source = -1;    // -1 = owns its KV; else the layer whose rows it reads
  RopeSpec rope;
  TensorRef q, k, v, o;
  TensorRef q_norm, k_norm;          // f32; absent without qk_norm
  TensorRef q_bias, k_bias, v_bias;  // f32, added before norms and RoPE (optional)
  TensorRef o_bias;                  // f32 {E}, added to the output projection (optional)
  /// f32 {n_heads} (optional): a score beside those of the keys, with no value to it. The softmax
  /// of every query of the head begins with it (attention sinks, arXiv 2309.17453, learned).
  TensorRef sinks;
  /// head_dim is n_rot + rank; `q` gives key_dim and then n_rot elements of each head, `k` the
  /// latent before its norm and then n_rot elements; there is no `v`.
  LatentSpec latent;
  /// A stored row is key and value in one.
  bool one_row() const { return static_cast<bool>(latent); }
  /// Elements of a row's queries where attention reads them: between one row's and the next one's.
  uint64_t query_row() const { return latent ? uint64_t{n_heads} * head_dim : q.n_out; }
  /// Of what the output projection reads.
  uint64_t mixed_row() const { return uint64_t{n_heads} * (latent ? latent.value_dim : head_dim); }
};

/// Gated delta net (arXiv 2412.06464); exact steps in docs/architecture.md.
struct DeltaNetSpec {
  uint32_t n_k_heads = 0, n_v_heads = 0, head_dim = 0, conv_kernel = 0;
  /// The key head of value head h is h / (n_v_heads / n_k_heads); else h % n_k_heads.
  bool grouped = false;
  uint32_t key_dim() const { return n_k_heads * head_dim; }
  uint32_t value_dim() const { return n_v_heads * head_dim; }
  uint32_t conv_dim() const { return 2 * key_dim() + value_dim(); }
  TensorRef qkv, gate, alpha, beta, out;  // projections
  TensorRef conv1d, dt_bias, a, norm;     // f32
  /// What its recurrence reads of a row, as planes of Recurrence::inputs: projections before the
  /// convolution, alpha, beta.
  enum Input : uint32_t { kQkv, kAlpha, kBeta, kInputs };
};

/// Mamba-2 (arXiv 2405.21060); exact steps in docs/architecture.md. Head h reads the input and
/// output vectors, B and C, of group h / (n_heads / n_groups).
struct Mamba2Spec {
  uint32_t n_heads = 0, head_dim = 0, n_groups = 0, state_dim = 0, conv_kernel = 0;
  uint32_t inner() const { return n_heads * head_dim; }
  uint32_t group_dim() const { return n_groups * state_dim; }
  uint32_t conv_dim() const { return inner() + 2 * group_dim(); }
  TensorRef gate, xbc, dt, out;           // projections; xbc: of x, B and C, in this order
  TensorRef conv1d, dt_bias, a, d, norm;  // f32; norm {inner / n_groups, n_groups}
  TensorRef conv_bias;                    // f32 {conv_dim} (optional)
  /// What its recurrence reads of a row, as planes of Recurrence::inputs: projections before the
  /// convolution, and steps.
  enum Input : uint32_t { kXbc, kDt, kInputs };
};

/// What a recurrent mixer carries from row to row, in floats.
struct Recurrence {
  uint64_t state = 0,
           conv = 0;  // the state, and the rows that a convolution before it looks back at
  std::vector<uint64_t> inputs;     // of one row: the widths of what the recurrence reads
  uint64_t in_place = 0, outs = 0;  // of one row: inputs that it overwrites, and what comes out
};

}  // namespace sharpi
