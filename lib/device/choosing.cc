// SPDX-License-Identifier: MIT
#include "device/choosing.h"

#include <algorithm>
#include <cstring>

#include "device/kernels.h"
#include "tier/compact_tables.h"

namespace sharpi::device {
namespace {

using Layer = DeviceScoreScratch::Layer;

HeldTerms terms_of(const DeviceScoreScratch& s, const Layer& l, uint32_t n_slots) {
  return {s.held(l), l.n_heads, n_slots};
}

PolicyTerm term_of(sharpi_policy policy) {
  return policy_row(policy).term;
}

Status not_held(uint32_t layer) {
  return Status::error(Code::kInternal, "layer %u holds no scores", layer);
}

}  // namespace

Status check_policy(const PolicyRow& row, bool on_host) {
  if (on_host) return Status::ok();
  switch (row.term) {
    case PolicyTerm::kSum:
      return Status::error(Code::kUnsupported,
                           "policy %u counts the sums of each head, which the GPU does not hold",
                           row.policy);
    case PolicyTerm::kMean:  // they become means as lists are made, behind the sharing of hits
      if (!row.shares_hits) break;
      return Status::error(Code::kUnsupported,
                           "policy %u shares hits that are means, which the GPU does not do",
                           row.policy);
    case PolicyTerm::kTop:
    case PolicyTerm::kTopOrMean:
    case PolicyTerm::kMeanByValue:
    case PolicyTerm::kReplay:
      break;
  }
  switch (row.smoothing) {
    case PolicySmoothing::kNone:
      return Status::error(
          Code::kUnsupported,
          "policy %u takes scores as they are, but the GPU averages or spreads them", row.policy);
    case PolicySmoothing::kPool:
    case PolicySmoothing::kSpread:
      break;
  }
  return Status::ok();
}

Status Choosing::hold_terms(TierSession& session, const ScoreRequest& request, sharpi_policy policy,
                            ScoreScratch& scratch, CompactTables&) const {
  auto& s = static_cast<DeviceScoreScratch&>(scratch);
  Layer* layer = s.find(request.layer);
  if (layer == nullptr) return not_held(request.layer);
  const DeviceScope scope(*m_.device);
  const HeldTerms held = terms_of(s, *layer, request.ledger->n_slots(request.layer));
  ScoreOut out = s.result_rows();
  const PolicyTerm term = term_of(policy);
  if (term == PolicyTerm::kMean) out.sum = held.terms;  // sums, which scale to means
  if (term == PolicyTerm::kTop) out.max = held.terms;
  layer->held = false;
  SHARPI_TRY(scoring_.start(static_cast<DeviceSession&>(session), request, s, out));
  if (term == PolicyTerm::kMeanByValue || term == PolicyTerm::kTopOrMean) {
    JoinParams j;
    j.out = held;
    j.sum = out.sum;
    j.top = out.max;
    j.norms = term == PolicyTerm::kMeanByValue ? out.norms : nullptr;
    j.scale = 1.0f / static_cast<float>(layer->n_observed);
    SHARPI_TRY(m_.device->kernels().join_terms(j, *m_.stream));
  }
  layer->held = true;
  return Status::ok();
}

/// Positions of compacted rows go where the layer's sums were.
Status Choosing::send_positions(const KvLedger& ledger, const DeviceScoreScratch& s,
                                const Layer& layer, RowPositions* out) const {
  const LayerRows& rows = ledger.rows(layer.layer);
  *out = {nullptr, 0, rows.n_compacted, rows.tail_position};
  if (rows.n_compacted == 0) return Status::ok();
  auto* to = reinterpret_cast<uint32_t*>(s.results());
  out->lists = to;
  out->stride = rows.n_lists == 1 ? 0 : rows.n_compacted;
  for (uint32_t i = 0; i < rows.n_lists; ++i) {
    const std::span<const uint32_t> list = ledger.positions(layer.layer, i);
    SHARPI_TRY(m_.stream->copy(to + uint64_t{i} * rows.n_compacted, list.data(), list.size_bytes(),
                               Way::kToDevice, "upload of positions"));
  }
  return Status::ok();
}

/// The largest terms by position, on their way to the device.
Status Choosing::send_hits(std::span<const float> shared, const DeviceScoreScratch& s) const {
  std::copy(shared.begin(), shared.end(), s.host_shared());
  return m_.stream->copy(s.shared(), s.host_shared(), shared.size_bytes(), Way::kToDevice,
                         "upload of shared hits");
}

Status Choosing::share_hits(const KvLedger& ledger, std::span<const uint32_t>,
                            ScoreScratch& scratch, CompactTables& tables) const {
  const std::span<float> shared = tables.shared();
  auto& s = static_cast<DeviceScoreScratch&>(scratch);
  if (s.layers.empty()) return Status::ok();
  const DeviceScope scope(*m_.device);
  SHARPI_TRY(send_hits(shared, s));
  for (const Layer& l : s.layers) {
    if (!l.held) return not_held(l.layer);
    RowPositions at;
    SHARPI_TRY(send_positions(ledger, s, l, &at));
    SHARPI_TRY(m_.device->kernels().share_hits(terms_of(s, l, ledger.n_slots(l.layer)), at,
                                               s.shared(), *m_.stream));
  }
  SHARPI_TRY(m_.stream->copy(s.host_shared(), s.shared(), shared.size_bytes(), Way::kToHost,
                             "reading shared hits"));
  SHARPI_TRY(m_.stream->wait());
  std::copy_n(s.host_shared(), shared.size(), shared.begin());
  return Status::ok();
}

Status Choosing::send_lists(const KvLedger& ledger, std::span<const ChooseRequest> layers,
                            DeviceScoreScratch& s, SelectParams* out) const {
  auto* lists = reinterpret_cast<SelectList*>(s.host_lists());
  for (const ChooseRequest& r : layers) {
    const Layer* layer = s.find(r.layer);
    if (layer == nullptr || !layer->held) return not_held(r.layer);
    const uint32_t n_slots = ledger.n_slots(r.layer);
    for (uint32_t h = 0; h < layer->n_heads; ++h) {
      SelectList l;
      l.terms = s.held(*layer) + uint64_t{h} * n_slots;
      l.keys = reinterpret_cast<uint32_t*>(s.kernel()) +
               uint64_t{layer->first_list + h} * s.shape.n_slots;
      if (term_of(r.policy.policy) == PolicyTerm::kMean)
        l.scale = 1.0f / static_cast<float>(layer->n_observed);
      l.n_slots = n_slots;
      l.parts = keep_parts(r.policy, n_slots);
      lists[out->n_lists++] = l;
    }
  }
  const PolicyParams& p = layers[0].policy;
  out->lists = reinterpret_cast<const SelectList*>(s.lists());
  const bool pools = policy_row(p.policy).smoothing == PolicySmoothing::kPool;
  out->smooth = pools ? Smooth::kPool : Smooth::kSpread;
  out->reach = pools ? p.pool_kernel : p.span;
  return m_.stream->copy(s.lists(), lists, out->n_lists * sizeof(SelectList), Way::kToDevice,
                         "upload of lists");
}

/// As many layers at a time as the pinned results have room for.
Status Choosing::read_lists(const KvLedger& ledger, std::span<const ChooseRequest> layers,
                            DeviceScoreScratch& s, CompactTables& tables) const {
  for (size_t begin = 0, end = 0; begin < layers.size(); begin = end) {
    uint64_t used = 0;
    const auto bytes_of = [&](const ChooseRequest& r) {
      return std::min(r.policy.budget, ledger.n_slots(r.layer)) * sizeof(uint32_t);
    };
    for (; end < layers.size(); ++end) {
      const ChooseRequest& r = layers[end];
      const Layer& l = *s.find(r.layer);
      const uint64_t row = bytes_of(r), bytes = row * l.n_heads;
      if (used + bytes > s.sizes.results()) break;
      if (bytes == 0) continue;
      SHARPI_TRY(m_.stream->copy_rows({s.host.data() + used, row},
                                      {s.held(l), ledger.n_slots(r.layer) * sizeof(uint32_t)}, row,
                                      l.n_heads, Way::kToHost, "reading kept rows"));
      used += bytes;
    }
    SHARPI_TRY(m_.stream->wait());
    const std::byte* from = s.host.data();
    for (size_t i = begin; i < end; ++i) {
      const uint64_t row = bytes_of(layers[i]);
      for (uint32_t h = 0; h < s.find(layers[i].layer)->n_heads; ++h, from += row)
        std::memcpy(tables.keep(layers[i].layer) + uint64_t{h} * tables.stride(), from, row);
    }
  }
  return Status::ok();
}

Status Choosing::choose(const KvLedger& ledger, std::span<const ChooseRequest> layers,
                        ScoreScratch& scratch, CompactTables& tables) const {
  auto& s = static_cast<DeviceScoreScratch&>(scratch);
  if (layers.empty()) return Status::ok();
  const DeviceScope scope(*m_.device);
  if (policy_row(layers[0].policy.policy).shares_hits) {
    SHARPI_TRY(send_hits(tables.shared(), s));
    for (const ChooseRequest& r : layers) {
      const Layer* l = s.find(r.layer);
      if (l == nullptr || !l->held) return not_held(r.layer);
      RowPositions at;
      SHARPI_TRY(send_positions(ledger, s, *l, &at));
      SHARPI_TRY(m_.device->kernels().take_hits(terms_of(s, *l, ledger.n_slots(r.layer)), at,
                                                s.shared(), *m_.stream));
    }
  }
  SelectParams p;
  SHARPI_TRY(send_lists(ledger, layers, s, &p));
  SHARPI_TRY(m_.device->kernels().select(p, *m_.stream));
  for (Layer& l : s.layers) l.held = false;  // their place has lists now
  return read_lists(ledger, layers, s, tables);
}

}  // namespace sharpi::device
