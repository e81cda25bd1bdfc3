// SPDX-License-Identifier: MIT
// The solver: placement, context and KV dtype that fit the budgets. The requested context is a hard
// constraint; `auto` context is the largest that fits, or that leaves a memory without a budget to
// the host; `auto` dtype narrows where that keeps all blocks on the device, and where nothing else
// fits.
#include "plan/solver.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/checked.h"
#include "plan/drafter_plan.h"
#include "plan/ends.h"
#include "plan/plan_rates.h"
#include "plan/session_plan.h"
#include "plan/spread.h"

namespace sharpi {
namespace {

// An automatic context must not drive blocks off the device: the placement is the one for this many
// tokens, and the context then grows as far as that placement allows.
constexpr uint32_t kPlacedContext = 8192;

/// The largest n in [low, high] for which fits(n), given that it fits at low and that what fits
/// fits for every smaller n too.
template <class Fits>
uint32_t largest(uint32_t low, uint32_t high, const Fits& fits) {
  if (low >= high || fits(high)) return std::max(low, high);
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

class Solver {
 public:
  Solver(const SolveInputs& in, PlacementLadder* ladder, Plan* plan)
      : sizers_(in.sizers),
        ladder_(*ladder),
        session_(*in.params.session),
        environment_(in.environment),
        plan_(plan),
        ends_(usable_ends(*ladder, *plan)),
        n_ctx_(plan->session.n_ctx),
        host_(make_limit(in.host)),
        all_(in.all) {
    for (const DeviceRequest& d : in.devices) devices_.push_back(make_limit(d));
  }

  /// Whether all blocks that the pins allow there fit the device, the embedding apart where it may
  /// leave alone, with the default dtype or a narrower automatic one. What fits first is what
  /// solve() takes. Narrower rows go before an embedding on the host: a token reads fewer bytes.
  Result<bool> all_blocks_fit(bool narrows = true) {
    const std::vector<Ends> choices = ends_;
    for (const Ends ends : choices) {
      if (ends == Ends::kNone && ends != choices.front()) continue;  // the head is a block as well
      ladder_.keep(ends);
      SHARPI_TRY_ASSIGN(const bool fits, first_rung_fits(narrows));
      if (!fits) continue;
      ends_ = {ends};
      whole_ = automatic_;
      return true;
    }
    ladder_.keep(choices.front());
    return false;
  }

  /// What give_order() needs besides rates: the session on the device, and the tail's rows.
  KvDtypePair tail_dtypes() const {
    const auto or_f32 = [](sharpi_kv_dtype d) {
      return d == SHARPI_KV_AUTO ? KvDtype::kF32 : static_cast<KvDtype>(d);
    };
    return {or_f32(session_.tail_k_dtype), or_f32(session_.tail_v_dtype)};
  }
  /// Whether the least that may be on the device fits there. Leaves the session that this is about:
  /// its rows as the default dtype has them.
  bool fits_at_all() {
    automatic_ = plan_->spec->default_kv_dtype;
    plan_->session.n_ctx = placed_context();
    if (!set_placement(ladder_.least_rung()).is_ok()) return false;
    price_placed();
    const bool fits = check_devices().is_ok();
    return set_placement(0).is_ok() && fits;
  }

  Status solve() {
    automatic_ = whole_.value_or(plan_->spec->default_kv_dtype);
    plan_->narrowed = automatic_ != plan_->spec->default_kv_dtype;
    while (true) {
      const Status fits = place();
      if (fits.is_ok()) note_fallbacks();
      if (fits.is_ok() || fits.code() != Code::kDoesNotFit) return fits;
      // Narrowing saves context the caller asked for; an automatic context shrinks instead.
      const KvDtype next = narrower(automatic_);
      if (!any_auto_ || plan_->n_ctx_is_auto || next == automatic_) return with_hints(fits);
      // Rows that the narrower codec cannot store are no reason to refuse what nobody asked for.
      const KvDtype before = automatic_;
      automatic_ = next;
      if (!set_placement(ladder_.size() - 1).is_ok()) {
        automatic_ = before;
        SHARPI_TRY(set_placement(ladder_.size() - 1));
        return with_hints(fits);
      }
      plan_->narrowed = true;
    }
  }

 private:
  static KvDtype narrower(KvDtype d) { return kv_codec(d)->narrower; }

  /// The placement of a rung and the dtypes that go with it.
  Status set_placement(size_t rung, uint32_t n_slots = 0) {
    rung_ = rung;
    keeps_spread_ = false;
    const int32_t pinned = ladder_.pinned_slots();
    plan_->placement = ladder_.at(rung, pinned >= 0 ? static_cast<uint32_t>(pinned) : n_slots);
    plan_->placement.mtp = (plan_->session.drafters & SHARPI_DRAFT_MTP) != 0;
    if (has_draft_model(*plan_, plan_->session) && plan_->draft_on_host.empty())
      plan_->placement.draft = plan_->placement.head;
    SHARPI_TRY_ASSIGN(SessionDtypes d, resolve_dtypes(*plan_->spec, plan_->placement, session_,
                                                      environment_, automatic_));
    any_auto_ = d.any_auto;
    plan_->session.dtypes = std::move(d.per_layer);
    const std::vector<bool> all(plan_->spec->layers.size(), true);
    return check_kv_geometry(*plan_->spec, all, plan_->session.dtypes);
  }

  /// Rows of what is set, its blocks spread over the devices first.
  void price_placed() {
    Placement& p = plan_->placement;
    if (devices_.size() > 1 && !keeps_spread_) {
      const uint32_t n_slots = std::exchange(p.n_expert_slots, 0);
      p.slots_of.clear();
      spread(devices_, all_, plan_);
      spread_slots(n_slots, devices_, plan_);
    } else if (!keeps_spread_) {
      spread(devices_, all_, plan_);
    }
    price(sizers_, plan_);
  }

  Status check_devices() const {
    for (const MemoryLimit& l : devices_) SHARPI_TRY(check_limit(*plan_, l));
    return Status::ok();
  }

  /// Whether the first rung fits the device, with the default dtype or a narrower automatic one.
  Result<bool> first_rung_fits(bool narrows) {
    automatic_ = plan_->spec->default_kv_dtype;
    while (true) {
      SHARPI_TRY(set_placement(0));
      plan_->session.n_ctx = placed_context();
      price_placed();
      if (check_devices().is_ok()) return true;
      const KvDtype next = narrower(automatic_);
      const bool is_last = next == automatic_ || !narrows;
      if (!any_auto_ || plan_->n_ctx_is_auto || is_last) return false;
      automatic_ = next;
      if (!set_placement(0).is_ok()) return false;  // rows that this codec cannot store
    }
  }

  Status fit(uint32_t n_ctx) {
    plan_->session.n_ctx = n_ctx;
    price_placed();
    SHARPI_TRY(check_devices());
    return check_limit(*plan_, host_);
  }

  uint32_t placed_context() const {
    return n_ctx_ == SHARPI_UNSET ? std::min(plan_->spec->n_ctx_train, kPlacedContext) : n_ctx_;
  }

  /// The placement on which a token is fastest, of the first rungs that fit for each choice of
  /// ends. Where none fits, the first choice stays, for an automatic context to become shorter.
  Status place() {
    struct Found {
      Ends ends;
      size_t rung;
      Placement placed;
      TokenCost cost;
      bool keeps_spread;
    };
    const uint32_t n_ctx = placed_context();
    std::optional<Found> best;
    for (const Ends ends : ends_) {
      ladder_.keep(ends);
      SHARPI_TRY(find_rung(n_ctx));
      if (ends_.size() > 1 && !fit(n_ctx).is_ok()) continue;
      const Found found{ends, rung_, plan_->placement, token_cost(*plan_), keeps_spread_};
      if (!best || is_better(ends, found.cost, best->cost)) best = found;
    }
    ladder_.keep(best ? best->ends : ends_.front());
    SHARPI_TRY(best ? set_placement(best->rung, best->placed.n_expert_slots) : find_rung(n_ctx));
    if (best && best->keeps_spread) {
      plan_->placement = best->placed;
      keeps_spread_ = true;
    }
    return plan_->n_ctx_is_auto ? largest_context() : fit(n_ctx);
  }

  /// The first rung of a ladder that fits. Device bytes fall from rung to rung, so it is found by
  /// bisection.
  Status find_rung(uint32_t n_ctx) {
    size_t low = 0, high = ladder_.size() - 1;
    // The first rungs are tried one by one: with the first layers whose weights stream comes their
    // staging, which can take more than their blocks give back.
    for (size_t tried = 0; low < high; ++tried) {
      const size_t middle = tried < 3 ? low : low + (high - low) / 2;
      SHARPI_TRY(set_placement(middle));
      plan_->session.n_ctx = n_ctx;
      price_placed();
      if (check_devices().is_ok()) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    SHARPI_TRY(set_placement(low));
    return grow_slots(n_ctx);
  }

  /// As many expert slots as fit besides everything else.
  Status grow_slots(uint32_t n_ctx) {
    if (plan_->expert_slot_bytes == 0 || ladder_.pinned_slots() >= 0) return Status::ok();
    const size_t rung = rung_;
    const uint32_t most = ladder_.max_slots(rung);
    if (most == 0 || !fit(n_ctx).is_ok()) return Status::ok();
    if (devices_.size() > 1) return grow_slots_of_each(n_ctx);
    const uint32_t n = largest(0, most, [&](uint32_t slots) {
      return set_placement(rung, slots).is_ok() && fit(n_ctx).is_ok();
    });
    return set_placement(rung, n);
  }

  /// The same where layers are on several devices, and stay where they are.
  Status grow_slots_of_each(uint32_t n_ctx) {
    Placement& p = plan_->placement;
    keeps_spread_ = true;
    for (const MemoryLimit& l : devices_) {
      uint32_t& own = p.slots_of[index_of(l.index)];
      const uint32_t before = p.n_expert_slots;
      const auto take = [&](uint32_t n) {
        own = n;
        p.n_expert_slots = before + n;
      };
      const auto most = static_cast<uint32_t>(p.n_parted_experts(*plan_->spec, l.index));
      const uint32_t n = largest(0, most, [&](uint32_t slots) {
        take(slots);
        return fit(n_ctx).is_ok();
      });
      take(n);
    }
    keeps_spread_ = p.n_expert_slots != 0;
    return fit(n_ctx);
  }

  uint32_t least_context() const { return std::min(plan_->spec->n_ctx_train, kLeastContext); }

  /// Bytes grow with the context, so the largest that fits is found by bisection.
  Status largest_context() {
    const uint32_t least = least_context(), most = plan_->spec->n_ctx_train;
    SHARPI_TRY(fit(least));
    const uint32_t fits = largest(least, most, [&](uint32_t n) { return fit(n).is_ok(); });
    const uint32_t modest = std::min(most, kModestContext);
    SHARPI_TRY(fit(std::min(fits, modest)));
    modest_bytes_ = host_shares(*plan_).sessions;
    const uint32_t n =
        largest(least, fits, [&](uint32_t c) { return fit(c).is_ok() && leaves_room(); });
    kept_small_ = n < fits;
    return fit(n);
  }

  /// Whether an automatic context leaves the host's memory to the host, where no budget says how
  /// much is the library's: its sessions take no more of it than the weights take, or a modest
  /// context; all that is no copy of weights, half of what those leave.
  bool leaves_room() const {
    const MemoryShares host = host_shares(*plan_);
    if (!host_.is_free_memory || host.sessions == 0) return true;
    return host.sessions <= std::max(weight_bytes(*plan_), modest_bytes_) &&
           host.all - host.weights <= (host_.bytes - std::min(host_.bytes, host.weights)) / 2;
  }

  void note_fallbacks() {
    std::vector<std::string>& to = plan_->fallbacks;
    const std::string ctx = std::to_string(plan_->session.n_ctx);
    if (!plan_->placement_reason.empty()) to.push_back(plan_->placement_reason);
    if (ladder_.gives_way(rung_)) {
      const uint32_t slots = plan_->placement.n_expert_slots;
      to.push_back(ladder_.describe(rung_) +
                   (slots == 0 ? "" : ", with " + std::to_string(slots) + " expert slots") +
                   ": more does not fit");
    }
    if (plan_->narrowed) {
      const bool choice = rung_ == 0 && ladder_.size() > 1;  // blocks could have given way
      to.push_back(std::string("KV rows are ") + kv_dtype_name(automatic_) + ", not " +
                   kv_dtype_name(plan_->spec->default_kv_dtype) + ": n_ctx " + ctx +
                   " does not fit " +
                   (choice ? "with all blocks on the GPU otherwise" : "otherwise"));
    }
    if (plan_->n_ctx_is_auto && plan_->session.n_ctx < plan_->spec->n_ctx_train) {
      to.push_back("n_ctx is " + ctx + " of " + std::to_string(plan_->spec->n_ctx_train) +
                   (kept_small_ ? ": without a budget an automatic context takes no more memory "
                                  "than the weights, and half of what they leave of the host's"
                                : ": more does not fit"));
    }
  }

  // What would make a plan fit that does not: each is tried, and none is a guess. Pre: the last
  // rung is set.

  std::optional<std::string> shorter_context(uint32_t asked) {
    const uint32_t least = least_context();
    if (asked <= least || !fit(least).is_ok()) return {};
    const uint32_t n = largest(least, asked, [&](uint32_t c) { return fit(c).is_ok(); });
    return "n_ctx " + std::to_string(n);
  }

  std::optional<std::string> narrower_rows(uint32_t asked) {
    const sharpi_session_params before = session_;
    std::optional<std::string> found;
    for (const KvCodec& codec : kv_codecs()) {
      if (codec.dtype == KvDtype::kF32) continue;  // there is no wider one
      session_.k_dtype = session_.v_dtype = static_cast<sharpi_kv_dtype>(codec.dtype);
      if (found || !set_placement(rung_).is_ok() || !fit(asked).is_ok()) continue;
      found = std::string("KV dtype ") + codec.name;
    }
    session_ = before;
    const Status back = set_placement(rung_);
    return back.is_ok() ? found : std::nullopt;
  }

  std::optional<std::string> fewer_sessions(uint32_t asked) {
    const uint32_t before = plan_->model.n_sessions;
    const auto fits = [&](uint32_t n) {
      plan_->model.n_sessions = n;
      return fit(asked).is_ok();
    };
    std::optional<std::string> found;
    if (before > 1 && fits(1)) found = "n_sessions " + std::to_string(largest(1, before, fits));
    plan_->model.n_sessions = before;
    return found;
  }

  std::optional<std::string> weights_in_the_file(uint32_t asked) {
    if (!plan_->model.copy_weights) return {};
    plan_->model.copy_weights = false;
    const bool fits = fit(asked).is_ok();
    plan_->model.copy_weights = true;
    if (!fits) return {};
    return "load_mode MAP, which uses weights in place in the mapped file";
  }

  std::string larger_budgets(uint32_t asked) {
    std::string text;
    const Status as_asked = fit(asked);
    const auto add = [&](const MemoryLimit& l) {
      if (as_asked.is_ok() || check_limit(*plan_, l).is_ok()) return;
      text += (text.empty() ? "" : " with ") + l.name() + " " +
              std::to_string(peak_bytes(*plan_, l.index));
    };
    for (const MemoryLimit& l : devices_) add(l);
    add(host_);
    return text;
  }

  Status with_hints(const Status& fits) {
    const uint32_t asked = plan_->n_ctx_is_auto ? least_context() : plan_->session.n_ctx;
    std::string list;
    const auto add = [&](const std::optional<std::string>& hint) {
      if (hint && !hint->empty()) list += (list.empty() ? "" : ", or ") + *hint;
    };
    add(narrower_rows(asked));
    add(fewer_sessions(asked));
    add(weights_in_the_file(asked));
    add(larger_budgets(asked));
    add(shorter_context(asked));
    plan_->session.n_ctx = asked;
    if (list.empty()) return fits;
    const std::string what =
        plan_->n_ctx_is_auto ? " for n_ctx " + std::to_string(asked) + ", the least of auto" : "";
    return Status::error(Code::kDoesNotFit, "%s%s; what would fit: %s", fits.text().c_str(),
                         what.c_str(), list.c_str());
  }

  const std::vector<const TierSizer*>& sizers_;
  PlacementLadder& ladder_;
  sharpi_session_params session_;
  const PlanEnvironment& environment_;
  Plan* plan_;
  std::vector<Ends> ends_;  // that are tried
  const uint32_t n_ctx_;    // as asked for
  const MemoryLimit host_;
  std::vector<MemoryLimit> devices_;
  const bool all_;                // layers go to all devices
  bool keeps_spread_ = false;     // the placement says which device has which block
  uint64_t modest_bytes_ = 0;     // of the host, what the sessions take with a modest context
  bool kept_small_ = false;       // an automatic context could be larger
  std::optional<KvDtype> whole_;  // an automatic dtype with which all blocks fit
  size_t rung_ = 0;
  KvDtype automatic_ = KvDtype::kF32;
  bool any_auto_ = false;
};

/// Over all of the devices of `in`, or as many of them as it takes.
Status solve_over(const SolveInputs& in, PlacementLadder* ladder, Plan* plan) {
  Solver solver(in, ladder, plan);
  SHARPI_TRY_ASSIGN(const bool whole, solver.all_blocks_fit());
  if (!whole && ladder->order_matters() && solver.fits_at_all()) {
    SHARPI_TRY(set_rates(in.host, in.devices, in.params, in.machine, true, plan));
    ladder->order_by(give_order(*plan->spec, plan->session, solver.tail_dtypes(), plan->rates));
  }
  SHARPI_TRY(solver.solve());
  SHARPI_TRY(check_shared_rows(*plan));
  SHARPI_TRY(check_automatic_budget(plan->session));
  for (const DeviceRequest& d : in.devices) {
    SHARPI_TRY(d.sizer->check_session(*plan->spec, plan->placement.seen_from(d.sizer->device()),
                                      plan->session));
  }
  SHARPI_TRY(check_archive(*plan->spec, plan->session));
  plan->capture_bytes = capture_bytes(in.sizers, *plan);
  const size_t n = plan->placement.route().size();
  const bool needed = n > 1 || (n != 0 && plan->placement.uses(DeviceIndex::kHost));
  return set_rates(in.host, in.devices, in.params, in.machine, needed, plan);
}

/// The first device that holds all blocks which the pins allow there; the number of devices = none.
/// Where several can hold them together, that comes before narrower rows.
Result<size_t> first_that_holds_all(const SolveInputs& in, const PlacementLadder& ladder,
                                    const Plan& plan) {
  for (size_t d = 0; d < in.devices.size(); ++d) {
    SolveInputs one = in;
    one.devices = {in.devices[d]};
    PlacementLadder own = ladder;
    Plan trial = plan;
    SHARPI_TRY_ASSIGN(const bool whole,
                      Solver(one, &own, &trial).all_blocks_fit(!in.together.is_ok()));
    if (whole) return d;
  }
  return in.devices.size();
}

}  // namespace

MemoryShares host_shares(const Plan& plan) {
  MemoryShares shares;
  for (const MemoryRow& r : plan.rows) {
    if (r.kind == SHARPI_ROW_DEVICE || r.kind == SHARPI_ROW_MAPPED || r.transient != 0) continue;
    const uint64_t bytes =
        saturating_mul(r.held_bytes, r.per_session != 0 ? plan.model.n_sessions : 1);
    shares.all = saturating_add(shares.all, bytes);
    if (r.per_session != 0) shares.sessions = saturating_add(shares.sessions, bytes);
    if (r.purpose == SHARPI_ROW_WEIGHTS) shares.weights = saturating_add(shares.weights, bytes);
  }
  return shares;
}

uint64_t weight_bytes(const Plan& plan) {
  uint64_t bytes = 0;
  for (const MemoryRow& r : plan.rows) {
    const bool weights = r.purpose == SHARPI_ROW_WEIGHTS || r.purpose == SHARPI_ROW_EXPERTS;
    if (weights && r.transient == 0) bytes += r.held_bytes;
  }
  return bytes;
}

Status solve(const SolveInputs& in, PlacementLadder* ladder, Plan* plan) {
  const bool pinned = std::any_of(in.devices.begin(), in.devices.end(),
                                  [](const DeviceRequest& d) { return d.n_layers >= 0; });
  if (in.devices.size() < 2) return solve_over(in, ladder, plan);
  SolveInputs own = in;
  if (!in.all && !pinned) {
    SHARPI_TRY_ASSIGN(size_t one, first_that_holds_all(in, *ladder, *plan));
    const bool is_held = one < in.devices.size();
    if (!is_held && !in.together.is_ok() && !in.named) one = 0;  // as if it were alone
    if (one < in.devices.size()) own.devices = {in.devices[one]};
    if (own.devices.size() == 1 && !is_held)
      plan->fallbacks.push_back("one device is used of " + std::to_string(in.devices.size()) +
                                ": " + in.together.text());
  }
  if (own.devices.size() > 1) SHARPI_TRY(in.together);
  return solve_over(own, ladder, plan);
}

}  // namespace sharpi
