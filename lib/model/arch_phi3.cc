// SPDX-License-Identifier: MIT
// Phi-3, Phi-3.5, Phi-4 and Phi-4-mini: Llama's layers, of which files have Q, K and V in one
// matrix and so gate and up of the FFN; rotations of a share of each head's elements, by divisors
// for short and for long contexts (LongRoPE), and a window where the file says one.
#include <initializer_list>
#include <utility>
#include <vector>

#include "model/arch_common.h"
#include "model/arch_registry.h"

namespace sharpi {
namespace {

/// Takes a matrix of a block apart into matrices of so many rows each; nothing of one that is
/// absent.
Status take_apart(const SpecBuilder& b, const TensorRule& rule, uint32_t block,
                  std::initializer_list<std::pair<const char*, uint64_t>> rows,
                  std::vector<GgufPart>* parts) {
  SHARPI_TRY_ASSIGN(const GgufTensor* whole, b.find_in_layer(block, rule));
  uint64_t first = 0;
  for (const auto& [name, n] : rows) {
    if (whole == nullptr) break;
    parts->push_back({layer_tensor_name(block, name), whole, {{first, n}}});
    first += n;
  }
  return Status::ok();
}

}  // namespace

Result<std::vector<GgufPart>> parts_of_phi3(SpecBuilder& b) {
  ModelSpec spec;
  TrunkKeys trunk;
  SHARPI_TRY(load_trunk(b, spec, &trunk, /*may_tie=*/true));
  SHARPI_TRY_ASSIGN(const uint64_t head_dim, read_head_dim(b, trunk, ""));
  SHARPI_TRY_ASSIGN(const std::vector<uint32_t> d_ff,
                    b.per_block("feed_forward_length", trunk.n_blocks, Range{1, limits::kFf}));
  std::vector<GgufPart> parts;
  for (uint32_t i = 0; i < trunk.n_blocks; ++i) {
    SHARPI_TRY(check_heads(b, trunk, i));
    const uint64_t q = trunk.n_heads[i] * head_dim, kv = trunk.n_kv_heads[i] * head_dim;
    const Extent qkv{q + 2 * kv,
                     "(%.attention.head_count + 2 * %.attention.head_count_kv) * "
                     "%.attention.key_length"};
    TensorRef none;
    SHARPI_TRY(take_apart(b, {&none, "attn_qkv.weight", WeightKind::kComputable, trunk.embd, qkv},
                          i, {{"attn_q.weight", q}, {"attn_k.weight", kv}, {"attn_v.weight", kv}},
                          &parts));
    // The matrix of both has the name that one of them has elsewhere.
    if (b.has_layer_tensor(i, "ffn_gate.weight")) continue;
    const Extent both{2 * uint64_t{d_ff[i]}, "2 * %.feed_forward_length"};
    SHARPI_TRY(take_apart(b, {&none, "ffn_up.weight", WeightKind::kComputable, trunk.embd, both}, i,
                          {{"ffn_gate.weight", d_ff[i]}, {"ffn_up.weight", d_ff[i]}}, &parts));
  }
  return parts;
}

Status load_phi3(SpecBuilder& b, ModelSpec& spec) {
  SHARPI_TRY(refuse_experts(b, "dense models are"));
  SHARPI_TRY(check_causal(b, true));
  SHARPI_TRY_ASSIGN(uint32_t window,
                    b.uint_or("attention.sliding_window", 0, Range{0, limits::kContext}));
  SHARPI_TRY_ASSIGN(const uint32_t n_ctx,
                    b.require_uint("context_length", Range{1, limits::kContext}));
  if (window >= n_ctx) window = 0;  // it leaves nothing out
  return load_plain_decoder(b, {.long_factors = true, .window = window}, spec);
}

}  // namespace sharpi
