// SPDX-License-Identifier: MIT
// Hybrids of Mamba-2 and attention, for made_models.cc. Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "support/gguf_writer.h"

namespace sharpi::test {

/// Granite 4: routed experts with a shared one, attention without rotary embedding.
Bytes made_granite_moe(uint64_t seed);
/// The same family with dense FFNs and rotary embedding.
Bytes made_granite(uint64_t seed);
/// Nemotron 3: layers of one thing each; experts of squares, chosen by sigmoids and biases.
Bytes made_nemotron_moe(uint64_t seed);
/// The same family with dense FFNs, which have biases.
Bytes made_nemotron(uint64_t seed);

}  // namespace sharpi::test
