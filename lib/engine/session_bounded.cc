// SPDX-License-Identifier: MIT
// Who asks for compaction: the host (compact), the end of a prompt (prompt_budget), and sessions
// with a KV budget, between chunks and during decode.
#include <algorithm>

#include "base/limits.h"
#include "base/no_throw.h"
#include "engine/compaction.h"
#include "engine/session.h"

namespace sharpi {
namespace {

Status check_keep(const sharpi_compact_params& p, uint32_t n_slots,
                  std::span<const uint32_t>* out) {
  if (p.n_keep == 0 || p.keep == nullptr) {
    return Status::error(
        Code::kInvalidArgument,
        "policy KEEP needs a list of rows to keep, but n_keep is %u or keep is null", p.n_keep);
  }
  for (uint32_t i = 0; i < p.n_keep; ++i) {
    if (p.keep[i] >= n_slots) {
      return Status::error(Code::kInvalidArgument,
                           "keep[%u] is slot %u, but the session has %u rows", i, p.keep[i],
                           n_slots);
    }
    if (i > 0 && p.keep[i] <= p.keep[i - 1]) {
      return Status::error(Code::kInvalidArgument, "keep[%u] is %u after %u; slots must ascend", i,
                           p.keep[i], p.keep[i - 1]);
    }
  }
  *out = {p.keep, p.n_keep};
  return Status::ok();
}

Status check_sizes(const CompactRequest& r) {
  if (r.budget == 0)
    return Status::error(Code::kInvalidArgument, "budget is 0; at least 1 row must stay");
  if (r.recency > r.budget) {
    return Status::error(Code::kInvalidArgument,
                         "recency is %u, which is more than the budget of %u rows", r.recency,
                         r.budget);
  }
  if (uint64_t{r.sinks} + r.recency > r.budget) {
    return Status::error(Code::kInvalidArgument,
                         "sinks %u and recency %u are more than the budget of %u rows", r.sinks,
                         r.recency, r.budget);
  }
  if (r.pool_kernel % 2 == 0 || r.pool_kernel > kMaxPoolKernel) {
    return Status::error(Code::kInvalidArgument,
                         "pool_kernel is %u; an odd number up to %u is expected", r.pool_kernel,
                         kMaxPoolKernel);
  }
  if (r.span > kMaxSpan)
    return Status::error(Code::kInvalidArgument, "span is %u; at most %u is allowed", r.span,
                         kMaxSpan);
  return Status::ok();
}

}  // namespace

KvTotals Session::kv_totals() const {
  KvTotals t;
  for (const auto& tier : tiers_) {
    const KvStore& kv = tier->store();
    for (uint32_t g = 0; g < kv.layout().groups.size(); ++g) {
      const KvGroup& group = kv.layout().groups[g];
      t.held += kv.held_bytes(g);
      t.shared += kv.shared_bytes(g);
      for (const KvLayerLayout& l : group.layers) {
        const uint64_t rows =
            group.ring ? std::min(ledger_.n_tokens(), group.ring_slots) : ledger_.n_slots(l.layer);
        t.payload += rows * (uint64_t{l.k_row_bytes} + l.v_row_bytes);
      }
    }
  }
  if (mtp_ != nullptr) {
    const KvStore& kv = mtp_->tier().store();
    t.held += kv.held_bytes(0);
    t.payload += kv.layout().groups[0].payload_bytes(mtp_->rows().n_tokens());
  }
  if (draft_model_ != nullptr) {
    const KvTotals own = draft_model_->session().kv_totals();
    t.held += own.held;
    t.payload += own.payload;
  }
  return t;
}

Status Session::check_budget(const sharpi_compact_params& p, CompactRequest* r) const {
  if (p.policy != SHARPI_POLICY_KEEP && policy_row(p.policy).name == nullptr) {
    return Status::error(Code::kInvalidArgument, "policy is %u, which is none of SHARPI_POLICY_*",
                         p.policy);
  }
  if (p.layer_budget > SHARPI_LAYER_BUDGET_ENTROPY) {
    return Status::error(Code::kInvalidArgument,
                         "layer_budget is %u; allowed are EQUAL (0), PYRAMID (1) and ENTROPY (2)",
                         p.layer_budget);
  }
  r->policy = p.policy == SHARPI_POLICY_AUTO ? kDefaultPolicy : p.policy;
  r->recency = p.recency == SHARPI_UNSET ? kDefaultRecency : p.recency;
  r->sinks = p.sinks;
  r->headroom = p.headroom;
  r->pool_kernel = p.pool_kernel;
  r->span = p.span;
  r->layer_budget = p.layer_budget;
  r->progress = p.progress;
  r->user_data = p.user_data;
  if (r->policy == SHARPI_POLICY_KEEP) {
    if (ledger_.min_slots() != ledger_.max_slots()) {
      return Status::error(Code::kState,
                           "policy KEEP needs layers of equal length, but they hold %u to %u rows",
                           ledger_.min_slots(), ledger_.max_slots());
    }
    return check_keep(p, ledger_.max_slots(), &r->keep);
  }
  if (p.budget == SHARPI_UNSET) {
    return Status::error(Code::kInvalidArgument,
                         "budget is unset; it is required and says how many rows a layer keeps");
  }
  r->budget = p.budget;
  if (p.budget == SHARPI_BUDGET_AUTO) {
    const uint32_t rows = auto_budget(shape_.n_ctx, full_cache_bytes());
    r->budget = rows == 0 ? std::max(1u, ledger_.max_slots()) : rows;
    r->recency = std::min(r->recency, r->budget);
  }
  if (shape_.kv_budget != 0) r->budget = std::min(r->budget, shape_.kv_budget);
  if (p.recency == SHARPI_UNSET) {
    r->recency = std::min(r->recency, r->budget - std::min(r->sinks, r->budget));
  }
  return check_sizes(*r);
}

Status Session::use_captured(uint32_t window, CompactRequest* r) const {
  const uint32_t captured = ledger_.n_tokens() - ledger_.capture_low();
  const bool rings = shape_.capture_window != 0;
  if (!rings) {
    return Status::error(
        Code::kState, "the session captures no queries (capture_window 0) and no probe is given");
  }
  if (captured == 0) {
    return Status::error(
        Code::kState,
        "there are no captured queries: none came since a chunk failed, or none were saved");
  }
  if (window == 0)
    return Status::error(Code::kInvalidArgument, "window is 0; at least 1 query is needed");
  if (window != SHARPI_UNSET && window > shape_.capture_window) {
    return Status::error(Code::kInvalidArgument,
                         "window is %u, but the session captures %u queries", window,
                         shape_.capture_window);
  }
  if (window != SHARPI_UNSET && window > captured) {
    return Status::error(Code::kState, "window is %u, but only %u queries were captured so far",
                         window, captured);
  }
  r->source = Capture::kRing;
  r->n_queries = std::min(window, captured);
  r->first_position = ledger_.next_position() - r->n_queries;
  return Status::ok();
}

Status Session::use_probe(std::span<const int32_t> probe, CompactRequest* r) {
  const ModelShape& model = model_->plan().model;
  if (probe.size() > model.n_chunk) {
    return Status::error(Code::kInvalidArgument,
                         "the probe has %zu tokens, which is more than a chunk of %u", probe.size(),
                         model.n_chunk);
  }
  SHARPI_TRY(check_tokens(probe));
  if (probe_seen_)
    SHARPI_TRY(check_sight(shape_.probe));  // it is looked at again if this one fails
  SHARPI_TRY(observe(probe, ledger_.next_position(), false));
  r->source = Capture::kObserver;
  r->n_queries = static_cast<uint32_t>(probe.size());
  r->first_position = ledger_.next_position();
  return Status::ok();
}

Status Session::compact(const sharpi_compact_params& p, sharpi_compact_report* report) {
  const bool seen = probe_seen_;
  const Status done = no_throw([&] { return compact_now(p, report); });
  if (done.is_ok() || !seen || probe_seen_) return end_call(done);
  // Nothing has changed but the observer rows, and those depend on nothing but the probe.
  changed_ = true;
  probe_seen_ = observe(shape_.probe, probe_position_, true).is_ok();
  return end_call(done);
}

Status Session::compact_now(const sharpi_compact_params& p, sharpi_compact_report* report) {
  SHARPI_TRY(begin_call());
  if (compactable_layers().empty()) {
    return Status::error(Code::kUnsupported, "this model has no full-attention layers to compact");
  }
  if (ledger_.n_tokens() == 0) return Status::error(Code::kState, "the session is empty");
  if (p.n_probe != 0 && p.probe == nullptr) {
    return Status::error(Code::kInvalidArgument, "n_probe is %u but probe is null", p.n_probe);
  }
  CompactRequest r;
  SHARPI_TRY(check_budget(p, &r));
  if (shape_.kv_budget != 0) r.shrink = false;  // a bounded session keeps what it was priced for
  if (r.policy != SHARPI_POLICY_KEEP) {
    if (p.n_probe != 0) {
      SHARPI_TRY(use_probe({p.probe, p.n_probe}, &r));
    } else {
      SHARPI_TRY(use_captured(p.window, &r));
    }
  }
  return run_compaction(r, report);
}

CompactRequest Session::standing_request(uint32_t budget) const {
  CompactRequest r;
  r.policy = shape_.policy == SHARPI_POLICY_AUTO ? kDefaultPolicy : shape_.policy;
  r.budget = budget;
  r.recency = std::min(shape_.recency, budget);
  r.sinks = std::min(shape_.sinks, budget - r.recency);
  return r;
}

Status Session::compact_after_prompt() {
  uint32_t budget = shape_.prompt_budget;
  if (budget == SHARPI_BUDGET_AUTO) budget = auto_budget(shape_.n_ctx, full_cache_bytes());
  if (budget == 0 || ledger_.max_slots() <= budget || compactable_layers().empty())
    return Status::ok();
  CompactRequest r = standing_request(budget);
  SHARPI_TRY(use_captured(SHARPI_UNSET, &r));
  return run_compaction(r, nullptr);
}

Status Session::prepare_look_ahead(std::span<const int32_t> prompt) {
  look_ahead_ = 0;
  if (shape_.kv_budget == 0 || prompt.size() <= free_slots()) return Status::ok();
  std::span<const int32_t> watch(shape_.probe);
  uint64_t position = ledger_.next_position() + prompt.size();  // a probe follows the prompt
  if (watch.empty()) {
    if (!shape_.lookahead) return Status::ok();
    const uint32_t most = std::min(shape_.capture_window, model_->plan().model.n_chunk);
    watch = prompt.last(std::min<size_t>(most, prompt.size()));
    position -= watch.size();
  }
  if (watch.empty()) return Status::ok();
  if (watch.size() > free_slots()) {
    if (probe_seen_) {  // the probe's queries of an earlier call, not those of the text before it
      look_ahead_ = static_cast<uint32_t>(watch.size());
      look_ahead_position_ = ledger_.next_position();
    }
    SHARPI_TRY(compact_to_budget());
  }
  changed_ = true;
  SHARPI_TRY(observe(watch, position, true));
  probe_seen_ = !shape_.probe.empty();
  probe_position_ = position;
  look_ahead_ = static_cast<uint32_t>(watch.size());
  look_ahead_position_ = position;
  return Status::ok();
}

Status Session::compact_to_budget() {
  CompactRequest r = standing_request(shape_.kv_budget);
  r.shrink = false;
  // The last rows that stay are the prompt's, not those of a chunk in its middle.
  const uint64_t now = ledger_.next_position(), unread = prompt_end_ > now ? prompt_end_ - now : 0;
  r.recency = r.recency > unread ? static_cast<uint32_t>(r.recency - unread) : 0;
  if (look_ahead_ != 0) {
    r.source = Capture::kObserver;
    r.n_queries = look_ahead_;
    r.first_position = look_ahead_position_;
  } else {
    SHARPI_TRY(use_captured(SHARPI_UNSET, &r));
  }
  SHARPI_TRY(run_compaction(r, nullptr));
  changed_ = true;
  return Status::ok();
}

std::string Session::why_it_ends() const {
  const uint32_t n_chunk = model_->plan().model.n_chunk;
  const auto text = [](const char* what, uint64_t least) {
    return std::string("; a bounded session goes on only if ") + what +
           " fit n_ctx: " + std::to_string(least) + " tokens";
  };
  if (shape_.kv_budget == 0) return " or a session with a kv_budget, which goes on";
  const uint64_t rows = uint64_t{shape_.kv_budget} + n_chunk;
  if (rows > shape_.n_ctx) return text("kv_budget and a chunk", rows);
  for (const LayerSpec& l : model_->spec().layers) {
    const uint32_t window = l.mixer == MixerKind::kAttention ? l.attention.window : 0;
    const uint64_t ring = uint64_t{window} + shape_.rewind + shape_.n_draft + n_chunk;
    if (window != 0 && ring > shape_.n_ctx)
      return text("its sliding window, rewind, drafts and a chunk", ring);
  }
  return {};
}

/// Makes the last tokens of the context the first ones of it, for n more. Recent rows stay as they
/// are: the base of positions moves instead, and only rows that would fall before it are turned to
/// positions behind it.
Status Session::go_on(uint64_t n) {
  SHARPI_TRY(catch_up());  // it needs tokens that may go
  uint64_t stay = std::min<uint64_t>(shape_.n_ctx / 2, shape_.n_ctx - n);
  for (const auto& tier : tiers_) {
    for (const KvGroup& g : tier->store().layout().groups) {
      if (g.ring) stay = std::max<uint64_t>(stay, g.ring_slots);
    }
  }
  // Layers that have evicted nothing hold a row for every token.
  if (ledger_.max_slots() + n > shape_.n_ctx) SHARPI_TRY(compact_to_budget());
  stay = std::max<uint64_t>(stay, ledger_.max_slots());
  if (stay + n > shape_.n_ctx) return no_room(n);
  const auto shift = static_cast<uint32_t>(ledger_.n_tokens() - stay);
  changed_ = true;
  for (const uint32_t l : compactable_layers()) {
    SHARPI_TRY(turner_.turn(&store(l), l, ledger_, shift));
  }
  ledger_.rebase(shift);
  history_.erase(history_.begin(), history_.begin() + shift);
  if (ngram_ != nullptr) ngram_->truncate(0);  // every position is another one now
  std::fill(checkpoints_.begin(), checkpoints_.end(), Checkpoint{});
  return Status::ok();
}

Status Session::make_room(uint64_t n) {
  if (ledger_.n_tokens() + n > shape_.n_ctx) SHARPI_TRY(go_on(n));
  if (n <= free_slots()) return Status::ok();
  if (shape_.kv_budget != 0) SHARPI_TRY(compact_to_budget());
  return n <= free_slots() ? Status::ok() : no_room(n);
}

}  // namespace sharpi
