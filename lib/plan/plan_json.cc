// SPDX-License-Identifier: MIT
// A plan as JSON.
#include "base/json.h"
#include "plan/drafter_plan.h"
#include "plan/plan.h"

namespace sharpi {
namespace {

const char* purpose_name(uint32_t purpose) {
  static const char* const kNames[] = {"?",           "weights", "kv",         "recurrent",
                                       "checkpoints", "capture", "compaction", "activations",
                                       "logits",      "staging", "experts",    "graphs",
                                       "tables",      "library", "driver",     "kv_chunk"};
  return purpose < std::size(kNames) ? kNames[purpose] : "?";
}

const char* kind_name(uint32_t kind) {
  static const char* const kNames[] = {"?", "device", "pinned", "anonymous", "mapped"};
  return kind < std::size(kNames) ? kNames[kind] : "?";
}

std::string row_json(const MemoryRow& r) {
  std::string out;
  JsonObject o(&out);
  o.text("tier", tier_name(r.tier));
  o.number("device", r.device);
  o.text("purpose", purpose_name(r.purpose));
  o.text("kind", kind_name(r.kind));
  o.number("first_layer", r.first_layer);
  o.number("n_layers", r.n_layers);
  o.number("per_session", r.per_session);
  o.number("transient", r.transient);
  o.number("payload_bytes", r.payload_bytes);
  o.number("held_bytes", r.held_bytes);
  o.text("label", r.label);
  o.close();
  return out;
}

std::string device_json(const sharpi_plan_device& d) {
  std::string out;
  JsonObject o(&out);
  o.number("device", d.device);
  o.text("tier", tier_name(d.tier));
  o.text("name", d.name);
  o.text("id", d.id);
  o.number("n_layers", d.n_layers);
  o.number("n_ffn", d.n_ffn);
  o.number("n_experts", d.n_experts);
  o.number("n_expert_slots", d.n_expert_slots);
  o.number("has_embedding", d.has_embedding);
  o.number("has_head", d.has_head);
  const auto number_or_null = [&](const char* name, uint64_t value, uint64_t none) {
    value == none ? o.raw(name, "null") : o.number(name, value);
  };
  number_or_null("budget", d.budget, SHARPI_ALL_FREE);
  number_or_null("reserve", d.reserve, SHARPI_RESERVE_AUTO);
  o.number("payload_bytes", d.payload_bytes);
  o.number("held_bytes", d.held_bytes);
  o.number("peak_bytes", d.peak_bytes);
  o.number("token_bytes", d.token_bytes);
  o.number("token_row_bytes", d.token_row_bytes);
  o.real("rate", d.rate);
  o.real("link_rate", d.link_rate);
  o.text("refusal", d.refusal);
  o.close();
  return out;
}

const char* mixer_name(uint32_t mixer) {
  return mixer == SHARPI_MIXER_DELTA_NET ? "delta net"
         : mixer == SHARPI_MIXER_WINDOW  ? "window"
         : mixer == SHARPI_MIXER_MAMBA2  ? "mamba-2"
         : mixer == SHARPI_MIXER_NONE    ? "none"
                                         : "attention";
}

bool same_group(const sharpi_layer_info& a, const sharpi_layer_info& b) {
  return a.mixer == b.mixer && a.tier == b.tier && a.ffn_tier == b.ffn_tier &&
         a.experts_tier == b.experts_tier && a.device == b.device && a.ffn_device == b.ffn_device &&
         a.experts_device == b.experts_device && a.k_dtype == b.k_dtype && a.v_dtype == b.v_dtype &&
         a.capacity == b.capacity && a.n_kv_heads == b.n_kv_heads && a.head_dim == b.head_dim;
}

std::string layers_json(const std::vector<uint32_t>& layers, const sharpi_layer_info& l) {
  std::string out, list;
  for (const uint32_t i : layers) list += (list.empty() ? "" : ", ") + std::to_string(i);
  JsonObject o(&out);
  o.raw("layers", "[" + list + "]");
  o.text("mixer", mixer_name(l.mixer));
  o.text("tier", tier_name(l.tier));
  o.text("ffn_tier", tier_name(l.ffn_tier));
  o.text("experts_tier", tier_name(l.experts_tier));
  o.number("device", l.device);
  o.number("ffn_device", l.ffn_device);
  if (l.experts_device == SHARPI_UNSET) {
    o.raw("experts_device", "null");
  } else {
    o.number("experts_device", l.experts_device);
  }
  o.text("k_dtype", kv_dtype_name(static_cast<KvDtype>(l.k_dtype)));
  o.text("v_dtype", kv_dtype_name(static_cast<KvDtype>(l.v_dtype)));
  o.number("capacity", l.capacity);
  o.close();
  return out;
}

/// Layers that are placed and stored alike, together.
std::string groups_json(const Plan& plan) {
  std::vector<std::pair<sharpi_layer_info, std::vector<uint32_t>>> groups;
  for (uint32_t l = 0; l < plan.spec->n_layers(); ++l) {
    sharpi_layer_info info{};
    if (!describe_layer(plan, l, &info).is_ok()) continue;
    size_t g = 0;
    while (g < groups.size() && !same_group(groups[g].first, info)) ++g;
    if (g == groups.size()) groups.push_back({info, {}});
    groups[g].second.push_back(l);
  }
  std::string list;
  for (const auto& [info, layers] : groups)
    list += (list.empty() ? "" : ", ") + layers_json(layers, info);
  return "[" + list + "]";
}

void add_placement(const Plan& plan, const sharpi_plan_summary& s, JsonObject* o) {
  o->number("n_gpu_layers", s.n_gpu_layers);
  o->number("n_gpu_ffn", s.n_gpu_ffn);
  o->number("n_gpu_experts", s.n_gpu_experts);
  o->number("n_expert_slots", s.n_expert_slots);
  o->number("expert_slot_bytes", s.expert_slot_bytes);
  o->text("embedding_tier", tier_name(plan.tier_of(plan.placement.embedding)));
  o->text("head_tier", tier_name(plan.tier_of(plan.placement.head)));
  const auto tier_if = [&](bool is_there, DeviceIndex device) {
    return tier_name(is_there ? plan.tier_of(device) : 0);
  };
  o->text("mtp_tier", tier_if(plan.placement.mtp, plan.placement.head));
  o->text("draft_model_tier", tier_if(has_draft_model(plan, plan.session), plan.placement.draft));
  std::string devices;
  for (const sharpi_plan_device& d : plan.device_rows())
    devices += (devices.empty() ? "" : ", ") + device_json(d);
  o->raw("devices", "[" + devices + "]");
  if (const ModelPart& part = plan.spec->part; part.is_part()) {
    o->number("rank", part.rank);
    o->number("n_ranks", part.n_ranks);
    o->number("first_layer", part.first);
    o->number("n_layers_of_all_ranks", part.n_all);
  }
  o->text("split", s.split == SHARPI_SPLIT_ALL ? "all" : "fewest");
  o->text("placement_reason", plan.placement_reason);
  std::string list;
  for (const std::string& text : plan.fallbacks)
    list += (list.empty() ? "" : ", ") + json_string(text);
  o->raw("fallbacks", "[" + list + "]");
  o->raw("layer_groups", groups_json(plan));
}

}  // namespace

std::string Plan::json() const {
  const sharpi_plan_summary s = summary();
  std::string out;
  JsonObject o(&out);
  o.text("architecture", spec->architecture);
  o.text("name", spec->name);
  o.number("n_ctx", s.n_ctx);
  o.number("n_layers", s.n_layers);
  add_placement(*this, s, &o);
  o.number("n_mtp_layers_not_loaded", placement.mtp ? 0 : s.n_mtp_layers);
  o.number("n_draft", session.n_draft);
  o.number("drafters", session.drafters);
  o.number("n_draft_vocab", session.n_draft_vocab);
  o.text("k_dtype", kv_dtype_name(static_cast<KvDtype>(s.k_dtype)));
  o.text("v_dtype", kv_dtype_name(static_cast<KvDtype>(s.v_dtype)));
  o.text("tail_k_dtype", kv_dtype_name(static_cast<KvDtype>(s.tail_k_dtype)));
  o.text("tail_v_dtype", kv_dtype_name(static_cast<KvDtype>(s.tail_v_dtype)));
  o.number("narrowed", s.narrowed);
  o.text("arithmetic", model.exact ? "exact" : "fast");
  o.number("deterministic", s.deterministic);
  o.number("n_chunk", s.n_chunk);
  o.number("capture_bytes", s.capture_bytes);
  o.number("max_batch", s.max_batch);
  o.number("max_logit_rows", s.max_logit_rows);
  o.number("max_concurrent", s.max_concurrent);
  o.number("stream_rows", s.stream_rows);
  o.number("n_sessions", s.n_sessions);
  o.number("device_held_bytes", s.device_held_bytes);
  o.number("device_peak_bytes", s.device_peak_bytes);
  o.number("host_held_bytes", s.host_held_bytes);
  o.number("host_peak_bytes", s.host_peak_bytes);
  o.real("device_rate", s.device_rate);
  o.real("pcie_rate", s.pcie_rate);
  o.real("host_rate", s.host_rate);
  o.number("device_token_bytes", s.device_token_bytes);
  o.number("host_token_bytes", s.host_token_bytes);
  o.number("device_token_row_bytes", s.device_token_row_bytes);
  o.number("host_token_row_bytes", s.host_token_row_bytes);
  o.real("token_seconds", s.token_seconds);
  o.real("full_token_seconds", s.full_token_seconds);
  o.text("load_mode", s.load_mode == SHARPI_LOAD_COPY ? "copy" : "map");
  o.number("mapped_bytes", s.mapped_bytes);
  o.number("kv_payload_bytes", s.kv_payload_bytes);
  o.number("session_held_bytes", s.session_held_bytes);
  std::string list = "[";
  for (const MemoryRow& r : rows) list += (list.size() > 1 ? ", " : "") + row_json(r);
  o.raw("rows", list + "]");
  o.close();
  return out;
}

}  // namespace sharpi
