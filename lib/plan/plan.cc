// SPDX-License-Identifier: MIT
#include "plan/plan.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace sharpi {

bool Placement::uses(TierId tier) const {
  const auto any = [&](const std::vector<TierId>& v) {
    return std::find(v.begin(), v.end(), tier) != v.end();
  };
  return embedding == tier || head == tier || any(mixer) || any(ffn) || any(experts);
}

bool Placement::parts_experts(const ModelSpec& spec, uint32_t layer) const {
  return spec.layers[layer].ffn.kind == FfnKind::kMoe && ffn[layer] == TierId::kCuda &&
         experts[layer] == TierId::kCpu;
}

uint64_t Placement::n_parted_experts(const ModelSpec& spec) const {
  uint64_t n = 0;
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    if (parts_experts(spec, l)) n += spec.layers[l].ffn.n_experts;
  }
  return n;
}

Placement Placement::all(const ModelSpec& spec, TierId tier) {
  Placement p;
  p.embedding = p.head = tier;
  p.per_layer_embedding = TierId::kCpu;  // a lookup of a few rows: host memory serves it
  p.mixer.assign(spec.layers.size(), tier);
  p.ffn = p.mixer;
  p.experts = p.mixer;
  return p;
}

uint32_t SessionShape::capacity(uint32_t n_chunk) const {
  if (kv_budget == 0) return n_ctx;
  return static_cast<uint32_t>(std::min<uint64_t>(n_ctx, uint64_t{kv_budget} + n_chunk));
}

uint32_t observer_rows(const SessionShape& session) {
  if (session.kv_budget == 0) return 0;
  const auto probe = static_cast<uint32_t>(session.probe.size());
  return probe != 0 ? probe : session.lookahead ? session.capture_window : 0;
}

uint32_t score_queries(const SessionShape& session) {
  return std::max(session.capture_window, observer_rows(session));
}

MemoryRow make_row(TierId tier, uint32_t device, uint32_t purpose, uint32_t kind,
                   const std::string& label, uint64_t payload, uint64_t held) {
  MemoryRow row{};
  row.tier = static_cast<uint32_t>(tier);
  row.device = device;
  row.purpose = purpose;
  row.kind = kind;
  row.payload_bytes = payload;
  row.held_bytes = held;
  std::snprintf(row.label, sizeof row.label, "%s", label.c_str());
  return row;
}

PlanEnvironment PlanEnvironment::read() {
  const auto get = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  return {get("SHARPI_KV_DTYPE"), get("SHARPI_SNAPKV_BUDGET"), get("SHARPI_SNAPKV_WINDOW"),
          get("SHARPI_SNAPKV_RECENCY")};
}

namespace {

void add_totals(const Plan& plan, sharpi_plan_summary* s) {
  for (const MemoryRow& row : plan.rows) {
    const uint64_t times = row.per_session ? (plan.session_only ? 1 : plan.model.n_sessions) : 1;
    if (row.kind == SHARPI_ROW_DEVICE) {
      s->device_payload_bytes += times * row.payload_bytes;
      s->device_held_bytes += times * row.held_bytes;
    } else if (row.kind == SHARPI_ROW_MAPPED) {
      s->mapped_bytes += times * row.held_bytes;
    } else {
      s->host_payload_bytes += times * row.payload_bytes;
      s->host_held_bytes += times * row.held_bytes;
    }
    if (row.purpose == SHARPI_ROW_KV) s->kv_payload_bytes += row.payload_bytes;
    if (row.per_session) s->session_held_bytes += row.held_bytes;
  }
}

/// Effective dtypes: of the trunk's layers, or of the CPU's when it has all attention layers.
void add_dtypes(const Plan& plan, sharpi_plan_summary* s) {
  const auto first = [&](TierId tier, uint32_t* k, uint32_t* v) {
    for (size_t l = 0; l < plan.spec->layers.size(); ++l) {
      if (!plan.spec->layers[l].owns_kv() || plan.placement.mixer[l] != tier) continue;
      *k = static_cast<uint32_t>(plan.session.dtypes[l].k);
      *v = static_cast<uint32_t>(plan.session.dtypes[l].v);
      return true;
    }
    return false;
  };
  first(TierId::kCpu, &s->tail_k_dtype, &s->tail_v_dtype);
  if (!first(TierId::kCuda, &s->k_dtype, &s->v_dtype)) {
    s->k_dtype = s->tail_k_dtype;
    s->v_dtype = s->tail_v_dtype;
  }
}

}  // namespace

