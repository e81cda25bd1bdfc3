// SPDX-License-Identifier: MIT
// What a session's probe must be. Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace sharpi {

/// kInvalidArgument for a probe that is longer than a chunk.
Status check_probe_length(size_t n_probe, uint32_t n_chunk);

}  // namespace sharpi
