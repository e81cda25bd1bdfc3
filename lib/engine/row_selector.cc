// SPDX-License-Identifier: MIT
#include "engine/row_selector.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "plan/session_plan.h"
#include "tier/shared_budget.h"

namespace sharpi {

Status RowSelector::create() {
  priced_queries_ = score_queries(core_.shape);
  priced_values_ = policy_needs_values(core_.shape.policy);
  if (priced_queries_ == 0) return Status::ok();
  for (const auto& tier : core_.model->tiers()) {
    SHARPI_TRY_ASSIGN(
        std::unique_ptr<ScoreScratch> scratch,
        tier->create_score_scratch({core_.priced_slots(), priced_queries_, core_.shape.n_ctx,
                                    priced_values_, core_.shape.replay_every != 0}));
    priced_.push_back(std::move(scratch));
  }
  core_.transcript.reserve_positions(core_.priced_slots());
  tables_.reserve(core_.spec(), core_.priced_slots(), core_.shape.n_ctx,
                  core_.shape.replay_every != 0);
  return Status::ok();
}

Status RowSelector::take_tables(const CompactRequest& r) {
  if (tables_.is_reserved()) return Status::ok();
  SHARPI_TRY(core_.take_positions());
  if (r.policy == SHARPI_POLICY_KEEP) return Status::ok();
  const uint32_t capacity = core_.priced_slots();
  const uint64_t all = compaction_table_bytes(core_.spec(), core_.shape, core_.limits().n_chunk);
  SHARPI_TRY(
      tables_of_call_.take(HeldBytes::of_host(all - core_.ledger().bytes_of_positions(capacity))));
  tables_.reserve(core_.spec(), capacity, core_.shape.n_ctx, core_.shape.replay_every != 0);
  return Status::ok();
}

void RowSelector::give_tables_back() noexcept {
  if (priced_queries_ != 0) return;
  tables_.release();
  tables_of_call_.end();
  core_.drop_positions();
}

void RowSelector::finish() noexcept {
  for (const auto* scratches : {&priced_, &of_call_}) {
    for (const auto& scratch : *scratches) {
      if (scratch != nullptr) scratch->finish();
    }
  }
  std::vector<std::unique_ptr<ScoreScratch>>().swap(of_call_);
  scratch_of_call_.end();
}

std::vector<MemoryRow> RowSelector::scratch_rows() const {
  std::vector<MemoryRow> rows;
  for (const auto& scratch : priced_) {
    for (const MemoryRow& r : scratch->memory_rows()) rows.push_back(r);
  }
  return rows;
}

Result<ScoreScratch*> RowSelector::scratch_for(const CompactRequest& r, size_t tier) {
  const bool values = policy_needs_values(r.policy);
  const bool priced = tier < priced_.size() && priced_[tier] != nullptr &&
                      r.n_queries <= priced_queries_ && (!values || priced_values_);
  if (priced) return priced_[tier].get();
  of_call_.resize(core_.tiers.size());
  if (of_call_[tier] == nullptr) {
    const TierModel& model = *core_.model->tiers()[tier];
    const ScoreShape shape{core_.ledger().max_slots(), r.n_queries, core_.shape.n_ctx, values,
                           policy_row(r.policy).reads_replay};
    SHARPI_TRY(scratch_of_call_.take(HeldBytes::of(model.score_scratch_rows(shape))));
    SHARPI_TRY_ASSIGN(of_call_[tier], model.create_score_scratch(shape));
  }
  return of_call_[tier].get();
}

ScoreRequest RowSelector::score_request(const CompactRequest& r, uint32_t layer) const {
  ScoreRequest q;
  q.layer = layer;
  q.ledger = &core_.ledger();
  q.source = r.source;
  q.n_queries = r.n_queries;
  q.first_position = r.first_position;
  q.values = policy_needs_values(r.policy);
  q.replay = policy_row(r.policy).reads_replay;
  q.on_host = r.layer_budget == SHARPI_LAYER_BUDGET_SHARED;
  q.half_life = policy_row(r.policy).half_life;
  return q;
}

Status RowSelector::score_layer(const CompactRequest& r, uint32_t layer, LayerScores* out) {
  const size_t tier = core_.tier_index(layer);
  SHARPI_TRY_ASSIGN(ScoreScratch * scratch, scratch_for(r, tier));
  return core_.model->tiers()[tier]->score(*core_.tiers[tier], score_request(r, layer), *scratch,
                                           out);
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

Status RowSelector::score_waiting() {
  if (core_.ledger().scored_tokens() == core_.ledger().n_tokens()) return Status::ok();
  for (const uint32_t l : core_.compactable_layers()) {
    const size_t tier = core_.tier_index(l);
    SHARPI_TRY(core_.model->tiers()[tier]->score_waiting(*core_.tiers[tier], core_.ledger(), l,
                                                         *priced_[tier]));
  }
  return Status::ok();
}

Status RowSelector::layer_budgets(const CompactRequest& r, std::span<const uint32_t> layers,
                                  std::vector<uint32_t>* out) {
  std::vector<uint32_t> slots;
  std::vector<float> entropy;
  for (const uint32_t l : layers) slots.push_back(core_.ledger().n_slots(l));
  if (r.layer_budget == SHARPI_LAYER_BUDGET_ENTROPY) {
    for (const uint32_t l : layers) {
      LayerScores s;
      SHARPI_TRY(score_layer(r, l, &s));
      entropy.push_back(entropy_of(s));
    }
  }
  const uint32_t most = core_.shape.kv_budget == 0 ? UINT32_MAX : core_.shape.kv_budget;
  *out = split_budget(r.layer_budget, r.budget, std::min(r.budget, r.recency + r.sinks + 1), most,
                      slots, entropy);
  return Status::ok();
}

Status RowSelector::select_global(const CompactRequest& r, std::span<const uint32_t> layers,
                                  std::vector<KvMove>* moves) {
  const uint32_t n = core_.ledger().max_slots();
  const std::span<const uint32_t> first = core_.ledger().positions(layers[0], 0);
  for (const uint32_t l : layers) {
    const std::span<const uint32_t> own = core_.ledger().positions(l, 0);
    const bool same = std::equal(own.begin(), own.end(), first.begin(), first.end());
    if (core_.ledger().n_slots(l) == n && core_.ledger().rows(l).n_lists <= 1 && same) continue;
    return Status::error(Code::kState,
                         "one keep set for all layers and heads needs rows that line up, but an "
                         "earlier compaction kept others in layer %u (%u of %u rows)",
                         l, core_.ledger().n_slots(l), n);
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

std::vector<uint32_t> RowSelector::layers_of(size_t tier, std::span<const uint32_t> layers) const {
  std::vector<uint32_t> out;
  std::copy_if(layers.begin(), layers.end(), std::back_inserter(out),
               [&](uint32_t l) { return core_.tier_index(l) == tier; });
  return out;
}

Status RowSelector::hold_all_terms(const CompactRequest& r, std::span<const uint32_t> layers) {
  std::fill(tables_.replay().begin(), tables_.replay().end(), 0.0f);
  for (size_t i = 0; i < layers.size(); ++i) {
    SHARPI_TRY(keep_going(r, i, layers.size()));
    const size_t tier = core_.tier_index(layers[i]);
    SHARPI_TRY_ASSIGN(ScoreScratch * scratch, scratch_for(r, tier));
    SHARPI_TRY(core_.model->tiers()[tier]->hold_terms(
        *core_.tiers[tier], score_request(r, layers[i]), r.policy, *scratch, tables_));
  }
  if (!policy_row(r.policy).shares_hits) return Status::ok();
  std::fill(tables_.shared().begin(), tables_.shared().end(), 0.0f);
  for (size_t t = 0; t < core_.tiers.size(); ++t) {
    const std::vector<uint32_t> own = layers_of(t, layers);
    if (own.empty()) continue;
    SHARPI_TRY_ASSIGN(ScoreScratch * scratch, scratch_for(r, t));
    SHARPI_TRY(core_.model->tiers()[t]->share_hits(core_.ledger(), own, *scratch, tables_));
  }
  return Status::ok();
}

Status RowSelector::choose_rows(const CompactRequest& r, std::span<const uint32_t> layers,
                                std::span<const uint32_t> budgets) {
  for (size_t t = 0; t < core_.tiers.size(); ++t) {
    std::vector<ChooseRequest> own;
    for (size_t i = 0; i < layers.size(); ++i) {
      if (core_.tier_index(layers[i]) == t) own.push_back({layers[i], r.for_layer(budgets[i])});
    }
    if (own.empty()) continue;
    SHARPI_TRY_ASSIGN(ScoreScratch * scratch, scratch_for(r, t));
    SHARPI_TRY(core_.model->tiers()[t]->choose(core_.ledger(), own, *scratch, tables_));
  }
  return Status::ok();
}

Status RowSelector::check_heads_apart(std::span<const uint32_t> layers) const {
  for (const uint32_t l : layers) {
    const KvLayerLayout& one = *core_.store(l).layout().find(l);
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

Status RowSelector::select_per_head(const CompactRequest& r, std::span<const uint32_t> layers,
                                    std::vector<KvMove>* moves) {
  SHARPI_TRY(check_heads_apart(layers));
  std::vector<uint32_t> budgets;
  SHARPI_TRY(layer_budgets(r, layers, &budgets));
  SHARPI_TRY(hold_all_terms(r, layers));
  SHARPI_TRY(choose_rows(r, layers, budgets));
  for (size_t i = 0; i < layers.size(); ++i) {
    const uint32_t layer = layers[i], kept = std::min(budgets[i], core_.ledger().n_slots(layer));
    if (!core_.ledger().is_by_head()) {
      moves->push_back(
          KvMove{layer, {tables_.keep(layer), tables_.n_heads(layer), kept, tables_.stride()}});
      continue;
    }
    const std::span<uint32_t> counts(tables_.counts(layer), tables_.n_heads(layer));
    for (uint32_t h = 0; h < counts.size(); ++h)
      counts[h] = std::min(budgets[i], core_.ledger().n_slots(layer, h));
    moves->push_back(KvMove{layer, {tables_.keep(layer), counts, tables_.stride()}, true});
  }
  return Status::ok();
}

Status RowSelector::select_shared(const CompactRequest& r, std::span<const uint32_t> layers,
                                  std::vector<KvMove>* moves) {
  SHARPI_TRY(check_heads_apart(layers));
  SHARPI_TRY(hold_all_terms(r, layers));
  const uint32_t most = core_.shape.kv_budget == 0 ? UINT32_MAX : core_.shape.kv_budget;
  choose_shared(core_.ledger(), layers, r.for_layer(r.budget), most, tables_);
  for (const uint32_t l : layers) {
    const std::span<const uint32_t> counts(tables_.counts(l), tables_.n_heads(l));
    moves->push_back(KvMove{l, {tables_.keep(l), counts, tables_.stride()}, true});
  }
  return Status::ok();
}

Status RowSelector::keep_going(const CompactRequest& r, size_t done, size_t total) const {
  const bool stop =
      core_.is_cancelled() ||
      (r.progress != nullptr && r.progress(r.user_data, SHARPI_PHASE_COMPACT, done, total) != 0);
  return stop ? Status::error(Code::kCancelled, "compaction was cancelled; nothing changed")
              : Status::ok();
}

Status RowSelector::select(const CompactRequest& r, std::vector<KvMove>* moves) {
  const std::vector<uint32_t> layers = core_.compactable_layers();
  if (r.policy == SHARPI_POLICY_KEEP) {
    for (const uint32_t l : layers)
      moves->push_back(KvMove{l, {r.keep.data(), 1, r.keep.size(), r.keep.size()}});
    return Status::ok();
  }
  if (r.budget >= core_.ledger().max_slots())
    return Status::ok();  // everything fits: all rows stay
  if (r.layer_budget == SHARPI_LAYER_BUDGET_SHARED) return select_shared(r, layers, moves);
  return policy_row(r.policy).scope == PolicyScope::kModel ? select_global(r, layers, moves)
                                                           : select_per_head(r, layers, moves);
}

}  // namespace sharpi