bool Plan::uses(const TierSizer& sizer) const {
  return placement.uses(sizer.tier()) &&
         (sizer.tier() == TierId::kCpu || sizer.device_index() == device);
}

sharpi_plan_summary Plan::summary() const {
  sharpi_plan_summary s{};
  s.struct_size = sizeof s;
  s.n_ctx = session.n_ctx;
  s.n_layers = spec->n_layers();
  const auto count = [](const std::vector<TierId>& v) {
    return static_cast<uint32_t>(std::count(v.begin(), v.end(), TierId::kCuda));
  };
  s.n_gpu_layers = count(placement.mixer);
  s.n_gpu_ffn = count(placement.ffn);
  s.n_expert_slots = placement.n_expert_slots;
  s.arithmetic = model.exact ? SHARPI_ARITHMETIC_EXACT : SHARPI_ARITHMETIC_FAST;
  s.deterministic = model.deterministic;
  s.n_chunk = model.n_chunk;
  s.max_batch = model.max_batch;
  s.max_logit_rows = model.max_logit_rows;
  s.max_concurrent = model.max_concurrent;
  s.n_sessions = model.n_sessions;
  s.n_rows = static_cast<uint32_t>(rows.size());
  s.n_mtp_layers = spec->n_mtp_layers;
  s.narrowed = narrowed;
  s.capture_window = session.capture_window;
  s.n_checkpoints = session.n_checkpoints;
  s.rewind = session.rewind;
  s.kv_budget = session.kv_budget;
  s.fingerprint = file_fingerprint;
  add_totals(*this, &s);
  add_dtypes(*this, &s);
  return s;
}

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

std::string json_string(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto u = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (u < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", u);
      out += escaped;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

/// Appends "key": number pairs; the object's braces are the caller's.
class JsonObject {
 public:
  explicit JsonObject(std::string* out) : out_(out) { *out_ += "{"; }
  void number(const char* key, uint64_t value) { raw(key, std::to_string(value)); }
  void text(const char* key, const std::string& value) { raw(key, json_string(value)); }
  void raw(const char* key, const std::string& value) {
    if (!first_) *out_ += ", ";
    first_ = false;
    *out_ += json_string(key) + ": " + value;
  }
  void close() { *out_ += "}"; }

 private:
  std::string* out_;
  bool first_ = true;
};

std::string row_json(const MemoryRow& r) {
  std::string out;
  JsonObject o(&out);
  o.text("tier", r.tier == SHARPI_TIER_CPU ? "cpu" : "cuda");
  o.number("device", r.device);
  o.text("purpose", purpose_name(r.purpose));
  o.text("kind", kind_name(r.kind));
  o.number("first_layer", r.first_layer);
  o.number("n_layers", r.n_layers);
  o.number("per_session", r.per_session);
  o.number("payload_bytes", r.payload_bytes);
  o.number("held_bytes", r.held_bytes);
  o.text("label", r.label);
  o.close();
  return out;
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
  o.number("n_gpu_layers", s.n_gpu_layers);
  o.number("n_gpu_ffn", s.n_gpu_ffn);
  o.number("device", device);
  o.text("placement_reason", placement_reason);
  o.number("n_mtp_layers_not_loaded", s.n_mtp_layers);
  o.text("k_dtype", kv_dtype_name(static_cast<KvDtype>(s.k_dtype)));
  o.text("v_dtype", kv_dtype_name(static_cast<KvDtype>(s.v_dtype)));
  o.text("tail_k_dtype", kv_dtype_name(static_cast<KvDtype>(s.tail_k_dtype)));
  o.text("tail_v_dtype", kv_dtype_name(static_cast<KvDtype>(s.tail_v_dtype)));
  o.number("narrowed", s.narrowed);
  o.text("arithmetic", model.exact ? "exact" : "fast");
  o.number("deterministic", s.deterministic);
  o.number("n_chunk", s.n_chunk);
  o.number("max_batch", s.max_batch);
  o.number("max_logit_rows", s.max_logit_rows);
  o.number("max_concurrent", s.max_concurrent);
  o.number("n_sessions", s.n_sessions);
  o.number("device_held_bytes", s.device_held_bytes);
  o.number("host_held_bytes", s.host_held_bytes);
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
