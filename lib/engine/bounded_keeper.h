// SPDX-License-Identifier: MIT
// Keeps a session within its budgets (kv_budget, prompt_budget): compacts it without being asked,
// at the end of a prompt and before a pass that has no room, says which queries score the rows
// then, and lets a bounded session go on past its context. Owns the look-ahead of the prompt that
// is being read and the KeyShifter. Thread rule: as Session.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"
#include "engine/checkpoints.h"
#include "engine/compactor.h"
#include "engine/drafters.h"
#include "engine/query_observer.h"
#include "engine/session_core.h"
#include "tier/key_shift.h"

namespace sharpi {

class BoundedKeeper {
 public:
  BoundedKeeper(SessionCore& core, QueryObserver& observer, Compactor& compactor,
                Checkpoints& checkpoints, Drafters& drafters)
      : core_(core),
        observer_(observer),
        compactor_(compactor),
        checkpoints_(checkpoints),
        drafters_(drafters) {}
  /// What going on past the context takes. May throw std::bad_alloc.
  void create();
  /// Bytes that create() took.
  uint64_t bytes() const { return shifter_.bytes(); }

  /// Refuses n tokens that make_room() could not make room for. Changes nothing.
  Status check_room(uint64_t n) const;
  /// For a pass over n tokens.
  Status make_room(uint64_t n);
  /// Before a prompt is read. If it does not fit, the rows are scored, whenever room is made, by
  /// the queries of the prompt's last tokens, or of the template's probe behind it (look-ahead). Ok
  /// or not, end_prompt() follows.
  Status begin_prompt(std::span<const int32_t> prompt);
  void end_prompt() noexcept;
  /// To the template's prompt_budget, if it has one.
  Status compact_after_prompt();

 private:
  std::string why_it_ends() const;  // at its context; empty = it can shift the context
  Status look_ahead(std::span<const int32_t> prompt);
  Status compact_to_budget();
  Status shift_context(uint64_t n);

  SessionCore& core_;
  QueryObserver& observer_;
  Compactor& compactor_;
  Checkpoints& checkpoints_;
  Drafters& drafters_;
  KeyShifter shifter_;
  uint32_t look_ahead_ = 0;  // observer rows of the prompt being read
  uint64_t look_ahead_position_ = 0;
  uint64_t prompt_end_ = 0;  // the position after the prompt being read; 0 = none is
};

}  // namespace sharpi
