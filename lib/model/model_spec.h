// SPDX-License-Identifier: MIT
// An architecture as data: hyper-parameters and one LayerSpec per layer. One small file per
// architecture (arch_*.cc) fills a ModelSpec from a GGUF header; tiers read the spec and contain no
// architecture's name.
// Thread rule: immutable after load_model_spec().
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/kv_dtype.h"
#include "base/status.h"
#include "gguf/gguf_file.h"
#include "model/mixer_spec.h"
#include "model/pooled_spec.h"
#include "model/tensor_ref.h"

namespace sharpi {

enum class MixerKind : uint8_t { kAttention, kGatedDeltaNet, kMamba2, kNone };
enum class FfnKind : uint8_t { kDense, kMoe, kNone };
/// kSwigluClamped (gpt-oss): with g = min(gate, 7) and u = up limited to [-7, 7],
/// g sigmoid(1.702 g) (u + 1). FFNs without a gate: kGeluErf, and kReluSquared, which is
/// max(up, 0)^2.
enum class Activation : uint8_t { kSilu, kGeluTanh, kSwigluClamped, kGeluErf, kReluSquared };
/// What a router's logits become, before the largest are taken: shares that sum to 1 over all
/// experts, or each its own number from 0 to 1.
enum class RouterScores : uint8_t { kSoftmax, kSigmoid };
struct FfnSpec {
  FfnKind kind = FfnKind::kDense;
  Activation activation = Activation::kSilu;
  uint32_t d_ff = 0;           // dense width, or one expert's width
  TensorRef gate, up, down;    // dense, or the expert slabs; there may be no gate
  bool fused_gate_up = false;  // MoE: `gate` holds gate rows then up rows, `up` is absent
  uint32_t n_experts = 0, n_used = 0;
  bool renormalize = false;  // top-k weights /= max(sum, 2^-14)
  RouterScores scores = RouterScores::kSoftmax;
  float share_scale = 1.0f;  // multiplies the weights of those that are used
  TensorRef router;          // f32 {E, n_experts}
  TensorRef router_bias;     // f32 {n_experts}, added to the router's logits (optional)
  TensorRef choice_bias;     // f32 {n_experts}, added to scores for the choice alone (optional)
  // f32, a row for each expert, added to its products: all of them, or none. Of a dense FFN without
  // a gate the latter two, each optional.
  TensorRef gate_bias, up_bias, down_bias;  // {d_ff}, {d_ff}, {E} x n_experts
  uint32_t d_shared = 0;                    // width of the shared expert, 0 = none
  TensorRef shared_gate_inp;  // f32 {E}: sigmoid(dot) scales the shared expert; absent = 1
  TensorRef shared_gate, shared_up, shared_down;
  // A mixture beside a dense path of its own norms (Gemma 4); that path is the shared expert, and
  // the layer's ffn_norm is its input's. All of these are there, or none; f32.
  TensorRef router_scale;      // {E}: the router reads rms(x) * scale / sqrt(E)
  TensorRef expert_norm;       // {E}: the routed experts' input
  TensorRef expert_post_norm;  // {E}: of their sum
  TensorRef shared_post_norm;  // {E}: of the dense path's output
  TensorRef expert_scale;      // {n_experts}: an expert's share is multiplied by it
  bool beside_dense() const { return static_cast<bool>(expert_norm); }
  /// Shares choose experts and are their weights, as they are or renormalised.
  bool routes_by_shares() const {
    return scores == RouterScores::kSoftmax && !choice_bias && share_scale == 1.0f;
  }
};

struct LayerSpec {
  MixerKind mixer = MixerKind::kAttention;
  AttentionSpec attention;
  DeltaNetSpec delta;
  Mamba2Spec mamba;
  FfnSpec ffn;
  TensorRef mixer_norm;       // before the mixer; absent in layers with residual norms
  TensorRef mixer_post_norm;  // on the mixer's output, before the residual add (optional)
  TensorRef ffn_norm;         // before the FFN; absent in layers with residual norms
  TensorRef ffn_post_norm;    // on the FFN's output, before the residual add (optional)
  /// On the residual stream behind the mixer and behind the FFN (post-LN, as BERT; optional).
  LayerNormSpec mixer_residual_norm, ffn_residual_norm;
  /// What routed experts read is normed with.
  const TensorRef& expert_norm() const { return ffn.beside_dense() ? ffn.expert_norm : ffn_norm; }
  TensorRef ple_gate, ple_proj, ple_post_norm;  // per-layer embedding injection (optional)
  float output_scale = 1.0f;                    // multiplies the residual stream at the layer's end
  float residual_scale = 1.0f;  // multiplies what mixer and FFN add to the residual stream

