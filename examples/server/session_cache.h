// SPDX-License-Identifier: MIT
// The sessions that the server holds: those that answer, and idle ones whose rows the next prompt
// may begin with. Finds the one with the longest common prefix, forks it, or makes room.
// Thread rule: the compute thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine.h"
#include "metrics.h"
#include "saved_sessions.h"

namespace server {

struct Conversation {
  std::string id;
  SessionHandle session;
  LoraScales lora;
  Tokens tokens;  // what it has read, whole also where the session forgot the beginning
  bool busy = false;
  bool reading = false;
  uint32_t n_prompt = 0;  // of the prompt that it reads, or has read last
  uint64_t used = 0;      // larger: later
  double tokens_per_second = 0;
  nlohmann::ordered_json last_compaction;  // null: none
};

class SessionCache {
 public:
  SessionCache(const Engine& engine, const Settings& settings, Metrics& metrics);

  /// A session with these adapters for the prompt, busy now, holding tokens.size() of its
  /// beginning. Null: all are busy. Throws LibraryError where memory cannot be had, whatever idle
  /// sessions gave back.
  Conversation* acquire(const Tokens& prompt, const LoraScales& lora);
  /// Idle again: its rows stay for the next prompt.
  void release(Conversation* conversation);
  /// It is in no state to be used again.
  void drop(Conversation* conversation);
  /// More rows for a session that was compacted. Throws LibraryError.
  void grow(Conversation* conversation, uint32_t n_slots);

  Conversation* find(const std::string& id);
  /// The longest beginning of the prompt that some session holds and could be cut back to.
  uint32_t best_prefix(const Tokens& prompt, const LoraScales& lora) const;
  nlohmann::ordered_json compact(Conversation* conversation, const sharpi_compact_params& params);
  /// What is held, by row.
  nlohmann::ordered_json describe() const;
  void count() const;

 private:
  uint32_t reach(const Conversation& c, const Tokens& prompt) const;
  Conversation* best(const Tokens& prompt, const LoraScales& lora, uint32_t* length) const;
  Conversation* oldest_idle() const;
  Conversation* add(SessionHandle session, Tokens tokens);
  /// Calls make() until it succeeds or there is nothing idle left to give up.
  SessionHandle with_room(const Conversation* spare,
                          sharpi_status (*make)(const void*, sharpi_session**, sharpi_error*),
                          const void* what);
  bool save(const Conversation& c);
  bool make_room(const Conversation* spare, bool places);
  void restore(const Tokens& prompt, const LoraScales& lora, uint32_t live_length);
  Conversation* created(const LoraScales& lora);
  Conversation* forked(Conversation* parent, uint32_t length);
  void cut(Conversation* c, uint32_t length);

  const Engine& engine_;
  const Settings& settings_;
  Metrics& metrics_;
  SavedSessions saved_;
  std::vector<std::unique_ptr<Conversation>> all_;
  uint64_t clock_ = 0, next_id_ = 1;
};

/// What drafts have brought since the session was made.
sharpi_draft_stats draft_stats(const sharpi_session* session);
/// Which positions are still there: for each layer the share of every bin's positions, over its KV
/// heads; none for layers without rows of their own. @param bins at most.
nlohmann::ordered_json kept_json(const sharpi_session* session, uint32_t n_layers, uint32_t bins);
/// Tokens that two sequences begin with together.
uint32_t common_prefix(const Tokens& a, const Tokens& b);

}  // namespace server
