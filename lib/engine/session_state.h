// SPDX-License-Identifier: MIT
// The parts that a session is made of, and the operations that concern all of them. Each part is a
// class of its own; it refers to the core and to the parts declared before it that it works with.
// Thread rule: as Session; cancel() and resume() from anywhere.
#pragma once

#include <memory>

#include "base/status.h"
#include "engine/bounded_keeper.h"
#include "engine/checkpoints.h"
#include "engine/compactor.h"
#include "engine/draft_verifier.h"
#include "engine/drafters.h"
#include "engine/pass_runner.h"
#include "engine/prompter.h"
#include "engine/query_observer.h"
#include "engine/rank_calls.h"
#include "engine/recaller.h"
#include "engine/row_memory.h"
#include "engine/row_selector.h"
#include "engine/session_core.h"
#include "engine/token_drawer.h"

namespace sharpi {

struct SessionState {
  SessionState(std::shared_ptr<const Model> model, SessionShape shape)
      : core(std::move(model), std::move(shape)) {}
  SessionState(const SessionState&) = delete;
  SessionState& operator=(const SessionState&) = delete;
  /// Takes `share` of the model's allowance, then all memory. May throw std::bad_alloc.
  Status create(const HeldBytes& share);

  /// Nothing is in it that forget_all() would take from whoever asks.
  bool is_empty() const;
  /// An empty session, whose rows of all heads are stored together.
  void forget_all() noexcept;
  /// The same, but memory is laid out as it was.
  void forget_contents() noexcept;
  /// What `from` holds, for a fork. Pre: new, of the same template, and from.memory.share_rows().
  Status copy_from(const SessionState& from);

  /// A cancel stays until a call has answered it: end_call(), or resume().
  void cancel() noexcept;
  void resume() noexcept;
  Status end_call(Status done);

  SessionCore core;
  RowMemory memory{core};
  TokenDrawer drawer{core};
  Drafters drafters{core};
  Checkpoints checkpoints{core, memory, drawer, drafters};
  QueryObserver observer{core};
  RowSelector selector{core};
  Compactor compactor{core, memory, observer, selector, drafters};
  Recaller recaller{core, memory, observer, selector};
  BoundedKeeper bounded{core, observer, compactor, checkpoints, drafters};
  PassRunner runner{core, drafters, selector};
  Prompter prompter{core, runner, bounded, checkpoints, drafters};
  DraftVerifier verifier{core, runner, drawer, drafters};
  RankCalls ranks{core, drawer, checkpoints, prompter};
};

}  // namespace sharpi
