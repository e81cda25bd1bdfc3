// SPDX-License-Identifier: MIT
#include "session_cache.h"

#include <algorithm>

namespace server {
namespace {

using json = nlohmann::ordered_json;

// A beginning shorter than this is read again faster than a session is forked.
constexpr uint32_t kWorthForking = 16;
// Rows that a restored file must bring beyond what live sessions have.
constexpr uint32_t kWorthRestoring = 64;

sharpi_session_summary info_of(const sharpi_session* session) {
  sharpi_session_summary info{};
  info.struct_size = sizeof info;
  sharpi_session_info(session, &info, nullptr);
  return info;
}

// What is lost by cutting a session back is rarely asked for again where it is little: the old
// answer, when the last question is asked again.
bool is_little(uint32_t lost, uint32_t kept) {
  return lost <= std::max(64u, kept / 4);
}

}  // namespace

uint32_t common_prefix(const Tokens& a, const Tokens& b) {
  const auto [end, other] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return static_cast<uint32_t>(end - a.begin());
}

SessionCache::SessionCache(const Engine& engine, const Settings& settings, Metrics& metrics)
    : engine_(engine),
      settings_(settings),
      metrics_(metrics),
      saved_(settings.idle == "save" ? settings.cache_dir : "", settings.cache_bytes) {}

// The length that the session can be cut back to and the prompt begins with. At least one token of
// the prompt is left to read: its logits are needed.
uint32_t SessionCache::reach(const Conversation& c, const Tokens& prompt) const {
  const auto most = static_cast<uint32_t>(prompt.size() - 1);
  const uint32_t common = std::min(common_prefix(c.tokens, prompt), most);
  if (common == c.tokens.size()) return common;
  if (info_of(c.session.get()).n_tokens != c.tokens.size()) return 0;  // it forgot its beginning
  const auto lengths = sized<std::vector<uint32_t>, uint32_t>(
      [&](uint32_t* to, uint32_t cap, uint32_t* n, sharpi_error* err) {
        return sharpi_session_reachable(c.session.get(), to, cap, n, err);
      });
  if (lengths.empty()) return 0;
  if (engine_.info().is_hybrid == 0) return common >= lengths.front() ? common : 0;
  const auto above = std::upper_bound(lengths.begin(), lengths.end(), common);
  return above == lengths.begin() ? 0 : *(above - 1);
}

Conversation* SessionCache::best(const Tokens& prompt, const LoraScales& lora,
                                 uint32_t* length) const {
  Conversation* found = nullptr;
  *length = 0;
  for (const auto& c : all_) {
    if (c->lora != lora) continue;  // its rows are those of other adapters
    const uint32_t here = reach(*c, prompt);
    if (here > *length || (here == *length && here > 0 && found->busy && !c->busy)) {
      *length = here;
      found = c.get();
    }
  }
  return found;
}

uint32_t SessionCache::best_prefix(const Tokens& prompt, const LoraScales& lora) const {
  uint32_t length = 0;
  best(prompt, lora, &length);
  return length;
}

Conversation* SessionCache::oldest_idle() const {
  Conversation* oldest = nullptr;
  for (const auto& c : all_) {
    if (!c->busy && (oldest == nullptr || c->used < oldest->used)) oldest = c.get();
  }
  return oldest;
}

Conversation* SessionCache::add(SessionHandle session, Tokens tokens) {
  auto c = std::make_unique<Conversation>();
  c->id = "s" + std::to_string(next_id_++);
  c->session = std::move(session);
  c->tokens = std::move(tokens);
  all_.push_back(std::move(c));
  return all_.back().get();
}

// Gives up an idle session other than `spare`: its place, or memory.
bool SessionCache::make_room(const Conversation* spare, bool places) {
  Conversation* oldest = nullptr;
  for (const auto& c : all_) {
    if (!c->busy && c.get() != spare && (oldest == nullptr || c->used < oldest->used)) {
      oldest = c.get();
    }
  }
  if (oldest == nullptr) return false;
  const sharpi_session_summary info = info_of(oldest->session.get());
  if (!places && settings_.idle == "compact" && info.is_compacted == 0 && info.n_slots_max > 64) {
    sharpi_compact_params params;
    sharpi_compact_params_init(&params, sizeof params);
    params.policy = settings_.policy;
    params.budget = settings_.idle_budget != 0 ? settings_.idle_budget : info.n_slots_max / 4;
    params.headroom = 64;
    try {
      compact(oldest, params);
      metrics_.sessions_compacted++;
      return true;
    } catch (const LibraryError&) {
      // What cannot be compacted is dropped below.
    }
  }
  if (!save(*oldest)) metrics_.sessions_dropped++;
  drop(oldest);
  return true;
}

bool SessionCache::save(const Conversation& c) {
  if (settings_.idle != "save") return false;
  if (!saved_.save(c.session.get(), c.tokens, c.lora)) {
    metrics_.sessions_unsaved++;
    return false;
  }
  metrics_.sessions_saved++;
  return true;
}

SessionHandle SessionCache::with_room(const Conversation* spare,
                                      sharpi_status (*make)(const void*, sharpi_session**,
                                                            sharpi_error*),
                                      const void* what) {
  while (all_.size() >= settings_.live_sessions() && make_room(spare, true)) {
  }
  for (;;) {
    sharpi_error err = SHARPI_ERROR_INIT;
    sharpi_session* session = nullptr;
    const sharpi_status status = make(what, &session, &err);
    if (is_short_of_memory(status) && make_room(spare, false)) continue;
    check(status, err);
    return SessionHandle(session);
  }
}

Conversation* SessionCache::created(const LoraScales& lora) {
  SessionHandle session = with_room(
      nullptr,
      [](const void* model, sharpi_session** out, sharpi_error* err) {
        return sharpi_session_create(static_cast<const sharpi_model*>(model), nullptr, out, err);
      },
      engine_.model());
  engine_.set_lora(session.get(), lora);
  Conversation* c = add(std::move(session), {});
  c->lora = lora;
  return c;
}

Conversation* SessionCache::forked(Conversation* parent, uint32_t length) {
  Conversation* c =
      add(with_room(
              parent,
              [](const void* session, sharpi_session** out, sharpi_error* err) {
                return sharpi_session_fork(static_cast<const sharpi_session*>(session), out, err);
              },
              parent->session.get()),
          parent->tokens);
  c->lora = parent->lora;
  metrics_.forks++;
  cut(c, length);
  return c;
}

void SessionCache::cut(Conversation* c, uint32_t length) {
  if (length == c->tokens.size()) return;
  sharpi_error err = SHARPI_ERROR_INIT;
  check(sharpi_session_truncate(c->session.get(), length, &err), err);
  c->tokens.resize(length);
}

// A session from its file, where that has clearly more of the prompt than any live one.
void SessionCache::restore(const Tokens& prompt, const LoraScales& lora, uint32_t live_length) {
  uint32_t common = 0;
  const Tokens* file = saved_.best(prompt, lora, &common);
  if (file == nullptr || common < live_length + kWorthRestoring) return;
  const Tokens tokens = *file;
  Conversation* c = created(lora);
  file = saved_.best(prompt, lora, &common);  // making room may have removed the file
  if (file != nullptr && *file == tokens && saved_.restore(file, c->session.get())) {
    c->tokens = tokens;
    metrics_.sessions_restored++;
  } else {
    drop(c);
  }
}

Conversation* SessionCache::acquire(const Tokens& prompt, const LoraScales& lora) {
  const bool full = all_.size() >= settings_.live_sessions();
  if (full && oldest_idle() == nullptr) return nullptr;
  uint32_t length = 0;
  best(prompt, lora, &length);
  restore(prompt, lora, length);
  Conversation* c = best(prompt, lora, &length);
  if (length < kWorthForking && c != nullptr && length < c->tokens.size()) c = nullptr;
  const uint32_t lost = c == nullptr ? 0 : static_cast<uint32_t>(c->tokens.size()) - length;
  if (c != nullptr && !c->busy && (is_little(lost, length) || (full && oldest_idle() == c))) {
    if (!is_little(lost, length)) save(*c);
    cut(c, length);
  } else {
    c = c != nullptr ? forked(c, length) : created(lora);
  }
  c->busy = true;
  c->used = ++clock_;
  return c;
}

void SessionCache::release(Conversation* c) {
  c->busy = c->reading = false;
  c->used = ++clock_;
}

void SessionCache::drop(Conversation* conversation) {
  std::erase_if(all_, [&](const auto& c) { return c.get() == conversation; });
}

void SessionCache::grow(Conversation* c, uint32_t n_slots) {
  for (;;) {
    sharpi_error err = SHARPI_ERROR_INIT;
    const sharpi_status status = sharpi_session_reserve(c->session.get(), n_slots, &err);
    if (is_short_of_memory(status) && make_room(c, false)) continue;
    check(status, err);
    return;
  }
}

Conversation* SessionCache::find(const std::string& id) {
  for (const auto& c : all_) {
    if (c->id == id) return c.get();
  }
  return nullptr;
}

json SessionCache::compact(Conversation* c, const sharpi_compact_params& params) {
  sharpi_error err = SHARPI_ERROR_INIT;
  sharpi_compact_report report{};
  report.struct_size = sizeof report;
  check(sharpi_session_compact(c->session.get(), &params, &report, &err), err);
  c->last_compaction = {{"policy", policy_name(report.policy)},
                        {"rows_before", report.rows_before},
                        {"rows_after", report.rows_after},
                        {"kept_sinks", report.kept_sinks},
                        {"kept_recent", report.kept_recent},
                        {"kept_scored", report.kept_scored},
                        {"kept_unranked", report.kept_unranked},
                        {"kept_replayed", report.kept_replayed},
                        {"n_layers", report.n_layers},
                        {"capacity", report.capacity},
                        {"payload_before", report.payload_before},
                        {"payload_after", report.payload_after},
                        {"held_before", report.held_before},
                        {"held_after", report.held_after},
                        {"score_ms", report.score_ms},
                        {"move_ms", report.move_ms}};
  return c->last_compaction;
}

}  // namespace server
