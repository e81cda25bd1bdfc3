// SPDX-License-Identifier: MIT
// Llama 2 and 3, Mistral, SmolLM2 and what else is exported as `llama`: attention without QK norms,
// SwiGLU, rotations of neighbouring elements (converters permute the rows of Q and K). Optional
// are divisors of the angles (Llama 3.1 and later), biases of Q, K and V, and one window for all
// layers (Mistral 7B v0.1).
#include "model/arch_common.h"
#include "model/arch_registry.h"

namespace sharpi {

Status load_llama(SpecBuilder& b, ModelSpec& spec) {
  SHARPI_TRY(refuse_experts(b, "dense models are"));
  SHARPI_TRY(check_causal(b, true));
  SHARPI_TRY(refuse_other_values(b, {{"attention.clamp_kqv", 0},
                                     {"attention.scale", 0},
                                     {"attention.temperature_scale", 0},
                                     {"attn_logit_softcapping", 0},
                                     {"embedding_scale", 1},
                                     {"final_logit_softcapping", 0},
                                     {"logit_scale", 1},
                                     {"residual_scale", 1}}));
  SHARPI_TRY_ASSIGN(const uint32_t window,
                    b.uint_or("attention.sliding_window", 0, Range{0, limits::kContext}));
  return load_plain_decoder(b,
                            {.pairs = RopePairs::kNeighbours,
                             .bias = QkvBias::kOptional,
                             .freq_factors = true,
                             .window = window},
                            spec);
}

}  // namespace sharpi
