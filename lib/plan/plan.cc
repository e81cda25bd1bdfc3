// SPDX-License-Identifier: MIT
#include "plan/plan.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/checked.h"

namespace sharpi {

Placement streamed_placement(const ModelSpec& spec, const Placement& placement,
                             const ModelShape& model) {
  // Below this a chunk costs the CPU less than its weights cost the bus on any machine we know.
  constexpr uint32_t kLeastRows = 16;
  Placement p = placement;
  const uint32_t from = model.stream_rows == 0 ? kLeastRows : model.stream_rows;
  const std::vector<DeviceIndex> route = placement.route();
  if (model.deterministic || from > model.max_rows() || route.empty()) return p;
  DeviceIndex at = route.front();
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    if (!is_host(placement.mixer[l])) at = placement.mixer[l];
    p.ffn[l] = p.experts[l] = at;
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
          get("SHARPI_SNAPKV_RECENCY"), get("SHARPI_DEVICE")};
}

namespace {

/// Rows that a model holds before its workspaces are taken.
bool is_held_while_loading(const MemoryRow& row) {
  if (row.per_session != 0) return false;
  return row.transient != 0 || row.purpose == SHARPI_ROW_WEIGHTS ||
         row.purpose == SHARPI_ROW_EXPERTS || row.purpose == SHARPI_ROW_TABLES;
}

uint64_t times_of(const Plan& plan, const MemoryRow& row) {
  return row.per_session == 0 || plan.session_only ? 1 : plan.model.n_sessions;
}

void add_totals(const Plan& plan, sharpi_plan_summary* s) {
  for (const MemoryRow& row : plan.rows) {
    if (row.transient != 0) continue;
    const auto add = [times = times_of(plan, row)](uint64_t* to, uint64_t bytes) {
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
  s->host_peak_bytes = peak_bytes(plan, DeviceIndex::kHost);
  for (const PlanDevice& d : plan.devices) {
    if (is_host(d.index)) continue;
    s->device_peak_bytes = saturating_add(s->device_peak_bytes, peak_bytes(plan, d.index));
  }
}

/// Effective dtypes: of the trunk's layers, or of the CPU's when it has all attention layers.
void add_dtypes(const Plan& plan, sharpi_plan_summary* s) {
  const auto first = [&](bool on_host, uint32_t* k, uint32_t* v) {
    for (size_t l = 0; l < plan.spec->layers.size(); ++l) {
      if (!plan.spec->layers[l].owns_kv() || is_host(plan.placement.mixer[l]) != on_host) continue;
      *k = static_cast<uint32_t>(plan.session.dtypes[l].k);
      *v = static_cast<uint32_t>(plan.session.dtypes[l].v);
      return true;
    }
    return false;
  };
  first(true, &s->tail_k_dtype, &s->tail_v_dtype);
  if (!first(false, &s->k_dtype, &s->v_dtype)) {
    s->k_dtype = s->tail_k_dtype;
    s->v_dtype = s->tail_v_dtype;
  }
}

}  // namespace

bool is_of(const MemoryRow& row, DeviceIndex device) {
  if (row.kind == SHARPI_ROW_MAPPED) return false;
  if (row.kind == SHARPI_ROW_DEVICE) return row.device == index_of(device);
  return is_host(device);
}

uint64_t model_bytes(const std::vector<MemoryRow>& rows, DeviceIndex device) {
  uint64_t loading = 0, held = 0;
  for (const MemoryRow& r : rows) {
    if (r.per_session != 0 || !is_of(r, device)) continue;
    if (is_held_while_loading(r)) loading += r.held_bytes;
    if (r.transient == 0) held += r.held_bytes;
  }
  return std::max(loading, held);
}

uint64_t peak_bytes(const Plan& plan, DeviceIndex device) {
  uint64_t loading = 0, held = 0;
  for (const MemoryRow& r : plan.rows) {
    if (!is_of(r, device)) continue;
    if (is_held_while_loading(r)) loading += r.held_bytes;
    if (r.transient != 0) continue;
    held = saturating_add(held, saturating_mul(times_of(plan, r), r.held_bytes));
  }
  return std::max(loading, held);
}

const PlanDevice* Plan::device(DeviceIndex index) const {
  const auto it = std::find_if(devices.begin(), devices.end(),
                               [&](const PlanDevice& d) { return d.index == index; });
  return it == devices.end() ? nullptr : &*it;
}

uint32_t Plan::tier_of(DeviceIndex index) const {
  const PlanDevice* d = device(index);
  return d == nullptr ? 0 : static_cast<uint32_t>(d->tier);
}

Status TierSizer::check_beside(const ModelSpec&, const std::vector<const TierSizer*>&) const {
  return Status::ok();
}

std::vector<MemoryRow> Plan::adapter_rows(const TierSizer& sizer,
                                          const AdapterFile& adapter) const {
  return sizer.adapter_rows(*spec, placement.seen_from(sizer.device()), model, adapter);
}

std::vector<MemoryRow> Plan::model_rows(const TierSizer& sizer) const {
  return sizer.model_rows(*spec, placement.seen_from(sizer.device()), model, session);
}

std::vector<MemoryRow> Plan::session_rows(const TierSizer& sizer, const SessionShape& shape) const {
  return sizer.session_rows(*spec, placement.seen_from(sizer.device()), model, shape);
}

std::shared_ptr<const Plan> seen_from(DeviceIndex device, std::shared_ptr<const Plan> plan) {
  Placement placement = plan->placement.seen_from(device);
  if (placement == plan->placement) return plan;
  auto own = std::make_shared<Plan>(*plan);
  own->placement = std::move(placement);
  return own;
}

char device_letter(const Placement& placement, DeviceIndex device) {
  if (is_host(device)) return 'c';
  const std::vector<DeviceIndex> route = placement.route();
  const auto at = std::find(route.begin(), route.end(), device) - route.begin();
  return static_cast<char>('g' + std::min<std::ptrdiff_t>(at, 'z' - 'g'));
}

namespace {

sharpi_plan_device describe_device(const Plan& plan, const PlanDevice& d) {
  sharpi_plan_device out{};
  out.device = index_of(d.index);
  out.tier = static_cast<uint32_t>(d.tier);
  const Placement& p = plan.placement;
  const auto count = [&](const std::vector<DeviceIndex>& v) {
    return static_cast<uint32_t>(std::count(v.begin(), v.end(), d.index));
  };
  out.n_layers = count(p.mixer);
  out.n_ffn = count(p.ffn);
  for (uint32_t l = 0; l < plan.spec->n_layers(); ++l) {
    const bool moe = plan.spec->layers[l].ffn.kind == FfnKind::kMoe;
    out.n_experts += moe && p.experts[l] == d.index ? 1 : 0;
  }
  const bool uses = !is_host(d.index) && p.uses(d.index);
  out.n_expert_slots = uses ? p.seen_from(d.index).n_expert_slots : 0;
  out.has_embedding = p.embedding == d.index ? 1 : 0;
  out.has_head = p.head == d.index ? 1 : 0;
  out.budget = d.budget;
  out.reserve = d.reserve;
  for (const MemoryRow& r : plan.rows) {
    if (!is_of(r, d.index) || r.transient != 0) continue;
    const uint64_t times = times_of(plan, r);
    out.payload_bytes = saturating_add(out.payload_bytes, saturating_mul(times, r.payload_bytes));
    out.held_bytes = saturating_add(out.held_bytes, saturating_mul(times, r.held_bytes));
  }
  out.peak_bytes = peak_bytes(plan, d.index);
  const TokenBytes token = token_bytes(*plan.spec, p, plan.session, d.index);
  out.token_bytes = token.weights;
  out.token_row_bytes = token.rows;
  out.rate = d.rate;
  out.link_rate = d.link_rate;
  std::snprintf(out.name, sizeof out.name, "%s", d.name.c_str());
  std::snprintf(out.id, sizeof out.id, "%s", d.id.c_str());
  std::snprintf(out.refusal, sizeof out.refusal, "%s", d.refusal.c_str());
  return out;
}

}  // namespace

sharpi_plan_summary Plan::summary() const {
  sharpi_plan_summary s{};
  s.struct_size = sizeof s;
  s.n_ctx = session.n_ctx;
  s.n_layers = spec->n_layers();
  const auto count = [](const std::vector<DeviceIndex>& v) {
    const auto n_host = std::count(v.begin(), v.end(), DeviceIndex::kHost);
    return static_cast<uint32_t>(v.size()) - static_cast<uint32_t>(n_host);
  };
  s.n_gpu_layers = count(placement.mixer);
  s.n_gpu_ffn = count(placement.ffn);
  for (uint32_t l = 0; l < spec->n_layers(); ++l) {
    const bool moe = spec->layers[l].ffn.kind == FfnKind::kMoe;
    s.n_gpu_experts += moe && !is_host(placement.experts[l]) ? 1 : 0;
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
  s.n_devices = static_cast<uint32_t>(devices.size());
  s.split = split;
  s.adapter_rank = model.adapter_rank;
  add_totals(*this, &s);
  add_dtypes(*this, &s);
  const TokenBytes host = token_bytes(*spec, placement, session, DeviceIndex::kHost);
  s.host_token_bytes = host.weights;
  s.host_token_row_bytes = host.rows;
  for (const DeviceIndex d : placement.route()) {
    const TokenBytes own = token_bytes(*spec, placement, session, d);
    s.device_token_bytes += own.weights;
    s.device_token_row_bytes += own.rows;
  }
  s.token_seconds = token_seconds(*this, false);
  s.full_token_seconds = token_seconds(*this, true);
  return s;
}

std::vector<sharpi_plan_device> Plan::device_rows() const {
  std::vector<sharpi_plan_device> out;
  for (const PlanDevice& d : devices) out.push_back(describe_device(*this, d));
  return out;
}

Status describe_layer(const Plan& plan, uint32_t layer, sharpi_layer_info* out) {
  const ModelSpec& spec = *plan.spec;
  if (layer >= spec.n_layers()) {
    return Status::error(Code::kInvalidArgument, "layer %u does not exist; the model has %u layers",
                         layer, spec.n_layers());
  }
  const LayerSpec& l = spec.layers[layer];
  out->tier = plan.tier_of(plan.placement.mixer[layer]);
  out->ffn_tier = plan.tier_of(plan.placement.ffn[layer]);
  const bool moe = l.ffn.kind == FfnKind::kMoe;
  out->experts_tier = moe ? plan.tier_of(plan.placement.experts[layer]) : 0;
  out->device = index_of(plan.placement.mixer[layer]);
  out->ffn_device = index_of(plan.placement.ffn[layer]);
  out->experts_device = moe ? index_of(plan.placement.experts[layer]) : SHARPI_UNSET;
  out->kv_source = static_cast<int32_t>(layer);
  out->k_dtype = out->v_dtype = SHARPI_KV_AUTO;
  out->n_slots = out->capacity = out->n_kv_heads = out->head_dim = 0;
  const AttentionSpec& a = l.attention;
  switch (l.mixer) {
    case MixerKind::kGatedDeltaNet:
      out->mixer = SHARPI_MIXER_DELTA_NET;
      return Status::ok();
    case MixerKind::kMamba2:
      out->mixer = SHARPI_MIXER_MAMBA2;
      return Status::ok();
    case MixerKind::kNone:
      out->mixer = SHARPI_MIXER_NONE;
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
  if (!a.one_row()) out->v_dtype = static_cast<uint32_t>(s.dtypes[layer].v);
  out->capacity = a.window == 0 ? s.capacity(plan.model.n_chunk)
                                : std::min(s.n_ctx, a.window + s.rewind + s.n_draft);
  return Status::ok();
}

}  // namespace sharpi
