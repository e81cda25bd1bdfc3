// SPDX-License-Identifier: MIT
// Ministral 3 and Mistral Small as they are published since: Llama's layers with YaRN, and queries
// that grow with their position beyond the context that the model was first trained with.
#include "model/arch_common.h"
#include "model/arch_registry.h"

namespace sharpi {

Status load_mistral3(SpecBuilder& b, ModelSpec& spec) {
  SHARPI_TRY(refuse_experts(b, "dense models are"));
  SHARPI_TRY(check_causal(b, true));
  SHARPI_TRY(refuse_other_values(b, {{"attention.sliding_window", 0}, {"attention.scale", 0}}));
  PlainDecoder kind{.pairs = RopePairs::kNeighbours};
  SHARPI_TRY_ASSIGN(const double scale, b.float_or("attention.temperature_scale", 0.0, 0.0, 1e3));
  if (scale != 0.0) {
    kind.temperature = static_cast<float>(scale);
    SHARPI_TRY_ASSIGN(kind.temperature_rows, b.require_uint("rope.scaling.original_context_length",
                                                            Range{1, limits::kContext}));
  }
  return load_plain_decoder(b, kind, spec);
}

}  // namespace sharpi
