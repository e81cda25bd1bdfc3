// SPDX-License-Identifier: MIT
// Bounded sessions that go on past their context (a context shift): which of them do, and the
// memory for rotating stored keys to other positions. The planner, the keeper of bounded sessions
// and the KeyTurner ask here, so that they agree. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "plan/plan.h"

namespace sharpi {

/// Why a session ends at its context, as the end of a sentence; empty = it goes on.
std::string why_context_ends(const ModelSpec& spec, const SessionShape& session, uint32_t n_chunk);

/// What a KeyTurner (tier/turn_keys.h) is made of.
struct TurnSizes {
  /// A turn is the sum of a near one, of fewer positions than kNear, and a far one, of a multiple
  /// of them.
  static constexpr uint32_t kNear = 64;
  static constexpr uint32_t kPieceRows = 32;

  uint64_t pairs = 0;     // most that a head has
  uint64_t elements = 0;  // of the widest K row; 0 = no layer has keys to turn
  uint64_t n_far = 0;     // far turns that are kept; others take their places
  static TurnSizes of(const ModelSpec& spec, uint32_t n_ctx);
  uint64_t bytes() const;
};

/// Bytes for turning a session's keys; 0 = it ends at its context, or there are none to turn.
uint64_t turn_bytes(const ModelSpec& spec, const SessionShape& session, uint32_t n_chunk);

}  // namespace sharpi