  // What follows from the kind of mixer; each kind says all of it.
  /// Its attention over stored rows; null: it reads none.
  const AttentionSpec* attends() const;
  /// The same where no window leaves rows out.
  const AttentionSpec* attends_to_all() const {
    const AttentionSpec* a = attends();
    return a != nullptr && a->causal && a->window == 0 ? a : nullptr;
  }
  /// The layer whose rows it reads in place of its own; -1: it has its own, or reads none.
  int32_t kv_source() const { return attends() != nullptr ? attends()->kv_source : -1; }
  bool owns_kv() const { return stores_rows() && attends()->kv_source < 0; }
  /// Rows further back than so many are not read; 0: all are, or none, or nothing is stored.
  uint32_t window() const { return stores_rows() ? attends()->window : 0; }
  /// Its attention reads rows that are stored, its own or another layer's.
  bool stores_rows() const { return attends() != nullptr && attends()->causal; }
  /// It carries a state from row to row.
  bool is_recurrent() const;
  /// Of a mixer that is not recurrent: nothing.
  Recurrence recurrence() const;
  /// The mixer's weights that products read, and its small ones; absent ones are null refs.
  std::vector<const TensorRef*> mixer_products() const;
  std::vector<const TensorRef*> mixer_vectors() const;
  /// The FFN block's tensors but gate, up and down, the shared expert's and the biases among them.
  std::vector<const TensorRef*> ffn_others() const;
};

/// What a multi-token prediction block starts from instead of an embedding alone: proj over the
/// normalised embedding of a token and the normalised hidden row of the token before it, as the
/// head's norm left that one: it is normalised twice.
struct PairInput {
  TensorRef proj;  // {2E, E}: embedding first
  TensorRef embd_norm, hidden_norm;
  bool table_on_host = false;  // embeddings come in beside the hidden rows
  explicit operator bool() const { return static_cast<bool>(proj); }
};

/// A block for multi-token prediction (arXiv 2412.19437, section 2.2).
struct MtpSpec {
  LayerSpec layer;
  PairInput pair;
  TensorRef head_norm, embd, head;  // absent = the trunk's
  explicit operator bool() const { return static_cast<bool>(pair); }
};

/// Which layers of a file's model a spec has, where the others are other processes' (a group).
struct ModelPart {
  uint32_t rank = 0, n_ranks = 1;  // of the group, in the order in which a token comes to them
  uint32_t first = 0, n_all = 0;   // its first layer in the file's count; layers of the file
  bool is_part() const { return n_ranks > 1; }
  bool has_embedding() const { return rank == 0; }
  bool has_head() const { return rank + 1 == n_ranks; }
};

struct ModelSpec {
  std::shared_ptr<const GgufFile> file;
  std::string architecture;  // general.architecture
  std::string name;          // general.name or empty
  uint32_t n_embd = 0, n_vocab = 0, n_ctx_train = 0;
  float rms_eps = 1e-6f;  // of norms of all kinds
  float embedding_scale = 1.0f;
  float logit_scale = 1.0f;    // multiplies logits
  float logit_softcap = 0.0f;  // 0 = none
  std::vector<LayerSpec> layers;
  TensorRef token_embd, output_norm, output;  // output = token_embd when tied; encoders: absent
  bool tied_output = false;
  // Added to the embedding of a token, then normed (BERT; optional).
  TensorRef position_embd, token_types;  // {E, n_ctx_train}, {E, types}
  LayerNormSpec embd_norm;
  PooledSpec pooled;
  // Per-layer embeddings (Gemma 4 E4B kind): width 0 = none.
  uint32_t d_ple = 0;
  TensorRef ple_embd, ple_model_proj, ple_proj_norm;
  uint32_t n_mtp_layers = 0;                 // in the file
  uint64_t mtp_bytes = 0;                    // of their tensors
  MtpSpec mtp;                               // the first of them
  PairInput pair;                            // of a model that make_mtp_spec() made
  std::vector<const GgufTensor*> lent;       // its tensors that are the trunk's, loaded with that
  KvDtype default_kv_dtype = KvDtype::kF32;  // what `auto` means before any narrowing
  std::string left_out;  // parts of the file beside the text model, in words; empty: none
  ModelPart part;

  uint32_t n_layers() const { return static_cast<uint32_t>(layers.size()); }
  bool is_hybrid() const;      // any recurrent layer
  bool is_encoder() const;     // reads whole texts in one pass and stores no rows
  bool has_window() const;     // any sliding-window layer
  bool has_long_rope() const;  // its angles are those of long contexts
  uint64_t saved_id() const { return saved_id(has_long_rope()); }  // by which blobs know it
  uint64_t saved_id(bool long_rope) const;
  uint64_t parameter_count() const;  // of the tensors the spec refers to
};

/// Reads and checks everything: keys, every tensor's presence, type and shape. kUnsupported names
/// an unknown architecture or rope scaling; kFormat names the tensor, both shapes and the key.
Result<std::shared_ptr<const ModelSpec>> load_model_spec(std::shared_ptr<const GgufFile> file);

/// The model for sessions of up to n_ctx tokens: of a file with divisors of RoPE's angles for long
/// contexts, those or the others. The same object where nothing changes.
std::shared_ptr<const ModelSpec> spec_for_context(std::shared_ptr<const ModelSpec> spec,
                                                  uint32_t n_ctx);
/// The spec again, of its file with tensors in memory, for the same context.
Result<std::shared_ptr<const ModelSpec>> reload_spec(const ModelSpec& spec,
                                                     std::shared_ptr<const GgufFile> file);

/// A model of the part's layers, n of them, which are counted from 0 there: with the embedding on
/// the first rank, the head on the last one, and without the block for multi-token prediction. Pre:
/// of a whole model; no layer of it reads rows of one outside.
std::shared_ptr<const ModelSpec> make_part_spec(const ModelSpec& spec, const ModelPart& part,
                                                uint32_t n);

/// The block for multi-token prediction as a model of one layer, whose embedding is the pair. It
/// reads all tokens; its head gives logits of those with ids below n_draft_vocab, 0 = of all.
/// `table_on_host`: a table that it has from the trunk is not on its tier. Pre: spec.mtp.
std::shared_ptr<const ModelSpec> make_mtp_spec(const ModelSpec& spec, uint32_t n_draft_vocab = 0,
                                               bool table_on_host = false);

/// A token's row of the embedding table, scaled: n_embd floats. Pre: the id is one of the table's.
void embed_token(const ModelSpec& spec, int32_t token, float* out);
/// Row `row` of a table, n_in floats. Pre: there is such a row, and the tensor is in memory.
void table_row(const TensorRef& table, uint64_t row, float* out);

}  // namespace sharpi
