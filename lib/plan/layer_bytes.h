// SPDX-License-Identifier: MIT
// What the blocks of a layer take, and what one token reads of them. Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "plan/shapes.h"

namespace sharpi {

/// Matrices, without norms and other vectors.
struct LayerBytes {
  uint64_t mixer = 0, ffn = 0;             // ffn: dense, or router and shared expert
  uint64_t experts = 0, experts_read = 0;  // routed ones, and those that a token uses
};
LayerBytes layer_bytes(const ModelSpec& spec, uint32_t layer);

/// KV rows (or recurrent state) that a layer owns in a session.
uint64_t row_bytes_held(const ModelSpec& spec, uint32_t layer, const SessionShape& session);
/// What of them a token at the end of the context reads, and of recurrent state also what it
/// writes. `dtype`: how the rows are stored, null = as the session says.
uint64_t row_bytes_read(const ModelSpec& spec, uint32_t layer, const SessionShape& session,
                        const KvDtypePair* dtype);

}  // namespace sharpi
