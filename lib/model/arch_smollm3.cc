// SPDX-License-Identifier: MIT
// SmolLM3: Llama's layers, of which the last of every four rotates neither queries nor keys (NoPE,
// arXiv 2501.18795). Files have no key that says which: it is the architecture's.
#include "model/arch_common.h"
#include "model/arch_registry.h"

namespace sharpi {

Status load_smollm3(SpecBuilder& b, ModelSpec& spec) {
  constexpr uint32_t kUnturnedEvery = 4;
  SHARPI_TRY(refuse_experts(b, "dense models are"));
  SHARPI_TRY(check_causal(b, true));
  SHARPI_TRY(refuse_other_values(b, {{"attention.sliding_window", 0}}));
  return load_plain_decoder(b,
                            {.pairs = RopePairs::kNeighbours,
                             .bias = QkvBias::kOptional,
                             .unturned_every = kUnturnedEvery},
                            spec);
}

}  // namespace sharpi
