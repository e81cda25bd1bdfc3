// SPDX-License-Identifier: MIT
// Models with multi-head latent attention, for made_models.cc. Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "support/gguf_writer.h"

namespace sharpi::test {

/// As DeepSeek-V2-Lite, in the form that its files had before April 2025: queries of the input at
/// once, shares that are a softmax, YaRN that scales scores.
Bytes made_deepseek2(uint64_t seed);
/// As GLM-4.7-Flash: queries of a smaller row, experts chosen by sigmoids and biases.
Bytes made_glm_flash(uint64_t seed);

}  // namespace sharpi::test
