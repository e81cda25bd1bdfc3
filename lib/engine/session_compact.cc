// SPDX-License-Identifier: MIT
// Compaction: observe, score, select, move, return memory. Everything that may fail happens before
// the first row moves; from then on nothing fails.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>

#include "base/no_throw.h"
#include "engine/compaction.h"
#include "engine/session.h"

namespace sharpi {
namespace {

double since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

}  // namespace

size_t Session::mixer_tier(uint32_t layer) const {
  return model_->tier_index(model_->plan().placement.mixer[layer]);
}

std::vector<uint32_t> Session::compactable_layers() const {
  std::vector<uint32_t> out;
  for (uint32_t l = 0; l < model_->spec().n_layers(); ++l) {
    if (ledger_.is_full_owner(l)) out.push_back(l);
  }
  return out;
}

uint64_t Session::full_cache_bytes() const {
  uint64_t bytes = 0;
  for (const auto& tier : tiers_) {
    for (const KvGroup& g : tier->store().layout().groups) {
      if (!g.ring) bytes += g.payload_bytes(shape_.n_ctx);
    }
  }
  return bytes;
}

Status Session::check_sight(std::span<const int32_t> tokens) const {
  if (tokens.size() <= free_slots()) return Status::ok();
  return Status::error(Code::kState,
                       "%zu tokens cannot be observed: %u of %u slots are in use; reserve more, or "
                       "truncate as many tokens first",
                       tokens.size(), full_capacity() - free_slots(), full_capacity());
}

Status Session::observe(std::span<const int32_t> tokens, uint64_t position, bool no_context) {
  SHARPI_TRY(check_sight(tokens));
  for (const auto& tier : tiers_)
    SHARPI_TRY(tier->reserve_observer(static_cast<uint32_t>(tokens.size())));
  SequenceRows q;
  q.ledger = &ledger_;
  q.n_rows = static_cast<uint32_t>(tokens.size());
  q.position = position;
  q.first_logit_row = q.n_rows;
  Submission rows;
  rows.tokens = tokens.data();
  rows.n_rows = q.n_rows;
  rows.sequences = {&q, 1};
  rows.cancel = changed_ ? nullptr : &cancel_;
  rows.transient = true;
  rows.no_context = no_context;
  rows.capture = Capture::kObserver;
  const std::span<TierSession* const> list(tier_list_);
  probe_seen_ = false;  // the observer rows are of these tokens from now on
  return model_->run(rows, {&list, 1});
}

Result<ScoreScratch*> Session::scratch_for(const CompactRequest& r, size_t tier) {
  const bool values = policy_needs_values(r.policy);
  const bool priced = tier < score_scratch_.size() && score_scratch_[tier] != nullptr &&
                      r.n_queries <= scratch_queries_ && (!values || scratch_values_);
  if (priced) return score_scratch_[tier].get();
  call_scratch_.resize(tiers_.size());
  if (call_scratch_[tier] == nullptr) {
    SHARPI_TRY_ASSIGN(call_scratch_[tier],
                      model_->tiers()[tier]->create_score_scratch(
                          {ledger_.max_slots(), r.n_queries, shape_.n_ctx, values}));
  }
  return call_scratch_[tier].get();
}

ScoreRequest Session::score_request(const CompactRequest& r, uint32_t layer) const {
  ScoreRequest q;
  q.layer = layer;
  q.ledger = &ledger_;
  q.source = r.source;
  q.n_queries = r.n_queries;
  q.first_position = r.first_position;
  q.values = policy_needs_values(r.policy);
  q.half_life = policy_row(r.policy).half_life;
  return q;
}

Status Session::score_layer(const CompactRequest& r, uint32_t layer, LayerScores* out) {
  const size_t tier = mixer_tier(layer);
  SHARPI_TRY_ASSIGN(ScoreScratch * scratch, scratch_for(r, tier));
  return model_->tiers()[tier]->score(*tiers_[tier], score_request(r, layer), *scratch, out);
}

namespace {

/// Entropy in nats of the layer's total mass over its rows.
float entropy_of(const LayerScores& s) {
  double total = 0;
  const uint64_t n = uint64_t{s.n_kv_heads} * s.n_slots;
  for (uint64_t i = 0; i < n; ++i) total += static_cast<double>(s.sum[i]);
  double h = 0;
  for (uint64_t i = 0; i < n; ++i) {
    const double p = static_cast<double>(s.sum[i]) / total;
    if (p > 0) h -= p * std::log(p);
  }
  return static_cast<float>(h);
}

}  // namespace

Status Session::layer_budgets(const CompactRequest& r, std::span<const uint32_t> layers,
                              std::vector<uint32_t>* out) {
  std::vector<uint32_t> slots;
  std::vector<float> entropy;
  for (const uint32_t l : layers) slots.push_back(ledger_.n_slots(l));
  if (r.layer_budget == SHARPI_LAYER_BUDGET_ENTROPY) {
    for (const uint32_t l : layers) {
      LayerScores s;
      SHARPI_TRY(score_layer(r, l, &s));
      entropy.push_back(entropy_of(s));
    }
  }
  const uint32_t most = shape_.kv_budget == 0 ? UINT32_MAX : shape_.kv_budget;
  *out = split_budget(r.layer_budget, r.budget, std::min(r.budget, r.recency + r.sinks + 1), most,
                      slots, entropy);
  return Status::ok();
}

Status Session::select_global(const CompactRequest& r, std::span<const uint32_t> layers,
                              std::vector<KvMove>* moves) {
  const uint32_t n = ledger_.max_slots();
  const std::span<const uint32_t> first = ledger_.positions(layers[0], 0);
  for (const uint32_t l : layers) {
    const std::span<const uint32_t> own = ledger_.positions(l, 0);
    const bool same = std::equal(own.begin(), own.end(), first.begin(), first.end());
    if (ledger_.n_slots(l) == n && ledger_.rows(l).n_lists <= 1 && same) continue;
    return Status::error(Code::kState,
                         "one keep set for all layers and heads needs rows that line up, but an "
                         "earlier compaction kept others in layer %u (%u of %u rows)",
                         l, ledger_.n_slots(l), n);
  }
  float* total = tables_.row();
  std::fill(total, total + n, 0.0f);
  for (size_t i = 0; i < layers.size(); ++i) {
    SHARPI_TRY(keep_going(r, i, layers.size()));
    LayerScores s;
    SHARPI_TRY(score_layer(r, layers[i], &s));
    for (uint32_t h = 0; h < s.n_kv_heads; ++h) {
      for (uint32_t t = 0; t < n; ++t) total[t] += s.sum[uint64_t{h} * n + t];
    }
  }
  uint32_t* keep = tables_.keep(layers[0]);
  const uint32_t kept = select_rows(r.for_layer(r.budget), total, n, tables_.order(), keep);
  for (const uint32_t l : layers) moves->push_back(KvMove{l, {keep, 1, kept, kept}});
  return Status::ok();
}

std::vector<uint32_t> Session::layers_of(size_t tier, std::span<const uint32_t> layers) const {
  std::vector<uint32_t> out;
  std::copy_if(layers.begin(), layers.end(), std::back_inserter(out),
               [&](uint32_t l) { return mixer_tier(l) == tier; });
  return out;
}

Status Session::hold_all_terms(const CompactRequest& r, std::span<const uint32_t> layers) {
  for (size_t i = 0; i < layers.size(); ++i) {
    SHARPI_TRY(keep_going(r, i, layers.size()));
    const size_t tier = mixer_tier(layers[i]);
    SHARPI_TRY_ASSIGN(ScoreScratch * scratch, scratch_for(r, tier));
    SHARPI_TRY(model_->tiers()[tier]->hold_terms(*tiers_[tier], score_request(r, layers[i]),
                                                 r.policy, *scratch, tables_));
  }
  if (!policy_row(r.policy).shares_hits) return Status::ok();
  std::fill(tables_.shared().begin(), tables_.shared().end(), 0.0f);
  for (size_t t = 0; t < tiers_.size(); ++t) {
    const std::vector<uint32_t> own = layers_of(t, layers);
    if (own.empty()) continue;
    SHARPI_TRY_ASSIGN(ScoreScratch * scratch, scratch_for(r, t));
    SHARPI_TRY(model_->tiers()[t]->share_hits(ledger_, own, *scratch, tables_));
  }
  return Status::ok();
}

Status Session::choose_rows(const CompactRequest& r, std::span<const uint32_t> layers,
                            std::span<const uint32_t> budgets) {
  for (size_t t = 0; t < tiers_.size(); ++t) {
    std::vector<ChooseRequest> own;
    for (size_t i = 0; i < layers.size(); ++i) {
      if (mixer_tier(layers[i]) == t) own.push_back({layers[i], r.for_layer(budgets[i])});
    }
    if (own.empty()) continue;
    SHARPI_TRY_ASSIGN(ScoreScratch * scratch, scratch_for(r, t));
    SHARPI_TRY(model_->tiers()[t]->choose(ledger_, own, *scratch, tables_));
  }
  return Status::ok();
}

Status Session::check_heads_apart(std::span<const uint32_t> layers) const {
  for (const uint32_t l : layers) {
    const KvLayerLayout& one = *store(l).layout().find(l);
    for (const KvDtype d : {one.k_dtype, one.v_dtype}) {
      if (one.head_dim % kv_codec(d)->block == 0) continue;
      return Status::error(Code::kUnsupported,
                           "layer %u has heads of %u elements, which cannot be kept one by one in "
                           "%s blocks of %u; the global policy works",
                           l, one.head_dim, kv_codec(d)->name, kv_codec(d)->block);
    }
  }
  return Status::ok();
}

Status Session::select_per_head(const CompactRequest& r, std::span<const uint32_t> layers,
                                std::vector<KvMove>* moves) {
  SHARPI_TRY(check_heads_apart(layers));
  std::vector<uint32_t> budgets;
  SHARPI_TRY(layer_budgets(r, layers, &budgets));
  SHARPI_TRY(hold_all_terms(r, layers));
  SHARPI_TRY(choose_rows(r, layers, budgets));
  for (size_t i = 0; i < layers.size(); ++i) {
    const uint32_t layer = layers[i], kept = std::min(budgets[i], ledger_.n_slots(layer));
    moves->push_back(
        KvMove{layer, {tables_.keep(layer), tables_.n_heads(layer), kept, tables_.stride()}});
  }
  return Status::ok();
}

Status Session::keep_going(const CompactRequest& r, size_t done, size_t total) const {
  const bool stop =
      is_cancelled() ||
      (r.progress != nullptr && r.progress(r.user_data, SHARPI_PHASE_COMPACT, done, total) != 0);
  return stop ? Status::error(Code::kCancelled, "compaction was cancelled; nothing changed")
              : Status::ok();
}

Status Session::select(const CompactRequest& r, std::vector<KvMove>* moves) {
  const std::vector<uint32_t> layers = compactable_layers();
  if (r.policy == SHARPI_POLICY_KEEP) {
    for (const uint32_t l : layers)
      moves->push_back(KvMove{l, {r.keep.data(), 1, r.keep.size(), r.keep.size()}});
    return Status::ok();
  }
  if (r.budget >= ledger_.max_slots()) return Status::ok();  // everything fits: all rows stay
  return policy_row(r.policy).scope == PolicyScope::kModel ? select_global(r, layers, moves)
                                                           : select_per_head(r, layers, moves);
}

namespace {

/// The first slot that a move writes, or that is free after it.
uint32_t first_moved(const KvMove& m) {
  uint32_t first = UINT32_MAX;
  for (size_t h = 0; h < m.keep.size(); ++h) {
    const std::span<const uint32_t> keep = m.keep[h];
    uint32_t i = 0;
    while (i < keep.size() && keep[i] == i) ++i;
    first = std::min(first, i);
  }
  return first;
}

}  // namespace

Status Session::move_rows(const CompactRequest& r, const std::vector<KvMove>& moves) {
  std::vector<std::vector<KvMove>> by_tier(tiers_.size());
  for (const KvMove& m : moves) {
    by_tier[mixer_tier(m.layer)].push_back(m);
  }
  for (size_t t = 0; t < tiers_.size(); ++t) {
    const Status staged = tiers_[t]->store().stage_moves(by_tier[t]);
    if (staged.is_ok()) continue;
    for (size_t u = 0; u <= t; ++u) tiers_[u]->store().discard_moves();
    return staged;
  }
  const auto first_written = [&](uint32_t layer) {
    const auto m = std::find_if(moves.begin(), moves.end(),
                                [&](const KvMove& one) { return one.layer == layer; });
    return m == moves.end() ? ledger_.n_slots(layer) : first_moved(*m);
  };
  const Status owned = no_throw([&] { return own_rows(first_written); });
  if (!owned.is_ok()) {
    for (const auto& tier : tiers_) tier->store().discard_moves();
    return owned;
  }
  for (const auto& tier : tiers_) tier->store().apply_moves();
  for (const KvMove& m : moves) ledger_.set_compacted(m.layer, m.keep);
  if (r.shrink) shrink_to(r.headroom);
  return Status::ok();
}

void Session::shrink_to(uint32_t headroom) noexcept {
  const HeldBytes before = kv_held();
  for (const auto& tier : tiers_) {
    KvStore& kv = tier->store();
    for (uint32_t g = 0; g < kv.layout().groups.size(); ++g) {
      const KvGroup& group = kv.layout().groups[g];
      if (group.ring) continue;
      const auto want =
          std::min<uint64_t>(shape_.n_ctx, uint64_t{ledger_.fullest(group)} + headroom);
      kv.shrink(g, static_cast<uint32_t>(want));
    }
  }
  settle_share(before);
}

void Session::take_tables() {
  if (tables_.is_reserved()) return;
  const uint32_t capacity = shape_.capacity(model_->plan().model.n_chunk);
  ledger_.reserve_positions(capacity);
  tables_.reserve(model_->spec(), capacity, shape_.n_ctx);
}

Status Session::run_compaction(const CompactRequest& r, sharpi_compact_report* report) {
  const KvTotals before = kv_totals();
  const uint32_t rows_before = ledger_.max_slots();
  const auto start = std::chrono::steady_clock::now();
  std::vector<KvMove> moves;
  const Status selected = no_throw([&] {
    take_tables();
    return select(r, &moves);
  });
  for (const auto* scratches : {&score_scratch_, &call_scratch_}) {
    for (const auto& scratch : *scratches) {
      if (scratch != nullptr) scratch->finish();
    }
  }
  call_scratch_.clear();
  SHARPI_TRY(selected);
  const double score_ms = since(start);
  const auto n_layers = static_cast<uint32_t>(compactable_layers().size());
  const auto moving = std::chrono::steady_clock::now();
  SHARPI_TRY(move_rows(r, moves));
  if (report == nullptr) return Status::ok();
  const KvTotals after = kv_totals();
  report->policy = r.policy;
  report->rows_before = rows_before;
  report->rows_after = ledger_.max_slots();
  report->n_layers = n_layers;
  report->capacity = full_capacity();
  report->payload_before = before.payload;
  report->payload_after = after.payload;
  report->held_before = before.held;
  report->held_after = after.held;
  report->score_ms = score_ms;
  report->move_ms = since(moving);
  return Status::ok();
}

}  // namespace sharpi
