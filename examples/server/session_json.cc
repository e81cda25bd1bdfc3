// SPDX-License-Identifier: MIT
// What the sessions hold, as JSON and as sums for the metrics.
#include <algorithm>
#include <cmath>

#include "session_cache.h"

namespace server {
namespace {

using json = nlohmann::ordered_json;

json memory_json(const sharpi_session* session) {
  const auto rows = sized<std::vector<sharpi_memory_row>, uint32_t>(
      [&](sharpi_memory_row* to, uint32_t cap, uint32_t* n, sharpi_error* err) {
        return sharpi_session_memory(session, to, sizeof *to, cap, n, err);
      });
  json out = json::array();
  for (const sharpi_memory_row& row : rows) {
    out.push_back({{"name", row.label},
                   {"tier", sharpi_tier_name(row.tier)},
                   {"purpose", purpose_name(row.purpose)},
                   {"kind", kind_name(row.kind)},
                   {"first_layer", row.first_layer},
                   {"n_layers", row.n_layers},
                   {"payload_bytes", row.payload_bytes},
                   {"bytes", row.held_bytes}});
  }
  return out;
}

json layers_json(const sharpi_session* session, uint32_t n_layers) {
  json out = json::array();
  for (uint32_t i = 0; i < n_layers; ++i) {
    sharpi_layer_info layer{};
    layer.struct_size = sizeof layer;
    if (sharpi_session_layer(session, i, &layer, nullptr) != SHARPI_OK) continue;
    const auto name = [](sharpi_kv_dtype d) {
      return d == SHARPI_KV_AUTO ? json() : json(kv_dtype_name(d));
    };
    out.push_back({{"layer", i},
                   {"mixer", mixer_name(layer.mixer)},
                   {"tier", sharpi_tier_name(layer.tier)},
                   {"rows", layer.n_slots},
                   {"capacity", layer.capacity},
                   {"kv_source", layer.kv_source},
                   {"k_dtype", name(layer.k_dtype)},
                   {"v_dtype", name(layer.v_dtype)}});
  }
  return out;
}

// The share of drafts that were right; null where there were none.
json acceptance(const sharpi_draft_stats& stats) {
  if (stats.n_drafted == 0) return nullptr;
  return static_cast<double>(stats.n_accepted) / static_cast<double>(stats.n_drafted);
}

json conversation_json(const Conversation& c, uint32_t n_layers) {
  sharpi_session_summary s{};
  s.struct_size = sizeof s;
  sharpi_session_info(c.session.get(), &s, nullptr);
  const sharpi_draft_stats drafts = draft_stats(c.session.get());
  return {{"id", c.id},
          {"state", !c.busy     ? "idle"
                    : c.reading ? "reading"
                                : "writing"},
          {"n_tokens", s.n_tokens},
          {"prompt_tokens", c.n_prompt},
          {"n_ctx", s.n_ctx},
          {"capacity", s.capacity},
          {"n_slots_min", s.n_slots_min},
          {"n_slots_max", s.n_slots_max},
          {"n_checkpoints", s.n_checkpoints},
          {"is_compacted", s.is_compacted != 0},
          {"k_dtype", kv_dtype_name(s.k_dtype)},
          {"v_dtype", kv_dtype_name(s.v_dtype)},
          {"kv_payload_bytes", s.kv_payload_bytes},
          {"kv_held_bytes", s.kv_held_bytes},
          {"memory", memory_json(c.session.get())},
          {"layers", layers_json(c.session.get(), n_layers)},
          {"last_compaction", c.last_compaction},
          {"n_prefill_tokens", s.n_prefill_tokens},
          {"n_decode_tokens", s.n_decode_tokens},
          {"prefill_seconds", s.prefill_seconds},
          {"decode_seconds", s.decode_seconds},
          {"tokens_per_second", c.tokens_per_second},
          {"drafters", draft_name(drafts.drafters)},
          {"n_drafted", drafts.n_drafted},
          {"n_accepted", drafts.n_accepted},
          {"acceptance", acceptance(drafts)}};
}

// One layer's shares of n positions in equal bins.
nlohmann::ordered_json kept_shares(const sharpi_session* session, uint32_t layer, uint32_t n_heads,
                                   uint32_t n, uint32_t bins) {
  std::vector<uint64_t> found(bins), all(bins);
  for (uint64_t position = 0; position < n; ++position) all[position * bins / n] += n_heads;
  for (uint32_t head = 0; head < n_heads; ++head) {
    const auto kept = sized<std::vector<uint32_t>, uint32_t>(
        [&](uint32_t* to, uint32_t cap, uint32_t* count, sharpi_error* err) {
          return sharpi_session_kept(session, layer, head, to, cap, count, err);
        });
    for (const uint64_t position : kept) {
      if (position < n) found[position * bins / n]++;
    }
  }
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (uint32_t bin = 0; bin < bins; ++bin) {
    const double share = static_cast<double>(found[bin]) / static_cast<double>(all[bin]);
    out.push_back(std::round(share * 1000) / 1000);
  }
  return out;
}

}  // namespace

sharpi_draft_stats draft_stats(const sharpi_session* session) {
  sharpi_draft_stats out{};
  out.struct_size = sizeof out;
  sharpi_session_drafts(session, &out, nullptr);
  return out;
}

nlohmann::ordered_json kept_json(const sharpi_session* session, uint32_t n_layers, uint32_t bins) {
  sharpi_session_summary s{};
  s.struct_size = sizeof s;
  sharpi_session_info(session, &s, nullptr);
  bins = std::clamp(bins, 1u, std::max(1u, s.n_tokens));
  nlohmann::ordered_json layers = nlohmann::ordered_json::array();
  for (uint32_t i = 0; i < n_layers; ++i) {
    sharpi_layer_info layer{};
    layer.struct_size = sizeof layer;
    if (sharpi_session_layer(session, i, &layer, nullptr) != SHARPI_OK) continue;
    const bool has_rows = layer.n_slots > 0 && layer.kv_source == static_cast<int32_t>(i);
    layers.push_back(
        {{"layer", i},
         {"kept", has_rows ? kept_shares(session, i, layer.n_kv_heads, s.n_tokens, bins)
                           : nlohmann::ordered_json::array()}});
  }
  return {{"n_tokens", s.n_tokens}, {"bins", bins}, {"layers", layers}};
}

json SessionCache::describe() const {
  json list = json::array();
  for (const auto& c : all_) list.push_back(conversation_json(*c, engine_.info().n_layers));
  return {{"sessions", list}};
}

void SessionCache::count() const {
  uint64_t held = 0;
  for (const auto& c : all_) {
    sharpi_session_summary s{};
    s.struct_size = sizeof s;
    if (sharpi_session_info(c->session.get(), &s, nullptr) == SHARPI_OK) held += s.kv_held_bytes;
  }
  metrics_.sessions = all_.size();
  metrics_.kv_held_bytes = held;
}

}  // namespace server
