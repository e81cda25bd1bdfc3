// SPDX-License-Identifier: MIT
// What one decoded token reads, by tier, and how long that takes at the plan's rates.
#include <algorithm>

#include "kv/kv_layout.h"
#include "plan/layer_bytes.h"
#include "plan/plan.h"

namespace sharpi {
namespace {

uint64_t sum(std::initializer_list<const TensorRef*> refs) {
  uint64_t n = 0;
  for (const TensorRef* r : refs) n += r->bytes();
  return n;
}

uint64_t state_bytes(const LayerSpec& l) {
  const Recurrence r = l.recurrence();
  return (r.state + r.conv) * sizeof(float);
}

uint32_t live_slots(const SessionShape& s) {
  return s.kv_budget == 0 ? s.n_ctx : std::min(s.n_ctx, s.kv_budget);
}

}  // namespace

LayerBytes layer_bytes(const ModelSpec& spec, uint32_t layer) {
  const LayerSpec& l = spec.layers[layer];
  const FfnSpec& f = l.ffn;
  LayerBytes b;
  for (const TensorRef* t : l.mixer_products()) b.mixer += t->bytes();
  b.ffn = sum({&f.router, &f.shared_gate, &f.shared_up, &f.shared_down});
  const uint64_t matrices = sum({&f.gate, &f.up, &f.down});
  switch (f.kind) {
    case FfnKind::kDense:
      b.ffn += matrices;
      break;
    case FfnKind::kMoe:
      b.experts = matrices;
      b.experts_read = matrices / f.n_experts * f.n_used;
      break;
    case FfnKind::kNone:
      break;
  }
  return b;
}

uint64_t row_bytes_held(const ModelSpec& spec, uint32_t layer, const SessionShape& session) {
  const LayerSpec& l = spec.layers[layer];
  switch (l.mixer) {
    case MixerKind::kGatedDeltaNet:
    case MixerKind::kMamba2:
      return 2 * state_bytes(l);  // committed, working
    case MixerKind::kNone:
      return 0;
    case MixerKind::kAttention:
      break;
  }
  const AttentionSpec& a = l.attention;
  if (a.kv_source >= 0) return 0;
  const uint64_t slots =
      a.window == 0 ? live_slots(session)
                    : std::min<uint64_t>(session.n_ctx, uint64_t{a.window} + session.rewind);
  return slots * kv_token_bytes(a, session.dtypes[layer]);
}

uint64_t row_bytes_read(const ModelSpec& spec, uint32_t layer, const SessionShape& session,
                        const KvDtypePair* dtype) {
  const LayerSpec& l = spec.layers[layer];
  switch (l.mixer) {
    case MixerKind::kGatedDeltaNet:
    case MixerKind::kMamba2:
      return 2 * state_bytes(l);  // read and written
    case MixerKind::kNone:
      return 0;
    case MixerKind::kAttention:
      break;
  }
  const AttentionSpec& a = l.attention;
  const uint32_t owner = a.kv_source >= 0 ? static_cast<uint32_t>(a.kv_source) : layer;
  const uint64_t slots = a.window == 0 ? live_slots(session) : std::min(session.n_ctx, a.window);
  return slots * kv_token_bytes(a, dtype == nullptr ? session.dtypes[owner] : *dtype);
}

TokenBytes token_bytes(const ModelSpec& spec, const Placement& placement,
                       const SessionShape& session, DeviceIndex device) {
  TokenBytes t;
  const auto add = [&](DeviceIndex at, uint64_t n) { t.weights += at == device ? n : 0; };
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    const LayerBytes b = layer_bytes(spec, l);
    add(placement.mixer[l], b.mixer);
    add(placement.ffn[l], b.ffn);
    add(placement.experts[l], b.experts_read);
    if (placement.mixer[l] == device) t.rows += row_bytes_read(spec, l, session, nullptr);
  }
  add(placement.head, (spec.tied_output ? spec.token_embd : spec.output).bytes());
  return t;
}

double token_seconds(const Plan& plan, bool full) {
  double host = 0, devices = 0;
  for (const PlanDevice& d : plan.devices) {
    const TokenBytes t = token_bytes(*plan.spec, plan.placement, plan.session, d.index);
    const uint64_t bytes = t.weights + (full ? t.rows : 0);
    if (bytes == 0) continue;
    if (d.rate == 0) return 0;
    (is_host(d.index) ? host : devices) += static_cast<double>(bytes) / d.rate;
  }
  // Between devices, a hidden row goes to host memory over one link and from there over the other.
  const std::vector<DeviceIndex> route = plan.placement.route();
  const double row = static_cast<double>(plan.spec->n_embd) * sizeof(float);
  for (size_t i = 1; i < route.size(); ++i) {
    const PlanDevice *from = plan.device(route[i - 1]), *to = plan.device(route[i]);
    if (from == nullptr || to == nullptr || from->link_rate == 0 || to->link_rate == 0) return 0;
    devices += row / from->link_rate + row / to->link_rate;
  }
  return devices + host;
}

}  // namespace sharpi
