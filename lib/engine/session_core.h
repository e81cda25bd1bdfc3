// SPDX-License-Identifier: MIT
// What every part of a session works on: the model, the resolved template, the session's sessions
// on the tiers, the transcript, and whether the call in progress has been cancelled. The parts
// (session_state.h) refer to it; it knows none of them. Thread rule: as Session; `cancelled` is
// written from anywhere.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/adapter.h"
#include "engine/allowance.h"
#include "engine/model.h"
#include "engine/transcript.h"
#include "kv/ledger.h"
#include "kv/row_archive.h"
#include "tier/tier.h"

namespace sharpi {

struct SessionCore {
  SessionCore(std::shared_ptr<const Model> of, SessionShape resolved);
  ~SessionCore();
  SessionCore(const SessionCore&) = delete;
  SessionCore& operator=(const SessionCore&) = delete;
  /// Sessions on the tiers, the ledger, and memory for n_ctx tokens. May throw std::bad_alloc.
  Status create();

  const KvLedger& ledger() const { return transcript.ledger(); }
  std::span<const int32_t> tokens() const { return transcript.tokens(); }
  const ModelSpec& spec() const { return model->spec(); }
  const ModelShape& limits() const { return model->plan().model; }
  /// Slots of full-attention layers that the template was priced for.
  uint32_t priced_slots() const { return shape.capacity(limits().n_chunk); }
  size_t tier_index(uint32_t layer) const;  // of the tier that runs the layer's mixer
  TierSession& tier_of(uint32_t layer) const { return *tiers[tier_index(layer)]; }
  KvStore& store(uint32_t layer) const { return tier_of(layer).store(); }
  TierSession& head() const;
  uint32_t full_capacity() const;  // of the full-attention layer that has most
  uint32_t free_slots() const;     // rows that every full-attention layer still takes
  /// Tokens that one pass may read before the session has to make room.
  uint64_t room_of_pass() const;
  std::vector<uint32_t> compactable_layers() const;
  /// Payload of full-attention layers at n_ctx rows each.
  uint64_t full_cache_bytes() const;

  /// A cancel that came while nothing ran ends the call at once, and nothing is computed from rings
  /// that are not whole, or a recurrent state that is lost.
  Status begin_call();
  Status check_whole() const;
  bool is_cancelled() const { return !changed && cancelled.load(std::memory_order_relaxed); }
  /// The flag that a pass polls to stop half way; null = the pass must be finished.
  const std::atomic<bool>* stop_flag() const;
  /// `first`: what the caller calls token 0.
  Status check_tokens(std::span<const int32_t> tokens, size_t first = 0) const;
  Status no_room(uint64_t n) const;
  /// The ledger's room for positions of compacted rows. Of templates that capture no queries it is
  /// not priced: a compaction takes it from the session's share, and it goes back as soon as no row
  /// is compacted. May throw std::bad_alloc.
  Status take_positions();
  void drop_positions() noexcept;

  const std::shared_ptr<const Model> model;
  SessionShape shape;
  mutable Share share;  // of the model's allowance; outlives what it counts
  std::vector<std::unique_ptr<TierSession>> tiers;  // parallel to model->tiers()
  std::vector<TierSession*> tier_list;              // the same, as the model wants it
  Transcript transcript;                            // what was read
  RowArchive archive;       // rows that were evicted; none without the option
  ChosenAdapters adapters;  // of what is read from now on
  uint32_t n_best = 0;  // of the best logits that the last draw asked for; 0 = it took a whole row
  /// The call has changed something that only its next commit makes good: rows that made room, or
  /// observer rows. It goes on to that commit before it answers a cancel.
  bool changed = false;
  std::atomic<bool> cancelled{false};
};

}  // namespace sharpi
