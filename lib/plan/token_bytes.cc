// SPDX-License-Identifier: MIT
// What one decoded token reads of the weights, by tier, and how long that takes at the plan's
// rates.
#include "plan/plan.h"

namespace sharpi {
namespace {

uint64_t sum(std::initializer_list<const TensorRef*> refs) {
  uint64_t n = 0;
  for (const TensorRef* r : refs) n += r->bytes();
  return n;
}

uint64_t mixer_bytes(const LayerSpec& l) {
  const AttentionSpec& a = l.attention;
  const DeltaNetSpec& d = l.delta;
  return sum({&a.q, &a.k, &a.v, &a.o, &d.qkv, &d.gate, &d.alpha, &d.beta, &d.out});
}

}  // namespace

TokenBytes token_bytes(const ModelSpec& spec, const Placement& placement) {
  TokenBytes t;
  const auto add = [&](TierId tier, uint64_t n) {
    (tier == TierId::kCpu ? t.host : t.device) += n;
  };
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    const FfnSpec& f = spec.layers[l].ffn;
    add(placement.mixer[l], mixer_bytes(spec.layers[l]));
    add(placement.ffn[l], sum({&f.router, &f.shared_gate, &f.shared_up, &f.shared_down}));
    const uint64_t matrices = sum({&f.gate, &f.up, &f.down});
    if (f.kind == FfnKind::kDense)
      add(placement.ffn[l], matrices);
    else
      add(placement.experts[l], matrices / f.n_experts * f.n_used);
  }
  add(placement.head, (spec.tied_output ? spec.token_embd : spec.output).bytes());
  return t;
}

double token_seconds(const TokenBytes& bytes, const Rates& rates) {
  if ((bytes.device != 0 && rates.device == 0) || (bytes.host != 0 && rates.host == 0)) return 0;
  const double device = bytes.device == 0 ? 0 : static_cast<double>(bytes.device) / rates.device;
  const double host = bytes.host == 0 ? 0 : static_cast<double>(bytes.host) / rates.host;
  return device + host;
}

}  // namespace sharpi
