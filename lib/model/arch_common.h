// SPDX-License-Identifier: MIT
// Parts that several architectures have in common: the keys and tensors around the layers,
// attention, dense and expert FFNs. Thread rule: as SpecBuilder.
#pragma once

#include <vector>

#include "model/rope_keys.h"
#include "model/spec_builder.h"

namespace sharpi {

/// Keys that every architecture has. `n_blocks` counts MTP blocks too.
struct TrunkKeys {
  uint32_t n_blocks = 0;
  Extent embd, vocab;
  std::vector<uint32_t> n_heads, n_kv_heads;  // per block; 0 is legal where there is no attention
};

/// Reads the trunk keys, the embedding table, the final norm and the head into `spec`. Without
/// `may_tie` the output matrix must exist.
Status load_trunk(SpecBuilder& b, ModelSpec& spec, TrunkKeys* trunk, bool may_tie);

/// The same of an encoder: no head and no final norm, whose epsilon is that of layer norms.
Status load_encoder_trunk(SpecBuilder& b, ModelSpec& spec, TrunkKeys* trunk);

/// The number of attention heads of one block is usable: not 0, and a multiple of the KV heads.
Status check_heads(const SpecBuilder& b, const TrunkKeys& trunk, uint32_t block);

/// attention.key_length, by default embedding_length / head_count; equal to value_length. `suffix`
/// is "" or "_swa"; a default for the latter must be in the file.
Result<uint32_t> read_head_dim(const SpecBuilder& b, const TrunkKeys& trunk, const char* suffix);

/// Where the rows of query and output projections come from.
inline constexpr const char* kQueryRows = "%.attention.head_count * %.attention.key_length";
inline constexpr const char* kKvRows = "%.attention.head_count_kv * %.attention.key_length";

/// Refuses the file, by the key's name, if it declares routed experts.
Status refuse_experts(const SpecBuilder& b, const char* what_is_supported);

/// A key that changes a model's results and the value with which it does not.
struct NeutralKey {
  const char* key;
  double neutral;
};
/// Refuses the file if one of `keys` is there with another value than the neutral one: results
/// would be wrong in silence.
Status refuse_other_values(const SpecBuilder& b, std::initializer_list<NeutralKey> keys);

/// Refuses the file if attention.causal says otherwise.
Status check_causal(const SpecBuilder& b, bool causal);

/// The geometry of one block's attention, with scale 1/sqrt(head_dim) and full causal mask; the
/// tensors are left to the caller.
Result<AttentionSpec> attention_geometry(const SpecBuilder& b, const TrunkKeys& trunk,
                                         uint32_t block, uint32_t head_dim, const RopeSpec& rope);

/// Whether attn_q, attn_k and attn_v have biases.
enum class QkvBias : uint8_t { kNone, kOptional, kRequired };

/// attn_q/k/v/output, the norms that qk_norm asks for, and biases, for an attention whose geometry
/// and qk_norm are set.
Status load_attention_tensors(SpecBuilder& b, const TrunkKeys& trunk, uint32_t block,
                              AttentionSpec* attention, QkvBias bias = QkvBias::kNone);

/// Gemma's norms before and after the mixer and the FFN.
Status load_sandwich_norms(SpecBuilder& b, const TrunkKeys& trunk, uint32_t block,
                           LayerSpec* layer);

/// Dense gate/up/down of width d_ff; of kReluSquared up and down, and biases where there are some.
Status load_dense_ffn(SpecBuilder& b, const TrunkKeys& trunk, uint32_t block, uint32_t d_ff,
                      Activation activation, FfnSpec* ffn);

/// What distinguishes decoders that are otherwise alike: full or windowed attention, a dense
/// SwiGLU FFN, a norm before each.
struct PlainDecoder {
  RopePairs pairs = RopePairs::kHalves;
  QkNorm qk_norm = QkNorm::kNone;
  QkvBias bias = QkvBias::kNone;
  bool freq_factors = false;  // rope_freqs.weight may be there
  bool long_factors = false;  // rope_factors_short.weight and rope_factors_long.weight may be there
  uint32_t window = 0;        // of every layer; 0 = none
  /// The last of every so many layers turns no queries and keys by their positions; 0 = all do.
  uint32_t unturned_every = 0;
  float temperature = 0.0f;  // of queries, by their position: AttentionSpec
  uint32_t temperature_rows = 1;
};
/// Fills the whole spec of such a model.
Status load_plain_decoder(SpecBuilder& b, const PlainDecoder& kind, ModelSpec& spec);

/// Keys of a mixture of experts.
struct MoeKeys {
  uint32_t n_experts = 0, n_used = 0;
  Extent width;  // of one expert
  bool renormalize = false;
  Extent shared_width{0};           // of the shared expert; 0 = none
  bool shared_has_gate_inp = true;  // a number of each row scales the shared expert
  /// kReluSquared: routed and shared experts have no gate.
  Activation activation = Activation::kSilu;
};

/// expert_count and expert_used_count; group-limited routing is refused.
Result<MoeKeys> read_moe_keys(const SpecBuilder& b);
/// expert_feed_forward_length, by default feed_forward_length / expert_used_count.
Result<Extent> read_expert_width(const SpecBuilder& b, const MoeKeys& moe);
/// Router, expert slabs (separate or fused gate and up) and, if there is one, the shared expert.
Status load_moe_ffn(SpecBuilder& b, const TrunkKeys& trunk, uint32_t block, const MoeKeys& moe,
                    FfnSpec* ffn);

}  // namespace sharpi
