// SPDX-License-Identifier: MIT
#include "plan/give_way.h"

#include "plan/layer_bytes.h"

namespace sharpi {
namespace {

// A row that the CPU attends to costs as much as this many times its bytes of weights
// (docs/performance.md, decode at 16K of context).
constexpr double kRowCost = 1.4;

uint32_t bit(Give kind) {
  return 1u << static_cast<uint32_t>(kind);
}

/// What moving blocks frees and costs, summed over layers.
struct Moved {
  double freed = 0;                // bytes of the device
  double read = 0;                 // bytes of weights that a token reads
  double host_rows = 0, rows = 0;  // bytes of KV rows and states that it reads, there and here
  double crossings = 0;            // hidden rows over the link
};

void add_experts(const LayerBytes& l, Moved* m) {
  m->freed += static_cast<double>(l.experts);
  m->read += static_cast<double>(l.experts_read);
}

void add_ffn(const LayerBytes& l, Moved* m) {
  m->freed += static_cast<double>(l.ffn);
  m->read += static_cast<double>(l.ffn);
}

Moved moved(const ModelSpec& spec, const SessionShape& session, const KvDtypePair& tail, Give kind,
            uint32_t given) {
  Moved m;
  const bool experts_here = (given & bit(Give::kExperts)) == 0;
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    const LayerBytes b = layer_bytes(spec, l);
    const bool moe = b.experts != 0;
    if (kind == Give::kExperts) {
      add_experts(b, &m);
      m.crossings += moe ? 2 : 0;
    } else if (kind == Give::kFfn) {
      add_ffn(b, &m);
      if (moe && experts_here) add_experts(b, &m);
      m.crossings += moe && !experts_here ? 0 : 2;  // else they cross already
    } else {
      m.freed += static_cast<double>(b.mixer + row_bytes_held(spec, l, session));
      m.read += static_cast<double>(b.mixer);
      m.rows += static_cast<double>(row_bytes_read(spec, l, session, nullptr));
      m.host_rows += static_cast<double>(row_bytes_read(spec, l, session, &tail));
      if ((given & bit(Give::kFfn)) == 0) add_ffn(b, &m);
      if (moe && experts_here) add_experts(b, &m);
    }
  }
  return m;
}

}  // namespace

double give_cost(const ModelSpec& spec, const SessionShape& session, const KvDtypePair& tail,
                 const Rates& rates, Give kind, uint32_t given) {
  const Moved m = moved(spec, session, tail, kind, given);
  if (m.freed == 0) return 0;
  const double row = static_cast<double>(spec.n_embd) * sizeof(float);
  const double seconds = (m.read + kRowCost * m.host_rows) / rates.host -
                         (m.read + m.rows) / rates.device + m.crossings * row / rates.pcie;
  return seconds / m.freed;
}

GiveOrder give_order(const ModelSpec& spec, const SessionShape& session, const KvDtypePair& tail,
                     const Rates& rates) {
  GiveOrder order = kUsualOrder;
  if (rates.device <= 0 || rates.host <= 0 || rates.pcie <= 0) return order;
  uint32_t given = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    size_t best = i;
    double least = 0;
    for (size_t k = i; k < order.size(); ++k) {
      const double cost = give_cost(spec, session, tail, rates, order[k], given);
      if (k == i || cost < least) best = k, least = cost;
    }
    const Give kind = order[best];
    for (; best > i; --best) order[best] = order[best - 1];  // the others keep their order
    order[i] = kind;
    given |= bit(kind);
  }
  return order;
}

}  // namespace sharpi
