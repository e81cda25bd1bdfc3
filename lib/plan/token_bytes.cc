// SPDX-License-Identifier: MIT
// What one decoded token reads, by tier, and how long that takes at the plan's rates.
#include <algorithm>

#include "kv/codec.h"
#include "plan/layer_bytes.h"
#include "plan/plan.h"

namespace sharpi {
namespace {

uint64_t sum(std::initializer_list<const TensorRef*> refs) {
  uint64_t n = 0;
  for (const TensorRef* r : refs) n += r->bytes();
  return n;
}

uint64_t state_bytes(const DeltaNetSpec& d) {
  const uint64_t matrix = uint64_t{d.n_v_heads} * d.head_dim * d.head_dim;
  const uint64_t conv = uint64_t{d.conv_dim()} * (d.conv_kernel - 1);
  return (matrix + conv) * sizeof(float);
}

uint32_t live_slots(const SessionShape& s) {
  return s.kv_budget == 0 ? s.n_ctx : std::min(s.n_ctx, s.kv_budget);
}

uint64_t row_bytes(const AttentionSpec& a, const KvDtypePair& dtype) {
  const uint64_t n = uint64_t{a.n_kv_heads} * a.head_dim;
  return kv_row_bytes(dtype.k, n) + kv_row_bytes(dtype.v, n);
}

}  // namespace

LayerBytes layer_bytes(const ModelSpec& spec, uint32_t layer) {
  const LayerSpec& l = spec.layers[layer];
  const FfnSpec& f = l.ffn;
  LayerBytes b;
  for (const TensorRef* t : l.mixer_products()) b.mixer += t->bytes();
  b.ffn = sum({&f.router, &f.shared_gate, &f.shared_up, &f.shared_down});
  const uint64_t matrices = sum({&f.gate, &f.up, &f.down});
  if (f.kind == FfnKind::kDense) {
    b.ffn += matrices;
  } else {
    b.experts = matrices;
    b.experts_read = matrices / f.n_experts * f.n_used;
  }
  return b;
}

uint64_t row_bytes_held(const ModelSpec& spec, uint32_t layer, const SessionShape& session) {
  const LayerSpec& l = spec.layers[layer];
  switch (l.mixer) {
    case MixerKind::kGatedDeltaNet:
      return 2 * state_bytes(l.delta);  // committed, working
    case MixerKind::kAttention:
      break;
  }
  const AttentionSpec& a = l.attention;
  if (a.kv_source >= 0) return 0;
  const uint64_t slots =
      a.window == 0 ? live_slots(session)
                    : std::min<uint64_t>(session.n_ctx, uint64_t{a.window} + session.rewind);
  return slots * row_bytes(a, session.dtypes[layer]);
}

uint64_t row_bytes_read(const ModelSpec& spec, uint32_t layer, const SessionShape& session,
                        const KvDtypePair* dtype) {
  const LayerSpec& l = spec.layers[layer];
  switch (l.mixer) {
    case MixerKind::kGatedDeltaNet:
      return 2 * state_bytes(l.delta);  // read and written
    case MixerKind::kAttention:
      break;
  }
  const AttentionSpec& a = l.attention;
  const uint32_t owner = a.kv_source >= 0 ? static_cast<uint32_t>(a.kv_source) : layer;
  const uint64_t slots = a.window == 0 ? live_slots(session) : std::min(session.n_ctx, a.window);
  return slots * row_bytes(a, dtype == nullptr ? session.dtypes[owner] : *dtype);
}

TokenBytes token_bytes(const ModelSpec& spec, const Placement& placement,
                       const SessionShape& session) {
  TokenBytes t;
  const auto add = [&](TierId tier, uint64_t n) {
    (tier == TierId::kCpu ? t.host : t.device) += n;
  };
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    const LayerBytes b = layer_bytes(spec, l);
    add(placement.mixer[l], b.mixer);
    add(placement.ffn[l], b.ffn);
    add(placement.experts[l], b.experts_read);
    const uint64_t rows = row_bytes_read(spec, l, session, nullptr);
    (placement.mixer[l] == TierId::kCpu ? t.host_rows : t.device_rows) += rows;
  }
  add(placement.head, (spec.tied_output ? spec.token_embd : spec.output).bytes());
  return t;
}

double token_seconds(const TokenBytes& bytes, const Rates& rates, bool full) {
  const uint64_t on_device = bytes.device + (full ? bytes.device_rows : 0);
  const uint64_t on_host = bytes.host + (full ? bytes.host_rows : 0);
  if ((on_device != 0 && rates.device == 0) || (on_host != 0 && rates.host == 0)) return 0;
  const double device = on_device == 0 ? 0 : static_cast<double>(on_device) / rates.device;
  const double host = on_host == 0 ? 0 : static_cast<double>(on_host) / rates.host;
  return device + host;
}

}  // namespace sharpi
