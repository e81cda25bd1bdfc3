// SPDX-License-Identifier: MIT
// Qwen3 dense: full attention with per-head QK norms, SwiGLU.
#include "model/arch_common.h"
#include "model/arch_registry.h"

namespace sharpi {

Status load_qwen3(SpecBuilder& b, ModelSpec& spec) {
  return load_plain_decoder(b, {.qk_norm = QkNorm::kPerHead}, spec);
}

}  // namespace sharpi
