// SPDX-License-Identifier: MIT
// Refuses tokens that a host must not give: ids that the vocabulary lacks, and a probe that is too
// long. Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"

namespace sharpi {

/// kInvalidArgument naming the first id that the vocabulary has not. `first`: how the host counts
/// tokens[0]; `of`: what they are of, as in "token 3 of the probe".
Status check_token_ids(std::span<const int32_t> tokens, uint32_t n_vocab, size_t first = 0,
                       const char* of = "");
/// kInvalidArgument for a probe that is longer than a chunk.
Status check_probe_length(size_t n_probe, uint32_t n_chunk);

}  // namespace sharpi
