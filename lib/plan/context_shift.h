// SPDX-License-Identifier: MIT
// Bounded sessions that go on past their context (a context shift): which of them do, and the
// memory for rotating stored keys to other positions. The planner, the keeper of bounded sessions
// and the KeyShifter ask here, so that they agree. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "plan/shapes.h"

namespace sharpi {

/// Why a session ends at its context, as the end of a sentence; empty = it goes on.
std::string why_context_ends(const ModelSpec& spec, const SessionShape& session, uint32_t n_chunk);

/// The memory of a KeyShifter (tier/key_shift.h).
struct KeyShiftSizes {
  /// The angles for n positions are the sums of two that are tabulated: those for n % kNear
  /// positions (near), and those for the multiple of kNear below n (far).
  static constexpr uint32_t kNear = 64;
  static constexpr uint32_t kPieceRows = 32;

  uint64_t pairs = 0;     // pairs of a head that RoPE rotates, the most of any layer
  uint64_t elements = 0;  // of the widest K row; 0 = no layer has keys with RoPE
  uint64_t n_far = 0;     // multiples whose angles are kept at a time
  static KeyShiftSizes of(const ModelSpec& spec, uint32_t n_ctx);
  uint64_t bytes() const;
};

/// Bytes of a session's KeyShifter; 0 = the session ends at its context, or no layer has keys with
/// RoPE.
uint64_t key_shift_bytes(const ModelSpec& spec, const SessionShape& session, uint32_t n_chunk);

}  // namespace sharpi
