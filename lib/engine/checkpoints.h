// SPDX-License-Identifier: MIT
// To which lengths a session can be truncated. Attention layers can go back to any length whose
// rows are still there, recurrent layers only to a checkpoint, a kept copy of their state. Owns the
// list of checkpoints and the logits at each; the copies of the state are in the tiers' sessions.
// Thread rule: as Session.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "engine/drafters.h"
#include "engine/row_memory.h"
#include "engine/session_core.h"
#include "engine/token_drawer.h"

namespace sharpi {

struct Checkpoint {
  uint32_t n_tokens = 0;
  bool used = false, pinned = false, has_logits = false;
  uint64_t age = 0;
};

class Checkpoints {
 public:
  Checkpoints(SessionCore& core, RowMemory& memory, TokenDrawer& drawer, Drafters& drafters)
      : core_(core), memory_(memory), drawer_(drawer), drafters_(drafters) {}
  /// As many as the template asks for. May throw std::bad_alloc.
  void create();

  /// Ascending; the present length is the last one.
  std::vector<uint32_t> reachable() const;
  /// Whether truncate() can go there. A refusal names the nearest lengths that can be reached.
  Status check(uint32_t n_tokens) const;
  /// Goes back to a length, or refuses as check() does.
  Status truncate(uint32_t n_tokens);
  /// Ok where a checkpoint of that length can be made.
  Status check_takes(uint64_t n_tokens) const;
  /// Of the present length; kept until its place is needed, a pinned one for good.
  Status make(bool pin);
  /// There are none.
  void clear() noexcept;

  const std::vector<Checkpoint>& all() const { return all_; }
  uint32_t n_used() const;
  /// [n_vocab], of a checkpoint that has them.
  const float* logits(size_t index) const;
  float* logits(size_t index);
  uint64_t bytes() const { return logits_.capacity() * sizeof(float); }
  /// One of a saved session. Pre: there is none at this index.
  void adopt(size_t index, const Checkpoint& saved) noexcept;
  void copy_from(const Checkpoints& from);

 private:
  size_t place_for(uint64_t n_tokens) const;
  int32_t of_length(uint32_t n_tokens) const;
  Status check_state_at(uint32_t n_tokens) const;
  Status load_state_at(uint32_t n_tokens);
  void bring_logits_back() noexcept;

  SessionCore& core_;
  RowMemory& memory_;
  TokenDrawer& drawer_;
  Drafters& drafters_;
  std::vector<Checkpoint> all_;
  std::vector<float> logits_;  // [n_checkpoints][n_vocab]: logits row 0 at each
  uint64_t clock_ = 0;         // age of the youngest
};

}  // namespace sharpi
