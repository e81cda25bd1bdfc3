// SPDX-License-Identifier: MIT
#include "plan/plan.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/checked.h"

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

Placement streamed_placement(const ModelSpec& spec, const Placement& placement,
                             const ModelShape& model) {
  // Below this a chunk costs the CPU less than its weights cost the bus on any machine we know.
  constexpr uint32_t kLeastRows = 16;
  Placement p = placement;
  const uint32_t from = model.stream_rows == 0 ? kLeastRows : model.stream_rows;
  if (model.deterministic || from > model.max_rows() || !placement.uses(TierId::kCuda)) return p;
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    p.ffn[l] = p.experts[l] = TierId::kCuda;
  }
  return p;
}

bool streams_weights(const ModelSpec& spec, const Placement& placement, const ModelShape& model) {
  const Placement p = streamed_placement(spec, placement, model);
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    if (p.ffn[l] != placement.ffn[l]) return true;
    if (spec.layers[l].ffn.kind == FfnKind::kMoe && p.experts[l] != placement.experts[l]) {
      return true;
    }
  }
  return false;
}

uint32_t SessionShape::capacity(uint32_t n_chunk) const {
  if (kv_budget == 0) return n_ctx;
  return static_cast<uint32_t>(std::min<uint64_t>(n_ctx, uint64_t{kv_budget} + n_chunk));
}

uint32_t score_queries(const SessionShape& session) {
  if (session.capture_window == 0) return 0;
  return std::max(session.capture_window, static_cast<uint32_t>(session.probe.size()));
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

/// Rows that a model holds before its workspaces are taken.
bool is_held_while_loading(const MemoryRow& row) {
  if (row.per_session != 0) return false;
  return row.transient != 0 || row.purpose == SHARPI_ROW_WEIGHTS ||
         row.purpose == SHARPI_ROW_EXPERTS || row.purpose == SHARPI_ROW_TABLES;
}

bool is_of(const MemoryRow& row, TierId tier) {
  return row.kind != SHARPI_ROW_MAPPED &&
         (row.kind == SHARPI_ROW_DEVICE) == (tier == TierId::kCuda);
}

void add_totals(const Plan& plan, sharpi_plan_summary* s) {
  uint64_t device_loading = 0, host_loading = 0;
  for (const MemoryRow& row : plan.rows) {
    const bool loading = is_held_while_loading(row) && row.kind != SHARPI_ROW_MAPPED;
    if (loading) (row.kind == SHARPI_ROW_DEVICE ? device_loading : host_loading) += row.held_bytes;
    if (row.transient != 0) continue;
    const uint64_t times = row.per_session ? (plan.session_only ? 1 : plan.model.n_sessions) : 1;
    const auto add = [times](uint64_t* to, uint64_t bytes) {
      *to = saturating_add(*to, saturating_mul(times, bytes));
    };
    if (row.kind == SHARPI_ROW_DEVICE) {
      add(&s->device_payload_bytes, row.payload_bytes);
      add(&s->device_held_bytes, row.held_bytes);
    } else if (row.kind == SHARPI_ROW_MAPPED) {
      add(&s->mapped_bytes, row.held_bytes);
    } else {
      add(&s->host_payload_bytes, row.payload_bytes);
      add(&s->host_held_bytes, row.held_bytes);
    }
    if (row.purpose == SHARPI_ROW_KV) s->kv_payload_bytes += row.payload_bytes;
    if (row.per_session) s->session_held_bytes += row.held_bytes;
  }
  s->device_peak_bytes = std::max(s->device_held_bytes, device_loading);
  s->host_peak_bytes = std::max(s->host_held_bytes, host_loading);
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

uint64_t model_bytes(const std::vector<MemoryRow>& rows, TierId tier) {
  uint64_t loading = 0, held = 0;
  for (const MemoryRow& r : rows) {
    if (r.per_session != 0 || !is_of(r, tier)) continue;
    if (is_held_while_loading(r)) loading += r.held_bytes;
    if (r.transient == 0) held += r.held_bytes;
  }
  return std::max(loading, held);
}

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
  for (uint32_t l = 0; l < spec->n_layers(); ++l) {
    const bool moe = spec->layers[l].ffn.kind == FfnKind::kMoe;
    s.n_gpu_experts += moe && placement.experts[l] == TierId::kCuda ? 1 : 0;
  }
  s.n_expert_slots = placement.n_expert_slots;
  s.expert_slot_bytes = expert_slot_bytes;
  s.device_rate = rates.device;
  s.pcie_rate = rates.pcie;
  s.host_rate = rates.host;
  s.n_fallbacks = static_cast<uint32_t>(fallbacks.size());
  s.arithmetic = model.exact ? SHARPI_ARITHMETIC_EXACT : SHARPI_ARITHMETIC_FAST;
  s.deterministic = model.deterministic;
  s.stream_rows = streams_weights(*spec, placement, model) ? model.stream_rows : SHARPI_UNSET;
  s.load_mode = model.copy_weights ? SHARPI_LOAD_COPY : SHARPI_LOAD_MAP;
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
  s.capture_bytes = capture_bytes;
  add_totals(*this, &s);
  add_dtypes(*this, &s);
  const TokenBytes token = token_bytes(*spec, placement, session);
  s.device_token_bytes = token.device;
  s.host_token_bytes = token.host;
  s.device_token_row_bytes = token.device_rows;
  s.host_token_row_bytes = token.host_rows;
  s.token_seconds = token_seconds(token, rates, false);
  s.full_token_seconds = token_seconds(token, rates, true);
  return s;
}

Status describe_layer(const Plan& plan, uint32_t layer, sharpi_layer_info* out) {
  const ModelSpec& spec = *plan.spec;
  if (layer >= spec.n_layers()) {
    return Status::error(Code::kInvalidArgument, "layer %u does not exist; the model has %u layers",
                         layer, spec.n_layers());
  }
  const LayerSpec& l = spec.layers[layer];
  out->tier = static_cast<uint32_t>(plan.placement.mixer[layer]);
  out->ffn_tier = static_cast<uint32_t>(plan.placement.ffn[layer]);
  const bool moe = l.ffn.kind == FfnKind::kMoe;
  out->experts_tier = moe ? static_cast<uint32_t>(plan.placement.experts[layer]) : 0;
  out->kv_source = static_cast<int32_t>(layer);
  out->k_dtype = out->v_dtype = SHARPI_KV_AUTO;
  out->n_slots = out->capacity = out->n_kv_heads = out->head_dim = 0;
  const AttentionSpec& a = l.attention;
  switch (l.mixer) {
    case MixerKind::kGatedDeltaNet:
      out->mixer = SHARPI_MIXER_DELTA_NET;
      return Status::ok();
    case MixerKind::kAttention:
      out->mixer = a.window != 0 ? SHARPI_MIXER_WINDOW : SHARPI_MIXER_ATTENTION;
      break;
  }
  out->n_kv_heads = a.n_kv_heads;
  out->head_dim = a.head_dim;
  if (a.kv_source >= 0) {
    out->kv_source = a.kv_source;
    return Status::ok();
  }
  const SessionShape& s = plan.session;
  out->k_dtype = static_cast<uint32_t>(s.dtypes[layer].k);
  out->v_dtype = static_cast<uint32_t>(s.dtypes[layer].v);
  out->capacity = a.window == 0 ? s.capacity(plan.model.n_chunk)
                                : std::min(s.n_ctx, a.window + s.rewind + s.n_draft);
  return Status::ok();
}

}  // namespace sharpi
